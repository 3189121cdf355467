"""Suites as data: which networks are tested under which corruptions, by which methods.

Every (network, corruption, level, method) of a suite is a task of its own. The clean test inputs
are one more corruption, ``none``, with the level 0. An out-of-distribution set takes the place of a
corruption too, with the level 0: its inputs are then the positives that a method is to find among
all clean test inputs, whatever the network predicts.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from qipf.bench import datasets
from qipf.bench.corruptions import CORRUPTIONS, corrupt
from qipf.bench.methods import METHODS, Method, base_name, create
from qipf.bench.networks import NETWORKS, Recipe
from qipf.bench.results import Task
from qipf.errors import QIPFInputError, unknown_name

#: The corruption that leaves the images as they are, and its level.
CLEAN, CLEAN_LEVEL = "none", 0.0

#: The methods of the paper's tables, in their order.
PAPER_METHODS = ("mc_dropout", "mc_dropout_ll", "svi", "svi_ll", "ensemble", "qipf")

#: The paper's corruptions, in the order of its tables.
PAPER_CORRUPTIONS = ("rotation", "brightness", "shear", "zoom")

#: What the names in the tables stand for: dataset and architecture.
KNOWN = {
    "mnist_lenet": ("mnist", "lenet"),
    "kmnist_lenet": ("kmnist", "lenet"),
    "kmnist10k_lenet": ("kmnist10k", "lenet"),
    "cifar10_lenet": ("cifar10", "lenet"),
    "cifar10_vgg3": ("cifar10", "vgg3"),
    "fashion_lenet": ("fashion_mnist", "lenet"),
    "digits_mlp": ("digits", "mlp"),
    "cifar10_resnet18": ("cifar10", "resnet18"),
    "cifar10_vit": ("cifar10", "vit"),
    "clinc_transformer": ("clinc150", "transformer"),
}


@dataclass(frozen=True)
class BenchNetwork:
    """A network on a dataset, by the name it has in the tables; `recipe` overrides its own."""

    name: str
    dataset: str
    network: str
    recipe: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w[\w.-]*", self.name):
            raise QIPFInputError(
                "A network's name must consist of letters, digits, '_', '-' and '.', because "
                f"files are named by it; got {self.name!r}."
            )
        if self.dataset not in datasets.NAMES:
            raise unknown_name("dataset", self.dataset, datasets.NAMES)
        if self.network not in NETWORKS:
            raise unknown_name("network", self.network, NETWORKS)
        if (self.network == "transformer") != (self.dataset in datasets.TEXTS):
            raise QIPFInputError(
                f"{self.network} on {self.dataset}: a transformer reads texts "
                f"({', '.join(datasets.TEXTS)}), all other networks read images."
            )
        named = KNOWN.get(self.name, (self.dataset, self.network))
        if named != (self.dataset, self.network):
            raise QIPFInputError(
                f"{self.name!r} is the table's name for {named[1]} on {named[0]}; give "
                f"{self.network} on {self.dataset} another name."
            )
        known = [option.name for option in dataclasses.fields(Recipe)]
        for option in self.recipe:
            if option not in known:
                raise unknown_name("option of recipe", option, known)
        self.full_recipe()

    @property
    def kind(self) -> str:
        """What it reads: ``"images"`` or ``"text"``."""
        return "text" if self.dataset in datasets.TEXTS else "images"

    def full_recipe(self) -> Recipe:
        """The network's recipe with what is overridden here."""
        return replace(NETWORKS[self.network][1], **self.recipe)


#: Networks that a suite can name without saying more.
BENCH_NETWORKS: dict[str, BenchNetwork] = {
    name: BenchNetwork(name, dataset, network) for name, (dataset, network) in KNOWN.items()
}


