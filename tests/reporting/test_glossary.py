from qipf.bench.methods import METHODS
from qipf.reporting.glossary import EXPLANATIONS, explanation


def test_every_method_is_explained_in_a_sentence_of_its_own():
    assert set(EXPLANATIONS) == set(METHODS)
    assert len(set(EXPLANATIONS.values())) == len(METHODS)
    for text in EXPLANATIONS.values():
        assert text.endswith(".")
        assert len(text) < 140


def test_a_method_of_ones_own_has_no_explanation():
    assert explanation("mine") == ""
