"""save, load and describe: what belongs together, stored files, files that are none."""

import json
import os
import re
import stat

import numpy as np
import pytest
import torch
from safetensors.numpy import save
from torch import nn

import qipf
from qipf import QIPF, QIPFFileError, QIPFInputError
from qipf.io import schema
from qipf.layered.error_model import ErrorModel
from qipf.layered.novelty import NoveltyModel
from qipf.network.forward import fingerprint
from qipf.storage.save_load import describe, load_field
from tests.conftest import make_logits
from tests.storage.forged_files import Forge, changed, saved
from tests.stored.write_files import HERE, calibrated, layered_network, network, stored

QUERIES = make_logits(50, seed=5).numpy()


@pytest.fixture(scope="module")
def field():
    return calibrated()


@pytest.fixture(scope="module")
def valid(field, tmp_path_factory):
    return saved(field, tmp_path_factory)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def inputs(count=60, seed=0):
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------------- networks


@pytest.mark.parametrize("layer", [None, "1"])
def test_a_wrapped_model_comes_back_around_its_network(tmp_path, net, layer):
    model = qipf.wrap(net, layer, pooling="flatten").fit(inputs().split(20))
    qipf.save(model, tmp_path / "model.qipf")
    loaded = qipf.load(tmp_path / "model.qipf", net)
    assert (loaded.net, loaded.layer, loaded.pooling) == (net, layer, "flatten")
    expected, got = model(inputs(9, seed=1)), loaded(inputs(9, seed=1))
    assert torch.equal(got.uncertainty, expected.uncertainty)
    assert torch.equal(got.logits, expected.logits)
    rows = model.field.centers_
    np.testing.assert_array_equal(loaded.field.uncertainty(rows), model.field.uncertainty(rows))


@pytest.mark.filterwarnings("ignore:The layers are used for the novelty alone")
def test_layers_that_run_twice_in_a_pass_come_back_and_are_exported(tmp_path):
    class Siamese(nn.Module):
        """Compares the two halves of an input, which the same layers read."""

        def __init__(self):
            super().__init__()
            self.stem, self.inner, self.head = nn.Linear(4, 7), nn.Linear(7, 5), nn.Linear(5, 2)

        def forward(self, x):  # (n, 8)
            one, two = (self.inner(self.stem(half).relu()).relu() for half in x.split(4, 1))
            return self.head((one - two).abs())

    torch.manual_seed(0)
    siamese, pairs = Siamese(), torch.cat([inputs(300), inputs(300, seed=1)], 1)
    with torch.no_grad():
        labels = siamese(pairs + 0.5 * torch.randn_like(pairs)).argmax(1)
    model = qipf.LayeredQIPF(siamese, max_tuning=60).fit([(pairs, labels)])
    assert model.lengths_.widths == {
        site: width for site, width in zip(model.lengths_.sites, (14, 5), strict=True)
    }
    qipf.save(model, tmp_path / "model.qipf")
    new = torch.cat([inputs(9, seed=2), inputs(9, seed=3)], 1)
    assert torch.equal(qipf.load(tmp_path / "model.qipf", siamese).novelty(new), model.novelty(new))
    model.export_onnx(tmp_path / "model.onnx", new)  # checked in ONNX Runtime


def test_weights_of_another_network_are_rejected_unless_check_is_false(tmp_path, net):
    path = tmp_path / "model.qipf"
    qipf.save(qipf.wrap(net).fit(inputs().split(20)), path)
    other = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    with pytest.raises(QIPFFileError, match="belongs to another network") as rejected:
        qipf.load(path, other)
    assert fingerprint(net) in str(rejected.value)
    assert fingerprint(other) in str(rejected.value)
    loaded = qipf.load(path, other, check=False)
    assert loaded.net is other
    assert "not recorded" in loaded.summary()


def test_layers_of_another_network_are_rejected():
    path = stored("layers")
    other = layered_network()
    with torch.no_grad():
        other[0].bias += 1
    with pytest.raises(QIPFFileError, match="belongs to another network"):
        qipf.load(path, other)
    assert qipf.load(path, other, check=False).uncertainty(inputs(3)).shape == (3,)
    with pytest.raises(
        QIPFFileError, match="belongs to another network. The network has no layer '2'"
    ):
        qipf.load(path, nn.Sequential(nn.Linear(4, 3)), check=False)
    wider = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3), nn.Tanh(), nn.Linear(3, 3))
    with pytest.raises(QIPFFileError, match=r"rows of 6 numbers at 2 \(input\), where .* has 9\."):
        qipf.load(path, wider, check=False)
    fewer = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 2))
    with pytest.raises(QIPFFileError, match="fitted on 3 logits, but this network has 2"):
        qipf.load(path, fewer, check=False)


