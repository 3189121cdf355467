"""scikit-learn's own estimator checks, all of them."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from qipf import QIPF

# some checks pass labels that are not classes of the logits
pytestmark = pytest.mark.filterwarnings("ignore::qipf.QIPFWarning")


@pytest.mark.slow
@parametrize_with_checks([QIPF()])
def test_estimator_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([QIPF(reduction="coreset", max_centers=50)])
def test_estimator_checks_of_a_coreset(estimator, check):
    check(estimator)
