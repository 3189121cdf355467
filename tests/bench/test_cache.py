import torch
from torch import nn

from qipf.bench.cache import OutputCache
from qipf.bench.methods.network import LayeredNetwork, predict


def network(seed):
    torch.manual_seed(seed)
    return LayeredNetwork([nn.Flatten(), nn.Linear(4, 3)], nn.Linear(3, 2))


def test_outputs_are_computed_once_and_found_by_content(tmp_path):
    images = torch.rand(5, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    first = OutputCache(tmp_path, network(0), images)
    outputs, seconds = first.outputs(images, "zoom", 2.0)
    assert seconds is not None
    again, known = OutputCache(tmp_path, network(0), images).outputs(images, "zoom", 2.0)
    assert known is None
    assert torch.equal(again.logits, outputs.logits)
    assert torch.equal(again.features, outputs.features)
    assert torch.equal(again.logits, predict(network(0), images).logits)


def test_other_weights_images_or_corruptions_are_not_mistaken(tmp_path):
    images = torch.rand(5, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    OutputCache(tmp_path, network(0), images).outputs(images, "zoom", 2.0)
    for weights, given, spoilt, level in (
        (1, images, images, 2.0),  # another training
        (0, 1 - images, images, 2.0),  # another test set
        (0, images, images / 2, 2.0),  # the corruption's code was changed
        (0, images, images, 3.0),
    ):
        cache = OutputCache(tmp_path, network(weights), given)
        outputs, seconds = cache.outputs(spoilt, "zoom", level)
        assert seconds is not None
        assert torch.equal(outputs.logits, predict(network(weights), spoilt).logits)


def test_a_file_that_cannot_be_used_is_as_good_as_none(tmp_path):
    images = torch.rand(5, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    cache = OutputCache(tmp_path, network(0), images)
    outputs, _ = cache.outputs(images, "zoom", 2.0)
    (file,) = tmp_path.rglob("*.safetensors")
    for content in (b"", file.read_bytes()[:-4]):
        file.write_bytes(content)
        again, seconds = cache.outputs(images, "zoom", 2.0)
        assert seconds is not None
        assert torch.equal(again.logits, outputs.logits)
