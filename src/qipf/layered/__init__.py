"""A network judged by all of its layers at once."""

from qipf.layered.model import LayeredPrediction, LayeredQIPF

__all__ = ["LayeredPrediction", "LayeredQIPF"]
