from dataclasses import replace

import pytest

from qipf.bench.methods import METHODS
from qipf.bench.suites import BENCH_NETWORKS, PAPER_CORRUPTIONS, SUITES, BenchNetwork, Suite, find
from qipf.errors import QIPFInputError

DIGITS = (BENCH_NETWORKS["digits_mlp"],)


def test_the_paper_s_suite_is_the_paper_s():
    paper = find("paper")
    assert [network.name for network in paper.networks] == [
        "mnist_lenet",
        "kmnist10k_lenet",
        "cifar10_lenet",
        "cifar10_vgg3",
    ]
    assert paper.methods == METHODS
    assert {name: len(levels) for name, levels in paper.levels.items()} == {
        "none": 1,
        "rotation": 10,
        "brightness": 8,
        "shear": 7,
        "zoom": 8,
    }
    assert len(list(paper.tasks())) == 4 * 34 * len(METHODS)
    ensemble, field = paper.create("ensemble"), paper.create("qipf")
    assert ensemble.forward_passes == 10
    assert (field.max_centers, field.orders) == (6000, (1, 2, 3, 4))
    assert paper.create("svi").sampler.epochs == 100
    rates = {n.name: n.full_recipe().dropout_rate for n in paper.networks}
    assert (rates["mnist_lenet"], rates["cifar10_vgg3"]) == (0.1, 0.2)


def test_the_full_kmnist_is_tried_when_it_is_named():
    chosen = find("paper").narrowed(["network=kmnist_lenet"])
    assert [(n.name, n.dataset) for n in chosen.networks] == [("kmnist_lenet", "kmnist")]


def test_suites_have_their_datasets():
    assert [n.dataset for n in SUITES["fashion"].networks] == ["fashion_mnist"]
    assert [n.dataset for n in SUITES["digits"].networks] == ["digits"]


def test_tasks_follow_the_suite_and_its_filters():
    suite = Suite("s", DIGITS, {"zoom": (0.5, 2)}, ("qipf", "svi"), seed=7)
    assert [(t.corruption, t.level, t.method, t.seed) for t in suite.tasks()] == [
        ("none", 0.0, "qipf", 7),
        ("none", 0.0, "svi", 7),
        ("zoom", 0.5, "qipf", 7),
        ("zoom", 0.5, "svi", 7),
        ("zoom", 2.0, "qipf", 7),
        ("zoom", 2.0, "svi", 7),
    ]
    assert list(suite.narrowed([]).tasks()) == list(suite.tasks())
    both = suite.narrowed(["method=svi", "method=qipf", "level=2.0"])
    assert [(t.corruption, t.level, t.method) for t in both.tasks()] == [
        ("zoom", 2.0, "qipf"),
        ("zoom", 2.0, "svi"),
    ]
    assert [t.method for t in suite.narrowed(["corruption=none", "method= svi "]).tasks()] == [
        "svi"
    ]


def test_options_hold_for_both_scores_of_a_sampler():
    suite = Suite("s", DIGITS, methods=("svi_entropy",), options={"svi": {"passes": 5}})
    assert suite.create("svi_entropy").forward_passes == 5
    assert suite.create("mc_dropout").forward_passes == 100


