r"""Fitting weighted centres to the field of all rows, at the width at which it will be used.

K-means preserves the mean and the total variance of the rows of a cluster; the field also depends
on its shape. At probe points :math:`x_i` made from the clusters, the field of all rows gives
:math:`L = \log\rho` and the curvature :math:`K`, from which every mode follows. Centres, weights
and spread are then fitted to minimise

.. math:: \frac{1}{n}\sum_i \big[F_K'(K_i)\,(\hat K_i - K_i)\big]^2
          + \big[F_L'(L_i)\,(\hat L_i - L_i)\big]^2 ,

with :math:`F` the distribution function of the true values over the probes. Each term is the
squared change in rank that an error causes, so the fit preserves the order of predictions. Every
cluster makes as many probes, however few rows it has: errors are found where rows are sparse.

With a narrow kernel, which sees hardly more than single rows, the fit can overfit the probes. The
step from the k-means centres to the fit is therefore chosen by the rank error on other probes, and
on rows whose own contribution to the field is left out.
"""

import math
import operator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qipf.field.engines import Moments
from qipf.field.engines.attention import differentiable_averages
from qipf.field.kernel import Coreset, field_of
from qipf.field.potential import curvature
from qipf.progress import progress

#: Probes per centre, but no more than rows: the field of few rows is fitted as well with fewer, in
#: less time. And the least and the largest number of probes.
PROBES_PER_CENTER, FEWEST_PROBES, MOST_PROBES = 64, 2**12, 24_000

#: Largest number of pairs of a probe and a centre, and of pairs in all passes together.
PAIRS, ALL_PAIRS = 10**8, 5 * 10**8

#: Longer rows are not fitted: in 32 dimensions and more the fit takes seconds and hardly improves
#: on the k-means centres (results/coresets-dimension.csv).
LONGEST_FITTED = 16

#: Fewest rows for each centre: with fewer, most clusters are single rows and the fit, which takes
#: as long as for many rows, was no better on validation.
ROWS_PER_CENTER = 2

#: Passes of Adam over the probes, more if there are few of them, and probes in a step.
PASSES, ALL_PROBES, BATCH = 6, 2**16, 128

#: Adam's largest step, in bandwidths, times the root of the number of centres, and its limit: a
#: probe's error is noise for most of many centres.
RATE, LARGEST_RATE = 0.4, 0.04

#: Adam's averages of slopes and of their squares; slopes below the last one, whose squares are zero
#: in float32, make small steps.
MEANS, SQUARES, TINY = 0.9, 0.95, 1e-20

#: Rows, and other probes, to validate the fit on, at most.
VALIDATION = 2**11

#: Fractions of the way from the k-means centres to the fit, of which the best is taken.
FRACTIONS = (0.25, 0.5, 0.75, 1.0)

#: Largest share of the field at a row that counts as its own: the rest must keep some digits.
LARGEST_SHARE = 0.999

#: If a row is farther than this many bandwidths from the mean, float64 is needed; if farther than
#: the second number, squares lose too many digits in float64 too, and nothing is fitted.
REACH, FARTHEST = 100.0, 1e5


