"""Files that were damaged or forged are refused, or are harmless; whatever they say."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from qipf import QIPFFileError, QIPFInputError
from tests.storage.hostile_files import MUTATIONS, told_apart
from tests.stored.write_files import stored

REPOSITORY = Path(__file__).parents[2]
COUNT = 3000


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_mutated_files_are_refused_or_load_to_something_valid(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "tests.storage.hostile_files", tmp_path, str(COUNT)],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr  # a crash would end it by a signal
    told = json.loads(ended.stdout)
    assert told["failures"] == []  # neither another error nor more than 256 MB
    assert told["events"] == {}
    assert told["slowest"] < 1  # seconds of computing, not of waiting for the machine
    assert sum(told["endings"].values()) == told["count"]
    kinds = {name.rsplit("-", 1)[0] for name in told["files"]}
    assert kinds == {
        "field", "weighted", "model", "layers", "condensed", "calibrated", "rule", "monitor",
        "entropy", "features", "novelty",
    }  # fmt: skip
    loaded = Counter()
    for name in told["files"]:
        loaded[name.rsplit("-", 1)[0]] += told["endings"].get(f"{name} loaded", 0)
        assert told["endings"][f"{name} refused"] >= COUNT / len(told["files"]) / 2
    assert min(loaded[kind] for kind in kinds) >= 3  # both endings occurred


def test_the_same_seed_gives_the_same_mutations():
    for kind in ("weighted", "layers", "condensed", "monitor"):
        data = stored(kind).read_bytes()
        for mutate in dict.fromkeys(MUTATIONS):
            one, two = (mutate(data, np.random.default_rng(3)) for _ in range(2))
            assert one == two, mutate.__name__


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_the_watch_notices_what_it_should(tmp_path):
    """The test above would fail if a file could do harm."""
    program = (
        "import numpy as np; from tests.storage import hostile_files as watch\n"
        "load = watch.loaded\n"
        "def harmed(path, name):\n"
        "    load(path, name)\n"
        "    exec('1 + 1')\n"
        "    np.empty(2**26)\n"  # 512 MB
        f"watch.loaded = harmed; watch.main({str(tmp_path)!r}, 100)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(ended.stdout)
    assert told["failed"] == told["events"]["exec"] >= 5
    assert "ArrayMemoryError" in told["failures"][0][3]


def test_only_an_error_about_the_network_leaves_a_file_sound():
    with told_apart("another network"):
        raise QIPFFileError("it belongs to another network")
    with pytest.raises(AssertionError), told_apart("another network"):
        raise QIPFInputError("its bandwidth is 0")
