"""nan_policy, on all models: predictions with NaN or infinity raise, or get NaN themselves."""

import numpy as np
import pytest
import torch
from torch import nn

import qipf
from qipf import QIPFInputError

BAD = {1: float("nan"), 4: float("inf"), 5: float("-inf")}
GOOD = [0, 2, 3]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).eval()


NET = network()


def inputs(count, seed):
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


def labelled(count, seed):
    """Labels that the network often misses."""
    rows = inputs(count, seed)
    with torch.no_grad():
        noise = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed + 1))
        return rows, (NET(rows) + 0.3 * noise).argmax(1)


def features(rows):
    with torch.no_grad():
        return {"hidden": NET[:2](rows)}, NET(rows)


class Broken(nn.Module):
    """A network whose logits are not finite for some inputs, though its hidden layer is."""

    def __init__(self):
        super().__init__()
        self.hidden, self.head = NET[:2], NET[2]

    def forward(self, rows):
        logits = self.head(self.hidden(rows))
        return torch.where(rows[:, :1] > 100, torch.nan, logits)


@pytest.mark.parametrize("policy", ["raise", "propagate"])
def test_logits_count_where_the_field_reads_a_layer(policy):
    field = qipf.QIPF(fallback=False, nan_policy=policy)
    model = qipf.wrap(Broken(), layer="hidden", field=field).fit([labelled(300, 0)])
    model.calibrate([labelled(200, 2)]).accept_rule(max_risk=0.5)
    rows = inputs(6, 7)
    rows[1, 0] = 1e3
    if policy == "raise":
        with pytest.raises(QIPFInputError, match="NaN"):
            model(rows)
        return
    found = model(rows)
    assert found.uncertainty.isnan().tolist() == [False, True, False, False, False, False]
    assert int(found.predicted[1]) == -1
    assert not bool(found.accepted[1])


def make(kind, policy="propagate"):
    """A model with a rule, and a function from inputs of the network to its own."""
    train, held_out = labelled(300, 0), labelled(200, 2)
    if kind == "QIPF":
        with torch.no_grad():
            model = qipf.QIPF(fallback=False, nan_policy=policy).fit(NET(train[0]), train[1])
            model.calibrate(NET(held_out[0]), held_out[1])
        model.accept_rule(max_risk=0.5)
        return model, lambda rows: (NET(rows).detach(),)
    if kind == "FeatureQIPF":
        model = qipf.FeatureQIPF(nan_policy=policy).fit(*features(train[0]), train[1])
        model.calibrate(*features(held_out[0]), held_out[1]).accept_rule(max_risk=0.5)
        return model, features
    if kind == "wrap":
        model = qipf.wrap(NET, field=qipf.QIPF(fallback=False, nan_policy=policy))
    else:
        model = qipf.LayeredQIPF(NET, nan_policy=policy)
    model.fit([train]).calibrate([held_out]).accept_rule(max_risk=0.5)
    return model, lambda rows: (rows,)


KINDS = ("QIPF", "wrap", "LayeredQIPF", "FeatureQIPF")


@pytest.fixture(scope="module", params=KINDS)
def made(request):
    return (request.param, *make(request.param))


def with_bad_rows(given):
    """The arguments with bad numbers, each in another array or column."""
    *others, last = given
    last = last.clone()
    for place, (row, value) in enumerate(BAD.items()):
        # tanh makes infinite inputs finite
        last[row, place] = torch.nan if last.shape[1] == 4 else value
    if others:  # features: a row that is bad there only
        hidden = others[0]["hidden"].clone()
        hidden[4, 0], last[4] = BAD[4], given[-1][4]
        others = [{"hidden": hidden}]
    return *others, last


def test_the_others_are_scored_as_without_them(made):
    _, model, given = made
    clean = given(inputs(6, 7))
    bad = with_bad_rows(clean)
    for verb in ("uncertainty", "novelty", "p_values", "log_density", "posteriors"):
        if hasattr(model, verb):
            wanted, found = getattr(model, verb)(*clean), getattr(model, verb)(*bad)
            assert torch.equal(found[GOOD], wanted[GOOD]), verb
            assert found[list(BAD)].isnan().all(), verb
    assert torch.equal(model.accepts(*bad)[GOOD], model.accepts(*clean)[GOOD])
    assert model.accepts(*clean).any()
    assert not model.accepts(*bad)[list(BAD)].any()