@pytest.mark.parametrize(
    ("only", "message"),
    [
        (
            ["qipf"],
            "only must read KIND=NAME or KIND=NAME,NAME; got 'qipf'. "
            "For example: method=qipf,entropy",
        ),
        (["method="], "only must read KIND=NAME or KIND=NAME,NAME; got 'method='. "
            "For example: method=qipf,entropy"),
        (["network=digits_mpl"], "Unknown network of this suite 'digits_mpl'. "
            "Did you mean 'digits_mlp'? Known: digits_mlp."),
        (["corruption=none", "level=2"], "Unknown level of this suite '2'. Known: 0."),
    ],
)  # fmt: skip
def test_filters_that_name_nothing_are_refused(only, message):
    with pytest.raises(QIPFInputError) as refused:
        find("digits").narrowed(only)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"networks": ()}, "networks must not be empty."),
        ({"networks": DIGITS * 2}, "networks must not repeat; 'digits_mlp' is there "
            "twice."),
        ({"methods": ("qipf", "qipf")}, "methods must not repeat; 'qipf' is there twice."),
        ({"corruptions": {"zoom": ()}}, "levels of zoom must not be empty."),
        ({"corruptions": {"zoom": (2, 2)}}, "levels of zoom must not repeat; 2 is there "
            "twice."),
        ({"corruptions": {"zoom": (0,)}}, "zoom level must be a positive factor; got 0."),
        ({"corruptions": {"zoom": ("2",)}}, "zoom level must be a finite number; got '2'."),
        ({"corruptions": {"zom": None}}, "Unknown corruption 'zom'. Did you mean 'zoom'? "
            "Known: brightness, "),
        ({"corruptions": {}, "clean": False}, "corruptions must not be empty unless clean is "
            "true."),
        ({"seed": -1}, "seed must not be negative; got -1."),
        ({"options": {"svi_entropy": {}}}, "The options of svi_entropy are those of svi; give them "
            "there."),
        ({"options": {"svi": {"passes": 0}}}, "svi: passes must be positive; got 0."),
        ({"options": {"knn": {"n": 3}}}, "Unknown option of knn 'n'."),
    ],
)  # fmt: skip
def test_suites_that_make_no_sense_are_refused(given, message):
    with pytest.raises(QIPFInputError) as refused:
        Suite(**{"name": "s", "networks": DIGITS, **given})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("a/b", "digits", "mlp"), "A network's name must consist of letters, digits, '_', '-' and "
            "'.', because files are named by it; got 'a/b'."),
        (("a", "digit", "mlp"), "Unknown dataset 'digit'. Did you mean 'digits'? Known: cifar10, "
            "clinc150, digits, "),
        (("a", "digits", "lent"), "Unknown network 'lent'. Did you mean 'lenet'? "
            "Known: lenet, mlp, "),
        (("a", "digits", "mlp", {"epochs": 0}), "epochs must be positive; got 0."),
        (("a", "digits", "mlp", {"epoch": 3}), "Unknown option of recipe 'epoch'."),
    ],
)  # fmt: skip
def test_networks_that_make_no_sense_are_refused(given, message):
    with pytest.raises(QIPFInputError) as refused:
        BenchNetwork(*given)
    assert message in str(refused.value)


def test_an_unknown_suite_is_refused_with_near_ones():
    with pytest.raises(QIPFInputError) as refused:
        find("digit")
    assert "Unknown suite 'digit'. Did you mean 'digits'?" in str(refused.value)


def test_a_name_of_the_tables_means_one_network_only():
    with pytest.raises(QIPFInputError, match="is the table's name for lenet on mnist; give mlp on"):
        BenchNetwork("mnist_lenet", "digits", "mlp")


def test_modern_networks_are_tested_under_the_corruptions_of_what_they_read():
    modern = find("modern")
    image, text = (modern.network(name) for name in ("cifar10_resnet18", "clinc_transformer"))
    levels = {name: len(found) for name, found in modern.levels_of(image).items()}
    assert levels.pop("none") == 1
    assert [levels.pop(name) for name in PAPER_CORRUPTIONS] == [10, 8, 7, 8]
    assert len(levels) == 10
    assert set(levels.values()) == {5}
    of_text = ["none", "typing", "dropped_words", "swapped_words", "other_words"]
    assert list(modern.levels_of(text)) == of_text
    assert modern.options == {"ensemble": {"networks": 5}}
    assert {"svi", "mc_dropout_log_odds"}.isdisjoint(modern.methods)
    assert {"ensemble_log_odds", "tta", "svi_ll", "stacked", "qipf_plus"} <= set(modern.methods)
    assert all(network.full_recipe().pool == 6 for network in modern.networks)


def test_the_ood_suite_shows_each_network_what_its_dataset_lacks():
    ood = find("ood")
    shown = {network.name: tuple(ood.levels_of(network)) for network in ood.networks}
    of_cifar = ("tiny_imagenet", "svhn", "mnist", "fashion_mnist")
    assert shown == {
        "mnist_lenet": ("fashion_mnist", "kmnist"),
        "cifar10_lenet": of_cifar,
        "cifar10_vgg3": of_cifar,
        "cifar10_resnet18": of_cifar,
        "cifar10_vit": of_cifar,
        "clinc_transformer": ("out_of_scope",),
    }
    few = ood.narrowed(["corruption=svhn,kmnist", "method=entropy"])
    assert few.unseen == ("svhn", "kmnist")
    assert len(list(few.tasks())) == 5
    with pytest.raises(QIPFInputError, match="Unknown out-of-distribution set 'snvh'"):
        replace(ood, unseen=("snvh",))


def test_transformers_read_texts_and_the_others_images():
    for dataset, network in (("clinc150", "lenet"), ("mnist", "transformer")):
        with pytest.raises(QIPFInputError, match="a transformer reads texts"):
            BenchNetwork("mine", dataset, network)
