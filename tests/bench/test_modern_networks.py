from __future__ import annotations

import pytest
import torch

from qipf.bench.modern_networks import ResNet18, TextTransformer, VisionTransformer
from qipf.bench.networks import NETWORKS, build
from qipf.errors import QIPFInputError


@pytest.mark.parametrize(("make", "width"), [(ResNet18, 8), (VisionTransformer, 64)])
@pytest.mark.parametrize(("channels", "size"), [(3, 32), (1, 28)])
def test_images_become_features_and_logits(make, width, channels, size):
    network = make(channels, 7, size, width).eval()
    images = torch.rand(3, channels, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features = network.features(images)
        assert features.shape == (3, 64)
        assert network(images).shape == (3, 7)
        # one example does not change another
        torch.testing.assert_close(network(images[:1]), network(images)[:1], rtol=1e-4, atol=1e-5)


def test_resnet18_has_the_published_layers():
    network = ResNet18()
    convolutions = [m for m in network.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convolutions) == 17 + 3  # and three shortcuts
    assert network.head.in_features == 512


@pytest.fixture
def transformer() -> TextTransformer:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TextTransformer(pieces=30, classes=4, length=12, width=64).eval()


def test_padding_changes_nothing(transformer):
    tokens = torch.randint(2, 30, (5, 6), generator=torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(tokens, (0, 6))
    with torch.no_grad():
        torch.testing.assert_close(transformer(padded), transformer(tokens))


def test_words_their_order_and_empty_texts(transformer):
    tokens = torch.tensor([[3, 4, 5, 0], [5, 4, 3, 0], [3, 4, 6, 0], [0, 0, 0, 0]])
    with torch.no_grad():
        logits = transformer(tokens)
    assert torch.isfinite(logits).all()
    assert len({tuple(row.tolist()) for row in logits}) == 4


def test_recipes_share_their_networks_in_a_pool():
    for name in ("resnet18", "vit", "transformer"):
        assert NETWORKS[name][1].pool == 6
    network, _ = build("transformer", 50, 3, 9, seed=1)
    again, _ = build("transformer", 50, 3, 9, seed=1)
    assert torch.equal(network.head.weight, again.head.weight)


def test_too_small_images_are_refused():
    with pytest.raises(QIPFInputError, match="ResNet18 needs images of at least 8×8"):
        ResNet18(size=4)
    with pytest.raises(QIPFInputError, match="a multiple of 4, 8 or more; got size=30"):
        VisionTransformer(size=30)
