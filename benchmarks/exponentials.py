"""How many base-2 exponentials a GPU does in a second: the upper bound for every kernel here.

Each pair of a query and a centre needs one. A Triton kernel that does nothing else, on numbers
that never leave the registers, measures the chip's throughput.

    python benchmarks/exponentials.py    # on a GPU
"""

from __future__ import annotations

import time
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # numbers per program: eight a thread, so that none waits for its own last result
ROUNDS = 4096
UNROLLED = 8  # exponentials between two checks of the loop


@triton.jit
def chain_kernel(out_ptr, rounds, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """x ← 2^-x, eight times a round, from 0, 1/1024, 2/1024, ..."""
    place = tl.arange(0, BLOCK)
    x = place.to(tl.float32) / 1024
    for _ in range(rounds):
        x = tl.math.exp2(-x)
        x = tl.math.exp2(-x)
        x = tl.math.exp2(-x)
        x = tl.math.exp2(-x)
        x = tl.math.exp2(-x)
        x = tl.math.exp2(-x)
        x = tl.math.exp2(-x)
        x = tl.math.exp2(-x)
    tl.store(out_ptr + tl.program_id(0) * BLOCK + place, x)


def chained(programs: int, rounds: int, device: str) -> Tensor:  # (programs · BLOCK,)
    """What `8 · rounds` exponentials in a row make of each starting number."""
    out = torch.empty(programs * BLOCK, device=device)
    kernel: Any = chain_kernel
    kernel[(programs,)](out, rounds, BLOCK=BLOCK, num_warps=4)
    return out


def exponentials_per_second(repetitions: int = 5) -> float:
    """The most that this GPU did, of several tries."""
    programs = 64 * torch.cuda.get_device_properties(0).multi_processor_count
    chained(programs, ROUNDS, "cuda")  # compiles, and wakes the clocks
    seconds = []
    for _ in range(repetitions):
        torch.cuda.synchronize()
        started = time.perf_counter()
        chained(programs, ROUNDS, "cuda")
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return programs * BLOCK * ROUNDS * UNROLLED / min(seconds)


if __name__ == "__main__":
    print(f"{exponentials_per_second() / 1e9:,.0f} G base-2 exponentials per second")
