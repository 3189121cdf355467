"""Valid files, taken apart, falsified and signed again."""

import json

import numpy as np

import qipf
from qipf.io.container import content_digest


def saved(fitted, folders):
    """The bytes of the file of something fitted; `folders` is pytest's `tmp_path_factory`."""
    path = folders.mktemp("valid") / "valid.qipf"
    qipf.save(fitted, path)
    return path.read_bytes()


class Forge:
    """A valid file taken apart: its safetensors header, qipf's header, and the bytes after."""

    def __init__(self, data):
        length = int.from_bytes(data[:8], "little")
        self.entries = json.loads(data[8 : 8 + length])
        self.header = json.loads(self.entries["__metadata__"]["qipf"])
        self.body = bytearray(data[8 + length :])

    def array(self, name):
        begin, end = self.entries[name]["data_offsets"]
        dtype = {"F32": np.float32, "F64": np.float64}[self.entries[name]["dtype"]]
        return np.frombuffer(self.body, dtype, (end - begin) // np.dtype(dtype).itemsize, begin)

    def data(self, signed=True):
        """Put together again, with a digest that fits unless told otherwise."""
        if signed and isinstance(self.header, dict):
            arrays = {
                name: self.array(name).reshape(entry["shape"])
                for name, entry in self.entries.items()
                if name != "__metadata__"
            }
            self.header.pop("digest", None)
            self.header["digest"] = content_digest(self.header, arrays)
        self.entries["__metadata__"] = {"qipf": json.dumps(self.header)}
        head = json.dumps(self.entries).encode()
        return len(head).to_bytes(8, "little") + head + bytes(self.body)


def changed(valid, *keys, value):
    """The valid file with one value of its header replaced, and signed again."""
    forge = Forge(valid)
    place = forge.header
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return forge.data()
