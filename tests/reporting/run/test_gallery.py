"""The gallery shows the run's own images and the network's own answers, or says why not."""

import base64
import io
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from qipf.reporting.run import trained as trained_module
from qipf.reporting.run.gallery import gallery_html, steps_of, strip
from qipf.reporting.run.results import Run
from qipf.reporting.run.trained import TrainedNetwork


def pixels_of(address):
    content = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(content)))


@pytest.fixture(scope="module")
def gallery(tiny_run):
    html = gallery_html(Run(tiny_run))
    return json.loads(re.search(r'json">(.*?)</script>', html).group(1))


@pytest.mark.parametrize("channels", [1, 3])
def test_strips_keep_every_pixel(rng, channels):
    images = [rng.integers(0, 256, (channels, 5, 5)) / 255 for _ in range(3)]
    found = pixels_of(strip(images))
    assert found.shape[:2] == (5, 15)
    expected = np.rint(255 * np.concatenate(images, axis=2)).astype(int)
    np.testing.assert_array_equal(found.reshape(5, 15, channels), np.moveaxis(expected, 0, -1))


def test_clean_images_stand_among_the_levels(tiny_run):
    run = Run(tiny_run)
    assert steps_of(run, "tiny_mlp", "zoom") == [("zoom", 0.5), ("none", 0.0), ("zoom", 2.0)]
    assert steps_of(run, "tiny_mlp", "rotation")[0] == ("none", 0.0)


@pytest.mark.parametrize("network", ["tiny_mlp", "short_mlp"])
def test_answers_are_those_that_the_run_judged(tiny_run, gallery, network):
    run = Run(tiny_run)
    trained = TrainedNetwork(run, network)
    rows = np.unique(trained.labels, return_index=True)[1]
    shown = gallery["networks"][network]
    assert shown["truth"] == list(range(10))
    predicted = np.array(shown["corruptions"]["rotation"]["predicted"])
    for column, level in enumerate([15.0, 30.0, 90.0], start=1):
        wrong = run.scores(network, "rotation")[level][1][rows]
        np.testing.assert_array_equal(predicted[:, column] != np.arange(10), wrong)


def test_modes_have_the_recorded_uncertainty_as_their_mean(tiny_run, gallery):
    run = Run(tiny_run)
    labels = TrainedNetwork(run, "tiny_mlp").labels
    rows = np.unique(labels, return_index=True)[1]
    shown = gallery["networks"]["tiny_mlp"]
    assert shown["orders"] == [1, 2, 3, 4]
    modes = np.array(shown["corruptions"]["zoom"]["modes"])
    known = run.scores("tiny_mlp", "zoom")[2.0][0]["qipf"][rows]
    scale = np.abs(modes[:, 2]).max()
    np.testing.assert_allclose(modes[:, 2].mean(1), known, atol=0.01 * scale)
    clean = run.clean_scores("tiny_mlp")[0]["qipf"]
    told = [image[2] for image in shown["corruptions"]["zoom"]["percentiles"]["qipf"]]
    below, equal = ((compare(clean, known[:, None])).mean(1) for compare in (np.less, np.equal))
    assert told == [round(share) for share in 100 * (below + equal / 2)]


def test_networks_on_the_same_data_share_their_pictures(gallery):
    keys = {shown["corruptions"]["zoom"]["sprites"] for shown in gallery["networks"].values()}
    assert len(keys) == 1
    pictures = gallery["sprites"][keys.pop()]
    assert [pixels_of(picture).shape for picture in pictures] == [(8, 24)] * 10


def test_networks_that_are_not_there_are_left_out_and_said(tiny_run, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "networks" / "seed0" / "short_mlp")
    html = gallery_html(Run(tmp_path / "run"))
    assert "short_mlp is left out: " in html
    assert "data-gallery" in html


def test_data_that_is_not_there_leaves_the_gallery_out(tiny_run, monkeypatch):
    def missing(name, root, download):
        assert not download
        raise trained_module.QIPFInputError("no such data")

    monkeypatch.setattr(trained_module, "load", missing)
    html = gallery_html(Run(tiny_run))
    assert "data-gallery" not in html
    assert html.count("is left out: ") == 2


def test_without_scores_there_are_no_percentiles(tiny_run, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "scores")
    html = gallery_html(Run(tmp_path / "run"))
    assert '"percentiles":{}' in html
