"""The page of one's own predictions in a real browser."""

import numpy as np
import pytest

from qipf import QIPF
from qipf.io.logits import Block
from qipf.reporting.own.page import own_page
from qipf.reporting.own.study import METHODS, study
from qipf.reporting.page import write_page
from tests.browser.pages import OpenPage
from tests.conftest import make_logits

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["labelled", "unlabelled"])
def own(request, tmp_path_factory):
    train, test = make_logits(200).numpy(), make_logits(150, seed=3).numpy()
    noise = np.random.default_rng(0).normal(scale=4.0, size=test.shape)
    labels = (test + noise).argmax(1) if request.param == "labelled" else None
    field = QIPF(bandwidth=3.0).fit(train).calibrate(make_logits(100, seed=4).numpy())
    page = own_page(study(field, Block(test, labels)))
    return request.param, write_page(tmp_path_factory.mktemp("page") / "mine.html", page)


@pytest.mark.parametrize("screen", [{}, {"dark": True}, {"width": 390}, {"media": "print"}])
def test_every_control_works_without_complaint_or_request(browser, own, screen):
    kind, path = own
    page = OpenPage(browser, path)
    page.emulate(**screen)
    charts = page.all("figure.chart svg.canvas")
    assert len(charts) == (3 if kind == "labelled" else 1)
    if not screen:
        for link in page.all("nav a"):
            page.click(link)
            assert page.run("document.querySelector(location.hash).tagName") == "SECTION"
        for select in page.all("select"):
            names = [option.get_attribute("value") for option in page.all("option", select)]
            assert names in (list(METHODS), ["uncertainty", "novelty"])
            for name in names:
                page.choose(select, name)
        for box in page.all("input[type=checkbox]"):
            page.click(box)
        for head in page.all("thead button"):
            page.click(head)
    # nothing but what scrolls by itself is wider than the screen
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    if screen.get("media") != "print":
        for caption in page.all(".scroll caption"):
            right = page.run(
                "arguments[0].closest('.scroll').getBoundingClientRect().right", caption
            )
            assert caption.rect["x"] + caption.rect["width"] <= right + 1
    assert page.complaints() == []
    assert page.requests() == []
