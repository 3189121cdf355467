"""What all tests share: one naive float64 truth, and realistic logits."""

import functools
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # scikit-learn checks more with it
os.environ.setdefault("QIPF_QUIET", "1")  # lines after ten seconds, on a busy machine
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run in several processes, one a core

import hypothesis
import matplotlib
import numpy as np
import pytest
import torch

hypothesis.settings.register_profile("no deadline", deadline=None)  # no test depends on time
hypothesis.settings.load_profile("no deadline")
matplotlib.use("Agg")
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def interpreter():
    """Run functions in a process in which Triton interprets its kernels.

    Triton reads the environment variable once, when it is first imported.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        pool.submit(torch.set_num_threads, 1).result()
    with pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()


def naive_moments(queries, centers, bandwidth, weights=None):
    """The definitions of the moments, pair by pair, in float64."""
    x, c = np.asarray(queries, np.float64), np.asarray(centers, np.float64)
    w = np.ones(len(c)) if weights is None else np.asarray(weights, np.float64)
    w = w / w.sum()
    log_density, m1_squared, m2 = [], [], []
    for row in x:
        offsets = c - row
        squares = (offsets**2).sum(1)
        scores = np.log(w) - squares / (2 * bandwidth**2)
        top = scores.max()
        kernel = np.exp(scores - top)
        share = kernel / kernel.sum()
        log_density.append(top + np.log(kernel.sum()))
        m1_squared.append(((share @ offsets) ** 2).sum())
        m2.append(share @ squares)
    return np.array(log_density), np.array(m1_squared), np.array(m2)


def make_logits(count, spread=7.0, offset=0.0, dimension=10, seed=0):
    """Ten clusters, as the logits of a trained classifier lie."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(10, dimension, generator=torch.Generator().manual_seed(99))
    chosen = torch.randint(10, (count,), generator=generator)
    noise = torch.randn(count, dimension, generator=generator)
    return spread * (0.8 * means[chosen] + 0.6 * noise) + offset


#: Folders whose tests share what takes seconds to make: a browser, exported networks, Ray.
SHARING = ("tests/browser/", "tests/export/", "tests/ray/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """All tests of a file, or of a folder that shares fixtures, run in one process.

    The order is that of the collection, so that doctests, many and short, come last.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            folders = [folder for folder in SHARING if nodeid.startswith(folder)]
            return folders[0] if folders else super()._split_scope(nodeid)

    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.fixture(scope="session")
def onnx_operators():
    """List the operators that torch converts to ONNX once; it does so for every file."""
    registration = pytest.importorskip("torch.onnx._internal.exporter._registration")
    registry = registration.ONNXRegistry
    with pytest.MonkeyPatch.context() as patch:
        once = functools.cache(registry.from_torchlib.__func__)
        patch.setattr(registry, "from_torchlib", classmethod(once))
        yield


@pytest.fixture
def rng():
    return np.random.default_rng(0)
