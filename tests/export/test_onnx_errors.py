"""ONNX files that are wrong or cannot be written; an older file stays."""

import sys

import pytest
import torch
from torch import nn

import qipf
from qipf import QIPF, QIPFError, QIPFInputError
from qipf.export import onnx as checking
from qipf.export import onnx as onnx_file

pytestmark = pytest.mark.usefixtures("onnx_operators")


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    return qipf.wrap(nn.Linear(3, 2), field=QIPF(orders=(1,))).fit([torch.randn(40, 3)])


@pytest.fixture(scope="module")
def small_file(small, tmp_path_factory):
    return small.export_onnx(tmp_path_factory.mktemp("small") / "small.onnx").path.read_bytes()


@pytest.fixture
def converted_before(small_file, monkeypatch):
    """Spares the conversion where the test is about what comes after it."""
    monkeypatch.setattr("qipf.export.onnx.converted", lambda *_: small_file)


@pytest.mark.parametrize(
    ("name", "phrase"),
    [
        ("uncertainty", "uncertainty differs from PyTorch's"),
        ("novelty", "novelty differs from PyTorch's"),
        ("logits", "logits differ from"),
    ],
)
@pytest.mark.slow
@pytest.mark.usefixtures("converted_before")
def test_a_file_that_scores_otherwise_does_not_replace_the_old_one(
    small, name, phrase, tmp_path, monkeypatch
):
    def wrong(*given):
        want = checking.expected(*given)
        if name == "logits":
            return want._replace(logits=want.logits + 0.5)
        return want._replace(scores=want.scores | {name: want.scores[name] + 0.5})

    monkeypatch.setattr("qipf.network.wrapped.expected", wrong)
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")
    with pytest.raises(QIPFError, match=f"{phrase}.*so it was not written"):
        small.export_onnx(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


class Random(nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.rand(2)


@pytest.mark.slow
def test_a_random_network_is_rejected_without_output_of_the_exporter(tmp_path, capfd):
    torch.manual_seed(0)
    model = qipf.wrap(Random(3, 2), field=QIPF(orders=(1,))).fit([torch.randn(40, 3)])
    with pytest.raises(QIPFError, match="Is the network deterministic in evaluation mode"):
        model.export_onnx(tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


class Eigen(nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.linalg.eigvals(x[:, :, None] * x[:, None, :]).real[:, :2]


@pytest.mark.slow
def test_an_operation_that_onnx_does_not_have(tmp_path):
    torch.manual_seed(0)
    model = qipf.wrap(Eigen(3, 2), field=QIPF(orders=(1,))).fit([torch.randn(40, 3)])
    with pytest.raises(QIPFError, match="cannot be written as ONNX: .*linalg_eig"):
        model.export_onnx(tmp_path / "model.onnx")


@pytest.mark.slow
@pytest.mark.usefixtures("converted_before")
def test_without_onnx_runtime_or_check_the_file_is_not_compared(small, tmp_path, monkeypatch):
    assert small.export_onnx(tmp_path / "a.onnx", check=False).difference is None
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert small.export_onnx(tmp_path / "b.onnx").difference is None


def test_a_missing_package_is_named_before_any_work(small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(QIPFError, match=r"pip install 'qipf\[onnx\]'"):
        small.export_onnx(tmp_path / "model.onnx", example="not looked at")


def test_an_old_torch_is_rejected(small, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.onnx, "export", lambda model, args: None)
    with pytest.raises(QIPFError, match="torch 2.5 or newer"):
        small.export_onnx(tmp_path / "model.onnx")


@pytest.mark.slow
def test_more_than_one_file_can_hold_is_rejected(small, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "LARGEST", 1000)
    with pytest.raises(QIPFError, match="an ONNX file holds at most"):
        small.export_onnx(tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("name", "phrase"),
    [
        ("model.pt", "ends in .onnx"),
        ("nowhere/model.onnx", "There is no folder"),
        ("folder.onnx", "is a folder"),
    ],
)
def test_paths_that_cannot_be_written_are_rejected(name, phrase, small, tmp_path):
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(QIPFInputError, match=phrase):
        small.export_onnx(tmp_path / name)
