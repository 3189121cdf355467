"""Code in Markdown pages, and the names and files that it takes for granted."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.preprocessing import OneHotEncoder
from torch import nn

from qipf import QIPF

HOME = Path(__file__).parents[2]

#: Commands that are not run with their page, and why.
NOT_RUN = {
    r"make |pip |python |fresh/bin": "installs, or runs for minutes",
    r"qipf .*--follow": "does not end; tests/monitor",
    r"qipf .*--engine ray": "needs a cluster; tests/ray",
    r"qipf export": "takes seconds; tests/cli/test_export.py",
    r"qipf bench|qipf report runs/|qipf figure": "runs for minutes; tests/cli, tests/reporting",
    r"server \|": "a placeholder",
}


@dataclass(frozen=True)
class Snippet:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    code: str

    def __str__(self):
        return f"{self.page}:{self.line}"

    @property
    def commands(self):
        """Commands of a shell, without comments, as lists of words."""
        lines = self.code.replace("\\\n", " ").splitlines()
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def snippets(path):
    """All snippets of a page that are Python or commands."""
    text = (HOME / path).read_text(encoding="utf-8")
    fences = re.finditer(r"^(?P<margin> *)```(python|bash|sh)\n(.*?)^ *```$", text, re.M | re.S)
    return [
        Snippet(path, text[: found.start()].count("\n") + 2, found[2], found[3]) for found in fences
    ]


def pages():
    """Pages with snippets, as paths in the repository."""
    found = [
        "README.md",
        *(str(p.relative_to(HOME)) for p in sorted((HOME / "docs").rglob("*.md"))),
    ]
    return [page for page in found if snippets(page)]


def reason_not_run(words):
    """Why a command is not run here; None if it is."""
    command = " ".join(words)
    return next((why for pattern, why in NOT_RUN.items() if re.match(pattern, command)), None)


class Words(nn.Module):
    """A small classifier of tokens."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 6)
        self.head = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, input_ids, attention_mask):
        mask = attention_mask[..., None].float()
        return self.head((self.embedding(input_ids) * mask).sum(1) / mask.sum(1))


def names():
    """What the snippets of the guide take for granted: data, a network, loaders, logits."""
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (1000,), generator=random)
    corners = 2.4 * torch.eye(4)[labels]
    inputs = corners + torch.randn(1000, 4, generator=random)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net, words = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 3)), Words()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.03)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs[:400]), labels[:400]).backward()
        optimizer.step()
    train, held_out, new = slice(0, 400), slice(400, 900), slice(900, 1000)
    logits = net(inputs).detach()
    ids = torch.randint(9, (400, 5), generator=random)
    tokens = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    field = QIPF().fit(logits[train].numpy(), labels[train].numpy())
    field.calibrate(logits[held_out].numpy(), labels[held_out].numpy())
    arrays = {name: value.numpy() for name, value in {"inputs": inputs, "logits": logits}.items()}
    features = {"block3": arrays["inputs"], "pooled": arrays["inputs"][:, :3]}
    return {
        "net": net,
        "train_loader": [(inputs[train], labels[train])],
        "held_out_loader": [(inputs[held_out], labels[held_out])],
        **dict.fromkeys(("images", "inputs", "batch"), inputs[new]),
        "train_logits": arrays["logits"][train],
        "train_labels": labels[train].numpy(),
        "held_out_logits": arrays["logits"][held_out],
        "held_out_labels": labels[held_out].numpy(),
        "test_logits": arrays["logits"][new],
        "field": field,
        "rule": field.accept_rule(max_risk=0.3),
        "forest": {
            "inputs": arrays["inputs"][train],
            "labels": labels[train].numpy(),
            "forest": RandomForestClassifier(10, random_state=0).fit(
                arrays["inputs"][train], labels[train].numpy()
            ),
            "OneHotEncoder": OneHotEncoder,
        },
        "text": {
            "net": words,
            "loader": [{**tokens, "labels": ids[:, 0] % 3}],
            "texts": ["a", "b"],
            "tokenizer": lambda texts, **_: {k: v[: len(texts)] for k, v in tokens.items()},
        },
        "features": {
            **{name: rows[train] for name, rows in features.items()},
            "logits": arrays["logits"][train],
            "labels": labels[train].numpy(),
            "noisy_features": {name: rows[train][::-1].copy() for name, rows in features.items()},
            "noisy_logits": arrays["logits"][train][::-1].copy(),
            "held_out_features": {name: rows[held_out] for name, rows in features.items()},
        },
    }


def write_files(folder, given):
    """Files that commands of the guide read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    train, new = given["train_logits"], given["test_logits"]
    np.savez(folder / "train.npz", logits=train, labels=given["train_labels"])
    held_out = {"logits": given["held_out_logits"], "labels": given["held_out_labels"]}
    np.savez(folder / "held_out.npz", **held_out)
    for name in ("test", "new", "predictions"):
        np.savez(folder / f"{name}.npz", logits=new, labels=new.argmax(1))
        header = ",".join(f"logit_{i}" for i in range(new.shape[1]))
        np.savetxt(folder / f"{name}.csv", new, delimiter=",", header=header, comments="")
    given["field"].save(folder / "field.qipf")
    for name, rows in {"predictions": new, "training": train}.items():
        (folder / name).mkdir()
        table = pa.table({f"logit_{i}": column for i, column in enumerate(rows.T)})
        for shard in ("a", "b"):
            pq.write_table(table, folder / name / f"{shard}.parquet")
