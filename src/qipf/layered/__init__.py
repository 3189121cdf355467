"""A network judged by all of its layers at once."""

from qipf.layered.explanation import Explanation, LayerPosterior, Neighbor
from qipf.layered.model import LayeredPrediction, LayeredQIPF

__all__ = ["Explanation", "LayerPosterior", "LayeredPrediction", "LayeredQIPF", "Neighbor"]
