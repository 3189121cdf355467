"""The benchmark's networks, and how each is trained.

All but the transformer of texts take float images in [0, 1], which their first layer maps to
[-1, 1]; all return logits.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from qipf.bench.methods.network import Centre, LayeredNetwork, seeded
from qipf.bench.modern_networks import ResNet18, TextTransformer, VisionTransformer
from qipf.errors import QIPFInputError, unknown_name


@dataclass(frozen=True)
class Recipe:
    """How a network is trained: Adam on cross-entropy, a one-cycle rate.

    `augment`: shift by up to 4 pixels and flip sideways, drawn anew each epoch.
    `cutout`: side of a square that is blanked at a random place of each augmented image.
    `weight_decay`: of matrices and filters, decoupled (AdamW).
    `pool`: if positive, networks of the seeds 0 … pool - 1 are trained once for all of them, and
    the ensemble of one seed consists of the networks of the others.
    `bfloat16`: on a GPU, multiply in bfloat16 (weights and their updates stay float32).
    `dropout_rate`: what MC-Dropout uses when this network is tested.
    """

    epochs: int
    batch_size: int = 128
    learning_rate: float = 2e-3
    augment: bool = False
    bfloat16: bool = False
    dropout_rate: float = 0.1
    cutout: int = 0
    weight_decay: float = 0.0
    pool: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "learning_rate"):
            if not getattr(self, name) > 0:
                raise QIPFInputError(f"{name} must be positive; got {getattr(self, name)}.")
        if not 0 < self.dropout_rate < 1:
            raise QIPFInputError(
                f"dropout_rate must lie strictly between 0 and 1; got {self.dropout_rate}."
            )
        for name in ("cutout", "weight_decay", "pool"):
            if getattr(self, name) < 0:
                raise QIPFInputError(f"{name} must not be negative; got {getattr(self, name)}.")
        if self.cutout and not self.augment:
            raise QIPFInputError("cutout is part of the augmentation; set augment=True.")

    def settings(self) -> dict[str, Any]:
        """All that determines a training, for records; options that are off are left out.

        >>> "cutout" in Recipe(epochs=1).settings()
        False
        """
        off = [name for name in ("cutout", "weight_decay", "pool") if not getattr(self, name)]
        return {name: value for name, value in asdict(self).items() if name not in off}


class LeNet(LayeredNetwork):
    """Two 5×5 convolutions (6 and 16 filters, tanh, average pooling), then dense 120-84-classes.

    Images smaller than 32×32 are padded by two pixels, as in LeNet-5 on MNIST.

    >>> LeNet(channels=1, classes=10, size=28).body[5].weight.shape
    torch.Size([16, 6, 5, 5])
    """

    def __init__(self, channels: int = 1, classes: int = 10, size: int = 28) -> None:
        frame = 2 if size < 32 else 0
        side = ((size + 2 * frame - 4) // 2 - 4) // 2
        _check_size("LeNet", size, smallest=12, fits=side > 0)
        super().__init__(
            [
                Centre(),
                nn.Conv2d(channels, 6, 5, padding=frame), nn.Tanh(), nn.AvgPool2d(2),
                nn.Dropout(0.0),
                nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(),
                nn.Dropout(0.0),
                nn.Linear(16 * side * side, 120), nn.Tanh(),
                nn.Dropout(0.0),
                nn.Linear(120, 84), nn.Tanh(),
                nn.Dropout(0.0),
            ],
            nn.Linear(84, classes),
        )  # fmt: skip


class VGG3(LayeredNetwork):
    """Three blocks of two 3×3 convolutions (32, 64, 128 filters), then dense 128-classes.

    Each convolution has batch norm and ReLU; each block ends in max pooling and dropout, and there
    is a dropout between the dense layers.

    >>> sum(weights.numel() for weights in VGG3().parameters())
    551018
    """

    RATES = (0.1, 0.15, 0.2, 0.3)

    def __init__(self, channels: int = 3, classes: int = 10, size: int = 32) -> None:
        side = size // 8
        _check_size("VGG3", size, smallest=8, fits=side > 0)
        body: list[nn.Module] = [Centre()]
        blocks = ((channels, 32), (32, 64), (64, 128))
        for (given, filters), rate in zip(blocks, self.RATES[:3], strict=True):
            for inputs in (given, filters):
                # no bias: batch norm has its own
                body.append(nn.Conv2d(inputs, filters, 3, padding=1, bias=False))
                body += [nn.BatchNorm2d(filters), nn.ReLU()]
            body += [nn.MaxPool2d(2), nn.Dropout(rate)]
        body += [nn.Flatten(), nn.Linear(128 * side * side, 128), nn.ReLU()]
        super().__init__([*body, nn.Dropout(self.RATES[3])], nn.Linear(128, classes))


class DigitsMLP(LayeredNetwork):
    """Dense 128-64-classes with ReLU, for images as small as 8×8.

    Dropout may act before the dense layers that read activations, not before the pixels.

    >>> DigitsMLP().head
    Linear(in_features=64, out_features=10, bias=True)
    """

    def __init__(self, channels: int = 1, classes: int = 10, size: int = 8) -> None:
        _check_size("DigitsMLP", size, smallest=1, fits=size > 0)
        super().__init__(
            [
                Centre(), nn.Flatten(),
                nn.Linear(channels * size * size, 128), nn.ReLU(),
                nn.Dropout(0.0),
                nn.Linear(128, 64), nn.ReLU(),
                nn.Dropout(0.0),
            ],
            nn.Linear(64, classes),
        )  # fmt: skip


#: Networks by the name they have in the benchmark's tables, as in ``mnist_lenet``: the class, made
#: from channels, classes and size (of texts: word pieces, classes and length), and the default
#: recipe.
NETWORKS: dict[str, tuple[Callable[[int, int, int], LayeredNetwork], Recipe]] = {
    "lenet": (LeNet, Recipe(epochs=20)),
    "vgg3": (
        VGG3,
        Recipe(
            epochs=40,
            batch_size=256,
            learning_rate=3e-3,
            augment=True,
            bfloat16=True,
            dropout_rate=0.2,
        ),
    ),
    "mlp": (DigitsMLP, Recipe(epochs=40, batch_size=64)),
    "resnet18": (
        ResNet18,
        Recipe(
            epochs=30,
            batch_size=512,
            learning_rate=3e-3,
            augment=True,
            bfloat16=True,
            cutout=8,
            weight_decay=0.2,
            pool=6,
        ),
    ),
    "vit": (
        VisionTransformer,
        Recipe(
            epochs=60,
            batch_size=256,
            learning_rate=1e-3,
            augment=True,
            bfloat16=True,
            cutout=12,
            weight_decay=0.1,
            pool=6,
        ),
    ),
    "transformer": (
        TextTransformer,
        Recipe(epochs=12, batch_size=128, learning_rate=2e-3, weight_decay=0.05, pool=6),
    ),
}


def build(
    name: str, channels: int, classes: int, size: int, seed: int = 0
) -> tuple[LayeredNetwork, Recipe]:
    """A network by name, with initial weights drawn from `seed`, and its recipe.

    >>> network, recipe = build("mlp", channels=1, classes=10, size=8)
    >>> type(network).__name__, recipe.epochs
    ('DigitsMLP', 40)
    """
    if name not in NETWORKS:
        raise unknown_name("network", name, NETWORKS)
    make, recipe = NETWORKS[name]
    with seeded("cpu", seed):
        return make(channels, classes, size), recipe


def _check_size(network: str, size: int, smallest: int, fits: bool) -> None:
    if not fits:
        raise QIPFInputError(
            f"{network} needs images of at least {smallest}×{smallest} pixels; got size={size}."
        )