def test_a_field_of_another_width_than_the_network_is_rejected(tmp_path):
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    data = [torch.randn(40, 4, generator=torch.Generator().manual_seed(0))]
    for layer in (None, "0"):
        field = qipf.QIPF(bandwidth=1.0)
        qipf.wrap(net, layer, field=field).fit(data).save(tmp_path / f"{layer}.qipf")
        assert qipf.load(tmp_path / f"{layer}.qipf", net)(data[0]).uncertainty.shape == (40,)
    other = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 2))
    with pytest.raises(QIPFFileError, match="fitted on 3 logits, but this network has 2"):
        qipf.load(tmp_path / "None.qipf", other, check=False)
    with pytest.raises(QIPFFileError, match=r"rows of 6 numbers at 0 \(output\), where .* has 7"):
        qipf.load(tmp_path / "0.qipf", other, check=False)


def test_an_older_file_passes_on_its_permissions_and_links_stay(tmp_path):
    field = qipf.QIPF(bandwidth=1.0).fit(np.eye(3))
    real, link = tmp_path / "real.qipf", tmp_path / "link.qipf"
    real.touch()
    real.chmod(0o600)
    link.symlink_to(real)
    for path in (real, link):
        field.save(path)
        assert stat.S_IMODE(real.stat().st_mode) == 0o600
        assert link.is_symlink()
        np.testing.assert_array_equal(qipf.load(real).centers_, field.centers_)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.qipf", "real.qipf"]


def test_a_fingerprint_is_of_the_weights_and_buffers():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).bfloat16()
    before = fingerprint(net)
    assert fingerprint(nn.ModuleDict({"renamed": net})) == before
    net[1].running_mean += 1
    assert fingerprint(net) != before


@pytest.mark.parametrize("kind", ["model", "layers"])
def test_models_of_a_network_need_it(kind):
    path = stored(kind)
    with pytest.raises(QIPFInputError, match="needs its network"):
        qipf.load(path)
    with pytest.raises(QIPFInputError, match=r"torch\.nn\.Module, got str"):
        qipf.load(path, "lenet")


@pytest.mark.parametrize(("kind", "held"), [("field", "a field"), ("rule", "an accept rule")])
def test_fields_and_rules_have_no_network(kind, held, net):
    with pytest.raises(QIPFInputError, match=f"holds {held}.*without net"):
        qipf.load(stored(kind), net)


def test_only_files_with_a_field_give_a_field():
    assert type(load_field(stored("model"))) is QIPF
    with pytest.raises(QIPFFileError, match="holds an accept rule"):
        load_field(stored("rule"))
    with pytest.raises(QIPFInputError, match="holds a LayeredQIPF"):
        load_field(stored("layers"))


# ---------------------------------------------------------------------- stored files

FIELDS = ("field", "weighted", "model", "calibrated", "entropy", "novelty")
LAYERED = ("layers", "condensed", "features")
KINDS = (*FIELDS, *LAYERED, "rule")


def load_stored(kind):
    nets = {"model": network, "layers": layered_network, "condensed": layered_network}
    return qipf.load(stored(kind), *([nets[kind]()] if kind in nets else []))


def test_every_kind_has_its_file():
    assert set(HERE.glob("*.qipf")) == {stored(kind) for kind in (*KINDS, "monitor")}
    assert set(schema.KINDS) <= {*KINDS, "monitor"}
    assert load_stored("entropy").score_ == "entropy"
    assert load_stored("novelty").rule_.max_novelty is not None
    assert load_stored("field").log_weights_ is None
    assert load_stored("weighted").log_weights_ is not None
    assert load_stored("rule") == load_stored("calibrated").rule_
    assert load_stored("model")(torch.zeros(1, 4)).accepted is None
    layers = load_stored("layers")
    assert 0 < layers.rule_.accepted < layers.rule_.held_out
    assert layers.detection_.count == 400


@pytest.mark.parametrize("kind", LAYERED)
def test_scores_of_stored_layered_models_are_fitted(kind):
    model = load_stored(kind)
    layers, lengths = len(model.layers_), model.lengths_
    assert layers == (1 if kind == "features" else 2)
    assert len(lengths.subspaces) == len(lengths.sites) >= layers
    assert model.error_model_.parameters() != ErrorModel.unfitted(layers).parameters()
    unfitted = NoveltyModel.unfitted(layers, lengths.count)
    assert model.novelty_model_.parameters() != unfitted.parameters()


