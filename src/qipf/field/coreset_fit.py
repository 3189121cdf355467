r"""Fitting clouds to the field they stand for, at the width at which it will be used.

Cells keep the mean and the total variance of their rows; what a query sees of a cell also depends
on its shape. At places :math:`x_i` made from the rows themselves, the field of all rows gives
:math:`\log\rho` and the curvature :math:`K`, from which every mode follows. Centres, weights and
spread are then moved until the few clouds give the same, in the sense of

.. math:: \frac{1}{n}\sum_i \big[F_K'(K_i)\,(\hat K_i - K_i)\big]^2
          + \big[F_L'(L_i)\,(\hat L_i - L_i)\big]^2, \qquad L = \log\rho,

:math:`F` the distribution of the true values over the places: each term is the share of places
that a wrong value overtakes, so what is kept is the order of predictions.

Every cell makes as many places, few rows as it may hold: errors are found in the outskirts.

Where a narrow kernel sees hardly more than single rows, clouds can be fitted to the places and yet
serve other queries worse. How far to go from the cells to the fit is therefore judged by the order
of fresh places, and of rows seen as if they were new, by the field of all others.
"""

from __future__ import annotations

import math
import operator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qipf.field.engines import Moments
from qipf.field.engines.differentiable import BLOCKS, averages
from qipf.field.kernel import Coreset, field_of
from qipf.field.potential import curvature
from qipf.progress import progress_bar

#: Places to agree at: so many for each cloud, and at least the second number in all.
PLACES_PER_CLOUD, FEWEST_PLACES = 64, 2**12

#: Pairs of a place and a cloud at a step, at most, in up to 16 dimensions; fewer in more.
PAIRS = 3 * 2**24

#: Steps of L-BFGS. Agreement at other places hardly grows any more after that.
STEPS = 25

#: Rows, and fresh places, at which the fit is judged, at most.
JUDGES = 2**11

#: Shares of the way from the cells to the fit, of which the best judged is taken.
SHARES = (0.25, 0.5, 0.75, 1.0)

#: Where a row is alone, the rest of the field has no digits left: so much of it counts as its own.
LARGEST_SHARE = 0.999

#: If some row is farther than this many bandwidths from the mean, float64 is needed; if farther
#: than the second, squares lose too many digits even so, and nothing is fitted.
REACH, FARTHEST = 100.0, 1e5


def refined(
    small: Coreset,
    whole: Coreset,
    bandwidth: float,
    random: np.random.RandomState,
    device: torch.device,
) -> Coreset:
    """`small` fitted to the field of `whole` at this bandwidth; tensors in, tensors out.

    The total weight stays. The field of `whole` is evaluated on `device`, the fit runs on the CPU.

    >>> rows = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    >>> whole = Coreset(rows, torch.ones(400).double())
    >>> small = Coreset(rows[:20], torch.full((20,), 20.0).double(), spread=0.3)
    >>> found = refined(small, whole, 0.8, np.random.RandomState(0), rows.device)
    >>> fields = [field_of("auto", c.centers, 0.8, c.log_weights, c.spread)(rows).log_density
    ...           for c in (whole, small, found)]
    >>> before, after = ((field - fields[0]).square().mean() for field in fields[1:])
    >>> bool(after < before / 5)
    True
    """
    if small.spread == 0.0:  # the rows themselves
        return small
    masses = whole.weights.cpu()
    shares = masses / masses.sum()
    unit = float(whole.centers.abs().max()) or 1.0  # sums of the largest numbers stay in range
    mean = (shares @ (whole.centers.cpu().double() / unit)) * unit
    rows = (whole.centers.cpu().double() - mean) / bandwidth
    reach = float(rows.abs().max())
    count = _affordable(*small.centers.shape)
    if not reach < FARTHEST or count < small.centers.shape[0]:
        return small
    dtype = torch.float32 if reach < REACH else torch.float64
    spread = whole.spread / bandwidth
    log_shares = whole.log_weights.to(device)
    field = field_of("auto", rows.to(device, dtype), 1.0, log_shares, spread)

    def seen(points: Tensor) -> Moments:
        return _on_cpu(field(points.to(device, dtype)))

    middle = (small.centers.cpu().double() - mean) / bandwidth
    deviation = torch.sqrt(shares @ rows.square() + spread**2)
    places, fresh = (
        probes(middle, small.spread / bandwidth, deviation, number, random).to(dtype)
        for number in (count, JUDGES)
    )
    judges, own = _judges(rows, shares.numpy(), spread, random)
    judgements = (
        Goal.at(fresh, seen(fresh)),
        Goal.at(judges.to(dtype), without_own(seen(judges), own)),
    )
    start = Clouds(
        middle.to(dtype),
        small.log_weights.cpu().to(dtype),
        torch.tensor(2 * (math.log(small.spread) - math.log(bandwidth)), dtype=dtype),
    )
    fitted = _fitted(start, Goal.at(places, seen(places)))
    found = _judged(start, fitted, judgements)
    if found is start:
        return small
    weights = torch.softmax(found.log_weights.double(), 0) * small.count
    centers = found.centers.double() * bandwidth + mean
    tau = bandwidth * math.exp(float(found.log_variance) / 2)
    return Coreset(centers.to(small.centers), weights.to(small.weights), tau)


