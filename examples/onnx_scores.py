"""Score inputs with an exported model or field, without torch and qipf.

    python -m pip install numpy onnxruntime
    python examples/onnx_scores.py model.onnx inputs.npy --output scores.npz
    python examples/onnx_scores.py model.onnx inputs.npy --expected expected.npz

`inputs.npy` contains the input of the file: images for a model, logits for a field. Prints the
uncertainty of each row (higher is less trustworthy), or saves all outputs of the file. With
`--expected`, prints the differences from PyTorch's outputs (see onnx_digits.py), and fails if one
of them is more than 1e-4.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import onnxruntime

KINDS = {"tensor(float)": np.float32, "tensor(double)": np.float64}

#: Largest difference that the order of float32 sums in ONNX Runtime may cause.
ALLOWED = 1e-4


def scores(model: Path, inputs: np.ndarray, batch: int) -> dict[str, np.ndarray]:
    """All outputs of the file for all rows, computed batch by batch."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    names = [output.name for output in session.get_outputs()]
    inputs = inputs.astype(KINDS.get(entry.type, inputs.dtype), copy=False)
    parts = [
        session.run(None, {entry.name: inputs[start : start + batch]})
        for start in range(0, max(1, len(inputs)), batch)
    ]
    columns = zip(*parts, strict=True)
    return dict(zip(names, map(np.concatenate, columns), strict=True))


def difference(name: str, got: np.ndarray, want: np.ndarray) -> float:
    """Largest difference, relative to max(1, |value|); for logits, to the largest of their row."""
    if got.shape != want.shape:
        sys.exit(f"{name} has the shape {got.shape}, but {want.shape} was expected.")
    size = np.abs(want.astype(np.float64))
    if name == "logits":
        size = size.max(axis=1, keepdims=True)
    apart = np.abs(got.astype(np.float64) - want) / np.maximum(1, size)
    return float(apart.max(initial=0.0))


def compare(found: dict[str, np.ndarray], expected: Path) -> None:
    """Print the differences from the outputs in a file, and fail if one is too large."""
    with np.load(expected) as file:
        apart = {name: difference(name, found[name], file[name]) for name in file}
    installed = f"numpy {np.__version__}, onnxruntime {onnxruntime.__version__}"
    print(f"{len(found['uncertainty']):,} rows, {installed}; largest relative difference")
    for name, value in apart.items():
        print(f"{name:>12}  {value:.1e}")
    # written so that NaN fails as well
    if not all(value <= ALLOWED for value in apart.values()):
        sys.exit(f"The scores differ by more than {ALLOWED:.0e}.")


def main() -> None:
    """Read and score the inputs; print, save or compare the outputs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="an .onnx file exported by qipf")
    parser.add_argument("inputs", type=Path, help="an .npy file of inputs")
    parser.add_argument("--output", type=Path, help="an .npz file for all outputs")
    parser.add_argument("--expected", type=Path, help="an .npz file of outputs to compare with")
    parser.add_argument("--batch", type=int, default=256, help="rows per batch")
    options = parser.parse_args()
    found = scores(options.model, np.load(options.inputs), options.batch)
    if options.output is not None:
        np.savez(options.output, **found)
        print(f"wrote {options.output}: {len(found['uncertainty'])} rows of {', '.join(found)}")
    if options.expected is not None:
        compare(found, options.expected)
    if options.output is options.expected is None:
        print("\n".join(f"{value:.6g}" for value in found["uncertainty"]))


if __name__ == "__main__":
    main()
