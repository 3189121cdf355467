"""Novelty: lengths by NumPy, the distance in a limit, both sides, extremes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qipf.layered.error_model import Evidence, balanced, fit_log_odds
from qipf.layered.metric import Metric
from qipf.layered.novelty import (
    SHORTEST,
    SHORTEST_RESIDUAL,
    NoveltyModel,
    PrincipalSubspace,
    RowLengths,
    fit_novelty_model,
    standardised_mean,
    unusual_columns,
)
from qipf.network.features import LayerSite

FIRST, LAST = LayerSite("a", "input"), LayerSite("b", "input")


def rows_of(count, seed=0, spread=(5.0, 3.0, 0.1, 0.01)):
    """Rows of two layers; those of the second vary in four directions that are not the axes."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(np.random.default_rng(9).normal(size=(4, 4)))[0]
    last = rng.normal(size=(count, 4)) * spread @ turn.T + 2
    made = {FIRST: rng.normal(size=(count, 3)) * 7, LAST: last}
    return {site: torch.from_numpy(rows).float() for site, rows in made.items()}, turn


def test_lengths_by_numpy(monkeypatch):
    monkeypatch.setattr("qipf.layered.novelty.PRINCIPAL", 2)
    rows, turn = rows_of(5000)
    metric = Metric(torch.tensor([1.0, 0.0, 2.0]), torch.tensor([[1.0], [0.5], [0.0]]), True)
    found = RowLengths.of(rows, (FIRST, LAST), {FIRST: metric})
    assert found.count == 5
    assert found.widths == {FIRST: 3, LAST: 4}
    few, _ = rows_of(20, seed=1)

    def whitened(own):  # (x - 1) / 1 + y / 2, of rows of length one
        own = own / np.linalg.norm(own, axis=1, keepdims=True)
        return np.abs(own[:, 0] - 1 + own[:, 1] / 2)

    def lengths(rows):
        """Of rows, of whitened rows, of offsets, and of residuals."""
        own = [rows[site].double().numpy() for site in (FIRST, LAST)]
        offsets = [part - mean for part, mean in zip(own, means, strict=True)]
        parts = [part @ rest for part, rest in zip(offsets, complements, strict=True)]
        norm = [[np.linalg.norm(part, axis=1) for part in kind] for kind in (own, offsets, parts)]
        return [*norm[0], whitened(own[0])], norm[1], norm[2]

    means = [rows[site].double().numpy().mean(0) for site in (FIRST, LAST)]
    every = [rows[site].double().numpy() - mean for site, mean in zip(rows, means, strict=True)]
    # the subspaces have one of three dimensions, and two of four
    complements = [np.linalg.eigh(own.T @ own)[1][:, :2] for own in every]
    last = complements[1] @ complements[1].T
    np.testing.assert_allclose(last, turn[:, 2:] @ turn[:, 2:].T, atol=0.01)
    plain, offsets, _ = lengths(rows)
    floors = [SHORTEST * own.mean() for own in plain]
    floors += [SHORTEST_RESIDUAL * own.mean() for own in offsets]
    plain, _, residuals = lengths(few)
    expected = np.log(np.stack([*plain, *residuals], 1) + np.array(floors))
    np.testing.assert_allclose(found(torch.zeros(20, 3), few), expected, rtol=1e-5, atol=1e-5)


def test_residuals_of_a_subspace():
    rows, turn = rows_of(5000)
    subspace = PrincipalSubspace.of(rows[LAST])  # one of four dimensions
    torch.testing.assert_close(subspace.directions.T @ subspace.directions, torch.eye(1))
    moved = torch.from_numpy(30 * turn.T).float() + subspace.mean
    np.testing.assert_allclose(subspace.residuals(moved), [0, 30, 30, 30], atol=0.5)


def test_residuals_of_rows_that_vary_in_few_directions_are_no_rounding():
    """A thousandth of the row's length, of which float32 has four digits, in any order of sums."""
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(400, 9)) @ rng.normal(size=(9, 512)) * 10
    part = rng.normal(size=(400, 512)) * 0.03
    rows = torch.from_numpy(flat + part).float()
    subspace = PrincipalSubspace.of(rows)  # 64 dimensions
    left = subspace.directions.double()
    offsets = rows.double() - subspace.mean.double()
    exact = (offsets - offsets @ left @ left.T).norm(dim=1)
    assert float((exact / offsets.norm(dim=1)).max()) < 5e-3
    np.testing.assert_allclose(subspace.residuals(rows), exact, rtol=2e-3)
    order = torch.from_numpy(rng.permutation(512))
    moved = PrincipalSubspace(subspace.mean[order], subspace.directions[order].contiguous())
    np.testing.assert_allclose(moved.residuals(rows[:, order]), exact, rtol=2e-3)


