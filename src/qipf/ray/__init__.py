"""Scoring and fitting on a Ray cluster, for data that one machine cannot hold.

Ray (the extra ``ray``) is imported when it is first needed. Where no cluster is
connected, one is started on this machine and ended afterwards.
"""

from qipf.ray.connection import cluster
from qipf.ray.fitting import fit
from qipf.ray.scoring import on_ray, score

__all__ = ["cluster", "fit", "on_ray", "score"]
