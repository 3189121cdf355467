"""A network's logits and features on a level of a corruption, computed once and kept on disk.

They are found by content: the weights, the test images, and a sample of the spoilt images, so
that neither another training nor a changed corruption can be mistaken for the one that was kept.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from qipf.bench.checkpoints import fingerprint
from qipf.bench.methods.network import LayeredNetwork, Outputs, predict
from qipf.io.atomic import atomic_write

#: Spoilt images that are looked at to tell one corruption from another.
SAMPLE = 64


def wait_for(device: torch.device) -> None:
    """Return once the device has done what it was asked; clocks read before would lie."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class OutputCache:
    """The outputs of one network on spoilt versions of one set of images."""

    def __init__(self, folder: Path, network: LayeredNetwork, images: Tensor) -> None:
        self.network = network
        self._folder = folder / fingerprint([*network.state_dict().values(), images])

    def outputs(
        self, spoilt: Tensor, corruption: str, level: float
    ) -> tuple[Outputs, float | None]:
        """Logits and features, and the seconds they took; none if they were known."""
        sample = spoilt[:: max(1, len(spoilt) // SAMPLE)]
        path = self._folder / f"{corruption}-{level!r}-{fingerprint([sample])}.safetensors"
        known = self._read(path, len(spoilt))
        if known is not None:
            return known, None
        device = self.network.device
        wait_for(device)
        start = time.perf_counter()
        outputs = predict(self.network, spoilt)
        wait_for(device)
        seconds = time.perf_counter() - start
        with atomic_write(path) as file:
            file.write(save({k: v.cpu().contiguous() for k, v in outputs._asdict().items()}))
        return outputs, seconds

    def _read(self, path: Path, count: int) -> Outputs | None:
        """What was kept; a file that cannot be used is as good as none."""
        try:
            kept = load_file(path, device=str(self.network.device))
            outputs = Outputs(kept["logits"], kept["features"])
        except (OSError, SafetensorError, KeyError):
            return None
        return outputs if len(outputs.logits) == count else None