@given(st.integers(1, 40), st.floats(-3, 3))
def test_subspace_and_residual_make_up_the_offset(width, exponent):
    rng = np.random.default_rng(width)
    rows = torch.from_numpy(rng.normal(size=(60, width)) * 10**exponent).float()
    subspace = PrincipalSubspace.of(rows)
    offsets = rows - subspace.mean
    inside = (offsets @ subspace.directions).double().norm(dim=1)
    residuals = subspace.residuals(rows)
    whole = torch.hypot(inside, residuals)
    torch.testing.assert_close(whole, offsets.double().norm(dim=1), rtol=1e-5, atol=1e-12)
    turned = torch.linalg.qr(torch.from_numpy(rng.normal(size=(width, width)))).Q.float()
    again = PrincipalSubspace.of(rows @ turned).residuals(rows @ turned)
    close = {"rtol": 1e-2, "atol": 2e-3 * float(offsets.norm(dim=1).max())}
    torch.testing.assert_close(again, residuals, **close)


def test_rows_that_are_zero_or_huge_have_finite_lengths():
    rows = {LAST: torch.zeros(10, 4)}
    metric = Metric(torch.zeros(4), torch.eye(4), False)
    found = RowLengths.of(rows, (LAST,), {LAST: metric})
    for value in (0.0, 1e-40, 3e38):
        lengths = found(torch.zeros(10, 2), {LAST: torch.full((10, 4), value)})
        assert bool(torch.isfinite(lengths).all())
    # plain, whitened, and the residual of a subspace that it has no part in, or as long as the row
    assert float((lengths - np.log(6e38)).abs().max()) < 0.2


def test_where_a_product_overflows_the_length_is_that_of_the_row_itself():
    metric = Metric(torch.zeros(4), torch.full((4, 2), 1.0), False)
    short = RowLengths.of(
        dict.fromkeys((FIRST, LAST), torch.ones(9, 4)), (FIRST, LAST), {FIRST: metric}
    )
    huge, ones = torch.full((1, 4), 3e38), torch.ones(1, 4)
    found = short(torch.zeros(1, 2), {FIRST: huge, LAST: ones})[0]
    own = np.log(6e38)
    assert float((found[[0, 2]] - own).abs().max()) < 0.01
    assert float(found[1]) == pytest.approx(np.log(2), abs=0.01)
    assert float(found[4]) < 1  # not the length of the other layer's row


def test_rows_are_whitened_where_their_metric_is():
    """On a GPU, while the rows of the training examples are not."""

    class Elsewhere:
        mean = torch.empty(3, device="meta")

        def whitened(self, rows):
            assert rows.device == self.mean.device
            return torch.full((len(rows), 2), 3.0)

    site = LayerSite("a")
    found = RowLengths.of({site: torch.ones(5, 3)}, [site], {site: Elsewhere()})
    torch.testing.assert_close(found.shortest[1], torch.tensor(1e-3 * 18**0.5).double())


def test_without_layers_there_is_nothing_to_measure():
    found = RowLengths.of({}, (), {})
    assert found(torch.ones(3, 2), {}).tolist() == [[0.0]] * 3


def test_unusual_columns_by_hand():
    found = unusual_columns(torch.tensor([[0.0, 0.0]]), torch.tensor([[-3.0]]))
    np.testing.assert_allclose(found, [[-np.log(2), 3.0]])


def of(unusual, mixture=None):
    """Evidence with these columns, and log-odds of the mixture; by default zero."""
    mixture = torch.zeros(len(unusual)).double() if mixture is None else mixture
    return Evidence(torch.stack([mixture, torch.full_like(mixture, 9.0)], 1), unusual)


def test_the_columns_are_energy_last_layer_residual_distance_and_mixture():
    model = NoveltyModel.unfitted(2, 2)
    rows = of(torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]]).double(), torch.tensor([-7.0]).double())
    assert model.columns(rows).tolist() == [[1.0, 3.0, 5.0, 0.0, -7.0]]
    assert model(rows).tolist() == [3.0]
    alone = of(torch.tensor([[1.0, 5.0]]).double())
    assert NoveltyModel.unfitted(0, 1)(alone).tolist() == [1.0]  # the energy


def test_the_mixture_is_heard_if_it_alone_tells_perturbed_rows():
    rng = np.random.default_rng(0)
    perturbed = torch.arange(400) >= 200
    rows = torch.from_numpy(rng.normal(size=(400, 5)))
    mixture = torch.from_numpy(rng.normal(size=400)) + 4 * perturbed
    slopes = fit_novelty_model(of(rows, mixture), perturbed, 2).log_odds.slopes
    assert float(slopes[4]) > 1
    assert float(slopes[[0, 1, 2]].max()) < 0.2


