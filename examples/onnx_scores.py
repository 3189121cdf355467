"""Score inputs with an exported model or field, where neither torch nor qipf is installed.

    python -m pip install numpy onnxruntime
    python examples/onnx_scores.py model.onnx inputs.npy --output scores.npz

`inputs.npy` holds the file's one input, row by row: images for a model, logits for a field. Prints
the uncertainty of each row (higher = less to be trusted), or saves everything the file gives.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnxruntime

KINDS = {"tensor(float)": np.float32, "tensor(double)": np.float64}


def scores(model: Path, inputs: np.ndarray, batch: int) -> dict[str, np.ndarray]:
    """Every output of the file for all rows, a batch at a time."""
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


def main() -> None:
    """Read, score, print or save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="an .onnx file that qipf has exported")
    parser.add_argument("inputs", type=Path, help="an .npy file of its input")
    parser.add_argument("--output", type=Path, help="an .npz file for all outputs")
    parser.add_argument("--batch", type=int, default=256, help="rows at a time")
    options = parser.parse_args()
    found = scores(options.model, np.load(options.inputs), options.batch)
    if options.output is None:
        print("\n".join(f"{value:.6g}" for value in found["uncertainty"]))
    else:
        np.savez(options.output, **found)
        print(f"wrote {options.output}: {len(found['uncertainty'])} rows of {', '.join(found)}")


if __name__ == "__main__":
    main()
