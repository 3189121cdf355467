"""Corruptions of test data: images turned, blurred, compressed, …, and sentences mistyped.

Images are floats in [0, 1] of shape (N, C, H, W), on any device.

==========================================  ====================================================
rotation, shear, zoom, brightness           the paper's (`geometric`)
jpeg, hue, saturation, posterise            colours and compression (`photographic`)
motion_blur, zoom_blur, impulse_noise       the camera (`photographic`)
fog, frost, snow                            the weather (`weather`)
typing, dropped_words, swapped_words,       sentences (`sentences`)
other_words
==========================================  ====================================================

None is one of the perturbations that `LayeredQIPF` is tuned on. Some are related: `brightness` is
its `fade` plus a constant, `fog` fades too, `impulse_noise` replaces pixels as its `drop` does,
`zoom_blur` and `motion_blur` lose detail as its `blur` does, and words are dropped, swapped and
exchanged as its tokens are. `UNRELATED` names those that share nothing with it.
"""

from qipf.bench.corruptions import geometric, photographic, sentences, weather
from qipf.bench.corruptions.registry import CORRUPTIONS, Corruption, corrupt, register

#: Corruptions that share nothing with the perturbations of `qipf.layered.perturbations`.
UNRELATED = (
    "rotation",
    "shear",
    "zoom",
    "jpeg",
    "hue",
    "saturation",
    "posterise",
    "frost",
    "snow",
    "typing",
)

__all__ = [
    "CORRUPTIONS",
    "UNRELATED",
    "Corruption",
    "corrupt",
    "geometric",
    "photographic",
    "register",
    "sentences",
    "weather",
]