def _judged(start: Clouds, fitted: Clouds, judgements: tuple[Goal, ...]) -> Clouds:
    """The best on the way from the start to the fit; nothing that any judgement likes less."""
    before = [goal.disorder(start) for goal in judgements]
    best, least = start, sum(before)
    for share in SHARES:
        clouds = start.towards(fitted, share)
        found = [goal.disorder(clouds) for goal in judgements]
        if all(map(operator.le, found, before)) and sum(found) < least:
            best, least = clouds, sum(found)
    return best


def _affordable(clouds: int, dimension: int) -> int:
    """How many places; with fewer than clouds, there is nothing to fit by."""
    wanted = max(PLACES_PER_CLOUD * clouds, FEWEST_PLACES)
    return min(wanted, 16 * PAIRS // (clouds * max(dimension, 16)))


def probes(
    centers: Tensor,  # (m, d) float64, about the mean of the rows
    spread: float,
    deviation: Tensor,  # (d,) of the rows
    count: int,
    random: np.random.RandomState,
) -> Tensor:  # (count', d), count' ≤ count a multiple of the blocks
    """Where predictions may fall: in cells, with noise, between cells, drawn in and drawn out.

    Disturbed inputs give logits nearer to the mean, or between those of different classes, more
    often than beyond all known ones; each of the five kinds makes a fifth of the places.
    """
    each, d = count // (5 * BLOCKS) * BLOCKS, centers.shape[1]
    middle = centers.numpy()

    def drawn() -> np.ndarray:  # (each, d)
        chosen = middle[random.randint(len(middle), size=each)]
        return chosen + spread * random.standard_normal(chosen.shape)

    def share() -> np.ndarray:  # (each, 1)
        return random.random_sample((each, 1))

    noise = share() * deviation.numpy() * random.standard_normal((each, d))
    between = share()
    kinds = (
        drawn(),
        drawn() + noise,
        between * drawn() + (1 - between) * drawn(),
        share() * drawn(),
        (1 + share()) * drawn(),
    )
    # kinds take turns, so that blocks are alike
    return torch.from_numpy(np.stack(kinds, 1).reshape(-1, d))


def _judges(
    rows: Tensor, shares: np.ndarray, spread: float, random: np.random.RandomState
) -> tuple[Tensor, Tensor]:  # (j, d), (j,)
    """Rows drawn by their shares, and what each adds to the field at itself."""
    chosen = random.choice(len(shares), min(JUDGES, len(shares)), p=shares)
    if spread == 0.0:
        return rows[torch.from_numpy(chosen)], torch.from_numpy(shares[chosen])
    noise = torch.from_numpy(random.standard_normal((len(chosen), rows.shape[1])))
    return rows[torch.from_numpy(chosen)] + spread * noise, torch.zeros(len(chosen)).double()


def without_own(moments: Moments, own: Tensor) -> Moments:  # (Q,)
    r"""Moments at rows of the field, as the others see them.

    A row adds its share :math:`w` of the weight to :math:`\rho` at itself and nothing to
    :math:`\rho m_1` and :math:`\rho m_2`. With :math:`s = w/\rho` the others' field is
    :math:`\rho(1-s)/(1-w)`, and its moments are :math:`m_1/(1-s)` and :math:`m_2/(1-s)`.
    """
    share = (own * torch.exp(-moments.log_density)).clamp(max=LARGEST_SHARE)
    log_density = moments.log_density + torch.log1p(-share) - torch.log1p(-own)
    m1_squared, m2 = moments.m1_squared / (1 - share) ** 2, moments.m2 / (1 - share)
    return Moments(log_density, m1_squared, torch.maximum(m1_squared, m2), moments.dimension)


def _on_cpu(moments: Moments) -> Moments:
    log_density, m1_squared, m2, dimension = moments
    return Moments(log_density.cpu(), m1_squared.cpu(), m2.cpu(), dimension)


class Goal(NamedTuple):
    """What the field of all rows is at the places, and how much a difference there counts."""

    places: Tensor  # (n, d)
    log_density: Tensor  # (n,)
    curvature: Tensor  # (n,)
    log_density_crowding: Tensor  # (n,)
    curvature_crowding: Tensor  # (n,)

    @classmethod
    def at(cls, places: Tensor, moments: Moments) -> Goal:
        """The goal at places with these moments, all in bandwidths."""
        log_density, K = moments.log_density, curvature(moments, 1.0)
        values = (log_density, K, crowding(log_density), crowding(K))
        return cls(places, *(value.to(places.dtype) for value in values))

    def missed(self, log_density: Tensor, K: Tensor) -> Tensor:
        """Mean squared shares of places that wrong values overtake."""
        misses_L = self.log_density_crowding * (log_density - self.log_density)
        misses_K = self.curvature_crowding * (K - self.curvature)
        return (misses_L.square() + misses_K.square()).mean()

    def disorder(self, clouds: Clouds) -> float:
        """What is missed when the clouds' own order is compared with the true one.

        Infinite where their field is not finite.
        """
        with torch.no_grad():
            found = clouds.field(self.places)
        if not all(bool(torch.isfinite(values).all()) for values in found):
            return math.inf
        pairs = zip(found, (self.log_density, self.curvature), strict=True)
        return sum(float((_ranks(one) - _ranks(two)).square().mean()) for one, two in pairs)


def _ranks(values: Tensor) -> Tensor:  # (n,) -> (n,) float64
    """The share of values below each."""
    ranks = torch.empty(values.shape[0], dtype=torch.float64)
    ranks[values.argsort(stable=True)] = torch.arange(values.shape[0]).double()
    return ranks / values.shape[0]


def crowding(values: Tensor) -> Tensor:  # (n,) -> (n,) float64
    """F', the density of the values' own distribution at each of them.

    Taken over the neighbouring fiftieths of the values, and at most 1,000 over their range.

    >>> crowding(torch.arange(101.0) / 100)[::50]
    tensor([0.9901, 0.9901, 0.9901], dtype=torch.float64)
    """
    ordered, order = values.double().sort()
    count = values.shape[0]
    step = max(1, count // 50)
    index = torch.arange(count)
    low, high = (index - step).clamp(min=0), (index + step).clamp(max=count - 1)
    gaps = ordered[high] - ordered[low]
    least = (high - low) / count / 1000 * (float(ordered[-1] - ordered[0]) or 1.0)
    density = torch.empty_like(ordered)
    density[order] = (high - low) / count / torch.maximum(gaps, least)
    return density


class Clouds(NamedTuple):
    """What is fitted, in bandwidths: τ² as its logarithm, weights up to a common factor."""

    centers: Tensor  # (m, d)
    log_weights: Tensor  # (m,)
    log_variance: Tensor  # ()

    def towards(self, others: Clouds, share: float) -> Clouds:
        """Clouds that have gone this share of the way."""
        return Clouds(*(torch.lerp(a, b, share) for a, b in zip(self, others, strict=True)))

    def field(self, places: Tensor) -> tuple[Tensor, Tensor]:  # (n,), (n,)
        r"""log ρ and K at the places.

        With :math:`a = 1/(1+\tau^2)`, from softmax averages of scores
        :math:`a(x\cdot c-\|c\|^2/2)+\log w` (see `qipf.field.kernel.as_clouds`).
        """
        c, d = self.centers, self.centers.shape[1]
        variance = self.log_variance.exp()
        a = 1 / (1 + variance)
        squares = torch.linalg.vecdot(c, c)
        bias = torch.log_softmax(self.log_weights, 0) - a * squares / 2
        lse, mean, mean_square = averages(places, a * c, bias, c, squares)
        here = torch.linalg.vecdot(places, places)
        log_density = lse - a * here / 2 + d / 2 * a.log()
        m1 = mean - places
        m1_squared = a**2 * torch.linalg.vecdot(m1, m1)
        m2 = a**2 * (mean_square - 2 * torch.linalg.vecdot(places, mean) + here) + d * a * variance
        return log_density, m2 / 4 - m1_squared / 8 - d / 4


def _fitted(start: Clouds, goal: Goal) -> Clouds:
    """Clouds that miss the goal less than those of the start, after some steps of L-BFGS."""
    clouds = Clouds(*(part.clone().requires_grad_() for part in start))
    optimizer = torch.optim.LBFGS(
        list(clouds),
        max_iter=STEPS,
        history_size=STEPS,
        line_search_fn="strong_wolfe",
        tolerance_grad=0,
        tolerance_change=0,
    )
    with progress_bar("fitting centres", total=STEPS * 5 // 4, unit="steps") as bar:

        def missed() -> Tensor:
            optimizer.zero_grad()
            loss = goal.missed(*clouds.field(goal.places))
            loss.backward()
            bar.update(1)
            return loss

        with torch.enable_grad():
            optimizer.step(missed)
    return Clouds(*(part.detach() for part in clouds))
