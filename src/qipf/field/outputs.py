"""What a fitted field gives beside scores: plots, smaller fields, and files."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import clone

from qipf.calibration.rule import AcceptRule
from qipf.errors import warn
from qipf.export.onnx import OnnxFile, checked_path, expected, rounding_margins, write_onnx
from qipf.export.program import traced
from qipf.field.coreset import coreset
from qipf.field.fitted import FittedField
from qipf.field.graph import FieldGraph
from qipf.field.state import field_state, require_plain_seed
from qipf.io.container import Arrays
from qipf.plots.field import ProjectedField, draw_density, draw_modes, projected_field
from qipf.validation.labels import errors_from
from qipf.validation.parameters import require_positive_integer

if TYPE_CHECKING:
    from typing_extensions import Self

#: Number of centres at which an exported field is checked, and again three times as far out.
CHECKED = 32


class FieldOutputs(FittedField):
    """Plots, smaller fields and files of a fitted `QIPF`."""

    random_state: Any
    get_params: Callable[[], dict[str, Any]]

    # ------------------------------------------------------------------ plots

    def plot_field(self, X: Any = None, y: Any = None, *, wrong: Any = None, ax: Any = None) -> Any:
        """Draw the density of the field along the first principal axis of its centres.

        Predictions `X` are drawn as histograms, right and wrong ones apart if `y` or `wrong` is
        given as in `calibrate`. The field that is drawn is one-dimensional, over the projected
        centres, with Silverman's bandwidth (`qipf.plots.field`). It needs matplotlib.

        `ax` are matplotlib axes to draw on; by default those of a new figure. Returns the axes.
        """
        return draw_density(self._projected(X, y, wrong), ax)

    def plot_modes(self, *, ax: Any = None) -> Any:
        """Draw the modes and their mean along the first principal axis; see `plot_field`."""
        return draw_modes(self._projected(), ax)

    def _projected(self, X: Any = None, y: Any = None, wrong: Any = None) -> ProjectedField:
        self._require_fitted()
        if X is None:
            return projected_field(self, normalization=self.normalization)
        rows = self._checked(X)
        errors = errors_from(rows, y, wrong)
        flags = None if errors is None else errors.cpu().numpy()
        return projected_field(self, rows.double().cpu().numpy(), flags, self.normalization)

    # ------------------------------------------------------------------ smaller fields and files

    def condensed(self, max_centers: int) -> "Self":
        """The same field with at most `max_centers` weighted centres; calibrate it anew.

        Bandwidth, energies and offset stay, so its scores are estimates of the field's own.

        >>> from qipf import QIPF
        >>> field = QIPF().fit(np.random.default_rng(0).normal(size=(500, 2)))
        >>> small = field.condensed(50)
        >>> len(small.centers_), small.bandwidth_ == field.bandwidth_
        (50, True)
        """
        self._require_fitted()
        require_positive_integer(max_centers, "max_centers")
        counts = None
        if self.log_weights_ is not None:
            counts = np.exp(self.log_weights_) * self.n_samples_seen_
        small = coreset(self.centers_, int(max_centers), weights=counts)
        if len(small.centers) == len(self.centers_):
            return self
        twin: Self = clone(self)
        for name in (*self.learned, "n_samples_seen_", "n_features_in_", "feature_names_in_"):
            if hasattr(self, name):
                setattr(twin, name, getattr(self, name))
        twin.centers_, twin.log_weights_ = small.centers, small.log_weights
        twin.spread_ = math.hypot(self.spread_, small.spread)
        return twin

    def export_onnx(
        self,
        path: Path | str,
        *,
        rule: AcceptRule | None = None,
        max_centers: int | None = None,
        check: bool = True,
    ) -> OnnxFile:
        """Write the field as an ONNX file that scores logits of any framework.

        The input is ``logits`` (batch, d), of the type the field was fitted with; the outputs are
        ``uncertainty`` (batch,), ``modes`` (batch, orders), ``novelty`` (batch,) and, with a rule,
        ``accepted`` (batch,).

        Parameters
        ----------
        path : the file, ``.onnx``; written atomically, after the check.
        rule : its threshold adds the output ``accepted``; by default the field's own, if any.
        max_centers : condense the field to so many weighted centres, for a smaller, faster file.
        check : run the file in ONNX Runtime, if installed, and compare with PyTorch.
        """
        path = checked_path(path)
        field, graph = self.graph(rule, max_centers)
        centers, origin = graph.centers[:CHECKED], graph.origin.to(graph.centers)
        rows = centers.clone()
        if not self.probabilities_:  # these are checked far from the centres too
            rows = torch.cat([centers, origin + 3 * (centers - origin)])
        program = traced(graph, [rows])
        feeds, cases = {"logits": rows}, []
        if check:
            exact = rows.double()
            margins = rounding_margins(field.both_scores, exact)
            cases = [(feeds, expected(*field.both_scores(exact), None, margins))]
        return write_onnx(program, feeds, graph.metadata(field), path, cases)

    def graph(
        self, rule: AcceptRule | None = None, max_centers: int | None = None
    ) -> "tuple[Self, FieldGraph]":
        """The field, condensed if asked for, and its graph module with the rule's threshold."""
        self._require_fitted()
        limits = self._limits(rule)
        field = self if max_centers is None else self.condensed(max_centers)
        if limits and field is not self:
            warn(
                f"The accept rule was calibrated with {len(self.centers_)} centres, and the file "
                f"has {len(field.centers_)}: its guarantee does not hold there. Calibrate "
                "field.condensed(max_centers), make a rule with it, and export that field."
            )
        return field, FieldGraph(field, **limits)

    def facts(self) -> dict[str, str]:
        """Lines of the summary, by name."""
        weighted = "" if self.log_weights_ is None else "weighted "
        parameters = ", ".join(f"{name}={value}" for name, value in self.get_params().items())
        facts = {
            "kind": "field",
            "fitted on": f"{self.n_samples_seen_:,} rows of {self.n_features_in_} numbers",
            "centres": f"{len(self.centers_):,} {weighted}({self.centers_.dtype})",
            "bandwidth": f"{self.bandwidth_:.6g}, {self.bandwidth_factor_:.4g} × Silverman's "
            f"({self.bandwidth_criterion_})",
            "energies": ", ".join(f"{energy:.6g}" for energy in self.energies_),
            "rows": "class probabilities"
            if self.probabilities_
            else "logits, or any other numbers",
            "uncertainty": "mean of the modes" if self.score_ == "modes" else "softmax entropy",
            "outlier above": f"{self.outlier_limit_:.6g}, by the "
            f"{'training' if self.calibration_ is None else 'held-out'} rows",
            "parameters": parameters,
        }
        names = getattr(self, "feature_names_in_", None)
        return facts if names is None else {**facts, "columns": ", ".join(names)}

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """Header and arrays of the field's file."""
        return field_state(self)

    def _require_saveable(self) -> None:
        require_plain_seed(self.random_state)
