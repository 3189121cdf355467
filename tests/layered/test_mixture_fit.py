"""Weights and bandwidths of the layers, and when the softmax is used alone."""

import pytest
import torch
from sklearn.metrics import roc_auc_score

from qipf import QIPFWarning
from qipf.layered import mixture, mixture_fit
from qipf.layered.class_field import ClassField
from qipf.layered.error_model import Evidence, fit_error_model
from qipf.layered.metric import Metric
from qipf.layered.mixture import evidence_of, likeliest_weights, log_odds_of_error, posteriors_of
from qipf.layered.mixture_fit import LEAST, WIDTHS, fit_mixture
from qipf.layered.tuning import FEWEST, Tuning
from qipf.network.features import LayerSite

GOOD, FAIR, USELESS = LayerSite("good"), LayerSite("fair"), LayerSite("useless")
SPREAD = {GOOD: 0.4, FAIR: 0.55}


def field_of(rows, labels, classes=3, bandwidth=0.3):
    metric = Metric(torch.zeros(rows.shape[1]), torch.eye(rows.shape[1]), gain_free=False)
    return ClassField(metric, metric(rows), labels, classes, bandwidth, torch.arange(len(rows)))


def case(count=300, seed=0, shift=0.0):
    """Logits that often err, layers that know the class more or less, and one that knows nothing.

    The errors of the three are independent of each other.
    """
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=random)
    truth = torch.eye(3)[labels]
    logits = 2 * truth + (1 + shift) * torch.randn(count, 3, generator=random)
    rows = {
        site: truth + (spread + shift) * torch.randn(count, 3, generator=random)
        for site, spread in SPREAD.items()
    }
    rows[USELESS] = torch.randn(count, 3, generator=random)
    return logits, rows, labels


def tuning_of(**sets):
    found = {name: case(seed=5, shift=shift) for name, shift in sets.items()}
    return Tuning({name: part[:2] for name, part in found.items()}, case(seed=5)[2])


_, CENTERS, CENTER_LABELS = case(400, seed=1)
FIELDS = {site: field_of(rows, CENTER_LABELS) for site, rows in CENTERS.items()}
TUNING = tuning_of(clean=0.0, noise=0.3)


def values_at(rows, fields):
    return [field(rows[site]) for site, field in fields.items()]


def likelihoods(fields):
    """What the softmax and those fields give the truth, of all tuning rows: the plain way."""
    parts = []
    for logits, rows in TUNING.sets.values():
        posteriors = posteriors_of(logits, fields.values(), values_at(rows, fields))
        truth = TUNING.labels[:, None, None].expand(-1, posteriors.shape[1], 1)
        parts.append(posteriors.gather(2, truth)[..., 0])
    return torch.cat(parts)


def test_the_posterior_that_knows_more_weighs_more():
    fields, weights, _ = fit_mixture({GOOD: FIELDS[GOOD], FAIR: FIELDS[FAIR]}, TUNING)
    assert list(fields) == [GOOD, FAIR]
    assert (weights.dtype, weights.shape) == (torch.float64, (3,))
    assert float(weights.sum()) == pytest.approx(1)
    assert weights[1] > weights[2] > LEAST


def test_each_layer_has_the_bandwidth_with_the_largest_weight():
    every = {
        LayerSite(f"{site.layer} {width}"): field.at(width * field.bandwidth)
        for site, field in FIELDS.items()
        for width in WIDTHS
    }
    rows = {name: site for name in every for site in FIELDS if name.layer.split()[0] == site.layer}
    parts = []
    for logits, read in TUNING.sets.values():
        shown = {name: read[site] for name, site in rows.items()}
        posteriors = posteriors_of(logits, every.values(), values_at(shown, every))
        truth = TUNING.labels[:, None, None].expand(-1, posteriors.shape[1], 1)
        parts.append(posteriors.gather(2, truth)[..., 0])
    heavy = likeliest_weights(torch.cat(parts))[1:].view(len(FIELDS), len(WIDTHS)).argmax(1)
    found, weights, _ = fit_mixture(FIELDS, TUNING, 0.0)
    for (site, field), width in zip(found.items(), heavy.tolist(), strict=True):
        assert field.bandwidth == pytest.approx(WIDTHS[width] * FIELDS[site].bandwidth)
        assert torch.equal(field.embeddings, FIELDS[site].embeddings)
    torch.testing.assert_close(weights, likeliest_weights(likelihoods(found)))


def test_a_width_far_too_wide_is_narrowed_and_one_too_narrow_is_widened():
    for start, factor in ((1.2, min(WIDTHS)), (0.08, max(WIDTHS))):
        wrong = {GOOD: FIELDS[GOOD].at(start)}
        found, _, _ = fit_mixture(wrong, TUNING)
        assert found[GOOD].bandwidth == pytest.approx(factor * start)


def test_a_layer_that_knows_nothing_is_left_out():
    fields, weights, _ = fit_mixture(FIELDS, TUNING)
    assert list(fields) == [GOOD, FAIR]
    assert weights.shape == (3,)
    assert float(weights.sum()) == pytest.approx(1)
    torch.testing.assert_close(weights, likeliest_weights(likelihoods(fields)))


