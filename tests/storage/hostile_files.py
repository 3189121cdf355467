"""Mutates the stored files, and loads what comes out in a process that is watched.

Run as a program of its own, ``python -m tests.storage.hostile_files FOLDER COUNT``: its memory is
limited, and every attempt to run code, start a program or open a connection is recorded. Prints a
summary.
"""

import codecs
import collections
import contextlib
import functools
import json
import math
import resource
import sys
import time
import traceback
import warnings
from pathlib import Path

import numpy as np
import torch

import qipf
from qipf import QIPF, AcceptRule, QIPFError, QIPFFileError, QIPFWarning, ShiftMonitor
from qipf.io.container import decode, encode
from qipf.monitor.lines import LineSource
from qipf.monitor.watch import Watch
from qipf.storage.save_load import describe, load_field
from tests.conftest import make_logits
from tests.storage.forged_files import Forge
from tests.stored.write_files import HERE, layered_network, network, watched_field

#: Bytes that loading may take beyond what the program had before.
ROOM = 256 * 2**20

#: What no file may bring about; see `sys.addaudithook`.
FORBIDDEN = {
    "compile", "exec", "pickle.find_class", "marshal.loads", "os.system", "os.exec", "os.fork",
    "os.posix_spawn", "subprocess.Popen", "socket.connect", "ctypes.dlopen", "os.remove",
}  # fmt: skip

ODD_VALUES = (
    None, True, False, -1, 0, 1, 2, 10**400, 1e308, -1e308, 5e-324, 1e-200, 1e400, -0.5, 0.5, "",
    "cv", "cpu", "\ud800", "__import__('os').system('true')", [], [1], [[]],
    [1.5, 2.5, 3.5, 4.5], {}, {"a": 1}, [1] * 300, [10**6] * 4, 3_000_000, 2**62, 2**64,
    "x" * 10_000, "\x1b[2J\n",
)  # fmt: skip
ODD_NUMBERS = (np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, 0.0, -1.0, 1e30)
ODD_SHAPES = (
    [2**40, 2**20], [2**62, 4], [2**63], [-1, 10], [0, 10], [1], [], [1] * 100, [2**32, 2**32],
    [1] * 20_000,
)  # fmt: skip
ODD_DTYPES = ("F16", "BF16", "I8", "I32", "I64", "BOOL", "U8", "F8_E4M3", "", "object", "F128")


# ---------------------------------------------------------------------- mutations


def truncated(data, random):
    return data[: random.integers(len(data))]


def flipped(data, random):
    changed = bytearray(data)
    for _ in range(random.integers(1, 8)):
        changed[random.integers(len(data))] ^= 1 << int(random.integers(8))
    return bytes(changed)


def spliced(data, random):
    changed, place = bytearray(data), int(random.integers(len(data)))
    changed[place : place + int(random.integers(20))] = random.bytes(int(random.integers(20)))
    return bytes(changed)


def repeated(data, random):
    """A part of the file once more, somewhere else."""
    begin, end = sorted(random.integers(len(data), size=2).tolist())
    place = int(random.integers(len(data)))
    return data[:place] + data[begin:end] + data[place:]


def lying_length(data, random):
    """The header's length as another number."""
    length = int.from_bytes(data[:8], "little")
    odd = (0, 1, 2**22, 2**22 + 1, 2**31, 2**32, 2**63, 2**64 - 1)
    near = length + int(random.integers(-20, 20))
    wrong = near if random.random() < 0.5 else odd[random.integers(len(odd))]
    return wrong.to_bytes(8, "little") + data[8:]


def noise(data, random):
    """A length that fits, and bytes that mean nothing."""
    size = int(random.integers(1, 2000))
    return size.to_bytes(8, "little") + random.bytes(size + int(random.integers(100)))


def odd_header(data, random):
    """One value of qipf's header replaced, dropped or added, and signed again."""
    forge = Forge(data)
    place, keys = forge.header, list(forge.header)
    while True:
        key = keys[random.integers(len(keys))]
        deeper = place[key]
        if not isinstance(deeper, (dict, list)) or not deeper or random.random() < 0.1:
            break
        place = deeper
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
    kind = random.random()
    if kind < 0.8:
        place[key] = ODD_VALUES[random.integers(len(ODD_VALUES))]
    elif kind < 0.9:
        del place[key]
    elif isinstance(place, list):
        place.append(place[key])
    else:
        place[f"{key} more"] = place[key]
    return forge.data()


