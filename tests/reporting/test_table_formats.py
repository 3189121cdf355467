import csv
import io
import json
import re

import pytest

from qipf.bench.methods import METHODS
from qipf.errors import QIPFInputError
from qipf.reporting.table_formats import render
from qipf.reporting.tables import summarise
from tests.reporting.test_tables import result


@pytest.fixture
def summary():
    results = [
        result("mnist_lenet", "rotation", 15, "qipf", 0.6),
        result("mnist_lenet", "rotation", 30, "qipf", 0.8),
        result("mnist_lenet", "rotation", 15, "svi", 0.9),
        result("mnist_lenet", "none", 0, "qipf", 0.95, accuracy=0.9871),
        result("other_net", "rotation", 15, "svi", 0.123456),
    ]
    return summarise(results, ["roc_auc"])


def test_markdown(summary):
    assert render(summary, "markdown") == (
        "## Networks\n"
        "\n"
        "| network | dataset | test images | accuracy | paper |\n"
        "| --- | --- | ---: | ---: | ---: |\n"
        "| mnist_lenet | mnist | 2,000 | 98.7% | 98.6% |\n"
        "| other_net | other | 2,000 | – | – |\n"
        "\n"
        "## ROC-AUC (higher is better)\n"
        "\n"
        "| corruption | network | source | svi | qipf |\n"
        "| --- | --- | --- | ---: | ---: |\n"
        "| rotation | mnist_lenet | ours | **0.900 ± 0.000*** | 0.700 ± 0.100 |\n"
        "|  |  | paper | 0.55 ± 0.04 | **0.74 ± 0.07** |\n"
        "| rotation | other_net | ours | **0.123** | – |\n"
        "| none | mnist_lenet | ours | – | **0.950** |\n"
        "| best of 1 |  | ours | **1** | 0 |\n"
        "| best of 1 |  | paper | 0 | **1** |\n"
        "\n"
        "- Mean ± standard deviation over a corruption's levels, seed 0; the best of each row in "
        "bold.\n"
        "- \\* not all levels measured yet.\n"
    )


def test_latex_escapes_and_bolds(summary):
    text = render(summary, "latex")
    row = r"rotation & mnist\_lenet & ours & \textbf{0.900 $\pm$ 0.000*} & 0.700 $\pm$ 0.100 \\"
    assert row in text.splitlines()
    assert r"mnist\_lenet & mnist & 2,000 & 98.7\% & 98.6\% \\" in text.splitlines()
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2
    assert re.search(r"(?<!\\)_", text) is None


def test_csv_has_all_digits_and_the_paper_s_cells(summary):
    rows = list(csv.DictReader(io.StringIO(render(summary, "csv"))))
    assert len(rows) == 4
    assert rows[1] == {
        "metric": "roc_auc",
        "corruption": "rotation",
        "network": "mnist_lenet",
        "dataset": "mnist",
        "method": "qipf",
        "mean": "0.7",
        "std": rows[1]["std"],
        "levels": "2",
        "left_out": "0",
        "best": "False",
        "paper_mean": "0.74",
        "paper_std": "0.07",
        "paper_best": "True",
        "mark": "",
        "measured": "2",
        "seed_std": "",
    }
    assert float(rows[1]["std"]) == pytest.approx(0.1)
    assert (rows[2]["mean"], rows[2]["paper_mean"]) == ("0.123456", "")


def test_json_has_cells_wins_networks_and_notes(summary):
    content = json.loads(render(summary, "json"))
    assert content["wins"]["roc_auc"] == {
        "of": 1,
        "ours": {"svi": 1, "qipf": 0},
        "paper_of": 1,
        "paper": {"svi": 0, "qipf": 1},
    }
    assert [cell["mean"] for cell in content["cells"]] == [0.9, 0.7, 0.123456, 0.95]
    assert content["cells"][2]["paper_mean"] is None
    assert content["networks"][0]["paper_accuracy"] == 0.986
    assert content["notes"] == list(summary.notes)


def test_the_terminal_shows_the_same_cells(summary, monkeypatch):
    text = render(summary, "terminal", width=100)
    assert re.search(r"rotation +mnist_lenet +ours +0\.900 ± 0\.000\* +0\.700 ± 0\.100", text)
    assert re.search(r"paper +0\.55 ± 0\.04 +0\.74 ± 0\.07", text)
    assert "\x1b" not in text  # nobody watches: no colours
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    bold = re.findall(r"\x1b\[1(?:;2|)m *([^\x1b]*?) *\x1b", render(summary, "terminal", width=100))
    assert {"0.900 ± 0.000*", "0.123", "0.950"} <= set(bold)
    assert "0.700 ± 0.100" not in bold


def test_a_narrow_terminal_gets_the_table_in_parts():
    results = [result("n", "zoom", level, m, 0.5) for m in METHODS for level in (1, 2)]
    text = render(summarise(results, ["roc_auc"], "all"), "terminal", width=80)
    assert "part 1 of " in text
    assert max(map(len, text.splitlines()[:-1])) <= 80
    assert text.count("0.500 ± 0.000") == len(METHODS)
    wide = render(summarise(results, ["roc_auc"], "all"), "terminal", width=1000)
    assert "part 1 of " not in wide


def test_an_unknown_format_raises(summary):
    with pytest.raises(QIPFInputError, match="Unknown format 'html'"):
        render(summary, "html")