@dataclass(frozen=True)
class Suite:
    """What a run measures.

    Parameters
    ----------
    networks : those that are tested.
    corruptions : the levels of each; None for all that the corruption has. A network is tested
        under those of what it reads, images or text.
    methods : names of `qipf.bench.methods`.
    options : what a method is given beyond its defaults, by name; a sampler's options, such as
        ``{"ensemble": {"networks": 5}}``, hold for all of its scores.
    seed : all training, sampling and choosing follows from it.
    clean : whether the clean images are tested too.
    optional : further networks, tested only when `narrowed` names them.
    unseen : out-of-distribution sets (see `qipf.bench.datasets.UNSEEN`); a network is tested
        against those that its dataset has.
    most : number of test inputs, and of inputs of an out-of-distribution set: a random part, the
        same for every seed; None for all.

    >>> digits = find("digits")
    >>> len(digits.methods), sum(map(len, digits.levels.values())), len(list(digits.tasks()))
    (57, 34, 1938)
    """

    name: str
    networks: tuple[BenchNetwork, ...]
    corruptions: Mapping[str, Sequence[float] | None] = field(
        default_factory=lambda: dict.fromkeys(PAPER_CORRUPTIONS)
    )
    methods: tuple[str, ...] = METHODS
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seed: int = 0
    clean: bool = True
    optional: tuple[BenchNetwork, ...] = ()
    unseen: tuple[str, ...] = ()
    most: int | None = None

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise QIPFInputError(f"seed must not be negative; got {self.seed}.")
        if self.most is not None and self.most < 1:
            raise QIPFInputError(f"most must be at least 1, or None; got {self.most}.")
        for name, levels in self.corruptions.items():
            check_levels(name, levels)
        for method in self.methods:
            if method not in METHODS:
                raise unknown_name("method", method, METHODS)
        for name, given in self.options.items():
            if base_name(name) != name:
                raise QIPFInputError(
                    f"The options of {name} are those of {base_name(name)}; give them there."
                )
            create(name, **given)
        _check_filled_once("networks", [network.name for network in self.networks])
        _check_filled_once("methods", self.methods)
        for name in self.unseen:
            if name not in datasets.UNSEEN_SETS:
                raise unknown_name("out-of-distribution set", name, datasets.UNSEEN_SETS)
        if not self.levels:
            raise QIPFInputError("corruptions must not be empty unless clean is true.")

    @property
    def levels(self) -> dict[str, tuple[float, ...]]:
        """The levels of each corruption, the clean images first."""
        corrupted = {
            name: CORRUPTIONS[name].levels if given is None else tuple(map(float, given))
            for name, given in self.corruptions.items()
        }
        clean = {CLEAN: (CLEAN_LEVEL,)} if self.clean else {}
        return clean | corrupted | dict.fromkeys(self.unseen, (CLEAN_LEVEL,))

    def levels_of(self, network: BenchNetwork) -> dict[str, tuple[float, ...]]:
        """The levels of what this network is tested under.

        >>> list(find("ood").levels_of(BENCH_NETWORKS["mnist_lenet"]))
        ['fashion_mnist', 'kmnist']
        """
        unseen = datasets.UNSEEN.get(network.dataset, ())
        return {
            name: levels
            for name, levels in self.levels.items()
            if name == CLEAN
            or (name in CORRUPTIONS and CORRUPTIONS[name].kind == network.kind)
            or name in unseen
        }

    def network(self, name: str) -> BenchNetwork:
        """A network of this suite by its name."""
        return next(network for network in self.networks if network.name == name)

    def create(self, method: str) -> Method:
        """A method of this suite, not yet fitted."""
        return create(method, **self.options.get(base_name(method), {}))

    def tasks(self) -> Iterator[Task]:
        """All tasks, in the order in which they are done."""
        for network in self.networks:
            for corruption, levels in self.levels_of(network).items():
                for level in levels:
                    for method in self.methods:
                        yield Task(network.name, corruption, level, method, self.seed)

    def narrowed(self, only: Iterable[str]) -> "Suite":
        """Only what the filters name: ``["network=digits_mlp", "method=qipf,entropy"]``.

        Filters of the same kind add up, filters of different kinds must all hold.

        >>> find("digits").narrowed(["method=qipf", "corruption=zoom", "level=2"]).levels
        {'zoom': (2.0,)}
        """
        wanted = _filters(only)
        levels = self.levels
        if "corruption" in wanted:
            names = _chosen("corruption", wanted["corruption"], levels)
            levels = {name: levels[name] for name in names}
        if "level" in wanted:
            known = {f"{level:g}": level for values in levels.values() for level in values}
            values = [known[name] for name in _chosen("level", wanted["level"], known)]
            levels = {k: tuple(x for x in v if x in values) for k, v in levels.items()}
        networks = self.networks
        if "network" in wanted:
            named = {network.name: network for network in (*self.networks, *self.optional)}
            networks = tuple(named[n] for n in _chosen("network", wanted["network"], named))
        methods = self.methods
        if "method" in wanted:
            methods = tuple(_chosen("method", wanted["method"], methods))
        return replace(
            self,
            networks=networks,
            corruptions={k: v for k, v in levels.items() if k in self.corruptions and v},
            methods=methods,
            clean=bool(levels.get(CLEAN)),
            unseen=tuple(name for name in self.unseen if levels.get(name)),
        )