def test_a_layer_stays_by_its_weight_or_by_its_share_in_the_uncertainty(monkeypatch):
    shares = torch.tensor([0.5, 0.0, 0.0, 0.5]).double()  # of the softmax, and of the useless one
    monkeypatch.setattr(mixture_fit.TuningPosteriors, "importances", lambda *_: shares)
    assert list(fit_mixture(FIELDS, TUNING)[0]) == [GOOD, FAIR, USELESS]


def test_at_most_so_many_layers_stay_those_with_the_largest_weights():
    fields, weights, _ = fit_mixture(FIELDS, TUNING, most=1)
    assert list(fields) == [GOOD]
    torch.testing.assert_close(weights, likeliest_weights(likelihoods(fields)))
    assert list(fit_mixture(FIELDS, TUNING, 0.0, most=2)[0]) == [GOOD, FAIR]
    assert list(fit_mixture(FIELDS, TUNING, 0.0, most=3)[0]) == [GOOD, FAIR, USELESS]


def test_layers_that_were_named_stay():
    fields, weights, _ = fit_mixture(FIELDS, TUNING, 0.0)
    assert list(fields) == [GOOD, FAIR, USELESS]
    assert weights.shape == (4,)
    assert float(weights[3]) < LEAST


def test_the_layer_with_the_largest_weight_always_stays():
    """Beside logits that hardly err."""
    sure = {
        name: (logits + torch.eye(3)[TUNING.labels], rows)
        for name, (logits, rows) in TUNING.sets.items()
    }
    weak = {USELESS: FIELDS[USELESS], FAIR: FIELDS[FAIR]}
    for least in (LEAST, 1.0):
        fields, weights, _ = fit_mixture(weak, Tuning(sure, TUNING.labels), least)
        assert list(fields) == [FAIR]
        assert 0 < float(weights[1]) < LEAST


def test_no_layers_no_weights():
    fields, weights, _ = fit_mixture({}, TUNING)
    assert (fields, weights.tolist()) == ({}, [1.0])


def test_a_class_without_centres():
    """It is left to the softmax before anything is weighted."""
    kept = CENTER_LABELS != 2
    few = {GOOD: field_of(CENTERS[GOOD][kept], CENTER_LABELS[kept])}
    fields, weights, _ = fit_mixture(few, TUNING)
    torch.testing.assert_close(weights, likeliest_weights(likelihoods(fields)))
    assert not fields[GOOD].complete


def test_weights_are_those_of_few_centres_and_the_fields_keep_all():
    few = fit_mixture({s: f.thinned(150) for s, f in FIELDS.items()}, TUNING)
    found = fit_mixture(FIELDS, TUNING, centers=150)
    assert torch.equal(found.weights, few.weights)
    assert list(found.fields) == list(few.fields)
    assert not torch.equal(found.weights, fit_mixture(FIELDS, TUNING).weights)
    for site, field in found.fields.items():
        assert field.bandwidth == few.fields[site].bandwidth
        assert field.embeddings is FIELDS[site].embeddings


def test_many_rows_are_thinned(monkeypatch):
    monkeypatch.setattr(mixture_fit, "TUNING_ROWS", 200)  # of 600: every third
    few = Tuning(
        {
            name: (logits[::3], {site: part[::3] for site, part in rows.items()})
            for name, (logits, rows) in TUNING.sets.items()
        },
        TUNING.labels[::3],
    )
    thinned = fit_mixture(FIELDS, TUNING)
    monkeypatch.undo()
    plain = fit_mixture(FIELDS, few)
    assert list(thinned[0]) == list(plain[0])
    torch.testing.assert_close(thinned[1], plain[1])


def test_the_scores_are_fitted_on_the_kept_fields_at_their_bandwidths(monkeypatch):
    monkeypatch.setattr(mixture_fit, "TUNING_ROWS", 200)  # every third row
    fields, weights, found = fit_mixture(FIELDS, TUNING)
    assert set(fields) < set(FIELDS)
    start = 0
    for number, (logits, rows) in enumerate(TUNING.sets.values()):
        logits, values = logits[::3], [field(rows[site][::3]) for site, field in fields.items()]
        densities = torch.stack([value.log_density for value in values], 1)
        posteriors = posteriors_of(logits, fields.values(), values)
        _, expected = evidence_of(logits, posteriors, densities, weights)
        own = slice(start, start + len(logits))
        start = own.stop
        for one, other in zip(found.evidence(weights), expected, strict=True):
            torch.testing.assert_close(one[own], other, rtol=1e-4, atol=1e-4)
        assert found.sets[own].tolist() == [number] * len(logits)
        assert (found.wrong[own] == (logits.argmax(1) != TUNING.labels[::3])).all()
    assert len(found.wrong) == start


def test_every_layer_is_weighted_at_four_widths():
    assert WIDTHS == (0.5, 0.5**0.5, 1.0, 2**0.5)
    assert mixture_fit.LEAST == 0.05


