"""Corruptions with five severities: what all of them keep to, and what each one does."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from qipf.bench.corruptions import CORRUPTIONS, UNRELATED, corrupt
from qipf.bench.corruptions.weather import smooth_noise
from qipf.errors import QIPFInputError
from qipf.layered.perturbations import FOR_IMAGES

SEVERE = [name for name, each in CORRUPTIONS.items() if each.unit == "severity"]
every_severe = pytest.mark.parametrize("name", SEVERE)


def pictures(n: int = 4, channels: int = 3, size: int = 32, dtype=torch.float32) -> Tensor:
    """Smooth coloured pictures, as photographs are."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(n, channels, 6, 6, generator=generator, dtype=dtype)
    return torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")


def test_there_are_ten_and_none_is_a_perturbation_of_the_tuning():
    assert len(SEVERE) == 10
    assert not set(CORRUPTIONS) & set(FOR_IMAGES)
    assert set(UNRELATED) < set(CORRUPTIONS)


@every_severe
def test_images_stay_images_and_are_always_corrupted_alike(name):
    for images in (pictures(), pictures(channels=1), pictures(size=28, dtype=torch.float64)):
        for level in CORRUPTIONS[name].levels:
            found = corrupt(images, name, level)
            assert torch.equal(found, corrupt(images, name, level))
            assert (found.shape, found.dtype) == (images.shape, images.dtype)
    assert CORRUPTIONS[name].levels == (1, 2, 3, 4, 5)


@every_severe
def test_the_global_generator_stays_as_it_was(name):
    before = torch.get_rng_state()
    corrupt(pictures(), name, 3)
    assert torch.equal(torch.get_rng_state(), before)


# a colour wheel comes back to where it started, and colour is first taken, then added
@pytest.mark.parametrize("name", sorted({*SEVERE} - {"saturation"}))
def test_severity_means_more_change(name):
    images = pictures(16)
    change = [float((corrupt(images, name, s) - images).abs().mean()) for s in range(1, 6)]
    assert change == sorted(change)
    assert change[0] > 0.005
    assert change[4] > 1.5 * change[0]


@pytest.mark.parametrize(("severity", "quality"), [(1, 60), (3, 25), (5, 8)])
def test_jpeg_is_close_to_a_real_encoder(severity, quality):
    images = pictures(6)
    ours = corrupt(images, "jpeg", severity)
    for image, found in zip(images, ours, strict=True):
        pixels = (image * 255).round().byte().permute(1, 2, 0).numpy()
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "JPEG", quality=quality, subsampling="4:2:0")
        theirs = np.asarray(Image.open(stream)) / 255
        assert np.abs(theirs - found.permute(1, 2, 0).numpy()).mean() < 0.02


def test_jpeg_of_a_flat_image_is_flat():
    for grey in (0.0, 0.5, 1.0):
        found = corrupt(torch.full((1, 3, 20, 20), grey), "jpeg", 1)
        assert float((found - grey).abs().max()) < 0.02


def test_hue_turns_colours_about_grey():
    images = 0.4 + 0.2 * pictures()  # muted, so that no colour is clipped
    twice = corrupt(corrupt(images, "hue", 5), "hue", 5)
    torch.testing.assert_close(twice, images, rtol=0, atol=1e-4)
    weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    light = (corrupt(images, "hue", 2) * weights).sum(1)
    torch.testing.assert_close(light, (images * weights).sum(1), rtol=0, atol=2e-3)
    grey = pictures(channels=1)
    assert torch.equal(corrupt(grey, "hue", 3), grey)


def test_saturation_takes_colour_away_and_adds_it():
    images = 0.4 + 0.2 * pictures()

    def colour(found: Tensor) -> float:
        return float((found - found.mean(1, keepdim=True)).abs().mean())

    grey, doubled = corrupt(images, "saturation", 2), corrupt(images, "saturation", 3)
    assert colour(grey) < 1e-3
    assert colour(doubled) == pytest.approx(2 * colour(images), rel=0.02)


def test_posterise_leaves_few_values():
    counts = [len(corrupt(pictures(), "posterise", s).unique()) for s in range(1, 6)]
    assert counts == [8, 6, 4, 3, 2]


def test_impulse_noise_sets_a_share_of_the_values():
    images = torch.full((20, 3, 32, 32), 0.5)
    for severity, share in zip(range(1, 6), (0.02, 0.05, 0.09, 0.15, 0.25), strict=True):
        found = corrupt(images, "impulse_noise", severity)
        assert float((found != 0.5).double().mean()) == pytest.approx(share, rel=0.1)
        assert set(found.unique().tolist()) == {0.0, 0.5, 1.0}


@pytest.mark.parametrize("name", ["motion_blur", "zoom_blur"])
def test_blurs_keep_flat_images_and_lose_detail(name):
    flat = torch.full((2, 3, 16, 16), 0.3)
    torch.testing.assert_close(corrupt(flat, name, 5), flat)
    noisy = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    spread = [float(corrupt(noisy, name, s).std(dim=(2, 3)).mean()) for s in (1, 3, 5)]
    assert float(noisy.std(dim=(2, 3)).mean()) > spread[0] > spread[1] > spread[2]


def test_fog_and_snow_brighten_dark_images_and_frost_lies_on_ridges():
    dark = torch.zeros(8, 3, 32, 32)
    means = {name: float(corrupt(dark, name, 3).mean()) for name in ("fog", "snow", "frost")}
    assert means["fog"] == pytest.approx(0.5 * 0.95, abs=0.1)
    assert 0.1 < means["snow"] < 0.6
    frost = corrupt(dark, "frost", 5)
    assert float(frost.amax(dim=(2, 3)).min()) > 0.6
    assert float(frost.median()) < 0.3


def test_smooth_noise_is_centred_and_its_own_for_each_image():
    found = smooth_noise(torch.zeros(50, 1, 32, 32), (2, 4, 8))
    assert found.shape == (50, 1, 32, 32)
    assert float(found.mean()) == pytest.approx(0.5, abs=0.05)
    assert len({round(float(image.mean()), 6) for image in found}) == 50


@pytest.mark.parametrize("level", [0, 2.5, 6])
def test_other_levels_are_refused(level):
    with pytest.raises(QIPFInputError, match="fog level must be a severity"):
        corrupt(pictures(), "fog", level)


def test_colours_need_one_or_three_channels():
    with pytest.raises(QIPFInputError, match="need images with 1 or 3 channels; got 2"):
        corrupt(torch.zeros(1, 2, 8, 8), "hue", 1)
