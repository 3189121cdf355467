"""Every method can be distinguished from every other, on paper and on dark screens."""

import itertools

import pytest

from qipf.bench.methods import METHODS
from qipf.plots.style import BEST, CHANCE, LOOKS, MARKERS, OWN, RIGHT, WRONG, look_of

LIGHT, DARK = "#ffffff", "#14171b"


def luminance(color):
    """Relative luminance as the accessibility guidelines define it."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_every_method_has_a_look():
    assert set(LOOKS) == set(METHODS)
    assert look_of(OWN) == LOOKS["qipf_plus"]


@pytest.mark.parametrize("look", [*LOOKS.values(), RIGHT, WRONG, CHANCE, BEST])
def test_lines_are_visible_on_both_grounds(look):
    assert contrast(look.color, LIGHT) >= 2.9
    assert contrast(look.dark, DARK) >= 3
    assert look.marker in MARKERS


def test_no_two_methods_look_alike_without_colour():
    shapes = {name: (look.marker, look.dash, look.hollow) for name, look in LOOKS.items()}
    same = [(a, b) for a, b in itertools.combinations(shapes, 2) if shapes[a] == shapes[b]]
    assert same == []


def test_the_scores_of_a_sampler_share_their_colour():
    for name in METHODS:
        if f"{name}_entropy" in LOOKS:
            looks = [look_of(name), look_of(f"{name}_entropy"), look_of(f"{name}_log_odds")]
            assert len({look.color for look in looks}) == 1
            assert len({look.dash for look in looks}) == 3


def test_right_and_wrong_differ_without_colour():
    assert (RIGHT.marker, RIGHT.dash) != (WRONG.marker, WRONG.dash)
