"""Means over cells of maps, by the CUDA kernel in Triton's interpreter and by PyTorch."""

import pytest
import torch
from torch.nn.functional import adaptive_avg_pool2d

from qipf.network import cell_kernel as subject

pytest.importorskip("triton")


def means_there(maps, grid):
    assert subject.usable(maps, grid)
    return subject.cell_means(maps, grid)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "grid", "dtype"),
    [
        ((2, 3, 32, 32), 2, torch.float32),
        ((1, 5, 6, 9), 3, torch.float32),
        ((3, 300, 4, 4), 4, torch.float32),
        ((2, 700, 3, 5), 1, torch.float32),
        ((2, 3, 8, 8), 2, torch.float16),
        ((1, 1, 64, 64), 2, torch.bfloat16),
        ((0, 3, 8, 8), 2, torch.float32),
    ],
)
def test_means_are_those_of_pytorch(interpreter, shape, grid, dtype):
    maps = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = interpreter(means_there, maps, grid)
    assert found.dtype == torch.float32
    wanted = adaptive_avg_pool2d(maps.double(), grid).float()
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_what_the_kernel_does_not_take(monkeypatch):
    maps = torch.zeros(1, 2, 8, 8)
    assert not subject.usable(maps, 2)  # no GPU
    monkeypatch.setattr(subject, "INTERPRETED", True)
    assert subject.usable(maps, 2)
    assert not subject.usable(maps, 8)
    assert not subject.usable(maps.double(), 2)
    assert not subject.usable(maps.to(memory_format=torch.channels_last), 2)
    assert not subject.usable(torch.zeros(1, 1, 128, 128), 2)


def test_a_kernel_that_fails_is_not_tried_again(monkeypatch):
    class Broken:
        def __getitem__(self, grid):
            raise OSError("no C compiler")

    monkeypatch.setattr(subject, "INTERPRETED", True)
    monkeypatch.setattr(subject, "_works", True)
    monkeypatch.setattr(subject, "cell_kernel", Broken())
    maps = torch.zeros(1, 2, 8, 8)
    assert subject.cell_means(maps, 2) is None
    assert not subject.usable(maps, 2)


def test_the_kernel_compiles_for_hopper(tmp_path, monkeypatch):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as compile_kernel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    constants = {"GRID": 2, "BANDS": 4, "LENGTH": 512}
    signature, fixed = {}, {}
    for place, name in enumerate(subject.cell_kernel.arg_names):
        if name in constants:
            signature[name], fixed[(place,)] = "constexpr", constants[name]
        else:
            signature[name] = "*fp32" if name.endswith("_ptr") else "i32"
    source = ASTSource(subject.cell_kernel, signature, fixed, {})
    found = compile_kernel(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    assert "ld.global" in found.asm["ptx"]