def nested_header(data, random):
    """A header deeper than anybody reads."""
    depth = int(random.choice([50, 900, 5000, 100_000]))
    forge = Forge(data)
    forge.entries["__metadata__"] = {"qipf": '{"kind":' + "[" * depth + "]" * depth + "}"}
    head = json.dumps(forge.entries).encode()
    return len(head).to_bytes(8, "little") + head + bytes(forge.body)


def odd_numbers(data, random):
    """Numbers of an array replaced, and signed again."""
    forge = Forge(data)
    name = _array(forge, random)
    if name is None:
        return odd_header(data, random)
    array = forge.array(name)
    for _ in range(random.integers(1, 4)):
        array[random.integers(len(array))] = ODD_NUMBERS[random.integers(len(ODD_NUMBERS))]
    return forge.data()


def odd_entry(data, random):
    """What safetensors is told of an array: its shape, dtype or place is a lie."""
    forge = Forge(data)
    name = _array(forge, random)
    if name is None:
        return odd_header(data, random)
    entry, kind = forge.entries[name], random.integers(5)
    if kind == 0:
        entry["shape"] = ODD_SHAPES[random.integers(len(ODD_SHAPES))]
    elif kind == 1:
        entry["dtype"] = ODD_DTYPES[random.integers(len(ODD_DTYPES))]
    elif kind == 2:
        entry["data_offsets"] = [int(v) for v in random.integers(-10, 2 * len(data), size=2)]
    elif kind == 3:
        key = str(random.choice(["dtype", "shape", "data_offsets"]))
        entry[key] = ODD_VALUES[random.integers(len(ODD_VALUES))]
    else:
        forge.entries[f"{name} again"] = dict(entry)  # two arrays in one place
    return forge.data(signed=False)