def effective_options(method: Method) -> dict[str, Any]:
    """All options of a method, defaults included."""
    holder: Any = getattr(method, "sampler", method)
    return {f.name: getattr(holder, f.name) for f in dataclasses.fields(holder) if f.init}


def check_levels(corruption: str, levels: Sequence[float] | None) -> None:
    """Raise an error for an unknown corruption and for levels that it does not take."""
    if corruption not in CORRUPTIONS:
        raise unknown_name("corruption", corruption, CORRUPTIONS)
    if levels is None:
        return
    _check_filled_once(f"levels of {corruption}", levels)
    for level in levels:
        if CORRUPTIONS[corruption].kind == "text":
            corrupt(["words"], corruption, level)
        else:
            corrupt(torch.zeros(1, 1, 8, 8), corruption, level)


def _check_filled_once(what: str, items: Sequence[object]) -> None:
    if not items:
        raise QIPFInputError(f"{what} must not be empty.")
    twice = next((item for i, item in enumerate(items) if item in items[:i]), None)
    if twice is not None:
        raise QIPFInputError(f"{what} must not repeat; {twice!r} is there twice.")


def _filters(only: Iterable[str]) -> dict[str, list[str]]:
    if isinstance(only, str):
        only = [only]
    kinds = ("network", "corruption", "level", "method")
    wanted: dict[str, list[str]] = {}
    for text in only:
        kind, equals, values = text.partition("=")
        names = [value.strip() for value in values.split(",") if value.strip()]
        if not equals or not names:
            raise QIPFInputError(
                f"only must read KIND=NAME or KIND=NAME,NAME; got {text!r}. "
                "For example: method=qipf,entropy"
            )
        if kind not in kinds:
            raise unknown_name("kind of only", kind, kinds)
        wanted.setdefault(kind, []).extend(names)
    return wanted


def _chosen(kind: str, wanted: Sequence[str], known: Iterable[str]) -> list[str]:
    """Those of the known names that are wanted, in the suite's own order."""
    known = list(known)
    names = [_level_name(name) for name in wanted] if kind == "level" else wanted
    for name in names:
        if name not in known:
            raise unknown_name(f"{kind} of this suite", name, known)
    return [name for name in known if name in names]


def _level_name(text: str) -> str:
    """``2.0`` and ``2`` are the same level."""
    try:
        level = float(text)
    except ValueError:
        return text
    return f"{level:g}" if math.isfinite(level) else text


#: Networks that are tested under all corruptions of their kind.
MODERN_NETWORKS = ("cifar10_resnet18", "cifar10_vit", "clinc_transformer")

#: All methods but those that pass a hundred times through most of a network.
MODERN_METHODS = tuple(name for name in METHODS if base_name(name) not in ("mc_dropout", "svi"))

#: The suites that come with qipf.
SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite("digits", (BENCH_NETWORKS["digits_mlp"],)),
        Suite(
            "paper",
            tuple(
                BENCH_NETWORKS[name]
                for name in ("mnist_lenet", "kmnist10k_lenet", "cifar10_lenet", "cifar10_vgg3")
            ),
            # K-MNIST's training images are often not available: --only network=kmnist_lenet
            optional=(BENCH_NETWORKS["kmnist_lenet"],),
        ),
        Suite("fashion", (BENCH_NETWORKS["fashion_lenet"],)),
        Suite(
            "modern",
            tuple(BENCH_NETWORKS[name] for name in MODERN_NETWORKS),
            corruptions=dict.fromkeys((*PAPER_CORRUPTIONS, *CORRUPTIONS)),
            methods=MODERN_METHODS,
            options={"ensemble": {"networks": 5}},
            most=5000,
        ),
        Suite(
            "ood",
            tuple(
                BENCH_NETWORKS[name]
                for name in ("mnist_lenet", "cifar10_lenet", "cifar10_vgg3", *MODERN_NETWORKS)
            ),
            corruptions={},
            methods=MODERN_METHODS,
            options={"ensemble": {"networks": 5}},
            clean=False,
            unseen=("tiny_imagenet", "svhn", "mnist", "fashion_mnist", "kmnist", "out_of_scope"),
            most=5000,
        ),
    )
}


def find(suite: str | Suite) -> Suite:
    """A suite by its name; a `Suite` is returned as it is."""
    if isinstance(suite, Suite):
        return suite
    if suite not in SUITES:
        raise unknown_name("suite", suite, SUITES)
    return SUITES[suite]
