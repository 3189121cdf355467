"""A network judged by all of its layers at once."""

from qipf.layered.explanation import Explanation, Neighbor, Opinion
from qipf.layered.model import LayeredPrediction, LayeredQIPF

__all__ = ["Explanation", "LayeredPrediction", "LayeredQIPF", "Neighbor", "Opinion"]
