"""Writes `field.json`: a small field and its scores by definition, in 80 digits.

``python -m tests.golden.make`` writes the file again; the same numbers must come out. Nothing of
`qipf` is used here. Every Laplacian is a central difference of the definition, not the library's
closed form; its error is below 1e-35.

    ψ = √(c/N Σ exp(-|x-c_i|²/2σ²)),  f_p = √(h_p(ψ)² + ε²),  h_p = H_p/√(2^p p!)
    V_p = (σ²/2) ∇²f_p/f_p + E_p,     min over the centres of V_p = 0
"""

import json
from pathlib import Path

import mpmath as mp
import numpy as np

FILE = Path(__file__).parent / "field.json"
ORDERS, SOFTENINGS = (1, 2, 3, 4), (0.0, 0.1)
#: Normalizations, and what the logits are divided by: under "density" ψ is then above 1.
VARIANTS = (("standard", 1), ("density", 1), ("density", 64), ("peak", 1))
DIGITS, STEP = 80, mp.mpf(10) ** -22


def logits() -> tuple[list[list[float]], list[list[float]]]:
    """Training logits of three classes, and predictions: some sure, some between, one far out."""
    rng = np.random.default_rng(19)
    classes = np.repeat(np.eye(3), 8, axis=0)
    train = (4 * classes - 1 + rng.normal(size=(24, 3))).round(3)
    sure = (4 * np.eye(3) - 1 + rng.normal(scale=0.3, size=(3, 3))).round(3)
    between = rng.normal(scale=1.2, size=(4, 3)).round(3)
    return train.tolist(), [*sure.tolist(), *between.tolist(), [9.5, -7.25, 8.0]]


def silverman(rows: list[list[mp.mpf]]) -> mp.mpf:
    """Mean standard deviation of the columns, times (4/((d+2)N))^(1/(d+4))."""
    count, d = len(rows), len(rows[0])
    deviations = []
    for column in zip(*rows, strict=True):
        mean = mp.fsum(column) / count
        deviations.append(mp.sqrt(mp.fsum((value - mean) ** 2 for value in column) / count))
    return mp.fsum(deviations) / d * (mp.mpf(4) / ((d + 2) * count)) ** (mp.mpf(1) / (d + 4))


class Field:
    """The definitions, at one bandwidth."""

    def __init__(self, rows: list[list[mp.mpf]], sigma: mp.mpf) -> None:
        self.rows, self.sigma = rows, sigma

    def density(self, x: list[mp.mpf]) -> mp.mpf:
        """ρ, with a kernel that is 1 at its peak."""
        squares = [mp.fsum((a - b) ** 2 for a, b in zip(x, row, strict=True)) for row in self.rows]
        return mp.fsum(mp.exp(-q / (2 * self.sigma**2)) for q in squares) / len(self.rows)

    def around(self, x: list[mp.mpf]) -> list[mp.mpf]:
        """√ρ at x, and at the neighbours of x along each axis."""
        places = [x]
        for axis in range(len(x)):
            for by in (STEP, -STEP):
                places.append([value + by * (k == axis) for k, value in enumerate(x)])
        return [mp.sqrt(self.density(place)) for place in places]

    def bend(self, values: list[mp.mpf]) -> mp.mpf:
        """(σ²/2) ∇²f/f from f at the places of `around`."""
        laplacian = (mp.fsum(values[1:]) - (len(values) - 1) * values[0]) / STEP**2
        return self.sigma**2 / 2 * laplacian / values[0]

    def constant(self, normalization: str, dimension: int) -> mp.mpf:
        """The kernel's value at its peak."""
        width = {"standard": mp.mpf(1), "density": self.sigma}
        if normalization == "peak":
            return mp.mpf(1)
        return (2 * mp.pi * width[normalization] ** 2) ** (-mp.mpf(dimension) / 2)

    def modes(self, roots: list[mp.mpf], constant: mp.mpf, softening: float) -> list[mp.mpf]:
        """Bare modes of all orders."""
        found = []
        for p in ORDERS:
            scale = mp.sqrt(mp.mpf(2) ** p * mp.factorial(p))
            hermite = [mp.hermite(p, mp.sqrt(constant) * root) / scale for root in roots]
            if softening:
                hermite = [mp.sqrt(h**2 + mp.mpf(softening) ** 2) for h in hermite]
            found.append(self.bend(hermite))
        return found


def golden() -> dict:
    """The content of the file."""
    train, queries = logits()
    rows, places = ([[mp.mpf(value) for value in row] for row in part] for part in (train, queries))
    field = Field(rows, silverman(rows))
    ground = -min(field.bend(field.around(x)) for x in rows)
    outside = [field.around(x) for x in places]
    return {
        "train": train,
        "queries": queries,
        "bandwidth": float(field.sigma),
        "ground_energy": float(ground),
        "log_density": digits(2 * mp.log(roots[0]) for roots in outside),
        "potential": digits(field.bend(roots) + ground for roots in outside),
        "variants": [
            variant(rows, places, normalization, divisor, softening)
            for normalization, divisor in VARIANTS
            for softening in SOFTENINGS
        ],
    }


def variant(rows, places, normalization: str, divisor: int, softening: float) -> dict:
    """Energies and scores under one normalization, of logits that are divided by a number."""
    rows, places = ([[v / divisor for v in row] for row in part] for part in (rows, places))
    field = Field(rows, silverman(rows))
    constant = field.constant(normalization, len(rows[0]))
    inside, outside = (
        [field.modes(field.around(x), constant, softening) for x in part] for part in (rows, places)
    )
    energies = [-min(column) for column in zip(*inside, strict=True)]
    modes = [[v + e for v, e in zip(row, energies, strict=True)] for row in outside]
    return {
        "normalization": normalization,
        "divisor": divisor,
        "softening": softening,
        "energies": digits(energies),
        "modes": [digits(row) for row in modes],
        "uncertainty": digits(mp.fsum(row) / len(row) for row in modes),
    }


def digits(values) -> list[float]:
    """Nearest float64 of each number."""
    return [float(value) for value in values]


def text() -> str:
    """The file as it is committed: one line for each entry, lists of numbers in one line."""
    with mp.workdps(DIGITS):
        content = golden()
    variants = ",\n".join(f"  {json.dumps(entry)}" for entry in content.pop("variants"))
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in content.items()]
    return "{\n" + ",\n".join(lines) + ',\n "variants": [\n' + variants + "\n ]\n}\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