def reshaped(data, random):
    """The same numbers in another shape, and signed again."""
    forge = Forge(data)
    name = _array(forge, random)
    if name is None:
        return odd_header(data, random)
    count = int(np.prod(forge.entries[name]["shape"]))
    shapes = ([count], [count, 1], [1, count], [1, 1, count], [2, count // 2])
    entry = forge.entries[name]
    entry["shape"] = shapes[random.integers(len(shapes))]
    return forge.data(signed=int(np.prod(entry["shape"])) == count)


def renamed(data, random):
    """An array under another array's name, or taken out, and signed again."""
    forge = Forge(data)
    name = _array(forge, random)
    if name is None:
        return odd_header(data, random)
    entry = forge.entries.pop(name)
    others = (
        "centers", "log_weights", "calibration", "calibration_wrong", "x", "__proto__", "weights",
        "masses 0", "labels 1", "examples 0", "units 2", "labels", "center_indices", "counts",
        "recent", "best_start",
    )  # fmt: skip
    if random.random() < 0.8:
        forge.entries[others[random.integers(len(others))]] = entry
    return forge.data()


def shortened(data, random):
    """An array without its last numbers, sound as a file and signed."""
    header, arrays = decode(data, "data")
    if not arrays:
        return odd_header(data, random)
    name = sorted(arrays)[random.integers(len(arrays))]
    arrays[name] = arrays[name][: random.integers(len(arrays[name]))]
    return encode(header, arrays)


def _array(forge, random):
    names = [name for name in forge.entries if name != "__metadata__"]
    return names[random.integers(len(names))] if names else None


MUTATIONS = (
    truncated, flipped, spliced, repeated, lying_length, noise, odd_header, odd_header,
    nested_header, odd_numbers, odd_numbers, odd_entry, reshaped, renamed, shortened,
)  # fmt: skip


# ---------------------------------------------------------------------- what loads is valid


def loaded(path, name):
    """Load what came of the stored file; an AssertionError where what it gives is no score."""
    kind = name.rsplit("-", 1)[0]
    if kind in ("layers", "condensed"):
        return layers_loaded(path)
    if kind == "features":
        return features_loaded(path)
    if kind == "monitor":
        return monitor_loaded(path)
    found = load_field(path) if kind == "model" else qipf.load(path)
    if isinstance(found, AcceptRule):
        mask = found(*[np.array([0.1, 1.0, 10.0])] * 2)
        assert (mask.shape, mask.dtype) == ((3,), bool)
        return None
    if kind == "model":
        # the field is sound; whether it is this network's is another question, answered in words
        with told_apart(
            "belongs to another network", "The network has no layer", "this network has"
        ):
            assert qipf.load(path, network()).field.n_features_in_ == found.n_features_in_
    return field_loaded(found)


def field_loaded(field):
    assert type(field) is QIPF
    queries = np.resize(make_logits(3, seed=5).numpy(), (3, field.n_features_in_))
    if field.probabilities_:
        queries = np.abs(queries) / np.abs(queries).sum(1, keepdims=True)
    scores = field.uncertainty(queries)
    assert scores.shape == (3,)
    assert np.isfinite(scores).all()
    assert np.isfinite(field.modes(queries)).all()
    assert np.isfinite(field.log_density(queries)).all()
    if field.calibration_ is not None:
        p_values = field.p_values(queries)
        assert ((p_values > 0) & (p_values <= 1)).all()
    if field.rule_ is not None:
        assert field.accepts(queries).dtype == bool


def features_loaded(path):
    model = qipf.load(path)
    assert type(model) is qipf.FeatureQIPF
    fields = model.layer_fields()
    if not fields:
        return
    features = {site.layer: np.ones((3, len(f.metric.mean))) for site, f in fields.items()}
    logits = np.resize(make_logits(3, seed=5).numpy(), (3, model.fields_[0].classes))
    found = model(features, logits)
    assert np.isfinite(found.uncertainty).all()
    assert model.calibration_ is None or (found.p_value > 0).all()


def layers_loaded(path):
    assert describe(path)[0]["kind"] == "layers"  # checks as loading does
    with told_apart("The network has no layer", "this network has"):
        model = qipf.load(path, layered_network(), check=False)
        found = model(torch.ones(3, 4))
        assert found.uncertainty.shape == (3,)
        assert bool(torch.isfinite(found.uncertainty).all())
        assert model.calibration_ is None or bool((found.p_value > 0).all())
        assert model.rule_ is None or found.accepted.dtype == torch.bool


watched = functools.cache(watched_field)


def monitor_loaded(path):
    monitor = ShiftMonitor.load(path, watched())
    # the notes too, from which a watch resumes
    watch = Watch(monitor, LineSource(None), None, print, print)
    assert watch.monitor is monitor
    before = monitor.seen
    for verdict in (monitor.verdict(), monitor.update_scores(*[[0.1, np.nan, 1e300, 0.5]] * 2)):
        assert 0 <= verdict.p_value <= 1
        assert not math.isnan(verdict.log_evidence)
        assert 0 <= verdict.abstained <= verdict.seen
        assert verdict.window.count == min(verdict.seen, monitor.window)
        assert 0 <= verdict.window.ks <= 1
        assert 0 <= verdict.accuracy.accuracy <= 1
    assert (verdict.seen, verdict.alarm) == (before + 4, verdict.alarm_at is not None)


@contextlib.contextmanager
def told_apart(*messages):
    """Lets pass that a sound file belongs to another network, told so; nothing else."""
    try:
        yield
    except QIPFError as error:
        if not any(message in str(error) for message in messages):
            raise AssertionError("a sound file is refused") from error


def attempt(path, name):
    """How loading ended, and the seconds of computing that it took."""
    begun = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QIPFWarning)
        try:
            loaded(path, name)
            ending = "loaded"
        except QIPFFileError:
            ending = "refused"
    return ending, time.process_time() - begun


def main(folder, count):
    torch.set_num_threads(1)
    random, events = np.random.default_rng(0), collections.Counter()
    files = {path.stem: path.read_bytes() for path in sorted(HERE.glob("*.qipf"))}
    path, watching = Path(folder, "mutated.qipf"), False
    for encoding in ("utf-16-be", "utf-16-le", "utf-32-be", "utf-32-le"):
        codecs.lookup(encoding)  # json tries them on what is not UTF-8, and imports them first
    for name, data in files.items():  # also imports and allocates what loading needs
        path.write_bytes(data)
        assert attempt(path, name)[0] == "loaded", name

    def hook(event, _arguments):
        if watching and event in FORBIDDEN:
            events[event] += 1

    sys.addaudithook(hook)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + ROOM, held + ROOM))
    endings, slowest, failures = collections.Counter(), 0.0, []
    for number in range(count):
        name = list(files)[number % len(files)]
        mutate = MUTATIONS[random.integers(len(MUTATIONS))]
        path.write_bytes(mutate(files[name], random))
        watching = True
        try:
            ending, seconds = attempt(path, name)
        except BaseException:
            watching = False  # to show a traceback takes compiling
            ending, seconds = "failed", 0.0
            failures.append([number, name, mutate.__name__, traceback.format_exc(limit=-3)])
        watching = False
        endings[f"{name} {ending}"] += 1
        slowest = max(slowest, seconds)
    print(
        json.dumps(
            {
                "count": count, "files": list(files), "endings": endings, "events": events,
                "slowest": slowest, "failed": len(failures), "failures": failures[:5],
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
