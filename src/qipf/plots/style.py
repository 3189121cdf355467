"""One style for each method, in every figure and on every page.

Methods differ in colour, dash and marker together, never in colour alone. Colours are those of
Okabe and Ito, which colour-blind readers can distinguish, darkened where they would be faint on
paper; `dark` is the colour for dark screens. The scores of a sampling method share a colour:
the standard deviation has a solid line, the predictive entropy a dashed line and hollow markers.
The standard deviation of the samples' own class is dotted.
"""

import json
from dataclasses import dataclass, replace
from importlib import resources

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

_DASHED, _DOTTED, _LONG = (6.0, 3.0), (1.5, 2.5), (12.0, 4.0)

_DATA = json.loads(resources.files("qipf.plots").joinpath("looks.json").read_text("utf-8"))

#: Looks of the methods that come with qipf; a sampler's other scores have its colour, are hollow,
#: and dashed (entropy), dotted (spread of the own class) or long-dashed (log-odds).
LOOKS: dict[str, Look] = {
    name: Look(**{**look, "dash": tuple(look.get("dash", ()))}) for name, look in _DATA.items()
}
LOOKS |= {
    f"{name}_{score}": replace(LOOKS[name], dash=dash, hollow=True)
    for name in ("mc_dropout", "mc_dropout_ll", "svi", "svi_ll", "ensemble", "tta")
    for score, dash in (("entropy", _DASHED), ("own_class", _DOTTED), ("log_odds", _LONG))
}

#: Right and wrong predictions.
RIGHT = Look("#0072b2", "#56a8e0", "circle")
WRONG = Look("#c24e00", "#ff8a3d", "cross", _DASHED)

#: The result of guessing.
CHANCE = Look("#767676", "#9a9a9a", dash=_DOTTED, width=1.2)

#: The best possible result.
BEST = Look("#767676", "#9a9a9a", width=1.2)

_OTHERS = tuple(LOOKS.values())

#: Name of a user's own model among other scores; it looks like `qipf_plus`.
OWN = "this model"


def look_of(name: str) -> Look:
    """The look of a method; that of a user's own method depends only on its name."""
    name = "qipf_plus" if name == OWN else name
    if name in LOOKS:
        return LOOKS[name]
    # not hash(): it differs from one run of Python to the next
    return _OTHERS[sum(name.encode()) % len(_OTHERS)]
