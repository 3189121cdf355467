"""A network judged by all of its layers at once."""

from qipf.layered.explaining import Explanation, Neighbor, Opinion
from qipf.layered.model import LayeredPrediction, LayeredQIPF

__all__ = ["Explanation", "LayeredPrediction", "LayeredQIPF", "Neighbor", "Opinion"]
