"""A Ray Data dataset is scored as its rows would be at home."""

import copy
import re

import numpy as np
import pyarrow as pa
import pytest

from qipf import QIPF, QIPFInputError, QIPFNotFittedError
from qipf import ray as distributed
from qipf.ray import scoring
from qipf.scoring.table import steady_results
from tests.ray.made import LABELS, LOGITS, ROWS, dataset, table
from tests.ray.ray_cluster import die_once
from tests.scoring.shard_files import TAKEN, named_like_results, refusal_of_mode_1

ray = pytest.importorskip("ray")
# Ray's own: it warns of options that it sets itself
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_a_dataset_is_scored_as_at_home_though_a_worker_is_killed(field, tmp_path, monkeypatch):
    import ray.data

    died = tmp_path / "died"

    class Dying(scoring._Scorer):
        def __call__(self, batch):
            scored = super().__call__(batch)
            if batch["id"][0].as_py() == 5 * 997:  # with the scores of a block in its hands
                die_once(died)
            return scored

    monkeypatch.setattr(scoring, "_Scorer", Dying)

    text = [f"t{k}" if k % 3 else None for k in range(ROWS)]
    given = pa.concat_tables([table(text=text)] * 8)
    given = given.set_column(0, "id", pa.array(np.arange(8 * ROWS)))
    made = ray.data.from_arrow([given.slice(at, 997) for at in range(0, 8 * ROWS, 997)])
    made.context.enable_progress_bars = False
    scored = distributed.score(made, field, modes=True, workers=2)
    found = pa.concat_tables(ray.get(scored.to_arrow_refs()))
    assert died.exists()
    assert found.column_names == ["id", "text", "uncertainty", *(f"mode_{p}" for p in range(1, 5))]
    assert found["id"].to_pylist() == list(range(8 * ROWS))
    assert found["text"].to_pylist() == 8 * text
    for name, values in steady_results(field, LOGITS, modes=True).items():
        assert found[name].to_numpy().tobytes() == np.tile(values, 8).tobytes(), name


def test_the_result_comes_in_order_and_the_callers_dataset_keeps_its_options(field):
    made = dataset()
    everywhere, before = ray.data.DataContext.get_current(), copy.deepcopy(made.context)
    assert not before.execution_options.preserve_order
    scored = distributed.score(made, field)
    assert scored.context.execution_options.preserve_order
    assert scored.map_batches(lambda batch: batch).context.execution_options.preserve_order
    assert made.context == before
    assert not everywhere.execution_options.preserve_order
    made.context.enable_progress_bars = True  # nor does the result listen to the caller's
    assert not scored.context.enable_progress_bars
    assert made.context.execution_options.preserve_order is False


def test_logits_may_be_called_as_results_and_other_columns_not():
    import ray.data

    given, field = named_like_results()
    scored = distributed.score(ray.data.from_arrow(given), field, TAKEN, modes=True)
    found = pa.concat_tables(ray.get(scored.to_arrow_refs()))
    assert found.column_names == ["id", "uncertainty", "mode_1", "mode_2"]
    logits = np.stack([given[name].to_numpy() for name in ("uncertainty", "mode_2")], axis=1)
    for name, values in steady_results(field, logits, modes=True).items():
        assert found[name].to_numpy().tobytes() == values.tobytes(), name
    alone = distributed.score(ray.data.from_arrow(given.drop_columns(["id"])), field, TAKEN)
    assert [list(row) for row in alone.take_all()] == [["uncertainty"]] * given.num_rows
    spoilt = ray.data.from_arrow(given.append_column("mode_1", given["id"]))
    with pytest.raises(QIPFInputError) as refused:
        distributed.score(spoilt, field, TAKEN, modes=True)
    assert str(refused.value) == refusal_of_mode_1("The dataset")
    distributed.score(spoilt, field, TAKEN)  # without modes the name is free


def test_logits_of_another_width_are_refused_before_a_worker_starts(field, monkeypatch):
    import ray.data

    monkeypatch.setattr(scoring, "plan_of", None)
    few = LOGITS[:20]
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(few[:, :4].ravel()), 4)
    for made, columns, message in (
        (dataset(), "logit_1,logit_2", "The dataset has 2 logits a row, but the field was fitted"),
        (ray.data.from_numpy(few[:, :3]), "data", "The dataset has 3 logits a row, but the field"),
        (ray.data.from_arrow(pa.table({"x": fixed})), "x", "The dataset has 4 logits a row, but"),
        (
            ray.data.from_arrow(pa.table({"x": ["a"], "y": [1.0]})),
            "x,y",
            "The dataset: the column 'x' holds string, not numbers.",
        ),
    ):
        with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}"):
            distributed.score(made, field, columns)


def test_bad_arguments_are_refused_before_any_work(field):
    made = dataset()
    for given, message in (
        (lambda: distributed.score([1], field), "dataset must be a ray.data.Dataset, got list."),
        (lambda: distributed.fit(LOGITS), "dataset must be a ray.data.Dataset, got ndarray."),
        (lambda: distributed.score(made, field, "x*"), "The dataset has no column 'x*'."),
        (
            lambda: distributed.fit(made, labels="truth"),
            "The dataset has no column 'truth' for the labels.",
        ),
        (
            lambda: distributed.fit(made, columns="*"),
            "The dataset's column 'label' is chosen as a logit and as the label.",
        ),
        (
            lambda: distributed.score(dataset(table(uncertainty=LABELS)), field),
            "The dataset has a column 'uncertainty' already. Rename it first.",
        ),
        (lambda: distributed.on_ray(workers=0), "workers must be at least 1, got 0."),
        (
            lambda: distributed.fit(made, QIPF(max_centers=0)),
            "max_centers must be an integer of at least 1, got 0.",
        ),
    ):
        with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}"):
            given()
    with pytest.raises(QIPFNotFittedError, match="not fitted yet"):
        distributed.score(made, QIPF())