def test_the_distance_is_mahalanobis_in_the_limit_of_many_rows():
    rng = np.random.default_rng(0)
    mix = np.array([[1.0, 0.0], [3.0, 4.0]])
    clean = torch.from_numpy(rng.normal(size=(20_000, 2)) @ mix.T + [5.0, -7.0])
    clean = torch.cat([clean, torch.zeros(len(clean), 1)], 1)
    model = fit_novelty_model(of(clean), torch.zeros(len(clean), dtype=torch.bool), 1)
    offsets = clean[:50, :2].numpy() - clean[:, :2].numpy().mean(0)
    inverse = np.linalg.inv(np.cov(clean[:, :2].numpy().T, bias=True))
    expected = np.einsum("ni,ij,nj->n", offsets, inverse, offsets)  # squared
    # the covariance is shrunk a little
    np.testing.assert_allclose(model.columns(of(clean[:50]))[:, 3], expected, rtol=0.06)


def test_novelty_of_perturbed_rows_is_higher_on_both_sides_of_the_clean_ones():
    rng = np.random.default_rng(0)
    clean = rng.normal(size=(300, 4))
    sides = np.where(rng.random((300, 1)) < 0.5, -6.0, 6.0)
    odd = np.concatenate([rng.normal(size=(300, 1)), sides + rng.normal(size=(300, 3))], 1)
    rows = torch.from_numpy(np.concatenate([clean, odd]))
    perturbed = torch.arange(600) >= 300
    model = fit_novelty_model(of(rows), perturbed, 1)
    found = model(of(rows))
    assert float(found[perturbed].min()) > float(found[~perturbed].median())
    assert bool((model.log_odds.slopes >= 0).all())
    torch.testing.assert_close(model.terms(of(rows)).sum(1), found)


def test_each_column_is_heard_if_it_alone_tells_perturbed_rows():
    rng = np.random.default_rng(0)
    perturbed = torch.arange(400) >= 200
    for place, column in ((0, 0), (2, 1), (4, 2)):  # energy, second of two layers, residual
        rows = torch.from_numpy(rng.normal(size=(400, 5)))
        rows[perturbed, place] += 4
        slopes = fit_novelty_model(of(rows), perturbed, 2).log_odds.slopes
        scaled = slopes[:3] / slopes[:3].sum()
        assert float(scaled[column]) > 0.8


def test_outliers_have_the_same_weight_as_perturbed_rows():
    """However many there are; each kind is told by a column of its own."""
    rng = np.random.default_rng(0)
    perturbed = torch.arange(600) >= 300
    rows = torch.from_numpy(rng.normal(size=(600, 5)))
    rows[perturbed, 0] += 2  # energy
    outliers = torch.from_numpy(rng.normal(size=(50, 5)))
    outliers[:, 2] += 2  # density of the last layer
    before = fit_novelty_model(of(rows), perturbed, 2)
    after = fit_novelty_model(of(rows), perturbed, 2, of(outliers))
    assert torch.equal(after.mean, before.mean)  # of clean rows alone
    assert torch.equal(after.whiten, before.whiten)
    assert float(before.log_odds.slopes[1]) < 0.2 < 0.5 < float(after.log_odds.slopes[1])
    many = fit_novelty_model(of(rows), perturbed, 2, of(outliers.repeat(20, 1)))
    np.testing.assert_allclose(many.parameters(), after.parameters(), rtol=1e-4, atol=1e-6)
    columns = torch.cat([after.columns(of(rows)), after.columns(of(outliers))])
    weights = torch.tensor([1 / 300] * 300 + [0.5 / 300] * 300 + [0.5 / 50] * 50).double()
    by_hand = fit_log_odds(columns, torch.arange(650) >= 300, weights)
    assert by_hand.parameters() == pytest.approx(after.log_odds.parameters(), rel=1e-5)


def test_outliers_alone_have_the_weight_of_the_clean_rows():
    rng = np.random.default_rng(0)
    rows, none = torch.from_numpy(rng.normal(size=(200, 3))), torch.zeros(200, dtype=torch.bool)
    model = fit_novelty_model(of(rows), none, 1, of(rows[:50] + 3))
    both = torch.cat([rows, rows[:50] + 3])
    unlike = torch.arange(250) >= 200
    expected = fit_log_odds(model.columns(of(both)), unlike, balanced(unlike))
    assert model.log_odds.parameters() == pytest.approx(expected.parameters())
    no_rows = fit_novelty_model(of(rows), none, 1, of(rows[:0]))
    assert no_rows.parameters() == fit_novelty_model(of(rows), none, 1).parameters()


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_novelty_with_columns_that_do_not_vary(layers):
    rows = torch.ones(40, 2 + layers).double()
    found = fit_novelty_model(of(rows), torch.arange(40) >= 20, layers)(of(rows))
    assert bool((found == found[0]).all())
    assert torch.isfinite(found).all()


