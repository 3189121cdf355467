"""LayeredQIPF: fields of the classes over a network's layers, and the uncertainty they give."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from qipf.calibration.rule import AcceptRule
from qipf.calibration.snapshots import on_snapshot
from qipf.errors import QIPFFileError, QIPFInputError
from qipf.export.program import Example
from qipf.io.container import Arrays
from qipf.layered.base import MOST_EXAMPLES, LayeredModel
from qipf.layered.effort import EFFORTS
from qipf.layered.explanation import Explanation
from qipf.layered.fitting import fit_layers, fits_centers
from qipf.layered.graph import LayersGraph
from qipf.layered.holdout import PLACES, sample_examples
from qipf.layered.scorer import FieldEvidence, RowScores
from qipf.layered.state import checked_fingerprint, layered_state, restore_layers
from qipf.layered.tuning import COPIED, tuning_sets
from qipf.network.batches import batches, few_rows, refuse_labels
from qipf.network.features import (
    BATCH,
    LayerSite,
    Rows,
    attention_mask,
    chosen_sites,
    named_sites,
    passes_nested_tensors,
    run_in_batches,
)
from qipf.network.forward import (
    call,
    device_of,
    evaluating,
    logits_of,
    named_layer,
    require_logits,
    unchanged,
    warn_if_random,
    warn_of_probabilities,
)
from qipf.network.model import NetworkModel, Scores
from qipf.network.replaying import NetworkState, allowed, is_constant, network_state
from qipf.network.tasks import Task
from qipf.validation.arrays import blank, refuse_missing
from qipf.validation.not_fitted import QIPFNotFittedError
from qipf.validation.parameters import require_positive_integer

if TYPE_CHECKING:
    from typing_extensions import Self


class LayeredQIPF(LayeredModel, NetworkModel):
    r"""Uncertainty of predictions from all layers of a network, in one forward pass.

    Every layer has a field for each class, over the layer's outputs for the training data. The
    shares of the classes in the whole field are the layer's posterior. The posteriors of all
    layers and the network's softmax form a mixture. Its weights maximise the likelihood of the
    true classes on held-out training inputs and on perturbed copies of them. The uncertainty of a
    prediction of class k is a log-odds of error:

    .. math:: \bar p = \alpha_0\,\mathrm{softmax} + \sum_l \alpha_l\, q_l, \qquad
              o = \log(1 - \bar p_k) - \log \bar p_k, \qquad
              u = (1 - g)\Bigl(a + b\,o + \sum_l b_l\,o_l\Bigr) + g\,(a' + b'\,o)

    with the log-odds :math:`o_l` of the softmax and of each layer, and the probability g, by the
    energy of the logits, that the input is far from the training data. All constants are fitted to
    the errors on the same inputs. The sigmoid of u is the estimated probability of an error,
    ``model(inputs).p_error``. The novelty, from the energy, the layers' densities, the lengths of
    their rows and the mixture, tells unusual inputs, right or wrong. It is fitted to perturbed
    inputs and to pseudo-outliers, which are put together from parts of training inputs.

    Parameters
    ----------
    net : a trained network that returns logits (n, classes), or one logit, (n, 1) or (n,), of
        class 1 against class 0. Its inputs are a tensor, several, or keyword inputs; texts are
        tokens that an embedding layer reads, with an ``attention_mask`` where they are padded.
    layers : ``"auto"`` tries at most eight layers, evenly over the network's depth, and keeps those
        with a notable weight: the inputs of dense and convolutional layers, and the outputs of
        recurrent ones. Or the names of layers whose outputs to use.
    max_centers : largest number of centres of a layer's field. With ``"distilled"`` the default,
        60,000, stands for 1,500, or 20 for each class if that is more. Except with ``"random"``
        fields are made of up to 60,000 examples, or `max_centers` if that is larger.
    reduction : ``"distilled"``, which ``"auto"`` stands for, fits few weighted centres of at most
        four layers to the classes of the examples and of perturbed copies, and to the field of all
        examples. ``"random"`` makes all examples the centres, which costs more; ``"coreset"``
        condenses them into `max_centers` weighted centres, at least one for each class.
    max_dimension : largest dimension that a layer's rows are projected to; distilled fields learn
        their projection from twice as many.
    max_tuning : largest number of training examples that are held out to choose bandwidths and
        weights.
    effort : ``"full"``, or ``"fast"`` for a fit that tries out less: at most 250 held-out examples
        and smaller trials.
    random_state : seed of the samples and the perturbations. Fits with the same batches, number of
        threads and machine are equal. Otherwise rounding differs, and the fit amplifies the
        differences.
    nan_policy : ``"raise"`` for inputs with NaN or infinity in the network's output, or
        ``"propagate"``: the others are scored, and these have scores and p-values of NaN and are
        not accepted. `fit`, `calibrate`, `explain` and `qipf.report` always raise.

    Attributes
    ----------
    layers_ : the layer sites that are read.
    fields_ : the layers' fields; ``fields_[0].examples`` are the positions in the loader, counted
        from 0, of the first field's centres, or of the examples of their class nearest to them.
    weights_ : mixture weights of the softmax, first, and of the layers; they sum to one.
    error_model_, novelty_model_ : constants and slopes of the two scores.
    calibration_, detection_, rule_ : see `calibrate` and `accept_rule`; None before.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> inputs = torch.randn(400, 4)
    >>> model = LayeredQIPF(net).fit([(inputs, inputs[:, :3].argmax(1))])
    >>> model(inputs[:5]).uncertainty.shape
    torch.Size([5])
    """

    def __init__(
        self,
        net: nn.Module,
        layers: str | Sequence[str] = "auto",
        *,
        max_centers: int = MOST_EXAMPLES,
        reduction: str = "auto",
        max_dimension: int = 128,
        max_tuning: int = 1000,
        effort: str = "full",
        random_state: int = 0,
        nan_policy: str = "raise",
    ) -> None:
        super().__init__(net)
        self.layers = layers
        self.max_centers = max_centers
        self.reduction = reduction
        self.max_dimension = max_dimension
        self.max_tuning = max_tuning
        self.effort = effort
        self.random_state = random_state
        self.nan_policy = nan_policy

    def fit(self, loader: Iterable[Any], labels: None = None) -> "Self":
        """Stream labelled training data and build the fields.

        Batches are ``(inputs, labels)``, where inputs may be a tuple or a dict, or a dict with the
        labels under ``"labels"`` or ``"label"``.
        Memory is bounded by the samples that are kept, whatever the loader's length.
        """
        refuse_labels(labels, "fit")
        self._check_parameters()
        random, effort = np.random.RandomState(self.random_state), EFFORTS[self.effort]
        sites: tuple[LayerSite, ...] = ()
        example: Example | None = None

        def read(inputs: Example) -> tuple[Tensor, Rows]:
            nonlocal sites, example
            if example is None:
                example = self._placed(few_rows(inputs))
                run = partial(call, self.net, example)
                logits = require_logits(run)
                warn_of_probabilities(logits)
                warn_if_random(logits, logits_of(run()))
                sites = self._sites(example)
            return run_in_batches(self.net, inputs, sites, example)

        with evaluating(self.net), torch.no_grad():
            batched = batches(loader, self.net, "fit", "reading layers")
            most = 0 if self._distillation_seed() is None else COPIED
            centers, held, classes, copied = sample_examples(
                batched, read, self._examples(), self._most_tuning(), random, most
            )
            few = copied if fits_centers(self, len(centers[PLACES]), classes) else None
            seed = int(self.random_state)
            tuning = tuning_sets(self.net, held, sites, classes, seed, few, effort)
        assert example is not None  # the loader holds examples
        seen = 1 + int(torch.cat([centers[PLACES], held[PLACES]]).max())
        with self._changed() as model:
            model._set_fitted(example)
            fit_layers(model, centers, tuning, sites, classes, seen, every_length=True)
        return self

    def _check_parameters(self) -> None:
        self._require_module()
        self._check_sizes()
        if not isinstance(self.layers, str) or self.layers != "auto":
            named_sites(self.net, self.layers)

    def _sites(self, inputs: Example) -> tuple[LayerSite, ...]:
        if isinstance(self.layers, str):
            return chosen_sites(self.net, lambda part: run_in_batches(self.net, part, ()), inputs)
        return named_sites(self.net, self.layers)

    def _require_fitted(self) -> None:
        if "weights_" not in self.__dict__:
            raise QIPFNotFittedError(
                "This LayeredQIPF is not fitted yet. Call fit(train_loader) first."
            )

    @on_snapshot
    def log_density(self, *inputs: Any, **options: Any) -> Tensor:  # (n, layers)
        """Log density of each layer's whole field, log ρ ≤ 0; low for unusual inputs."""
        _, _, found, missing = self._evaluate(self._arguments(inputs, options))
        return blank(found.densities, missing)

    @on_snapshot
    def posteriors(self, *inputs: Any, **options: Any) -> Tensor:  # (n, 1 + layers, classes)
        """Class probabilities of the softmax, first, and of every layer."""
        _, _, found, missing = self._evaluate(self._arguments(inputs, options))
        return blank(found.posteriors, missing)

    @on_snapshot
    def explain(self, inputs: Any, nearest: int = 3) -> list[Explanation]:
        """Explain each prediction's uncertainty; ``print(model.explain(inputs)[0])``.

        Every `Explanation` has the posteriors of the softmax and the layers, their shares of the
        mixture's probability against the predicted class, the terms of both scores, and the
        `nearest` training examples of the predicted class and of its rival in the layer with the
        largest share, by their positions in the loader.
        """
        require_positive_integer(nearest, "nearest")
        logits, rows, found, missing = self._evaluate(self._arguments((inputs,), {}))
        refuse_missing(missing, "The network's output for these inputs")
        return self._explained(logits, rows, found, int(nearest))

    def _scores(self, example: Example) -> Scores:
        output, rows = self._read(example)
        found, missing = self._checked_scores(output, rows, "network's output")
        return Scores(
            output, found.uncertainty, found.novelty, found.probabilities, found.p_error, missing
        )

    def _replayed(self, example: Example) -> Scores | None:
        if not _on_gpu(example) or not 0 < example.rows <= BATCH or not allowed():
            return None
        scorer, tensors = self._scorer(device_of(self.net)), example.tensors

        def run(*inputs: Tensor) -> tuple[Tensor, ...]:
            before = network_state(self.net)
            if before is None or not is_constant(self.net):
                raise RuntimeError("The network may hold something that changes.")
            with evaluating(self.net):
                output, rows = self._read(example.filled(inputs))
            found = scorer.scores(output, *(rows[site] for site in scorer.sites))
            now = network_state(self.net)
            if now is None or now.key != before.key:
                raise RuntimeError("The network changes itself.")
            return (output, *found)

        outputs = scorer.network_replays(
            run, tuple(tensors.values()), tuple(tensors), self._network_state
        )
        if outputs is None:
            return None
        output, *parts = outputs
        found = RowScores.of(*parts)
        return Scores(
            output, found.uncertainty, found.novelty, found.probabilities, found.p_error,
            checksum=found.checksum,
        )  # fmt: skip

    def _network_state(self) -> NetworkState | None:
        """The network's state; None if it cannot be replayed, or its weights have changed."""
        found = network_state(self.net)
        if found is None or (self.fitted_with is not None and found.versions != self._versions):
            return None
        return found

    def _task_of(self, output: Tensor) -> Task:
        return Task("multiclass")

    def _evaluate(self, example: Example) -> tuple[Tensor, Rows, FieldEvidence, Tensor | None]:
        """Logits, rows of the layers, what the fields give, and which inputs have nothing."""
        with evaluating(self.net):
            output, rows = self._read(example, copied=True)
            logits, rows, missing = self._usable(output, rows, "network's output")
            return logits, rows, self._scorer(logits.device).posteriors(logits, rows), missing

    def _read(self, example: Example, copied: bool = False) -> tuple[Tensor, Rows]:
        """Logits and rows of the layers of the network, which is in evaluation mode.

        Rows that are not copied are used before the network may run again.
        """
        first = next(iter(example.tensors.values()), None)
        if first is None or first.ndim < 2:
            given = example.kinds if first is None else f"shape {tuple(first.shape)}"
            raise QIPFInputError(
                f"inputs must be tensors with one row per example, (n, ...), got {given}."
            )
        with torch.no_grad():
            sites = self._sites_read()
            return run_in_batches(self.net, example, sites, self._example, copied)

    def _graph(
        self, example: Example, rule: AcceptRule | None, max_centers: int | None
    ) -> tuple[nn.Module, dict[str, Any]]:
        self._refuse_nested(example)
        metadata = self._graph_metadata(rule, max_centers)
        scores = self.error_model_, self.lengths_, self.novelty_model_
        fields, limits = self.layer_fields(), self._limits(rule)
        graph = LayersGraph(self.net, fields, self.weights_, scores, example, limits)
        return graph, metadata

    def _refuse_nested(self, example: Example) -> None:
        """Raise for layers of which a graph would read the padding too, unlike PyTorch."""
        run = partial(call, self.net, example)
        with evaluating(self.net), torch.no_grad():
            nested = attention_mask(example) is None and passes_nested_tensors(
                self.net, run, self._sites_read()
            )
        if nested:
            raise QIPFInputError(
                "Layers of this network leave padding out, which an exported graph cannot know. "
                "Name the mask among its inputs attention_mask, or build the encoder with "
                "enable_nested_tensor=False, and fit again."
            )

    def facts(self) -> dict[str, str]:
        """Lines of the summary, by name."""
        return {
            **super().facts(),
            "kind": "fields of a network's layers",
            "network": f"weights {self.fitted_with or 'not recorded'}",
        }

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """Header and arrays of the model's file."""
        header, arrays = layered_state(self)
        network = {"fingerprint": unchanged(self.net, self.fitted_with)}
        return {"kind": "layers", **header, "network": network}, arrays

    @classmethod
    def from_state(
        cls, header: dict[str, Any], arrays: Arrays, path: str, net: nn.Module | None = None
    ) -> "LayeredQIPF":
        """The model in a file's header and arrays; without `net` it can only be described."""
        model = cls(net)  # type: ignore[arg-type]
        fitted_with = checked_fingerprint(header, path)
        restore_layers(model, header, arrays, path)
        model.fitted_with = fitted_with
        try:
            for site in model._sites_read() if net is not None else ():
                named_layer(model.net, site.layer)
        except QIPFInputError as error:
            raise QIPFFileError(f"{path} belongs to another network. {error}") from error
        return model


def _on_gpu(example: Example) -> bool:
    """Whether it has only tensors, all on a GPU."""
    tensors = example.tensors
    return all([part.is_cuda for part in tensors.values()]) and len(tensors) == len(example.values)
