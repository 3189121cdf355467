from qipf.bench.reported import NEAREST, Reported, reported, reported_accuracy
from qipf.bench.suites import PAPER_CORRUPTIONS, PAPER_METHODS, SUITES


def test_the_paper_s_tables_are_complete():
    networks = ["mnist_lenet", "kmnist_lenet", "cifar10_lenet", "cifar10_vgg3"]
    for metric in ("roc_auc", "pr_auc", "point_biserial"):
        # its second table leaves one network out
        there = [n for n in networks if metric != "point_biserial" or n != "cifar10_lenet"]
        for corruption in PAPER_CORRUPTIONS:
            for network in networks:
                cells = [reported(metric, corruption, network, m) for m in PAPER_METHODS]
                assert all((cell is not None) == (network in there) for cell in cells)


def test_values_as_printed():
    assert reported("pr_auc", "shear", "cifar10_vgg3", "ensemble") == Reported(0.64, 0.2)
    assert reported("point_biserial", "rotation", "kmnist_lenet", "mc_dropout").mean == -0.01
    assert reported("aurc", "rotation", "mnist_lenet", "qipf") is None
    assert reported_accuracy("mnist_lenet") == 0.986
    assert reported_accuracy("digits_mlp") is None


def test_the_smaller_kmnist_stands_beside_the_paper_s():
    assert NEAREST == {"kmnist10k_lenet": "kmnist_lenet"}
    assert "kmnist10k_lenet" in {network.name for network in SUITES["paper"].networks}
    assert reported_accuracy("kmnist10k_lenet") == 0.919