@pytest.mark.parametrize("kind", FIELDS)
def test_fields_score_as_when_they_were_written(kind):
    with np.load(stored(kind).with_suffix(".npz")) as expected:
        assert_scores(load_field(stored(kind)), expected, expected["queries"])


@pytest.mark.parametrize("kind", LAYERED)
def test_layered_models_score_as_when_they_were_written(kind):
    model, expected = load_stored(kind), json.loads(stored(kind).with_suffix(".json").read_text())
    if kind == "features":
        given = {"hidden": expected["hidden"]}, expected["logits"]
        assert 0 < sum(expected["accepted"]) < 20
    else:
        given = (torch.tensor(expected["queries"]),)
    assert_scores(model, expected, *given)
    np.testing.assert_allclose(model(*given).p_error, expected["p_error"], rtol=1e-4)


def assert_scores(model, expected, *queries):
    # equal to the last bit on the machine that wrote them, and nearly so on others
    np.testing.assert_allclose(
        model.uncertainty(*queries), expected["uncertainty"], rtol=1e-4, atol=1e-5
    )
    if "novelty" in expected:
        np.testing.assert_allclose(
            model.novelty(*queries), expected["novelty"], rtol=1e-5, atol=1e-5
        )
    if "accepted" in expected:
        np.testing.assert_allclose(model.p_values(*queries), expected["p_values"], atol=1e-9)
        np.testing.assert_array_equal(model.accepts(*queries), expected["accepted"])
    else:
        assert model.rule_ is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_stored_file_is_written_again(kind, tmp_path):
    found = load_stored(kind)
    qipf.save(found, tmp_path / "new.qipf")
    old, new = (
        changed(path.read_bytes(), "library_version", value="any")
        for path in (stored(kind), tmp_path / "new.qipf")
    )
    assert new == old


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_an_earlier_format_is_refused(kind, tmp_path):
    path = tmp_path / "old.qipf"
    path.write_bytes(
        changed(stored(kind).read_bytes(), "format_version", value=schema.FORMAT_VERSION - 1)
    )
    for use in (qipf.load, load_field, describe):
        with pytest.raises(QIPFFileError, match=r"an earlier version .* fit and save the model"):
            use(path)


# ---------------------------------------------------------------------- description


@pytest.mark.parametrize("kind", KINDS)
def test_describe_gives_header_and_text(kind):
    path = stored(kind)
    header, text = describe(path)
    assert json.loads(json.dumps(header)) == header
    assert header["bytes"] == path.stat().st_size
    assert text.splitlines()[0].startswith("kind          ")
    assert text.splitlines()[-1].startswith(f"written by    qipf {header['library_version']}, ")


def test_describe_lists_arrays_calibration_and_rule(field, tmp_path):
    qipf.save(field, tmp_path / "field.qipf")
    header, text = describe(tmp_path / "field.qipf")
    assert header["library_version"] == qipf.__version__
    assert (header["kind"], header["network"]) == ("field", None)
    assert header["format_version"] == schema.FORMAT_VERSION
    assert header["arrays"]["centers"] == ["float32", 120, 10]
    assert header["arrays"]["calibration"] == ["float64", 280]
    assert header["rule"]["threshold"] == field.rule_.threshold
    assert header["fitted"]["n_samples_seen"] == 120
    assert text.startswith(field.summary())
    rule, text = describe(stored("rule"))
    assert (rule["kind"], rule["arrays"]) == ("rule", {})
    assert str(qipf.load(stored("rule"))).splitlines()[0] in text


def test_describe_lists_layers():
    header, text = describe(stored("layers"))
    assert [(layer["layer"], layer["side"]) for layer in header["layers"]] == [
        ("2", "input"), ("4", "input"),
    ]  # fmt: skip
    for phrase in ("2 (input), weight ", "40 centres", "3 numbers projected to 3", "Accept"):
        assert phrase in text
    assert "weighted centres" in describe(stored("condensed"))[1]


# ---------------------------------------------------------------------- writing


