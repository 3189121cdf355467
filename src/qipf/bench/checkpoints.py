"""Checkpoints of trainings: atomic writes, read without pickle."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qipf.errors import QIPFInputError
from qipf.io.atomic import atomic_write


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """Digest of the content of tensors, in this order.

    >>> fingerprint([torch.zeros(2)]) == fingerprint([torch.zeros(3)])
    False
    """
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        array = tensor.detach().cpu().contiguous().numpy()
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Checkpoint:
    """A training's state in a file, and the settings it belongs to."""

    path: Path
    settings: dict[str, Any]

    def save(self, epochs_done: int, **states: Any) -> None:
        """Replace the file atomically."""
        with atomic_write(self.path) as file:
            torch.save({"settings": self.settings, "epochs_done": epochs_done, **states}, file)

    def load(self) -> dict[str, Any] | None:
        """The last saved state; None if there is none."""
        if not self.path.exists():
            return None
        try:
            saved: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
            settings = saved["settings"]
        except Exception as error:
            raise QIPFInputError(
                f"{self.path} is not a training checkpoint ({type(error).__name__}). "
                "Delete it to train from the start."
            ) from error
        changes = "; ".join(
            f"{name} was {settings.get(name)!r}, is {self.settings.get(name)!r}"
            for name in sorted(settings.keys() | self.settings.keys())
            if settings.get(name) != self.settings.get(name)
        )
        if changes:
            raise QIPFInputError(
                f"{self.path} belongs to a training with other settings ({changes}). "
                "Delete it, or name another checkpoint."
            )
        return saved
