"""The hooks that build the site: formulas, docstrings, links, tutorials, tables of results."""

import importlib.util
import sys
from pathlib import Path
from statistics import fmean

import pytest

pytest.importorskip("mkdocs")

HOME = Path(__file__).parents[2]


def hook(name):
    spec = importlib.util.spec_from_file_location(f"hook_{name}", HOME / f"docs/hooks/{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation():
    nav = (HOME / "mkdocs.yml").read_text(encoding="utf-8")
    for path in sorted((HOME / "docs").rglob("*.md")):
        page = path.relative_to(HOME / "docs").as_posix()
        assert f"{page}\n" in nav, f"add {page} to mkdocs.yml"


class TestFormulas:
    @pytest.fixture(scope="class")
    @staticmethod
    def html():
        from markdown import Markdown

        md = Markdown(extensions=[hook("maths").Maths(), "pymdownx.superfences", "tables"])
        return md.convert

    def test_a_formula_in_the_text(self, html):
        found = html("Let $x_1$ and :math:`y` be `$z$`.")
        assert found.count("<math") == 2
        assert "<msub><mi>x</mi><mn>1</mn></msub>" in found
        assert "<code>$z$</code>" in found

    def test_formulas_on_their_own_lines(self, html):
        found = html("a\n\n.. math:: p = \\frac{1}{2}\n          + q\n\nb\n\n$$ r $$\n\nc")
        assert found.count('<div class="formula"><math') == 2
        assert 'display="block"' in found
        assert "<mi>q</mi>" in found
        assert "<p>b</p>" in found

    def test_prices_and_shells_are_no_formulas(self, html):
        for text in ("US$ 0.05 an hour, US$ 4.00 a GPU", "`$OUT` and $5 or $6", "a $ b $ c"):
            assert "<math" not in html(text)
        assert "<math" not in html("```bash\necho $x$\n```")


class TestDocstrings:
    def test_sections_become_lists(self):
        text = "Adds.\n\nParameters\n----------\na, b : numbers,\n    or more.\nc : one.\n\nDone.\n"
        expected = (
            "Adds.\n\n**Parameters**\n\n- `a`, `b`: numbers,\n  or more.\n- `c`: one.\n\nDone.\n"
        )
        assert hook("docstrings").markdown(text) == expected

    def test_sessions_are_fenced(self):
        text = "Examples\n--------\n>>> 1 + 1\n2\n\nThen:\n\n>>> 3\n3"
        expected = "**Examples**\n\n```pycon\n>>> 1 + 1\n2\n```\n\nThen:\n\n```pycon\n>>> 3\n3\n```"
        assert hook("docstrings").markdown(text) == expected


class TestLinks:
    def test_links_are_those_of_the_site(self):
        links = hook("repository")
        text = "[a](../results/README.md#engines) [b](cli.md) [c](https://x.org/../d) [d](#e)"
        assert links.relinked(text, "docs/theory.md") == text.replace("../results", "results")
        back = links.relinked("[t](../../docs/theory.md)", "results/paper/README.md")
        assert back == "[t](../../theory.md)"
        assert links.relinked("[t](tutorials/text.py)", "docs/faq.md") == "[t](tutorials/text.md)"

    def test_linked_files_are_found_in_turn(self):
        found = hook("repository").linked_files(["docs/theory.md"])
        assert "results/paper/README.md" in found
        assert "results/paper/figure4.png" in found  # linked by that page
        assert not any(path.startswith("docs/") for path in found)


class TestTutorials:
    @pytest.mark.slow
    def test_cells_have_text_code_output_and_figures(self, tmp_path):
        runner = hook("tutorials")
        script = tmp_path / "short.py"
        script.write_text(
            "# %% [markdown]\n# # Title\n#\n# Text.\n\n# %%\nimport warnings\nimport qipf\n"
            "from matplotlib import pyplot as plt\nx = 20\nprint('printed')\n"
            "warnings.warn('careful', qipf.QIPFWarning)\nx + 1\n\n# %%\nplt.plot([1, 2])\n"
        )
        parts = runner.run_script(script)
        assert parts[0] == {"text": "# Title\n\nText."}
        assert parts[2] == {"output": "printed\n21\nQIPFWarning: careful"}
        assert [next(iter(part)) for part in parts[3:]] == ["code", "figure"]
        text, images = runner.page(parts, "short")
        assert text.startswith("# Title\n\nText.\n\n```python\nimport warnings")
        assert "![Figure 1](short-1.png)" in text
        assert images["short-1.png"].startswith(b"\x89PNG")

    def test_an_exception_ends_the_build(self, tmp_path):
        script = tmp_path / "wrong.py"
        script.write_text("# %%\n1 / 0\n")
        with pytest.raises(ZeroDivisionError):
            hook("tutorials").run_script(script)

    def test_every_script_is_in_the_navigation_and_the_list(self):
        nav = (HOME / "mkdocs.yml").read_text(encoding="utf-8")
        listed = (HOME / "docs/tutorials/index.md").read_text(encoding="utf-8")
        scripts = sorted((HOME / "docs/tutorials").glob("*.py"))
        assert len(scripts) >= 9
        for path in scripts:
            assert f"tutorials/{path.stem}.md" in nav
            assert f"({path.name})" in listed
            ((kind, title), *_) = hook("tutorials").cells(path.read_text(encoding="utf-8"))
            assert kind == "text"
            assert title.startswith("# ")


class TestBenchmarks:
    @pytest.fixture
    @staticmethod
    def tables(monkeypatch):
        tables = hook("benchmarks")
        found = []
        for corruption, areas in {
            "none": (1.0, 1.0),
            "zoom": (0.6, 0.8),
            "svhn": (0.9, 0.5),
        }.items():
            for method, area in zip(("entropy", "qipf_plus"), areas, strict=True):
                for seed, shift in ((0, -0.1), (1, 0.1)):
                    found.append(
                        {"network": "a", "corruption": corruption, "level": 1.0, "seed": seed,
                         "method": method, "roc_auc": area + shift, "pr_auc": area, "aurc": 0.1,
                         "fpr95": 0.2, "forward_passes": 1, "milliseconds_per_prediction": 0.5}
                    )  # fmt: skip
        monkeypatch.setattr(tables, "records", lambda run: found)
        return tables

    def test_means_are_over_cells_of_one_kind(self, tables):
        assert tables.methods("r", "corrupted") == pytest.approx({"qipf_plus": 0.8, "entropy": 0.6})
        assert tables.methods("r", "unseen") == pytest.approx({"entropy": 0.9, "qipf_plus": 0.5})
        assert tables.kinds("r") == ["corrupted", "unseen"]
        line = tables.means("r").splitlines()[2]
        assert line == "| **LayeredQIPF** (`qipf_plus`) | 0.800 | 0.800 | 0.100 | 1 | 0.5 |"
        assert tables.by("r", "corrupted", 1).splitlines()[0] == "| ROC-AUC | zoom |"

    @pytest.mark.slow
    def test_the_published_run_has_the_means_of_plain_sums(self):
        tables = hook("benchmarks")
        assert "paper" in tables.runs()
        areas = {}
        for r in tables.records("paper"):
            if r["method"] == "qipf_plus" and r["corruption"] != "none":
                areas.setdefault((r["network"], r["corruption"]), []).append(r["roc_auc"])
        plain = fmean(map(fmean, areas.values()))
        assert tables.methods("paper", "corrupted")["qipf_plus"] == pytest.approx(plain)
        assert f"| {plain:.3f} |" in tables.filled("<!-- benchmark: short paper -->")


def test_what_is_loaded_from_elsewhere_is_found():
    foreign = hook("offline").foreign
    assert foreign('<link rel="stylesheet" href="https://a.org/b.css">')
    assert foreign("<script async src=//a.org/b.js>")
    assert not foreign(
        '<a href="https://a.org"><img src="b.png"><link rel="canonical" href="https://a">'
    )
