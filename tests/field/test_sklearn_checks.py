"""scikit-learn's own estimator checks, whole."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from qipf import QIPF


@pytest.mark.filterwarnings("ignore::qipf.QIPFWarning")  # checks pass labels that are no classes
@parametrize_with_checks([QIPF(), QIPF(reduction="coreset", max_centers=50)])
def test_scikit_learn_estimator_checks(estimator, check):
    check(estimator)
