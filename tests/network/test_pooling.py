"""One row per example of what layers read or give."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from qipf.export.program import quiet
from qipf.network.pooling import (
    FINEST,
    WIDEST,
    _shares,
    cell_means,
    flatten_pooling,
    grid_pooling,
    mean_pooling,
    pooled_runs,
)


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Pooled(nn.Module):
    def forward(self, x):
        return grid_pooling(self, x)


def pooled(value, layer=None):
    return grid_pooling(layer or nn.Identity(), value)


def test_flat_rows_stay_as_they_are():
    rows = numbers(3, 20)
    assert torch.equal(pooled(rows), rows)


def test_maps_are_averaged_over_the_finest_grid_that_fits():
    maps = numbers(2, 32, 16, 16)
    found = pooled(maps)
    expected = maps.unflatten(2, (4, 4)).unflatten(4, (4, 4)).mean((3, 5)).flatten(1)
    assert found.shape == (2, 512)
    torch.testing.assert_close(found, expected)
    assert pooled(numbers(2, 4, 40, 40)).shape == (2, 4 * FINEST**2)
    assert pooled(numbers(2, 6, 3, 5)).shape == (2, 6 * 9)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("shape", "grid"), [((12, 8), 4), ((9, 6), 3), ((8, 8), 8), ((7, 5), 2)])
def test_cells_of_equal_size_are_those_of_torch(shape, grid, layout, monkeypatch):
    monkeypatch.setattr("qipf.network.pooling.SMALL_MAPS", 1)
    maps = numbers(3, 5, *shape).to(memory_format=layout)
    wanted = functional.adaptive_avg_pool2d(maps.double(), grid)
    found = cell_means(maps, grid)
    assert (found.dtype, found.shape) == (torch.float32, wanted.shape)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(cell_means(maps.double(), grid), wanted)


def test_maps_in_half_precision_are_averaged_in_float32(monkeypatch):
    monkeypatch.setattr("qipf.network.pooling.SMALL_MAPS", 1)
    maps = numbers(3, 5, 12, 8).bfloat16()
    found = cell_means(maps, 4)
    wanted = functional.adaptive_avg_pool2d(maps.double(), 4)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-7)


def test_autocast_does_not_reach_the_means(monkeypatch):
    monkeypatch.setattr("qipf.network.pooling.SMALL_MAPS", 1)
    for values in (numbers(3, 5, 12, 8), numbers(2, 4 * WIDEST)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = pooled(values)
        torch.testing.assert_close(found, pooled(values))


def test_only_maps_on_a_cpu_are_averaged_by_a_product(monkeypatch):
    monkeypatch.setattr("qipf.network.pooling._shares", None)  # which is on the CPU
    maps = torch.empty(10, 64, 10, 10, device="meta")
    assert cell_means(maps, 3).shape == (10, 64, 3, 3)
    with pytest.raises(TypeError, match="not callable"):
        cell_means(numbers(10, 64, 10, 10), 3)


@pytest.mark.slow
@pytest.mark.usefixtures("onnx_operators")
@pytest.mark.parametrize("shape", [(4 * WIDEST,), (2 * WIDEST, 4, 4)])
def test_wide_rows_are_averaged_in_onnx_runtime_even_if_there_are_none(shape, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    batch = ({0: torch.export.Dim("n")},)
    with quiet():
        program = torch.onnx.export(Pooled().eval(), (numbers(3, *shape),), dynamic_shapes=batch)
    program.save(tmp_path / "pooled.onnx")
    session = runtime.InferenceSession(tmp_path / "pooled.onnx")
    name = session.get_inputs()[0].name
    for count in (0, 1, 5):
        values = numbers(count, *shape)
        (found,) = session.run(None, {name: values.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), pooled(values))


def test_sums_of_cells_do_not_overflow_half_precision():
    maps = torch.full((1, 1, 256, 256), 3e4, dtype=torch.float16)
    assert torch.equal(pooled(maps), torch.full((1, FINEST**2), 3e4).half().float())


def test_tokens_are_averaged_over_their_places_and_channels_over_a_line():
    values = numbers(2, 7, 96)
    torch.testing.assert_close(pooled(values), values.mean(1))
    line = numbers(2, 100, 20)
    expected = line.unflatten(2, (5, 4)).mean(3).flatten(1)
    torch.testing.assert_close(pooled(line, nn.BatchNorm1d(3)), expected)


def test_volumes_and_the_widest():
    assert pooled(numbers(2, 3, 4, 5, 6)).shape == (2, 3 * 16)
    wide = numbers(2, 4 * WIDEST)
    torch.testing.assert_close(pooled(wide), wide.unflatten(1, (WIDEST, 4)).mean(2))
    assert pooled(numbers(2, 2 * WIDEST, 3, 3)).shape == (2, WIDEST)


@pytest.mark.parametrize("shape", [(0, 9), (0, 2000), (0, 3, 8, 8), (0, 7, 5)])
def test_no_examples_are_no_rows(shape):
    assert pooled(torch.zeros(shape)).shape[0] == 0


def test_mean_and_flatten_pooling():
    line, maps, rows = numbers(2, 5, 4), numbers(2, 3, 4, 5), numbers(2, 6)
    dense, conv = nn.Linear(1, 1), nn.Conv1d(1, 1, 1)
    torch.testing.assert_close(mean_pooling(dense, line), line.mean(1))
    torch.testing.assert_close(mean_pooling(conv, line), line.mean(2))
    torch.testing.assert_close(mean_pooling(dense, maps), maps.mean((2, 3)))
    torch.testing.assert_close(flatten_pooling(dense, (maps, None)), maps.flatten(1))
    for pooling in (mean_pooling, flatten_pooling):
        assert torch.equal(pooling(dense, rows), rows)
        assert torch.equal(pooling(dense, rows[:, 0]), rows[:, :1])


def test_half_precision_becomes_float():
    assert pooled(numbers(2, 5).bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_means_of_cells_do_not_depend_on_the_default_type(dtype):
    maps = numbers(30, 40, 12, 12)
    torch.set_default_dtype(dtype)
    _shares.cache_clear()
    try:
        found = cell_means(maps, 3)
    finally:
        torch.set_default_dtype(torch.float32)
        _shares.cache_clear()
    torch.testing.assert_close(found, functional.adaptive_avg_pool2d(maps, 3))


def test_runs_of_any_size_and_number():
    runs = [torch.randn(5, 3, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    stacked = torch.stack(runs).double()
    expected = torch.cat([stacked.mean(0), stacked.std(0, correction=0)], 1)
    torch.testing.assert_close(pooled_runs(runs).double(), expected, rtol=1e-5, atol=1e-6)
    for scale in (1e30, 1e-30):  # squares are beyond float32
        scaled = pooled_runs([scale * run for run in runs]).double() / scale
        torch.testing.assert_close(scaled, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(pooled_runs(runs[:1]), torch.cat([runs[0], torch.zeros(5, 3)], 1))
