"""One style for each method, in every figure and on every page.

Methods differ in colour, dash and marker together, never in colour alone. Colours are those of
Okabe and Ito, which colour-blind readers can distinguish, darkened where they would be faint on
paper; `dark` is the colour for dark screens. The two scores of a sampling method share a colour:
the standard deviation has a solid line, the predictive entropy a dashed line and hollow markers.
"""

from dataclasses import dataclass, replace

#: Text of a table cell without a value.
MISSING = "–"


@dataclass(frozen=True)
class Look:
    """How a series is drawn, on paper and on screens."""

    color: str
    dark: str
    marker: str = "circle"  # one of MARKERS
    dash: tuple[float, ...] = ()  # lengths of strokes and gaps, in line widths of 1; () is solid
    width: float = 1.6
    hollow: bool = False


#: Marker names, and what matplotlib calls them.
MARKERS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle": "^",
    "down": "v",
    "left": "<",
    "right": ">",
    "plus": "P",
    "cross": "X",
}

_DASHED, _DOTTED, _MIXED = (6.0, 3.0), (1.5, 2.5), (7.0, 2.5, 1.5, 2.5)

_SAMPLERS = {
    "mc_dropout": Look("#0072b2", "#56a8e0", "square"),
    "mc_dropout_ll": Look("#4a9bd1", "#8cc8f0", "triangle"),
    "svi": Look("#a8447f", "#e08fc0", "down"),
    "svi_ll": Look("#cc79a7", "#f0b3d4", "left"),
    "ensemble": Look("#00795a", "#2fc39b", "diamond"),
}

#: Looks of the methods that come with qipf.
LOOKS: dict[str, Look] = {
    "qipf": Look("#c24e00", "#ff8a3d", "circle", width=2.6),
    "qipf_plus": Look("#c24e00", "#ff8a3d", "circle", _DASHED, width=2.6, hollow=True),
    "softmax": Look("#4d4d4d", "#d0d0d0", "square", _DOTTED),
    "entropy": Look("#000000", "#ffffff", "right", _MIXED),
    "max_logit": Look("#8a6d00", "#d9b53a", "triangle", _DOTTED),
    "energy": Look("#b07a00", "#f0b429", "plus", _MIXED),
    "knn": Look("#6b5fb5", "#aaa0f0", "cross", _DOTTED),
    "mahalanobis": Look("#7a4a2b", "#c99a78", "down", _MIXED),
    **_SAMPLERS,
    **{
        f"{name}_entropy": replace(look, dash=_DASHED, hollow=True)
        for name, look in _SAMPLERS.items()
    },
}

#: Right and wrong predictions.
RIGHT = Look("#0072b2", "#56a8e0", "circle")
WRONG = Look("#c24e00", "#ff8a3d", "cross", _DASHED)

#: The result of guessing.
CHANCE = Look("#767676", "#9a9a9a", dash=_DOTTED, width=1.2)

#: The best possible result.
BEST = Look("#767676", "#9a9a9a", width=1.2)

_OTHERS = tuple(LOOKS.values())


def look_of(name: str) -> Look:
    """The look of a method; that of a user's own method depends only on its name."""
    if name in LOOKS:
        return LOOKS[name]
    # not hash(): it differs from one run of Python to the next
    return _OTHERS[sum(name.encode()) % len(_OTHERS)]