def test_a_prediction_has_nan_false_and_no_class(made):
    _, model, given = made
    clean = given(inputs(6, 7))
    wanted, found = model(*clean), model(*with_bad_rows(clean))
    assert found.predicted.tolist() == [
        p if k in GOOD else -1 for k, p in enumerate(wanted.predicted)
    ]
    for name in ("uncertainty", "p_value", "novelty", "probabilities", "p_error"):
        if getattr(wanted, name) is not None:
            assert torch.equal(getattr(found, name)[GOOD], getattr(wanted, name)[GOOD])
            assert getattr(found, name)[list(BAD)].isnan().all()
    assert not found.accepted[list(BAD)].any()
    assert torch.equal(found.logits[GOOD], wanted.logits[GOOD])
    assert not found.logits[[1, 5]].isfinite().all(1).any()


def test_a_batch_without_any_usable_prediction(made):
    _, model, given = made
    *others, last = given(inputs(2, 7))
    found = model(*others, torch.full_like(last, torch.nan))
    assert found.uncertainty.isnan().all()
    assert not found.accepted.any()
    assert found.predicted.tolist() == [-1, -1]


def test_calibrate_and_explain_always_raise(made):
    kind, model, given = made
    bad = with_bad_rows(given(inputs(6, 7)))
    with pytest.raises(QIPFInputError, match="3 rows with NaN or inf"):
        model.calibrate([bad]) if kind in ("wrap", "LayeredQIPF") else model.calibrate(*bad)
    if hasattr(model, "explain"):
        with pytest.raises(QIPFInputError, match="3 rows with NaN or inf"):
            model.explain(*bad)


def test_the_policy_is_in_the_file_and_no_score_depends_on_it(made, tmp_path):
    kind, model, given = made
    digest = model.digest()
    model.save(tmp_path / "model.qipf")
    net = (NET,) if kind in ("wrap", "LayeredQIPF") else ()
    loaded = qipf.load(tmp_path / "model.qipf", *net)
    assert loaded.nan_policy == "propagate"
    loaded.nan_policy = "raise"
    assert loaded.digest() == digest
    with pytest.raises(QIPFInputError, match="NaN or inf"):
        loaded.uncertainty(*with_bad_rows(given(inputs(6, 7))))


def test_a_monitor_counts_them_as_abstained(made):
    _, model, given = made
    verdict = qipf.ShiftMonitor(model).update(*with_bad_rows(given(inputs(6, 7))))
    assert verdict.seen == 6
    assert verdict.abstained >= 3


def test_arrays_and_outliers_of_a_field(made):
    kind, model, given = made
    if kind != "QIPF":
        return
    rows = with_bad_rows(given(inputs(6, 7)))[0].numpy()
    assert np.isnan(model.uncertainty(rows)[list(BAD)]).all()
    assert (model.predict(rows)[list(BAD)] == -1).all()
    assert np.isnan(model.modes(rows)[list(BAD)]).all()


def test_pixels_are_marked_one_by_one():
    torch.manual_seed(0)
    net = nn.Conv2d(2, 3, 1)
    images = torch.randn(8, 2, 4, 4)
    model = qipf.wrap(net, field=qipf.QIPF(nan_policy="propagate")).fit([images])
    images[1, 0, 2, 3] = torch.nan
    found = model(images)
    missing = torch.zeros(8, 4, 4, dtype=torch.bool)
    missing[1, 2, 3] = True
    assert torch.equal(found.uncertainty.isnan(), missing)
    assert torch.equal(found.predicted == -1, missing)


@pytest.mark.parametrize("policy", ["omit", None, ["raise"]])
@pytest.mark.parametrize("kind", ["QIPF", "LayeredQIPF", "FeatureQIPF"])
def test_other_policies_are_rejected(kind, policy):
    with pytest.raises(QIPFInputError, match="nan_policy"):
        make(kind, policy)


def test_by_default_they_raise(made, monkeypatch):
    _, model, given = made
    for default in (qipf.QIPF(), qipf.wrap(NET), qipf.LayeredQIPF(NET), qipf.FeatureQIPF()):
        assert default.nan_policy == "raise"
    monkeypatch.setattr(model, "nan_policy", "raise")
    with pytest.raises(QIPFInputError, match="with NaN or inf"):
        model(*with_bad_rows(given(inputs(6, 7))))
