"""Fewer centres, nearly the same field: weighted points that stand for many more.

Rows are gathered into cells; a cell becomes one centre, the mean of its rows, with their number as
its weight, and a common spread about it (see `qipf.field.kernel`). Mean and total variance of the rows
survive exactly. The cells are small where rows are sparse: what lies beyond the known predictions
is judged by the outermost of them, few as they are.

Where the kernel's width is known, the centres are then fitted to the field of all rows at that
width (see `qipf.field.coreset_fit`): they serve it several times better, and other widths worse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from qipf.errors import QIPFInputError
from qipf.field.coreset_fit import refined
from qipf.field.kernel import Coreset, as_clouds, field_of
from qipf.field.kmeans import gather
from qipf.validation.arrays import given_back, require_finite

__all__ = ["Coreset", "CoresetStream", "as_clouds", "coreset", "field_of", "merge"]

#: A stream holds this many rows, or bytes of them, before it condenses them.
CHUNK_ROWS, CHUNK_BYTES = 2**16, 2**26


def coreset(
    points: Any,  # (n, d)
    size: int,
    *,
    weights: Any = None,  # (n,)
    bandwidth: float | None = None,
    random_state: Any = 0,
) -> Coreset:
    """At most `size` weighted centres in the place of all points.

    With `size` points or fewer, the points themselves. `weights` tells how many rows each point
    stands for already. With a `bandwidth` the centres are fitted to the field that all points make
    at that width. What is drawn at random follows from `random_state`.

    >>> rows = np.array([[0.0], [0.2], [9.0], [9.2]])
    >>> small = coreset(rows, 2)
    >>> np.sort(small.centers.ravel()), small.weights, round(small.spread, 3)
    (array([0.1, 9.1]), array([2., 2.]), 0.1)
    """
    size, width = _checked_size(size), _checked_bandwidth(bandwidth)
    rows = _checked_points(points)
    if weights is None:
        whole = _plain(rows)
    else:
        masses = _checked_weights(weights, rows.shape[0]).to(rows.device)
        whole = Coreset(rows[masses > 0], masses[masses > 0])
    return _like(points, _reduced(whole, size, check_random_state(random_state), width))


def merge(
    coresets: Sequence[Coreset],
    size: int,
    *,
    bandwidth: float | None = None,
    random_state: Any = 0,
) -> Coreset:
    """One coreset of at most `size` centres for the rows of several; `bandwidth` as in `coreset`.

    >>> halves = [coreset(np.arange(8.0)[:, None] + 100 * k, 4) for k in range(2)]
    >>> merge(halves, 4).count
    16.0
    """
    size, width = _checked_size(size), _checked_bandwidth(bandwidth)
    if not coresets:
        raise QIPFInputError("merge needs at least one coreset, got none.")
    lengths = sorted({part.centers.shape[1] for part in coresets})
    if len(lengths) > 1:
        raise QIPFInputError(
            f"Coresets to merge must have centres of one dimension, got {lengths}."
        )
    parts = [
        Coreset(torch.as_tensor(part.centers), torch.as_tensor(part.weights), part.spread)
        for part in coresets
    ]
    small = _reduced(_joined(parts), size, check_random_state(random_state), width)
    return _like(coresets[0].centers, small)


class CoresetStream:
    """The coreset of a stream, in bounded memory.

    Rows are held until there are `chunk` of them, then condensed to 2·`size` centres; pairs of
    condensed chunks are merged like the digits of a binary counter. Chunks are cut by the number
    of the row alone, so the result is the same, to the last bit, however the stream was cut into
    batches. A stream no longer than a chunk gives what `coreset` gives for its rows.

    Parameters
    ----------
    size : at most so many centres in the result.
    random_state : seed of everything drawn.
    chunk : rows held; by default 65,536, or 64 MB where rows are long, and never below 4·`size`.
    device : where distances are computed; rows are kept in main memory.

    >>> stream = CoresetStream(10, chunk=50)
    >>> for start in range(0, 200, 20):
    ...     stream.add(torch.arange(start, start + 20.0)[:, None])
    >>> stream.result().count, stream.result().centers.shape
    (200.0, torch.Size([10, 1]))
    """

    def __init__(
        self,
        size: int,
        *,
        random_state: Any = 0,
        chunk: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.size = _checked_size(size)
        self.count = 0
        self.device = torch.device(device)
        self._seed = int(check_random_state(random_state).randint(2**31 - 1))
        self._chunk = chunk
        self._held: list[Tensor] = []
        self._condensed: list[Coreset | None] = []  # one place per power of two of chunks

    def add(self, points: Any) -> None:  # (n, d)
        """Let the next rows of the stream pass."""
        rows = _checked_points(points, empty=True).cpu()
        if self._chunk is None:
            longest = CHUNK_BYTES // (rows.element_size() * rows.shape[1])
            self._chunk = max(4 * self.size, min(CHUNK_ROWS, longest))
        while rows.shape[0] > 0:
            room = self._chunk - sum(part.shape[0] for part in self._held)
            if room <= 0:
                self._condense()
                continue
            self._held.append(rows[:room].clone())
            self.count += self._held[-1].shape[0]
            rows = rows[room:]

    def merge(self, part: Coreset) -> None:
        """Let rows pass that were condensed elsewhere, as one more condensed chunk.

        >>> stream = CoresetStream(4)
        >>> stream.add(torch.arange(8.0)[:, None])
        >>> stream.merge(coreset(100 + torch.arange(8.0)[:, None], 4))
        >>> stream.count, stream.result().count, len(stream.result().centers)
        (16, 16.0, 4)
        """
        centers = _checked_points(part.centers).cpu()
        known = [*self._held, *(chunk.centers for chunk in self._condensed if chunk is not None)]
        if known and known[0].shape[1] != centers.shape[1]:
            raise QIPFInputError(
                f"part has centres of dimension {centers.shape[1]}, but the stream has rows of "
                f"{known[0].shape[1]}."
            )
        weights = _checked_weights(part.weights, centers.shape[0])
        self.count += round(float(weights.sum()))
        self._carry(self._shrunk(Coreset(centers, weights.cpu(), part.spread), 2 * self.size))

    def result(self, more: Any = None, *, bandwidth: float | None = None) -> Coreset:
        """The coreset of all rows so far, and of `more` rows (n, d) that do not stay.

        With a `bandwidth`, fitted to the field that they make at that width.
        """
        return self._shrunk(self.gathered(more), self.size, _checked_bandwidth(bandwidth))

    def gathered(self, more: Any = None) -> Coreset:
        """All that is known of the rows so far and of `more` rows: rows held, chunks condensed."""
        parts = [part for part in self._condensed if part is not None]
        held = [*self._held] if more is None else [*self._held, _checked_points(more, True).cpu()]
        if any(part.shape[0] for part in held):
            parts.append(_plain(torch.cat(held)))
        if not parts:
            raise QIPFInputError("The stream is empty: add rows before asking for its coreset.")
        return _joined(parts)

    def _condense(self) -> None:
        part = self._shrunk(_plain(torch.cat(self._held)), 2 * self.size)
        self._held = []
        self._carry(part)

    def _carry(self, part: Coreset) -> None:
        for place, waiting in enumerate(self._condensed):
            if waiting is None:
                self._condensed[place] = part
                return
            part = self._shrunk(_joined([waiting, part]), 2 * self.size)
            self._condensed[place] = None
        self._condensed.append(part)

    def _shrunk(self, whole: Coreset, size: int, bandwidth: float | None = None) -> Coreset:
        random = np.random.RandomState(self._seed)
        return _reduced(whole, size, random, bandwidth, self.device)


# ---------------------------------------------------------------------- parts and doors


def _reduced(
    whole: Coreset,
    size: int,
    random: np.random.RandomState,
    bandwidth: float | None = None,
    device: torch.device | None = None,
) -> Coreset:
    """Tensors in, tensors out."""
    rows = whole.centers
    if rows.shape[0] <= size:
        return whole
    device = device or rows.device
    cells = gather(rows, whole.weights, size, random, device)
    centers, weights = cells.means.to(rows), cells.masses.to(rows.device)
    small = Coreset(centers, weights, math.hypot(whole.spread, cells.spread))
    return small if bandwidth is None else refined(small, whole, bandwidth, random, device)


def _plain(rows: Tensor) -> Coreset:
    return Coreset(rows, torch.ones(rows.shape[0], dtype=torch.float64, device=rows.device))


def _like(points: Any, small: Coreset) -> Coreset:
    """Tensor in, tensor out; anything else in, numpy out."""
    centers, weights = given_back(small.centers, points), given_back(small.weights, points)
    return Coreset(centers, weights, small.spread)


def _joined(parts: Sequence[Coreset]) -> Coreset:
    if len(parts) == 1:
        return parts[0]
    counts = np.array([part.count for part in parts])
    spreads = np.array([part.spread for part in parts])
    largest = float(spreads.max()) or 1.0
    spread = largest * math.sqrt(float(counts @ (spreads / largest) ** 2 / counts.sum()))
    return Coreset(
        torch.cat([part.centers for part in parts]),
        torch.cat([part.weights for part in parts]),
        spread,
    )


def _checked_size(size: object) -> int:
    if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
        raise QIPFInputError(f"size must be an integer of at least 1, got {size!r}.")
    return int(size)


def _checked_bandwidth(bandwidth: object) -> float | None:
    if bandwidth is None:
        return None
    width = float(bandwidth) if isinstance(bandwidth, Real) else math.nan
    if isinstance(bandwidth, bool) or not 0 < width < math.inf:
        raise QIPFInputError(
            f"bandwidth must be a positive finite number, or None to fit no width, "
            f"got {bandwidth!r}."
        )
    return width


def _checked_points(points: Any, empty: bool = False) -> Tensor:
    rows = points.detach() if isinstance(points, Tensor) else torch.as_tensor(np.asarray(points))
    if rows.ndim != 2 or rows.shape[1] == 0 or (rows.shape[0] == 0 and not empty):
        raise QIPFInputError(
            f"points must have shape (n, d) with n, d ≥ 1, got {tuple(rows.shape)}."
        )
    if rows.is_complex() or rows.dtype == torch.bool:
        raise QIPFInputError(f"points must hold real numbers, got {rows.dtype}.")
    if not rows.is_floating_point():
        rows = rows.double()
    require_finite(rows, "points")
    return rows


def _checked_weights(weights: Any, count: int) -> Tensor:
    masses = torch.as_tensor(weights).detach().double()
    if masses.shape != (count,):
        raise QIPFInputError(
            f"weights must have shape ({count},), one per point, got {tuple(masses.shape)}."
        )
    if not bool(torch.isfinite(masses).all()) or bool((masses < 0).any()):
        raise QIPFInputError("weights must be finite and ≥ 0.")
    if not bool((masses > 0).any()):
        raise QIPFInputError("All weights are zero: at least one point must carry weight.")
    return masses
