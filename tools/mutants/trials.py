"""Trying one change: in a forked process, by the tests beside the changed module."""

import contextlib
import importlib
import importlib.machinery
import importlib.util
import json
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from changes import SOURCE, Mutant

ROOT = SOURCE.parents[1]

#: Tests of modules in addition to the files of their names in the mirrored folder.
ALSO = {
    "field": "golden/test_golden",
    "field/estimator": "field/test_score_check field/test_sklearn_checks",
    "field/fitted": "field/test_estimator_scores field/test_estimator_fit "
    "field/test_outputs field/test_estimator_errors",
    "field/fitting": "field/test_score_check",
    "field/outputs": "field/test_estimator_fit",
    "field/potential": "field/test_normalization",
    "field/kernel": "field/test_coreset",
    "field/kmeans": "field/test_coreset",
    "field/parameters": "field/test_estimator_errors",
    "field/engines": "field/engines/test_engines",
    "monitor/batches": "monitor/test_monitor",
    "monitor/monitor": "monitor/test_both_scores",
    "monitor/score_test": "monitor/test_both_scores monitor/test_monitor",
    "monitor/verdict": "monitor/test_monitor",
    "monitor/watch": "cli/test_monitor cli/test_monitor_errors",
    "calibration/rule": "calibration/test_accept_rule",
    "calibration/training_rows": "calibration/test_mixin field/test_score_check",
    "bench/methods": "bench/methods/test_methods bench/methods/test_pytorch_ood",
    "bench/scoring": "bench/test_end_to_end",
    "layered/predictions": "layered/test_model layered/test_detection",
    "layered/base": "layered/test_features layered/test_model",
    "layered/fitting": "layered/test_features layered/test_model",
}

#: Imported before a process is forked.
LIBRARIES = {"numpy", "torch", "scipy", "sklearn", "pandas", "mpmath", "matplotlib", "joblib"}
LIBRARIES |= {"pyarrow", "onnx", "onnxscript", "onnxruntime", "pytorch_ood"}
LIBRARIES |= {"pytest", "_pytest", "hypothesis"}

#: No other plugin than that of hypothesis, whose draws follow the seed.
OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", "-p", "_hypothesis_pytestplugin"]
OPTIONS += ["--hypothesis-seed=0", "-W", "ignore::pytest.PytestAssertRewriteWarning"]

#: Limits of a trial; beyond them a change counts as noticed.
CPU_SECONDS, WALL_SECONDS, BYTES = 150, 1200, 8 * 2**30


def tests_of(file: str) -> list[str]:
    """The module itself, for its doctests, and the tests beside it."""
    path = Path(file)
    beside = sorted((ROOT / "tests" / path.parent).glob(f"test_{path.stem}*.py"))
    also = " ".join(tests for place, tests in ALSO.items() if file.startswith(place)).split()
    listed = [*(str(test.relative_to(ROOT)) for test in beside), *(f"tests/{t}.py" for t in also)]
    return [f"src/qipf/{file}", *dict.fromkeys(listed)]


class _Outcomes:
    """A pytest plugin that keeps the first failure, and the CPU seconds of each file."""

    def __init__(self) -> None:
        self.first, self.seconds, self.last = "", Counter[str](), time.process_time()

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.pytest_collectreport(report)
        now = time.process_time()
        self.seconds[report.nodeid.split("::")[0]] += now - self.last
        self.last = now

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.first:
            self.first = report.nodeid


def run_tests(tests: list[str]) -> dict[str, Any]:
    """Run tests in this process up to the first failure: the quick ones, then the slow ones."""
    import pytest

    plugin = _Outcomes()
    for mark in ("not slow", "slow"):
        code = pytest.main([*OPTIONS, "-m", mark, *tests], plugins=[plugin])
        if code not in (0, 5):  # 5: no test of that kind
            return {"failed": plugin.first or f"pytest ended with {int(code)}"}
    return {"failed": "", "seconds": plugin.seconds}


def preload(tests: list[str]) -> None:
    """Import the libraries that the tests import, but nothing of this project or of pytest."""

    def work() -> dict[str, Any]:
        import pytest

        pytest.main([*OPTIONS, "--collect-only", *tests])
        return {"modules": sorted(sys.modules)}

    for module in [*forked(work)["modules"], "torch._dynamo", "torch.onnx", "onnxscript"]:
        if module.split(".")[0] in LIBRARIES:
            with contextlib.suppress(Exception):  # parts that are not to be imported by themselves
                importlib.import_module(module)


class _Changed(importlib.machinery.SourceFileLoader):
    """Loads one module from a changed source."""

    def __init__(self, mutant: Mutant) -> None:
        path = SOURCE / mutant.file
        name = ".".join(["qipf", *Path(mutant.file).with_suffix("").parts])
        super().__init__(name.removesuffix(".__init__"), str(path))
        source = path.read_bytes()
        self.source = source[: mutant.start] + mutant.text.encode() + source[mutant.end :]

    def get_code(self, fullname: str) -> Any:
        return compile(self.source, self.path, "exec")

    def find_spec(self, name: str, *_: Any) -> Any:
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)


def forked(work: Callable[[], dict[str, Any]], limited: bool = True) -> dict[str, Any]:
    """What `work` returns in a forked process, with limits of time and memory."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        if limited:
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
            resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
            signal.alarm(WALL_SECONDS)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        try:
            answer = json.dumps(work())
        except BaseException as error:
            answer = json.dumps({"broken": repr(error)})
        with os.fdopen(writing, "w") as pipe:
            pipe.write(answer)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    result = json.loads(answer) if answer else {"failed": "time or memory ran out"}
    if "broken" in result:
        sys.exit(f"The tests could not be run: {result['broken']}")
    return result


def outcome(mutant: Mutant) -> str:
    """The first test that notices the change; empty if none does."""

    def work() -> dict[str, Any]:
        changed = _Changed(mutant)
        sys.meta_path.insert(0, changed)
        try:  # before pytest, which loads the files that it is given by itself
            importlib.import_module(changed.name)
        except Exception as error:
            return {"failed": f"import: {type(error).__name__}"}
        return run_tests(tests_of(mutant.file))

    return forked(work)["failed"]
