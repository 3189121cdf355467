import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qipf.bench.corruptions import CORRUPTIONS as ALL
from qipf.bench.corruptions import corrupt, register, registry
from qipf.bench.corruptions.geometric import brightness, rotation, shear, zoom
from qipf.errors import QIPFInputError

CORRUPTIONS = {name: ALL[name] for name in ("rotation", "shear", "zoom", "brightness")}
IDENTITY = {"rotation": 0, "shear": 0, "zoom": 1, "brightness": 1}
SIZES = [(8, 8), (7, 7), (6, 9), (5, 4), (1, 1)]


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def dot(height: int, width: int, row: int, column: int) -> Tensor:
    image = torch.zeros(1, 1, height, width, dtype=torch.float64)
    image[..., row, column] = 1
    return image


def bilinear(image: Tensor, x: float, row: float) -> float:
    """The value of one (H, W) image at a place in pixels from its centre, zero outside."""
    height, width = image.shape
    column, line = x + (width - 1) / 2, row + (height - 1) / 2
    value = 0.0
    for i in (math.floor(line), math.floor(line) + 1):
        for j in (math.floor(column), math.floor(column) + 1):
            if 0 <= i < height and 0 <= j < width:
                value += (1 - abs(line - i)) * (1 - abs(column - j)) * float(image[i, j])
    return value


def moved(images: Tensor, name: str, level: float) -> Tensor:
    """Every output pixel on its own, from the motion written with y up, undone."""
    t = math.radians(level)
    motion = {
        "rotation": np.array([[math.cos(t), -math.sin(t)], [math.sin(t), math.cos(t)]]),
        "shear": np.array([[1, math.tan(t)], [0, 1]]),
        "zoom": np.diag([level, level]),
    }[name]
    undo = np.linalg.inv(motion)
    result = torch.zeros_like(images)
    height, width = images.shape[-2:]
    for i in range(height):
        for j in range(width):
            x, y = undo @ [j - (width - 1) / 2, (height - 1) / 2 - i]
            for n in range(images.shape[0]):
                for c in range(images.shape[1]):
                    result[n, c, i, j] = bilinear(images[n, c], x, -y)
    return result


def test_levels_are_the_design_s() -> None:
    assert {name: (c.levels, c.unit) for name, c in CORRUPTIONS.items()} == {
        "rotation": ((15, 30, 45, 60, 90, 120, 150, 180, 225, 270), "degrees"),
        "shear": ((10, 20, 30, 40, 50, 60, 70), "degrees"),
        "zoom": ((0.4, 0.5, 0.6, 0.8, 1.25, 1.5, 2, 2.5), "factor"),
        "brightness": ((0.2, 0.4, 0.6, 0.8, 1.5, 2, 3, 4), "factor"),
    }
    assert all(name == corruption.name for name, corruption in CORRUPTIONS.items())


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("rotation", 30),
        ("rotation", -112.5),
        ("rotation", 225),
        ("shear", 40),
        ("shear", -70),
        ("zoom", 0.4),
        ("zoom", 2.5),
    ],
)
def test_geometry_equals_a_pixel_by_pixel_reference(
    name: str, level: float, size: tuple[int, int]
) -> None:
    images = noise(2, 3, *size)
    torch.testing.assert_close(
        corrupt(images, name, level), moved(images, name, level), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", IDENTITY)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_no_corruption_is_the_identity_to_the_bit(
    name: str, size: tuple[int, int], dtype: torch.dtype
) -> None:
    images = noise(2, 3, *size, dtype=dtype)
    result = corrupt(images, name, IDENTITY[name])
    assert torch.equal(result, images)
    assert result.data_ptr() != images.data_ptr()


@pytest.mark.parametrize("side", [4, 5, 8, 9, 28])
@pytest.mark.parametrize("turns", [1, 2, 3, -1, 5])
def test_quarter_turns_are_rot90(side: int, turns: int) -> None:
    images = noise(3, 2, side, side, dtype=torch.float32)
    expected = torch.rot90(images, turns, dims=(2, 3))
    torch.testing.assert_close(rotation(images, 90 * turns), expected, rtol=0, atol=1e-5)


def test_four_quarter_turns_and_a_whole_one_change_nothing() -> None:
    images = noise(2, 3, 9, 9)
    turned = images
    for _ in range(4):
        turned = rotation(turned, 90)
    torch.testing.assert_close(turned, images, rtol=0, atol=1e-12)
    assert torch.equal(rotation(images, 360), images)
    assert torch.equal(rotation(images, -720), images)


def test_rotation_is_counter_clockwise() -> None:
    right = dot(5, 5, 2, 4)
    top = rotation(right, 90)
    torch.testing.assert_close(top, dot(5, 5, 0, 2), rtol=0, atol=1e-12)
    # 45 degrees on, a block right of the centre stands up and to the right of it
    wide = torch.zeros(1, 1, 21, 21, dtype=torch.float64)
    wide[..., 9:12, 16:19] = 1  # centred at x = 7, y = 0
    weight = rotation(wide, 45)[0, 0]
    axis = torch.arange(21, dtype=torch.float64) - 10
    x = (weight.sum(0) * axis).sum() / weight.sum()
    y = -(weight.sum(1) * axis).sum() / weight.sum()
    assert x.item() == pytest.approx(7 / math.sqrt(2), abs=0.02)
    assert y.item() == pytest.approx(7 / math.sqrt(2), abs=0.02)