def test_what_cannot_be_saved_is_rejected_before_anything_is_written(tmp_path, net, field):
    target = tmp_path / "field.qipf"
    with pytest.raises(QIPFInputError, match=r"can be saved, got dict\.$"):
        qipf.save({"centers": 1}, target)
    with pytest.raises(QIPFInputError, match=r"got ShiftMonitor. Call its own method save\(path"):
        qipf.save(qipf.ShiftMonitor(qipf.Calibration([1.0])), target)
    model = qipf.wrap(net, "1", pooling=lambda output: output).fit(inputs().split(20))
    with pytest.raises(QIPFInputError, match="pooling is a function"):
        qipf.save(model, target)
    for saved_thing in (field, field.rule_):
        with pytest.raises(QIPFInputError, match="is a folder"):
            qipf.save(saved_thing, tmp_path)
        with pytest.raises(QIPFInputError, match="There is no folder"):
            qipf.save(saved_thing, tmp_path / "nowhere" / "field.qipf")
    assert list(tmp_path.iterdir()) == []


def test_a_crash_while_writing_leaves_the_old_file(tmp_path, field, monkeypatch):
    target = tmp_path / "field.qipf"
    qipf.save(field, target)
    before = target.read_bytes()

    def full(_handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(qipf.QIPFError, match=r"Cannot write .*: No space left on device\."):
        qipf.save(QIPF(bandwidth=1.0).fit(QUERIES), target)
    assert target.read_bytes() == before
    assert list(tmp_path.iterdir()) == [target]


# ---------------------------------------------------------------------- files that are none


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is cut short"),
        (b"PK\x03\x04 a zip file, say", "it is cut short"),
        ((2**23).to_bytes(8, "little") + bytes(2**23), "its header claims 8388608 bytes"),
        ((2).to_bytes(8, "little") + b"{}", "it was not written by qipf.save"),
        ((2).to_bytes(8, "little") + b"[]", "its header is not a JSON object"),
        ((20000).to_bytes(8, "little") + b"[" * 20000, "its header is not JSON"),
        ((3).to_bytes(8, "little") + b"NaN", "its header is not JSON"),
        (save({str(i): np.zeros(1) for i in range(5000)}, {"qipf": "{}"}), "it holds 5000 arrays"),
    ],
)
def test_other_files_are_rejected(tmp_path, data, reason):
    path = tmp_path / "other.qipf"
    path.write_bytes(data)
    with pytest.raises(QIPFFileError, match=re.escape(f"{path} cannot be read: {reason}")):
        qipf.load(path)


def test_a_missing_file_is_rejected(tmp_path):
    with pytest.raises(QIPFFileError, match=re.escape(f"There is no file {tmp_path / 'no.qipf'}.")):
        qipf.load(tmp_path / "no.qipf")


def test_a_flipped_bit_is_damage(tmp_path, valid):
    data = bytearray(valid)
    data[-5] ^= 1
    path = tmp_path / "field.qipf"
    path.write_bytes(data)
    with pytest.raises(QIPFFileError, match="is damaged: its content does not match its digest"):
        qipf.load(path)


def test_pipes_and_folders_are_rejected_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe.qipf")  # that nobody writes to
    for path, message in [
        (tmp_path, "is a folder"),
        (tmp_path / "pipe.qipf", "is a pipe or a device"),
        (tmp_path / ("x" * 300), "File name too long"),
    ]:
        with pytest.raises(QIPFFileError, match=message):
            qipf.load(path)


@pytest.mark.parametrize("number", [b"1.000", b"1e999"])
def test_a_file_without_a_digest_is_damaged(tmp_path, valid, number):
    """Even if it could have none, because JSON does not define the infinity that it holds."""
    forge = Forge(valid)
    forge.header["fitted"]["offset"] = "a number"
    del forge.header["digest"]
    path = tmp_path / "forged.qipf"
    path.write_bytes(forge.data(signed=False).replace(b'\\"a number\\"', number + b" " * 7, 1))
    assert number in path.read_bytes()
    with pytest.raises(QIPFFileError, match="is damaged"):
        qipf.load(path)


def test_a_name_that_no_file_can_have_is_rejected(field):
    for use in (qipf.load, lambda path: qipf.save(field, path)):
        with pytest.raises(QIPFFileError, match="No file can have the name"):
            use("a\0b")


def test_the_version_of_the_library_does_not_matter(tmp_path, valid, field):
    (tmp_path / "forged").write_bytes(changed(valid, "library_version", value="9.9"))
    loaded = qipf.load(tmp_path / "forged")
    np.testing.assert_array_equal(loaded.uncertainty(QUERIES), field.uncertainty(QUERIES))
