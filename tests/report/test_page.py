"""A page is one whole file that asks nobody for anything."""

import re
from html.parser import HTMLParser

import pytest

from qipf import QIPFError
from qipf.report import page as page_module
from qipf.report.charts import Choice
from qipf.report.page import (
    Section,
    Value,
    bullets,
    code,
    facts,
    page_html,
    paragraph,
    subheading,
    table_html,
    views_html,
    write_page,
)

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


def a_page():
    table = table_html(["name", "n"], [["a", Value("1", 1)]], "A table", [["all", "1"]])
    views = views_html({("x",): table}, [Choice("Which", {"x": "X", "y": "Y"})])
    parts = [paragraph("p"), bullets(["b"]), code("c"), subheading("s"), facts({"k": "v"}), views]
    return page_html("Title", [Section("One & only", "".join(parts))], lead="Lead")


def test_the_page_is_well_formed_and_complete():
    text = a_page()
    elements = Outline(text).elements
    assert addresses(text) == []
    assert "$" not in re.sub(r"\$\{|`\$", "", text.split("<script>")[0])
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [a["href"][1:] for tag, a in elements if tag == "a"]
    assert set(links) <= set(ids)
    policy = next(a["content"] for t, a in elements if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    assert ("html", {"lang": "en"}) in elements


@pytest.mark.parametrize(
    "block",
    [
        paragraph,
        code,
        subheading,
        lambda text: bullets([text]),
        lambda text: facts({text: text}),
        lambda text: table_html([text], [[text], [Value(text, note=text)]], text),
        lambda text: views_html({(text,): ""}, [Choice(text, {text: text})]),
        lambda text: page_html(text, [Section(text, "")], text),
    ],
)
def test_texts_are_escaped(block):
    nasty = "<img src=x>\"'&"
    assert "<img src=x" not in block(nasty)
    Outline(block(nasty))


def test_cells_sort_by_their_key_and_show_their_text():
    text = table_html(["m", "v"], [["a", Value("0.5 ± 0.1", 0.5, best=True, note="was 0.4")]], "t")
    assert '<td data-key="0.5"><strong>0.5 ± 0.1</strong><small>was 0.4</small></td>' in text
    assert '<th scope="row">a</th>' in text


def test_ragged_tables_are_refused():
    with pytest.raises(QIPFError) as refused:
        table_html(["a", "b"], [["1"]], "t")
    assert str(refused.value) == "Every row must have the header's 2 cells; got 1."


def test_a_page_is_written_whole(tmp_path):
    target = write_page(tmp_path / "a.html", "<p>ü</p>")
    assert target.read_text(encoding="utf-8") == "<p>ü</p>"
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


def test_targets_that_cannot_be_written_are_refused(tmp_path):
    (tmp_path / "folder.html").mkdir()
    for target, message in [
        (tmp_path / "a.pdf", "Cannot write 'a.pdf': name a file that ends in .html or .htm."),
        (
            tmp_path / "no" / "a.html",
            f"There is no folder {tmp_path / 'no'}. Create it, or choose another.",
        ),
        (tmp_path / "folder.html", f"{tmp_path / 'folder.html'} is a folder; name a file in it."),
    ]:
        with pytest.raises(QIPFError) as refused:
            write_page(target, "")
        assert str(refused.value) == message


def test_pages_too_large_to_mail_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(page_module, "LARGEST", 1_000_000)
    with pytest.raises(QIPFError) as refused:
        write_page(tmp_path / "a.html", "x" * 1_200_000)
    assert str(refused.value) == (
        "The page would have 1.2 MB, more than 1 MB. Report fewer networks or methods at once."
    )
    assert list(tmp_path.iterdir()) == []