def test_shear_pushes_the_upper_half_right() -> None:
    column = torch.zeros(1, 1, 5, 5, dtype=torch.float64)
    column[..., 2] = 1
    expected = torch.eye(5, dtype=torch.float64).flip(1)[None, None]  # top right to bottom left
    torch.testing.assert_close(shear(column, 45), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(shear(column, -45), expected.flip(3), rtol=0, atol=1e-12)


def test_shear_keeps_the_centre_row() -> None:
    images = noise(1, 1, 7, 7)
    torch.testing.assert_close(shear(images, 60)[..., 3, :], images[..., 3, :])


def test_zoom_magnifies_about_the_centre() -> None:
    torch.testing.assert_close(zoom(dot(5, 5, 2, 2), 2).sum(), torch.tensor(4.0).double())
    # a pixel one right of the centre goes to two right of it
    assert zoom(dot(5, 5, 2, 3), 2)[0, 0, 2].argmax() == 4
    assert zoom(dot(5, 5, 2, 4), 0.5)[0, 0, 2].argmax() == 3
    # an even size has its centre between pixels: the four around it stay together
    block = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
    block[..., 3:5, 3:5] = 1
    bigger = zoom(block, 2)[0, 0]
    assert torch.equal(bigger, bigger.flip(0))
    assert torch.equal(bigger, bigger.T)
    assert bigger.sum() == 16


def test_zooming_out_shows_zeros_around() -> None:
    small = zoom(torch.ones(1, 1, 8, 8), 0.5)[0, 0]
    assert torch.equal(small[2:6, 2:6], torch.ones(4, 4))
    assert small.sum() == 16


@pytest.mark.parametrize("size", [(9, 9), (8, 8), (8, 11)], ids=str)
def test_zoom_in_then_out_returns_the_centre(size: tuple[int, int]) -> None:
    # bilinear interpolation reproduces a plane exactly, so only the unseen border is lost
    height, width = size
    rows, columns = (torch.arange(n, dtype=torch.float64) for n in size)
    images = (rows[:, None] * 0.05 + columns * 0.03)[None, None]
    back = zoom(zoom(images, 2), 0.5)[0, 0]
    inner = (slice(height // 2 - 1, height // 2 + 1), slice(width // 2 - 1, width // 2 + 1))
    torch.testing.assert_close(back[inner], images[0, 0][inner], rtol=0, atol=1e-12)


def test_brightness_multiplies_and_clips() -> None:
    images = torch.tensor([0.0, 0.1, 0.4, 1.0]).reshape(1, 1, 2, 2)
    expected = torch.tensor([0.0, 0.3, 1.0, 1.0]).reshape(1, 1, 2, 2)
    torch.testing.assert_close(brightness(images, 3), expected)
    torch.testing.assert_close(brightness(images, 0.5), images / 2)
    assert torch.equal(brightness(images, 0), torch.zeros(1, 1, 2, 2))


ALL_LEVELS = [(c.name, level) for c in CORRUPTIONS.values() for level in c.levels]


@pytest.mark.parametrize(("name", "level"), ALL_LEVELS)
def test_a_batch_is_its_images_one_by_one(name: str, level: float) -> None:
    images = noise(5, 3, 8, 7, dtype=torch.float32)
    before = images.clone()
    together = corrupt(images, name, level)
    assert torch.equal(together, torch.cat([corrupt(image[None], name, level) for image in images]))
    assert torch.equal(together, corrupt(images, name, level))
    assert torch.equal(images, before)
    assert (together.dtype, together.device) == (images.dtype, images.device)
    assert 0 <= together.min() <= together.max() <= 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["rotation", "shear", "zoom"])
def test_half_precision_loses_only_its_own_rounding(name: str, dtype: torch.dtype) -> None:
    images = noise(2, 1, 28, 28).to(dtype)
    level = CORRUPTIONS[name].levels[1]
    result = corrupt(images, name, level)
    assert result.dtype == dtype
    exact = corrupt(images.double(), name, level)
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(result.double(), exact, rtol=unit, atol=1e-5)


def test_no_images_are_no_trouble() -> None:
    for name, corruption in CORRUPTIONS.items():
        empty = torch.zeros(0, 3, 8, 8)
        assert corrupt(empty, name, corruption.levels[0]).shape == (0, 3, 8, 8)


@pytest.mark.parametrize("device", ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
@pytest.mark.parametrize(("name", "level"), ALL_LEVELS)
def test_every_device_gives_the_same_image(name: str, level: float, device: str) -> None:
    images = noise(2, 3, 28, 28, dtype=torch.float32)
    result = corrupt(images.to(device), name, level)
    assert result.device.type == device
    expected = corrupt(images.double(), name, level).float()
    torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=1e-4)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(["rotation", "shear", "zoom"]),
    st.floats(1e-6, 1.0),
    st.integers(1, 12),
    st.integers(1, 12),
)
def test_values_stay_in_range_at_any_level(name: str, share: float, h: int, w: int) -> None:
    level = {"rotation": 1e6 * share, "shear": 89.999999 * share, "zoom": 1 / share}[name]
    for images in (torch.ones(1, 1, h, w), noise(1, 2, h, w, dtype=torch.float32)):
        for signed in (level, 1 / level if name == "zoom" else -level):
            result = corrupt(images, name, signed)
            assert 0 <= result.min() <= result.max() <= 1


@settings(deadline=None, max_examples=30)
@given(st.floats(-720, 720))
def test_rotation_mirrors_to_its_opposite(degrees: float) -> None:
    images = noise(1, 1, 6, 9)
    mirrored = rotation(images.flip(3), -degrees).flip(3)
    torch.testing.assert_close(rotation(images, degrees), mirrored, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "level", "message"),
    [
        ("rotation", math.nan, "rotation level must be a finite number; got nan."),
        ("zoom", math.inf, "zoom level must be a finite number; got inf."),
        ("brightness", "2", "brightness level must be a finite number; got '2'."),
        ("shear", 90, "shear level must lie strictly between -90 and 90 degrees; got 90."),
        ("shear", -270, "shear level must lie strictly between -90 and 90 degrees; got -270."),
        ("zoom", 0, "zoom level must be a positive factor; got 0."),
        ("zoom", -1.5, "zoom level must be a positive factor; got -1.5."),
        ("brightness", -1, "brightness level must be a factor of at least 0; got -1."),
        ("rotate", 15, "Unknown corruption 'rotate'. Did you mean 'rotation'?"),
    ],
)
def test_invalid_levels_are_errors(name: str, level: float, message: str) -> None:
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        corrupt(torch.zeros(1, 1, 4, 4), name, level)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((1, 1, 4, 4)), "floating-point tensor in [0, 1]; got ndarray"),
        (torch.zeros(1, 1, 4, 4, dtype=torch.uint8), "in [0, 1]; got torch.uint8"),
        (torch.zeros(3, 4, 4), "shape (N, C, H, W); got (3, 4, 4)"),
        (torch.zeros(2, 3, 0, 4), "shape (N, C, H, W); got (2, 3, 0, 4)"),
        (torch.tensor([[[[0.0, 255.0]]]]), "values in [0, 1]; got 0 to 255"),
        (torch.tensor([[[[-0.5, math.nan]]]]), "values in [0, 1]; got nan to nan"),
    ],
    ids=["numpy", "bytes", "three axes", "no rows", "unscaled", "nan"],
)
def test_invalid_images_are_errors(images: Tensor, message: str) -> None:
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        corrupt(images, "zoom", 1.0)


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "CORRUPTIONS", dict(CORRUPTIONS))


