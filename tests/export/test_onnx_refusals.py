"""ONNX files are written whole and true, or not at all."""

import re
import sys

import numpy as np
import pytest
import torch
from torch import nn

import qipf
from qipf import QIPF, QIPFError, QIPFInputError, QIPFNotFittedError
from qipf.export import check as checking
from qipf.export import onnx as onnx_file


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
    ("name", "off", "message"),
    [
        ("uncertainty", 0.5, "The file's uncertainty differs from PyTorch's by 0."),
        ("logits", 0.5, "The file's logits differ from PyTorch's by 0."),
    ],
)
@pytest.mark.usefixtures("converted_before")
def test_a_file_that_scores_otherwise_does_not_replace_the_old_one(
    small, name, off, message, tmp_path, monkeypatch
):
    def wrong(*given):
        want = checking.expected(*given)
        return want._replace(**{name: getattr(want, name) + off})

    monkeypatch.setattr("qipf.network.wrapped.expected", wrong)
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")
    with pytest.raises(QIPFError, match=f"^{re.escape(message)}.*so it was not written"):
        small.export_onnx(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


class Random(nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.rand(2)


def test_a_network_that_guesses_is_found_out_without_the_exporters_talk(tmp_path, capfd):
    torch.manual_seed(0)
    model = qipf.wrap(Random(3, 2), field=QIPF(orders=(1,))).fit([torch.randn(40, 3)])
    with pytest.raises(QIPFError, match="Is the network deterministic in evaluation mode"):
        model.export_onnx(tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_near_a_pole_the_last_digits_are_forgiven():
    """A mode of order 2 has its pole at ψ = 0.707: there float32 networks cannot agree."""
    field = QIPF(orders=(2,), bandwidth=1.0).fit(np.array([[0.0, 0.0], [1e-9, 0.0]]))
    pole = np.sqrt(2 * np.log(2))  # ρ = 1/2
    at = torch.tensor([[pole + 1e-6, 0.0], [0.1, 0.0]], dtype=torch.float64)
    want = checking.expected(field, at, None)
    scale = np.maximum(1, np.abs(want.uncertainty))
    assert want.allowed[0] / scale[0] > 1
    assert want.allowed[1] / scale[1] < 3e-4


class Eigen(nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.linalg.eigvals(x[:, :, None] * x[:, None, :]).real[:, :2]


def test_an_operation_that_onnx_has_not(tmp_path):
    torch.manual_seed(0)
    model = qipf.wrap(Eigen(3, 2), field=QIPF(orders=(1,))).fit([torch.randn(40, 3)])
    message = r"^The network cannot be written as ONNX: No ONNX function found for .*linalg_eig.*$"
    with pytest.raises(QIPFError, match=message):
        model.export_onnx(tmp_path / "model.onnx")


@pytest.mark.usefixtures("converted_before")
def test_without_onnx_runtime_or_check_it_is_written_untried(small, tmp_path, monkeypatch):
    assert small.export_onnx(tmp_path / "a.onnx", check=False).difference is None
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert small.export_onnx(tmp_path / "b.onnx").difference is None


def test_a_missing_package_is_named_before_any_work(small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    message = (
        r"^ONNX files need onnx and onnxscript \(.*onnxscript.*\): pip install 'qipf\[onnx\]'\.$"
    )
    with pytest.raises(QIPFError, match=message):
        small.export_onnx(tmp_path / "model.onnx", example="never looked at")


def test_an_old_torch_is_told(small, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.onnx, "export", lambda model, args: None)
    message = f"ONNX files need torch 2.5 or newer; this is {torch.__version__}. Update torch."
    with pytest.raises(QIPFError, match=f"^{re.escape(message)}$"):
        small.export_onnx(tmp_path / "model.onnx")


def test_what_one_file_cannot_hold_is_refused(small, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "LARGEST", 1000)
    message = (
        "Weights and centres take 0.0 GB, and an ONNX file holds at most 0.0 GB. Export fewer "
        "centres (max_centers=), or the field alone."
    )
    with pytest.raises(QIPFError, match=f"^{re.escape(message)}$"):
        small.export_onnx(tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.pt", "Cannot write 'model.pt': name a file that ends in .onnx."),
        ("nowhere/model.onnx", "There is no folder {tmp}/nowhere. Create it, or choose another."),
        ("folder.onnx", "{tmp}/folder.onnx is a folder; name a file in it."),
    ],
)
def test_where_nothing_can_be_written(name, message, small, tmp_path):
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message.format(tmp=tmp_path))}$"):
        small.export_onnx(tmp_path / name)


@pytest.mark.parametrize(
    ("field", "kind", "message"),
    [
        (QIPF(), QIPFNotFittedError, "There is nothing to export yet: fit the field first."),
        (
            np.zeros((3, 2)),
            QIPFInputError,
            "field must be a QIPF, got ndarray. A wrapped model has export_onnx.",
        ),
    ],
)
def test_what_is_no_fitted_field(field, kind, message, tmp_path):
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        field.export_onnx(tmp_path / "field.onnx")
