"""Networks with named parts (layers, features, last layer), and draws from a given seed."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from qipf.errors import QIPFInputError
from qipf.network.forward import evaluating


def mixed_seed(*entropy: int) -> int:
    """One seed from several numbers; neighbouring numbers give unrelated seeds.

    >>> mixed_seed(0, 1) == mixed_seed(0, 1), mixed_seed(0, 1) == mixed_seed(1, 0)
    (True, False)
    """
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> np.uint64(1))


@contextmanager
def seeded(device: torch.device | str, *entropy: int) -> Iterator[None]:
    """Seed torch on the CPU and `device` within the context; restore its state afterwards.

    >>> with seeded("cpu", 3):
    ...     first = torch.rand(2)
    >>> with seeded("cpu", 3):
    ...     bool((torch.rand(2) == first).all())
    True
    """
    device = torch.device(device)
    forked = [device] if device.type == "cuda" else []
    seed = mixed_seed(*entropy)
    with torch.random.fork_rng(devices=forked, device_type="cuda"):
        # torch.manual_seed would also reseed devices that are not forked here
        torch.default_generator.manual_seed(seed)
        if forked:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


#: Rows that pass through a network at once when nothing is learned.
ROWS = 2500


class Centre(nn.Module):
    """From [0, 1] to [-1, 1]."""

    def forward(self, images: Tensor) -> Tensor:
        """2x - 1."""
        return 2 * images - 1


class LayeredNetwork(nn.Module):
    r"""A chain of layers, `body`, and the dense layer that ends it, `head`.

    .. math:: \text{logits}(x) = \text{head}(\text{body}(x))

    The body holds an `nn.Dropout` after each convolutional block and before each dense layer, of
    rate 0 where the network trains without dropout. That is where MC-Dropout acts.
    Images come as floats in [0, 1].

    >>> network = LayeredNetwork([nn.Flatten(), nn.Linear(4, 3), nn.Tanh()], nn.Linear(3, 2))
    >>> network(torch.zeros(5, 1, 2, 2)).shape, network.features(torch.zeros(5, 1, 2, 2)).shape
    (torch.Size([5, 2]), torch.Size([5, 3]))
    """

    def __init__(self, body: Sequence[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)
        self.head = head

    def features(self, images: Tensor) -> Tensor:  # (n, C, H, W) -> (n, width)
        """The activations that the last dense layer reads."""
        features: Tensor = self.body(images)
        return features

    def forward(self, images: Tensor) -> Tensor:  # (n, C, H, W) -> (n, classes)
        """Logits."""
        logits: Tensor = self.head(self.features(images))
        return logits

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device


class Outputs(NamedTuple):
    """Outputs of one forward pass, shared by all methods."""

    logits: Tensor  # (n, classes)
    features: Tensor  # (n, width)


def fresh_copy(network: LayeredNetwork) -> LayeredNetwork:
    """A copy of the network with newly drawn weights."""
    copied = copy.deepcopy(network)
    for module in copied.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
    return copied


def unit_range(images: Tensor) -> Tensor:
    """Bytes become floats in [0, 1]; floats, and the int64 tokens of texts, stay as they are.

    >>> unit_range(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([0., 1.])
    """
    if images.dtype == torch.uint8:
        return images.float() / 255
    tokens = images.dtype == torch.int64 and images.ndim == 2
    if not images.is_floating_point() and not tokens:
        raise QIPFInputError(
            f"images must be uint8 (0 to 255) or floating point (0 to 1); got {images.dtype}. "
            "Convert them with images.to(torch.uint8) or images.float()."
        )
    return images


def predict(network: LayeredNetwork, images: Tensor, batch_size: int = ROWS) -> Outputs:
    """Logits and features of all images, in evaluation mode, on the network's device.

    >>> network = LayeredNetwork([nn.Flatten()], nn.Linear(4, 2))
    >>> predict(network, torch.zeros(3, 1, 2, 2, dtype=torch.uint8)).logits.shape
    torch.Size([3, 2])
    """
    if batch_size < 1:
        raise QIPFInputError(f"batch_size must be at least 1; got {batch_size}.")
    device = network.device
    with evaluating(network), torch.no_grad():
        features = torch.cat(
            [network.features(unit_range(part.to(device))) for part in images.split(batch_size)]
        )
        return Outputs(network.head(features), features)