def fit_coreset(
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
    >>> found = fit_coreset(small, whole, 0.8, np.random.RandomState(0), rows.device)
    >>> fields = [field_of("auto", c.centers, 0.8, c.log_weights, c.spread)(rows).log_density
    ...           for c in (whole, small, found)]
    >>> before, after = ((field - fields[0]).square().mean() for field in fields[1:])
    >>> bool(after < before / 5)
    True
    """
    if small.spread == 0.0 or small.centers.shape[1] > LONGEST_FITTED:  # 0: the rows themselves
        return small
    if whole.count < ROWS_PER_CENTER * small.centers.shape[0]:
        return small
    shares = whole.weights.cpu() / whole.weights.cpu().sum()
    unit = float(whole.centers.abs().max()) or 1.0  # sums of the largest numbers stay in range
    mean = (shares @ (whole.centers.cpu().double() / unit)) * unit
    rows = (whole.centers.cpu().double() - mean) / bandwidth
    reach = float(rows.abs().max())
    count = _probe_count(len(small.centers), whole.count)
    if not reach < FARTHEST or count < small.centers.shape[0]:
        return small
    dtype = torch.float32 if reach < REACH else torch.float64
    spread = whole.spread / bandwidth
    field = field_of("auto", rows.to(device, dtype), 1.0, whole.log_weights.to(device), spread)

    def moments_at(points: Tensor) -> Moments:
        log_density, m1_squared, m2, dimension = field(points.to(device, dtype))
        return Moments(log_density.cpu(), m1_squared.cpu(), m2.cpu(), dimension)

    centers = (small.centers.cpu().double() - mean) / bandwidth
    deviation = torch.sqrt(shares @ rows.square() + spread**2)
    training, other = (
        probes(centers, small.spread / bandwidth, deviation, number, random).to(dtype)
        for number in (count, VALIDATION)
    )
    drawn, own = _drawn_rows(rows, shares.numpy(), spread, random)
    validation = (
        Target.at(other, moments_at(other)),
        Target.at(drawn.to(dtype), leave_one_out(moments_at(drawn), own)),
    )
    start = Mixture(
        centers.to(dtype),
        small.log_weights.cpu().to(dtype),
        torch.tensor(2 * (math.log(small.spread) - math.log(bandwidth)), dtype=dtype),
    )
    end = _minimize(start, Target.at(training, moments_at(training)), random)
    best = _best_between(start, end, validation)
    if best is start:
        return small
    weights = torch.softmax(best.log_weights.double(), 0) * small.count
    fitted = best.centers.double() * bandwidth + mean
    tau = bandwidth * math.exp(float(best.log_variance) / 2)
    return Coreset(fitted.to(small.centers), weights.to(small.weights), tau)


def _best_between(start: "Mixture", end: "Mixture", validation: "tuple[Target, ...]") -> "Mixture":
    """Mixture between start and end with the least rank error; none may exceed the start's."""
    before = [target.rank_error(start) for target in validation]
    best, least = start, sum(before)
    for fraction in FRACTIONS:
        mixture = start.towards(end, fraction)
        errors = [target.rank_error(mixture) for target in validation]
        if all(map(operator.le, errors, before)) and sum(errors) < least:
            best, least = mixture, sum(errors)
    return best


def _probe_count(centers: int, rows: float) -> int:
    """Number of probes; with fewer than centres, the fit would be underdetermined."""
    wanted = max(min(PROBES_PER_CENTER * centers, int(rows)), FEWEST_PROBES)
    return min(wanted, MOST_PROBES, PAIRS // centers)


def probes(
    centers: Tensor,  # (m, d) float64, about the mean of the rows
    spread: float,
    deviation: Tensor,  # (d,) of the rows
    count: int,
    random: np.random.RandomState,
) -> Tensor:  # (count', d), count' ≤ count a multiple of five
    """Points where predictions may fall, a fifth of each kind.

    Kinds: in clusters, with noise, between clusters, scaled towards the mean, scaled away from it.
    Corrupted inputs give logits nearer to the mean, or between those of different classes, more
    often than beyond all known ones.
    """
    each, d = count // 5, centers.shape[1]
    means = centers.numpy()

    def in_clusters() -> np.ndarray:  # (each, d)
        chosen = means[random.randint(len(means), size=each)]
        return chosen + spread * random.standard_normal(chosen.shape)

    def uniform() -> np.ndarray:  # (each, 1)
        return random.random_sample((each, 1))

    noise = uniform() * deviation.numpy() * random.standard_normal((each, d))
    share = uniform()
    kinds = (
        in_clusters(),
        in_clusters() + noise,
        share * in_clusters() + (1 - share) * in_clusters(),
        uniform() * in_clusters(),
        (1 + uniform()) * in_clusters(),
    )
    return torch.from_numpy(np.stack(kinds, 1).reshape(-1, d))  # kinds alternate


def _drawn_rows(
    rows: Tensor, shares: np.ndarray, spread: float, random: np.random.RandomState
) -> tuple[Tensor, Tensor]:  # (j, d), (j,)
    """Rows drawn with their shares as probabilities, and each one's share of the field's weight."""
    chosen = random.choice(len(shares), min(VALIDATION, len(shares)), p=shares)
    if spread == 0.0:
        return rows[torch.from_numpy(chosen)], torch.from_numpy(shares[chosen])
    noise = torch.from_numpy(random.standard_normal((len(chosen), rows.shape[1])))
    return rows[torch.from_numpy(chosen)] + spread * noise, torch.zeros(len(chosen)).double()


def leave_one_out(moments: Moments, own: Tensor) -> Moments:  # (Q,)
    r"""Moments at rows of the field, without each row's own contribution.

    A row adds its share :math:`w` of the weight to :math:`\rho` at itself and nothing to
    :math:`\rho m_1` and :math:`\rho m_2`. With :math:`s = w/\rho` the others' field is
    :math:`\rho(1-s)/(1-w)`, and its moments are :math:`m_1/(1-s)` and :math:`m_2/(1-s)`.
    """
    share = (own * torch.exp(-moments.log_density)).clamp(max=LARGEST_SHARE)
    log_density = moments.log_density + torch.log1p(-share) - torch.log1p(-own)
    m1_squared, m2 = moments.m1_squared / (1 - share) ** 2, moments.m2 / (1 - share)
    return Moments(log_density, m1_squared, torch.maximum(m1_squared, m2), moments.dimension)


class Target(NamedTuple):
    """The field of all rows at some points, and the weight of an error there."""

    points: Tensor  # (n, d)
    log_density: Tensor  # (n,)
    curvature: Tensor  # (n,)
    log_density_slope: Tensor  # (n,) F_L'
    curvature_slope: Tensor  # (n,) F_K'

    @classmethod
    def at(cls, points: Tensor, moments: Moments) -> "Target":
        """Target at points with these moments, all in bandwidths."""
        L, K = moments.log_density, curvature(moments, 1.0)
        values = (L, K, density_of_values(L), density_of_values(K))
        return cls(points, *(value.to(points.dtype) for value in values))

    def loss(self, log_density: Tensor, K: Tensor) -> Tensor:
        """Mean squared change in rank, to first order, as in the formula of this module."""
        errors_L = self.log_density_slope * (log_density - self.log_density)
        errors_K = self.curvature_slope * (K - self.curvature)
        return (errors_L.square() + errors_K.square()).mean()

    def rank_error(self, mixture: "Mixture") -> float:
        """Mean squared differences between the ranks of the mixture's values and the true ranks.

        Infinite where the mixture is not finite.
        """
        if not all(bool(torch.isfinite(part).all()) for part in mixture):
            return math.inf
        spread = math.exp(float(mixture.log_variance) / 2)
        field = field_of("auto", mixture.centers, 1.0, mixture.log_weights, spread)
        moments = field(self.points)
        found = moments.log_density, curvature(moments, 1.0)
        pairs = zip(found, (self.log_density, self.curvature), strict=True)
        return sum(float((_ranks(one) - _ranks(two)).square().mean()) for one, two in pairs)


def _ranks(values: Tensor) -> Tensor:  # (n,) -> (n,) float64
    """Rank of each value, from 0 to below 1."""
    return values.argsort(stable=True).argsort().double() / values.shape[0]


def density_of_values(values: Tensor) -> Tensor:  # (n,) -> (n,) float64
    """F', the density of the values' own distribution at each of them.

    Taken over the neighbouring fiftieths of the values, and at most 1,000 over their range.

    >>> density_of_values(torch.arange(101.0) / 100)[::50]
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


class Mixture(NamedTuple):
    """What is fitted: weighted centres with a common variance τ², in bandwidths."""

    centers: Tensor  # (m, d)
    log_weights: Tensor  # (m,) up to a constant
    log_variance: Tensor  # ()

    def towards(self, end: "Mixture", fraction: float) -> "Mixture":
        """Linear interpolation between this mixture and `end`."""
        return Mixture(*(torch.lerp(a, b, fraction) for a, b in zip(self, end, strict=True)))

    def field(
        self, points: Tensor, memory: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:  # (n,), (n,)
        r"""log ρ and K at the points.

        With :math:`a = 1/(1+\tau^2)`, from softmax averages of scores
        :math:`a(x\cdot c-\|c\|^2/2)+\log w` (see `qipf.field.kernel.with_spread`).
        """
        c, d = self.centers, self.centers.shape[1]
        variance = self.log_variance.exp()
        a = 1 / (1 + variance)
        squares = torch.linalg.vecdot(c, c)
        bias = torch.log_softmax(self.log_weights, 0) - a * squares / 2
        lse, mean, mean_square = differentiable_averages(points, a * c, bias, c, squares, memory)
        here = torch.linalg.vecdot(points, points)
        log_density = lse - a * here / 2 + d / 2 * a.log()
        m1 = mean - points
        m1_squared = a**2 * torch.linalg.vecdot(m1, m1)
        m2 = a**2 * (mean_square - 2 * torch.linalg.vecdot(points, mean) + here) + d * a * variance
        return log_density, m2 / 4 - m1_squared / 8 - d / 4


def _minimize(start: Mixture, target: Target, random: np.random.RandomState) -> Mixture:
    """Mixture of lower loss than the start, by Adam on batches of the target's points.

    Written out: the first use of `torch.optim` imports a compiler, which takes longer than the fit.
    """
    count = target.points.shape[0]
    most = ALL_PAIRS // (count * start.centers.shape[0])
    passes = min(max(PASSES, ALL_PROBES // count), most)
    steps = -(-count * passes // BATCH)
    order = np.concatenate([random.permutation(count) for _ in range(passes)])
    mixture = Mixture(*(part.clone().requires_grad_() for part in start))
    means, squares = ([torch.zeros_like(part) for part in start] for _ in range(2))
    largest = min(RATE / math.sqrt(start.centers.shape[0]), LARGEST_RATE)
    memory = start.centers.new_empty(2, min(BATCH, len(order)) * len(start.centers))
    for step in progress(range(1, steps + 1), "fitting centres"):
        batch = torch.from_numpy(order[(step - 1) * BATCH : step * BATCH])
        part = Target(*(values[batch] for values in target))
        with torch.enable_grad():
            loss = part.loss(*mixture.field(part.points, memory))
        slopes = torch.autograd.grad(loss, list(mixture))
        rate = largest * (1 + math.cos(math.pi * (step - 1) / steps)) / 2
        rate *= math.sqrt(1 - SQUARES**step) / (1 - MEANS**step)
        with torch.no_grad():
            for value, slope, mean, square in zip(mixture, slopes, means, squares, strict=True):
                mean.lerp_(slope, 1 - MEANS)
                square.lerp_(slope.square_(), 1 - SQUARES)
                value.addcdiv_(mean, square.sqrt().add_(TINY), value=-rate)
    return Mixture(*(part.detach() for part in mixture))
