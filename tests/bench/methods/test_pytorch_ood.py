"""Scores equal those of pytorch-ood, where it is installed; torchvision is replaced if absent."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types

import pytest
import torch

from qipf.bench.methods import create


class _StandIn(types.ModuleType):
    """A module in which every name is an empty class; pytorch-ood only derives from some."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Torchvision(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _StandIn(spec.name)

    def exec_module(self, module):
        pass


@pytest.fixture(scope="module")
def detectors():
    pytest.importorskip("pytorch_ood", reason="pytorch-ood is not installed", exc_type=ImportError)
    return sys.modules["pytorch_ood.detector"]


@pytest.fixture(scope="module", autouse=True)
def torchvision():
    """A stand-in where torchvision is not installed; taken away afterwards."""
    if importlib.util.find_spec("torchvision") is not None:
        yield
        return
    finder = _Torchvision()
    sys.meta_path.append(finder)
    yield
    sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]


OF_LOGITS = {"gen": "GEN", "kl_matching": "KLMatching"}
OF_FEATURES = {"nnguide": "NNGuide", "she": "SHE", "nci": "NCI", "fdbd": "fDBD"}
OF_MAPS = {"react": "ReAct", "ash": "ASH", "scale": "SCALE"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vim", "rmds", *OF_LOGITS, *OF_FEATURES, *OF_MAPS])
def test_equals_pytorch_ood(name, detectors, relu_data, relu_batch):
    options = {"scale": {"share": 0.65}}.get(name, {})
    ours = create(name, **options).fit(relu_data).score(relu_batch)
    features, labels = relu_data.features, relu_data.labels
    head = relu_data.network.head.requires_grad_(False)
    if name in OF_LOGITS:
        theirs = getattr(detectors, OF_LOGITS[name])(None)
        if name == "kl_matching":
            theirs.fit_logits(relu_data.logits, labels)
        found = theirs.predict_logits(relu_batch.logits)
        found = found * relu_batch.logits.shape[1] if name == "gen" else found  # mean, not sum
    elif name in OF_FEATURES:
        theirs = getattr(detectors, OF_FEATURES[name])(None, head)
        found = theirs.fit_features(features, labels).predict_features(relu_batch.features)
    elif name in OF_MAPS:
        theirs = getattr(detectors, OF_MAPS[name])(None, lambda maps: head(maps.flatten(1)))
        if name == "react":
            theirs.fit_feature_maps(features[:, :, None, None], labels)
        found = theirs.predict_feature_maps(relu_batch.features[:, :, None, None])
    elif name == "vim":
        theirs = detectors.ViM(None, 6, head.weight, head.bias)
        found = theirs.fit_features(features, labels).predict_features(relu_batch.features)
    else:
        theirs = detectors.RMD(None).fit_features(features, labels)
        # their covariances are sums, ours are means
        found = theirs.predict_features(relu_batch.features) * len(features)
    head.requires_grad_(True)
    torch.testing.assert_close(ours.float(), found.float(), rtol=2e-4, atol=2e-4)