@pytest.mark.usefixtures("own_registry")
def test_a_user_s_corruption_is_one_function() -> None:
    @register("stripes", levels=[1, 2], unit="rows")
    def stripes(images: Tensor, rows: float) -> Tensor:
        """Blank every other band of rows."""
        keep = torch.arange(images.shape[2]) // int(rows) % 2 == 0
        return images * keep[:, None]

    entry = registry.CORRUPTIONS["stripes"]
    assert (entry.name, entry.levels, entry.unit) == ("stripes", (1.0, 2.0), "rows")
    assert entry.apply is stripes
    assert stripes.__doc__ == "Blank every other band of rows."
    result = corrupt(torch.ones(1, 1, 4, 2), "stripes", 2)
    assert result[0, 0, :, 0].tolist() == [1, 1, 0, 0]


@pytest.mark.usefixtures("own_registry")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda images, level: images[:, :1], "it returned (2, 1, 4, 4) torch.float32"),
        (lambda images, level: images.double(), "it returned (2, 3, 4, 4) torch.float64"),
        (lambda images, level: images + 2, "values in [0, 1]; it returned 2 to 2"),
    ],
    ids=["shape", "dtype", "range"],
)
def test_the_result_of_a_user_s_corruption_is_checked(
    function: registry.Apply, message: str
) -> None:
    own = register("own", [1], "times")(function)
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        own(torch.zeros(2, 3, 4, 4), 1)


@pytest.mark.parametrize(
    ("name", "levels", "message"),
    [
        ("zoom", [1], "A corruption called 'zoom' exists already"),
        ("own", [], "levels must be one or more finite numbers"),
        ("own", [1, math.nan], "levels must be one or more finite numbers"),
    ],
)
def test_invalid_registrations_are_errors(name: str, levels: list[float], message: str) -> None:
    with pytest.raises(QIPFInputError, match=message):
        register(name, levels, "times")
