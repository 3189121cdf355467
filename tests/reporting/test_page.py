"""A page is one complete file that makes no requests, and all texts in it are escaped."""

import json
import re
from html.parser import HTMLParser

import pytest
from markupsafe import Markup

from qipf import QIPFError
from qipf.reporting import page as page_module
from qipf.reporting.charts import Axis, Chart, Series, chart_spec
from qipf.reporting.page import Section, page_html, render, write_page

VOID = {"meta", "link", "input", "img", "br"}


class Outline(HTMLParser):
    """Elements with their attributes; complains about tags that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.elements, self._open = [], []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag


def addresses(text):
    """Everything in a page that a browser could fetch."""
    told = re.sub(r"data:image/png;base64,[\w+/=]*", "", text)
    found = re.findall(r"(?:https?:|ftp:|wss?:)?//[a-z0-9]", told, re.IGNORECASE)
    found += re.findall(r"@import|url\(", text)
    for _, attributes in Outline(text).elements:
        found += [
            attributes[name]
            for name in ("src", "href", "srcset", "action", "poster")
            if attributes.get(name) and not re.match(r"#|data:", attributes[name])
        ]
    return found


def block(name, **content):
    return render("blocks.html", name, **content)


def table(text="x"):
    return block("table", header=[text], caption=text, caller=lambda: block("cell", value=1.5))


def views(text="x"):
    return block("views", items={(text,): text}, labels=[text], caller=lambda key, item: item)


def chart(text="x"):
    spec = chart_spec(Chart(text, Axis(text), Axis(text), [Series(text, [0, 1], [0, 1])]))
    return block("chart", spec=spec, alt=text, caption=text)


def test_the_page_is_well_formed_and_complete():
    parts = [block("bullets", items=["b"]), block("facts", pairs={"k": "v"}), views(), chart()]
    text = page_html("Title", [Section("One & only", Markup("").join(parts))], lead="Lead")
    elements = Outline(text).elements
    assert addresses(text) == []
    assert "{{" not in text.split("<script>")[0]
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [a["href"][1:] for tag, a in elements if tag == "a"]
    assert set(links) <= set(ids)
    policy = next(a["content"] for t, a in elements if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    assert ("html", {"lang": "en"}) in elements


@pytest.mark.parametrize(
    "made",
    [
        lambda text: block("code", text=text),
        lambda text: block("bullets", items=[text]),
        lambda text: block("facts", pairs={text: text}),
        lambda text: block("cell", value=None, text=text, note=text),
        table,
        views,
        chart,
        lambda text: page_html(text, [Section(text, Markup(""))], text),
    ],
)
@pytest.mark.parametrize(
    ("nasty", "markup"),
    [
        ("<img src=x>\"'&", "<img src=x"),
        ("</script><script>alert(1)</script>", "<script>alert"),
        ("<!-- x", "<!-- x"),
    ],
)
def test_texts_are_escaped(made, nasty, markup):
    html = made(nasty)
    assert markup not in html
    Outline(html)


def test_chart_data_survives_the_escaping():
    nasty = "</script><!-- \"'&"
    spec = json.loads(re.search(r'json">(.*?)</script>', chart(nasty))[1])
    assert (spec["names"], spec["alt"]) == ([nasty], nasty)


def test_cells_sort_by_their_value_and_show_their_text():
    made = block("cell", value=0.5, spec=".2f", best=True, note="was 0.4")
    assert made.strip() == '<td data-key="0.5"><strong>0.50</strong><small>was 0.4</small></td>'
    for missing in (None, float("nan")):
        assert block("cell", value=missing, spec=".2f").strip() == "<td>–</td>"


def test_a_page_is_written_whole(tmp_path):
    target = write_page(tmp_path / "a.html", "<p>ü</p>")
    assert target.read_text(encoding="utf-8") == "<p>ü</p>"
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


@pytest.mark.parametrize(
    ("name", "phrase"),
    [
        ("a.pdf", "ends in .html"),
        ("no/a.html", "There is no folder"),
        ("folder.html", "is a folder"),
    ],
)
def test_targets_that_cannot_be_written_raise(tmp_path, name, phrase):
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(QIPFError, match=phrase):
        write_page(tmp_path / name, "")


def test_pages_too_large_to_mail_raise(tmp_path, monkeypatch):
    monkeypatch.setattr(page_module, "LARGEST", 1_000_000)
    with pytest.raises(QIPFError, match=r"1\.2 MB, more than 1 MB"):
        write_page(tmp_path / "a.html", "x" * 1_200_000)
    assert list(tmp_path.iterdir()) == []