def test_no_more_posteriors_are_held_than_fit(monkeypatch):
    whole = mixture_fit.tuning_posteriors(FIELDS, TUNING)
    sizes = []
    plain = mixture_fit.posteriors_of

    def recorded(*given):
        found = plain(*given)
        sizes.append(found.numel())
        return found

    monkeypatch.setattr(mixture_fit, "posteriors_of", recorded)
    classes, columns = next(iter(TUNING.sets.values()))[0].shape[1], 1 + 3 * len(WIDTHS)
    monkeypatch.setattr(mixture, "POSTERIORS", 50 * classes * columns + 1)
    parts = mixture_fit.tuning_posteriors(FIELDS, TUNING)
    assert max(sizes) == 50 * classes * columns
    torch.testing.assert_close(parts.truth, whole.truth)


def test_the_fields_it_was_given_are_left_alone():
    fit_mixture(FIELDS, TUNING)
    assert [field.bandwidth for field in FIELDS.values()] == [0.3] * 3


def test_gains_are_areas_of_each_set_less_the_softmaxs():
    """Judged on the half of the examples that did not fit the weights and the uncertainty."""
    found = mixture_fit.tuning_posteriors({GOOD: FIELDS[GOOD]}, TUNING)
    found = found.columns([0, 1 + WIDTHS.index(1.0)])
    even = torch.arange(len(TUNING.labels)) % 2 == 0
    expected = []
    for known in (even, ~even):
        parts = []
        for logits, rows in TUNING.sets.values():
            posteriors = posteriors_of(logits, [FIELDS[GOOD]], [FIELDS[GOOD](rows[GOOD])])
            parts.append((logits, posteriors))
        rows = range(int(known.sum()))
        truth = [p[known][rows, :, TUNING.labels[known]] for _, p in parts]
        weights = likeliest_weights(torch.cat(truth))
        every = [
            (evidence_of(z, p, torch.zeros(len(z), 0), weights)[1], z.argmax(1) != TUNING.labels)
            for z, p in parts
        ]
        fitted = fit_error_model(
            Evidence(*(torch.cat([e[k][known] for e, _ in every]) for k in (0, 1))),
            torch.cat([wrong[known] for _, wrong in every]),
            torch.arange(len(every)).repeat_interleave(int(known.sum())) > 0,
        )
        for (z, _), (evidence, wrong) in zip(parts, every, strict=True):
            softmax = log_odds_of_error(z.double().softmax(1), z.argmax(1))
            areas = [roc_auc_score(wrong[~known], s[~known]) for s in (fitted(evidence), softmax)]
            expected.append(areas[0] - areas[1])
    assert found.gains() == pytest.approx(expected)
    assert min(expected) > 0


# ---------------------------------------------------------------------- fallbacks


def assert_for_the_novelty_alone(fields, tuning, reason):
    with pytest.warns(QIPFWarning, match=f"layers are used for the novelty alone: .*{reason}"):
        found, weights, posteriors = fit_mixture(fields, tuning)
    assert found
    assert set(found) <= set(fields)
    assert weights.tolist() == [1.0] + [0.0] * len(found)
    assert posteriors.unusual.shape[1] == 1 + len(found)


@pytest.mark.parametrize("sign", [1, -1])
def test_softmax_alone_if_the_network_never_or_always_errs(sign):
    sets = {"clean": (sign * 5 * torch.eye(3)[TUNING.labels], TUNING.sets["clean"][1])}
    tuning = Tuning(sets, TUNING.labels)
    assert_for_the_novelty_alone(FIELDS, tuning, "no errors to learn from")


def test_softmax_alone_if_layers_do_not_detect_errors_better(monkeypatch):
    # EM gives such a layer hardly any weight, which does hardly any harm
    monkeypatch.setattr(
        mixture_fit,
        "likeliest_weights",
        lambda p: torch.tensor([0.1] + [0.9] * (p.shape[1] - 1)).double(),
    )
    useless = {USELESS: FIELDS[USELESS]}
    assert_for_the_novelty_alone(useless, TUNING, "no better than its softmax")


def test_softmax_alone_with_too_few_examples():
    tuning = Tuning({}, TUNING.labels[:0])
    with pytest.warns(QIPFWarning, match=f"novelty alone: fewer than {FEWEST} examples"):
        found, weights, posteriors = fit_mixture(FIELDS, tuning)
    assert list(found) == list(FIELDS)[-1:]
    assert (weights.tolist(), posteriors) == ([1.0, 0.0], None)


def test_examples_are_numbered_whatever_part_is_taken(monkeypatch):
    """Rows of one example in several sets share its number, which halves are made by."""
    sets, count = len(TUNING.sets), len(TUNING.labels)
    for step in (1, 3):
        monkeypatch.setattr(mixture_fit, "TUNING_ROWS", sets * count // step)
        found = mixture_fit.tuning_posteriors(FIELDS, TUNING)
        taken = -(-count // step)
        assert found.examples.tolist() == list(range(taken)) * sets
