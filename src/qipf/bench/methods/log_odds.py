"""The draws of a sampler by the score that `qipf_plus` has: log-odds of the predicted class."""

from torch import Tensor

from qipf.bench.methods.protocol import Batch
from qipf.bench.methods.sampling import Sampled
from qipf.layered.mixture import log_odds_of_error


class LogOdds(Sampled):
    r"""Log-odds of the mean class probabilities against the predicted class.

    .. math:: \log (1 - \bar p_{\hat y}) - \log \bar p_{\hat y}

    :math:`\hat y`: the class that the deterministic network predicts. Unlike the entropy it knows
    which prediction is scored.
    """

    suffix = "_log_odds"

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Any real number."""
        return log_odds_of_error(self.samples(batch).mean, batch.predicted)