@pytest.mark.parametrize(("layers", "lengths"), [(0, 1), (2, 3)])
def test_parameters_are_those_of_the_model(layers, lengths):
    rng = np.random.default_rng(layers)
    rows = torch.from_numpy(rng.normal(size=(60, 1 + layers + lengths)))
    model = fit_novelty_model(of(rows), torch.arange(60) >= 30, layers)
    parameters = torch.tensor(model.parameters(), dtype=torch.float64)
    again = NoveltyModel.of(parameters, layers, lengths)
    assert again.parameters() == model.parameters()
    torch.testing.assert_close(again(of(rows)), model(of(rows)))
    torch.testing.assert_close(model.to(torch.device("cpu"))(of(rows)), model(of(rows)))


def test_the_mean_of_standardised_columns():
    rng = np.random.default_rng(0)
    columns = torch.from_numpy(rng.normal(size=(400, 2)) * [1.0, 20.0] + [3.0, -50.0])
    wide = torch.cat([columns, torch.ones(len(columns), 1).double()], 1)
    plain = ((columns - columns.mean(0)) / columns.std(0, correction=0)).sum(1) / 3
    torch.testing.assert_close(standardised_mean(wide)(wide), plain)


@pytest.mark.parametrize("width", [1, 2])
def test_rows_without_residuals_leave_no_rounding_in_the_distance(width):
    """The subspace of so narrow a layer has all dimensions, or rows vary in few of them."""
    rng = np.random.default_rng(width)
    flat = rng.normal(size=(300, width)) @ rng.normal(size=(width, 16))
    rows = {
        FIRST: torch.from_numpy(rng.normal(size=(300, 1)) * 7 + 3).float(),
        LAST: torch.from_numpy(flat).float(),
    }
    lengths = RowLengths.of(rows, (FIRST, LAST), {})
    logits = torch.from_numpy(rng.normal(size=(300, 3)))
    energies = unusual_columns(logits, torch.zeros(300, 0))

    def evidence(rows):
        return of(torch.cat([energies, lengths(logits, rows)], 1))

    model = fit_novelty_model(evidence(rows), torch.arange(300) >= 150, 0)
    used = [bool(row.any()) for row in model.whiten]
    assert used == [True, True, True, False, False]  # energy, lengths, parts
    noise = {site: own * (1 + 1e-7 * torch.randn_like(own)) for site, own in rows.items()}
    torch.testing.assert_close(
        model.columns(evidence(noise))[:, 3], model.columns(evidence(rows))[:, 3], rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("outliers", [False, True])
def test_a_column_that_varies_by_rounding_alone_has_no_slope(outliers):
    """The residual of rows that have none, among columns that say something."""
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.normal(size=(200, 4)))
    perturbed = torch.arange(200) >= 100
    rows[perturbed, :3] += 1
    rows[:, 3] = 1e-5 * (rows[:, 3] + perturbed)  # the last number is the residual
    far = of(rows[perturbed] + 1) if outliers else None
    model = fit_novelty_model(of(rows), perturbed, 2, far)
    assert model.log_odds.slopes[2] == 0
    assert float(model.log_odds.slopes.max()) < 10
    alone = fit_novelty_model(of(rows), torch.zeros(200, dtype=torch.bool), 2)
    assert alone.log_odds.slopes[2] == 0


def test_rows_that_are_constant_but_for_rounding_have_equal_residuals():
    noise = torch.randn(200, 16, generator=torch.Generator().manual_seed(0))
    rows = {FIRST: 1 + 6e-8 * noise}
    lengths = RowLengths.of(rows, (FIRST,), {})
    found = lengths(torch.zeros(200, 3), rows)
    assert float(found.std(0).max()) < 1e-4


def test_columns_that_vary_by_rounding_alone_count_as_constant():
    """Less than a ten-thousandth, or a billionth of the largest number."""
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.normal(size=(50, 4)) * [1.0, 7e-5, 7e-4, 1.0] + [0, 0, 1e6, 0])
    model = fit_novelty_model(of(rows), torch.zeros(50, dtype=torch.bool), 3)
    used = [bool(row.any()) for row in model.whiten]
    assert used == [True, False, False, True]
    rows[:, 1] *= 1e-5  # a billionth of one, where all numbers are smaller
    slopes = standardised_mean(rows).slopes
    np.testing.assert_allclose(slopes, [1 / rows[:, 0].numpy().std() / 4, 0, 0,
                                        1 / rows[:, 3].numpy().std() / 4])  # fmt: skip
