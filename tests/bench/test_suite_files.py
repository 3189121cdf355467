import pytest

from qipf.bench.methods import METHODS
from qipf.bench.suites import PAPER_METHODS, find
from qipf.errors import QIPFInputError


def read(tmp_path, text):
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    return find(file)


def test_a_whole_file(tmp_path):
    suite = read(
        tmp_path,
        """
name: trial
networks:
  - digits_mlp
  - {name: digits_short, dataset: digits, network: mlp, recipe: {epochs: 5, learning_rate: 1}}
  - {dataset: mnist, network: lenet}
corruptions:
  rotation: all
  zoom: [0.5, 2]
methods: [qipf, ensemble_entropy]
options:
  ensemble: {networks: 5}
  qipf: {orders: [1, 2], max_centers: 100}
seed: 3
clean: false
""",
    )
    assert (suite.name, suite.seed, suite.clean) == ("trial", 3, False)
    assert [n.name for n in suite.networks] == ["digits_mlp", "digits_short", "mnist_lenet"]
    recipe = suite.network("digits_short").full_recipe()
    assert (recipe.epochs, recipe.learning_rate, recipe.batch_size) == (5, 1.0, 64)
    assert suite.levels["zoom"] == (0.5, 2.0)
    assert len(suite.levels["rotation"]) == 10
    assert list(suite.levels) == ["rotation", "zoom"]
    assert suite.create("ensemble_entropy").forward_passes == 5
    assert suite.create("qipf").orders == (1, 2)


def test_the_shortest_file(tmp_path):
    suite = read(tmp_path, "networks: [digits_mlp]\n")
    assert suite.name == "mine"
    assert suite.methods == METHODS
    assert list(suite.levels) == ["none", "rotation", "brightness", "shear", "zoom"]


def test_names_for_many(tmp_path):
    suite = read(tmp_path, "networks: [digits_mlp]\nmethods: paper\ncorruptions: all\n")
    assert suite.methods == PAPER_METHODS
    assert set(suite.corruptions) >= {"rotation", "brightness", "shear", "zoom"}
    assert read(tmp_path, "networks: [digits_mlp]\nmethods: all\n").methods == METHODS


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("networks: [digits_mlp]\nmetods: all\n", 2, "Unknown key of a suite 'metods'. Did you "
            "mean 'methods'? Known: clean, corruptions, methods, name, networks, options, seed."),
        ("methods: all\n", 1, "networks is missing. For example: networks: [digits_mlp]"),
        ("networks: digits_mlp\n", 1, "networks must be a list; got 'digits_mlp'."),
        ("networks:\n  - digits_mlp\n  - digits_mpl\n", 3, "Unknown network 'digits_mpl'. Did you "
            "mean 'digits_mlp'? Known: cifar10_lenet, cifar10_vgg3, digits_mlp, fashion_lenet, "
            "kmnist10k_lenet, kmnist_lenet, mnist_lenet."),
        ("networks:\n  - {dataset: digits}\n", 2, "network of the network is missing."),
        ("networks:\n  - dataset: digits\n    network: mlp\n    epochs: 3\n", 4, "Unknown key of a "
            "network 'epochs'. Known: dataset, name, network, recipe."),
        ("networks:\n  - dataset: digits\n    network: mlp\n    recipe:\n      epochs: few\n", 5,
            "epochs of recipe must be a whole number; got 'few'."),
        ("networks: [digits_mlp]\nmethods:\n  - qipf\n  - qipff\n", 4, "Unknown method "
            f"'qipff'. Did you mean 'qipf'? Known: {', '.join(sorted(METHODS))}."),
        ("networks: [digits_mlp]\nmethods: [3]\n", 2, "a method must be a text; got 3."),
        ("networks: [digits_mlp]\ncorruptions:\n  zoom: 2\n", 3, "The levels of zoom must be a "
            "list of numbers, or all; got 2."),
        ("networks: [digits_mlp]\ncorruptions:\n  zoom: [2, x]\n", 3, "zoom level must be a finite "
            "number; got 'x'."),
        ("networks: [digits_mlp]\ncorruptions:\n  blur: all\n", 3, "Unknown corruption 'blur'. "
            "Known: brightness, rotation, shear, zoom."),
        ("networks: [digits_mlp]\noptions:\n  svi:\n    passes: 3\n    epoch: 4\n", 5, "Unknown "
            "option of svi 'epoch'. Did you mean 'epochs'? Known: epochs, initial_std, passes."),
        ("networks: [digits_mlp]\noptions:\n  knn: 3\n", 3, "knn must be keys with values; got 3."),
        ("networks: [digits_mlp]\nseed: x\n", 2, "seed must be a whole number; got 'x'."),
        ("networks: [digits_mlp]\nclean: 1\n", 2, "clean must be true or false; got 1."),
        ("networks: [digits_mlp]\nseed: 1\nseed: 2\n", 3, "'seed' of a suite is there twice."),
        ("networks: [digits_mlp\nseed: 1\n", 2, "not YAML (expected ',' or ']', but got ':')."),
        ("- digits_mlp\n", 1, "a suite must be keys with values; got ['digits_mlp']."),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(text, line, message, tmp_path):
    with pytest.raises(QIPFInputError) as refused:
        read(tmp_path, text)
    assert str(refused.value) == f"{tmp_path}/mine.yaml, line {line}: {message}"


def test_files_that_are_missing_empty_or_not_text_are_refused(tmp_path):
    with pytest.raises(QIPFInputError) as refused:
        find(tmp_path / "other.yml")
    assert str(refused.value) == (
        f"Cannot read the suite {tmp_path}/other.yml: No such file or directory."
    )
    with pytest.raises(QIPFInputError, match="is empty; a suite names at least its networks"):
        read(tmp_path, "# nothing\n")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(QIPFInputError, match="it is not UTF-8 text"):
        find(tmp_path / "bytes.yaml")
