"""The page of a run in a real browser: every control used, no complaint, no request."""

import base64

import pytest

from qipf.reporting.run.page import write_run_report
from tests.browser.pages import OpenPage

pytestmark = pytest.mark.slow

HOVER = """(() => {
  const box = arguments[0].getBoundingClientRect();
  const at = {clientX: box.left + arguments[1] * box.width, clientY: box.top + box.height / 2};
  arguments[0].dispatchEvent(new PointerEvent("pointermove", {...at, bubbles: true}));
})()"""


@pytest.fixture(scope="module")
def report(tiny_run, tmp_path_factory):
    return write_run_report(tiny_run, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture
def page(browser, report):
    opened = OpenPage(browser, report)
    opened.emulate()
    yield opened
    assert opened.complaints() == []
    assert opened.requests() == []


def column(page, table, index):
    cells = page.all(f"tbody tr > :nth-child({index})", table)
    return [cell.get_attribute("textContent") for cell in cells]


def test_the_page_opens_with_four_answers(page):
    for name in ("tiny_mlp", "short_mlp"):
        page.choose(page.one("#summary .choices select"), name)
        (shown,) = (e for e in page.all("#summary [data-key]") if e.is_displayed())
        assert [h.text for h in page.all(".card h3", shown)] == [
            "How good is the network?", "Are its errors found?",
            "What can be accepted without review?", "When is drift noticed?",
        ]  # fmt: skip
        assert all(figure.text for figure in page.all(".figure", shown))


def test_methods_are_explained_where_they_are_named(page):
    listed = dict(
        zip(
            (e.text for e in page.all("#methods-explained dt")),
            (e.text for e in page.all("#methods-explained dd")),
            strict=True,
        )
    )
    assert set(listed) == {"qipf", "entropy", "energy", "mc_dropout", "mc_dropout_entropy"}
    for selector in ("#tables tbody th", "#severity-curves .switches label span"):
        for name in page.all(selector):
            text = name.get_attribute("textContent")
            assert name.get_attribute("title") == listed[text]


def test_links_lead_to_their_sections(page):
    for link in page.all("nav a"):
        page.click(link)
        assert page.run("document.querySelector(location.hash).tagName") == "SECTION"


def test_tables_sort_by_click_and_by_key(page):
    table = page.one("#methods-compared [data-key='all methods'] table")
    before = column(page, table, 1)
    head = page.all("thead button", table)
    page.click(head[4])
    means = [float(text) for text in column(page, table, 5)]
    assert means == sorted(means, reverse=True)
    assert page.all("thead th", table)[4].get_attribute("aria-sort") == "descending"
    page.press(head[4], "\n")
    assert [float(text) for text in column(page, table, 5)] == sorted(means)
    page.press(head[0], " ")
    assert column(page, table, 1) == sorted(before)
    assert page.all("thead th", table)[4].get_attribute("aria-sort") is None


def test_boxes_choose_which_table_is_shown(page):
    boxes = page.all("#tables .choices select")
    for network in ("short_mlp", "tiny_mlp"):
        for metric in ("pr_auc", "point_biserial", "aurc", "augrc", "naurc", "fpr95", "roc_auc"):
            page.choose(boxes[0], network)
            page.choose(boxes[1], metric)
            blocks = page.all("#tables [data-views] > [data-key]")
            shown = [e.get_attribute("data-key") for e in blocks if e.is_displayed()]
            assert shown == [f"{network}|{metric}"]


@pytest.mark.parametrize(
    "section",
    [
        "severity-curves", "risk-and-coverage", "shift-timeline", "accuracy-without-labels",
        "cost-beside-quality",
    ],
)  # fmt: skip
def test_every_view_of_a_chart_is_drawn(page, section):
    figure = page.one(f"#{section} figure")
    boxes = page.all("select", figure)
    drawn = set()
    for box in boxes:
        for option in page.all("option", box):
            option.click()
            assert page.all(".stage svg .series", figure)
            drawn.add(page.one(".stage", figure).get_attribute("innerHTML"))
            assert "NaN" not in page.one(".stage", figure).get_attribute("innerHTML")
    assert len(drawn) >= sum(len(page.all("option", box)) - 1 for box in boxes)


def test_methods_are_switched_on_and_off(page):
    figure = page.one("#severity-curves figure")

    def shown():
        return {g.get_attribute("data-name") for g in page.all(".stage .series", figure)}

    methods = {"qipf", "entropy", "energy", "mc_dropout", "mc_dropout_entropy"}
    best = page.all("#methods-compared tbody th")[0].text  # is ticked, whichever it is
    assert shown() == {"qipf", "entropy", "energy", "mc_dropout", "chance", best}
    for button, expected in zip(
        page.all(".presets button", figure),
        ({"qipf", "mc_dropout"}, {"qipf", "entropy", "energy"}, methods, set()),
        strict=True,
    ):
        page.click(button)
        assert shown() == expected | {"chance"}
    for box in page.all(".switches input", figure):
        page.press(box, " ")
        assert box.get_attribute("value") in shown()
        page.press(box, " ")
        assert shown() == {"chance"}


def test_hover_and_arrow_keys_read_the_values(page, tiny_run):
    figure = page.one("#severity-curves figure")
    readout = page.one(".readout", figure)
    assert not readout.is_displayed()
    stage = page.one(".stage", figure)
    page.run(HOVER, stage, 0.99)
    assert readout.is_displayed()
    assert readout.text.startswith("rotation (degrees): 90")
    canvas = page.one("svg.canvas", figure)
    page.press(canvas, "\ue011")  # Home
    assert readout.text.startswith("rotation (degrees): 0")
    page.press(canvas, "\ue014")  # right
    assert readout.text.startswith("rotation (degrees): 15")
    names = [e.text for e in page.all("span", readout)]
    values = [float(e.text) for e in page.all("b", readout)]
    assert {"qipf", "entropy", "energy", "mc_dropout", "chance"} <= set(names)
    assert values == sorted(values, reverse=True)
    page.press(canvas, "\ue00c")  # escape
    assert not readout.is_displayed()


def test_the_alarm_is_marked_and_evidence_leaves_the_chart(page):
    figure = page.one("#shift-timeline figure")
    canvas = page.one("svg.canvas", figure)
    words = [text.text for text in page.all(".at .word", canvas)]
    assert words == ["clean", "15°", "30°", "90°", "alarm"]
    assert len(page.all(".at path", canvas)) == 5
    box = canvas.rect
    for word in page.all(".at .word", canvas):
        assert box["x"] <= word.rect["x"]
        assert word.rect["x"] + word.rect["width"] <= box["x"] + box["width"]
    # the line rises beyond the chart's end: the part of it that is drawn is cut off there
    frame = page.one("svg svg", figure)
    line = page.one("[data-name='qipf'] .line", frame)
    assert page.run("arguments[0].getBBox().y", line) < float(frame.get_attribute("y"))
    assert frame.value_of_css_property("overflow") == "hidden"
    assert "alarm after" in canvas.get_attribute("aria-label")
    page.press(canvas, "\ue010")  # End
    readout = page.one(".readout", figure)
    assert float(page.all("b", readout)[0].text) > 20  # the value is read all the same


def test_boxes_choose_whose_thresholds_are_shown(page):
    box = page.one("#certified-thresholds .choices select")
    for network in ("short_mlp", "tiny_mlp"):
        page.choose(box, network)
        blocks = page.all("#certified-thresholds [data-views] > [data-key]")
        (shown,) = (e for e in blocks if e.is_displayed())
        assert f"{network}, by every score" in shown.text


def test_the_slider_turns_the_corruption_up(page):
    gallery = page.one("[data-gallery]")
    slider = page.one("input[type='range']", gallery)
    said = page.one("output", gallery)
    assert said.text == "rotation: clean"
    told = [page.one(".thumbs", gallery).text]
    for expected in ("rotation: 15 degrees", "rotation: 30 degrees", "rotation: 90 degrees"):
        page.press(slider, "\ue014")
        assert said.text == expected
        assert slider.get_attribute("aria-valuetext") == expected.split(": ")[1]
        told.append(page.one(".thumbs", gallery).text)
    assert len(set(told)) == 4
    offsets = {img.value_of_css_property("margin-left") for img in page.all(".thumb img", gallery)}
    side = float(page.all(".picture", gallery)[0].value_of_css_property("width")[:-2])
    assert [float(offset[:-2]) for offset in offsets] == pytest.approx([-3 * side], abs=0.1)
    for image in page.all(".thumb img", gallery):
        assert "90 degrees" in image.get_attribute("alt")
        assert page.run("arguments[0].naturalWidth", image) == 4 * 8
    for select, value in (("corruption", "zoom"), ("network", "short_mlp")):
        page.choose(page.one(f"[data-part='{select}']", gallery), value)
        assert said.text == "zoom: clean"


def test_images_are_chosen_for_the_details(page):
    gallery = page.one("[data-gallery]")
    detail = page.one(".detail", gallery)
    for number, thumb in enumerate(page.all(".thumb", gallery), start=1):
        page.press(thumb, "\n")
        assert f"Image {number} is {number - 1}; the network says" in detail.text
        pressed = [t.get_attribute("aria-pressed") for t in page.all(".thumb", gallery)]
        assert pressed.index("true") == number - 1
        assert pressed.count("true") == 1
    methods = [th.text for th in page.all("div:nth-child(2) tbody th", detail)]
    assert set(methods) == {"mc_dropout", "qipf", "entropy", "energy", "mc_dropout_entropy"}
    ranked = column(page, page.one("#methods-compared [data-key='all methods'] table"), 1)
    assert methods == ranked  # the best first, everywhere
    modes = [float(td.text) for td in page.all("div:nth-child(1) tbody td", detail)]
    mean = float(page.one("tfoot td", detail).text)
    assert mean == pytest.approx(sum(modes) / 4, rel=0.02)


def test_everything_is_reached_by_the_keyboard(page):
    controls = page.run(
        "[...document.querySelectorAll('a, button, select, input, svg.canvas')]"
        ".filter((e) => e.checkVisibility()).map((e) => e.tabIndex)"
    )
    assert len(controls) > 60
    assert set(controls) == {0}
    unnamed = page.run(
        "[...document.querySelectorAll('select, input')].filter((e) => !e.labels.length).length"
    )
    assert unnamed == 0
    assert page.run("[...document.images].filter((e) => !e.alt).length") == 0
    assert page.run("[...document.querySelectorAll('[role=img]:not([aria-label])')].length") == 0
    page.run("document.querySelector('nav a').focus({focusVisible: true})")
    outline = page.run("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


@pytest.mark.parametrize("width", [360, 390, 768])
def test_narrow_screens_need_no_sideways_scrolling(page, width):
    page.emulate(width=width)
    assert page.run("document.documentElement.scrollWidth") <= width
    for box in page.all(".scroll"):  # wide tables scroll inside
        assert box.rect["x"] + box.rect["width"] <= width
        assert box.value_of_css_property("overflow-x") == "auto"
    for canvas in page.all("svg.canvas"):
        assert canvas.rect["width"] <= width
    page.run(HOVER, page.one("#severity-curves .stage"), 0.5)
    assert page.run("document.documentElement.scrollWidth") <= width


def luminance(page, element, what):
    """Relative luminance of a computed colour."""
    color = page.run(f"getComputedStyle(arguments[0]).{what}", element)
    channels = [float(c) / 255 for c in color[color.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True])
def test_texts_stand_out_from_the_ground(page, dark):
    page.emulate(dark=dark)
    ground = luminance(page, page.one("html"), "backgroundColor")
    assert (ground < 0.1) == dark
    for selector in ("h1", "p", "figcaption", "caption", "td", ".good", ".bad", "nav a", "small"):
        for element in page.all(selector)[:1]:
            ink = luminance(page, element, "color")
            low, high = sorted([ink, ground])
            assert (high + 0.05) / (low + 0.05) >= 4.5, selector


def test_print_shows_all_tables_on_white(page):
    page.emulate(dark=True, media="print")
    shown = [e for e in page.all("#tables [data-views] > [data-key]") if e.is_displayed()]
    assert len(shown) == 2 * 8
    assert luminance(page, page.one("html"), "backgroundColor") == 1
    assert not page.one("nav").is_displayed()
    printed = page.driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")


def test_print_shows_every_network_and_corruption(page, tiny_run):
    page.choose(page.all("#severity-curves select")[2], "aurc")
    page.emulate(media="print")
    page.run("dispatchEvent(new Event('beforeprint'))")
    printed = page.all("#severity-curves .printed svg")
    titles = [e.text for e in page.all("#severity-curves .printed .view-title")]
    assert titles == [f"{n}, {c}" for n in ("tiny_mlp", "short_mlp") for c in ("rotation", "zoom")]
    assert all(svg.is_displayed() for svg in printed)
    assert all("AURC" in svg.text for svg in printed)  # what is chosen in the last box
    assert not page.one("#severity-curves .stage").is_displayed()
    boxes = page.all("#severity-curves .choices label")
    assert [box.is_displayed() for box in boxes] == [False, False, True]
    assert len(page.all("#risk-and-coverage .printed svg")) == 2
    titles = [e.text for e in page.all("#shift-timeline .printed .view-title")]
    assert [title.split(":")[0] for title in titles] == [
        f"{n}, {c}" for n in ("tiny_mlp", "short_mlp") for c in ("rotation", "zoom")
    ]  # every one, not only those of the last box
    assert not page.one("#shift-timeline .choices").is_displayed()
    assert len(page.all("#accuracy-without-labels .printed svg.canvas")) == 4
    tables = page.all("#certified-thresholds [data-views] > [data-key]")
    assert [table.is_displayed() for table in tables] == [True, True]
    assert len(page.all("#cost-beside-quality .printed .wide svg")) == 2
    gallery = page.one("[data-gallery]")
    rows = page.all(".printed-gallery tbody tr", gallery)
    assert len(rows) == 10
    assert [e.text for e in page.all(".printed-gallery thead th", gallery)] == [
        "clean", "15 degrees", "30 degrees", "90 degrees",
    ]  # fmt: skip
    assert all(("✓" in row.text or "✗" in row.text) and "%" in row.text for row in rows)
    for selector in (".slider", ".thumbs", ".detail", ".choices"):
        assert not page.one(selector, gallery).is_displayed()
    page.run("dispatchEvent(new Event('afterprint'))")
    assert page.all(".printed, .printed-gallery, .spread, .whole") == []


def test_a_page_that_asks_for_something_is_caught(browser, report, tmp_path):
    asking = tmp_path / "asking.html"
    asked = '<img alt="" src="http://127.0.0.1:9/x.png"></main>'
    asking.write_text(report.read_text(encoding="utf-8").replace("</main>", asked))
    opened = OpenPage(browser, asking)
    assert "Content Security Policy" in " ".join(opened.complaints())
