"""A Lightning callback: when training ends, fit the uncertainty, calibrate it and make a rule.

    trainer = lightning.Trainer(callbacks=[QIPFCallback(held_out=loader, max_risk=0.01)])
    trainer.fit(module, train_loader)
    trainer.callbacks[0].model(inputs)      # predictions with uncertainty and decisions
    trainer.test(module, test_loader)       # logs qipf_uncertainty, qipf_novelty, qipf_accepted

The module's `forward` must return logits. The held-out data must not have been used for training,
nor for early stopping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import qipf

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    try:
        from pytorch_lightning.callbacks import Callback
    except ImportError:
        Callback = object


class QIPFCallback(Callback):
    """Fits a model of qipf around the trained module, and logs its scores in tests.

    Parameters
    ----------
    held_out : loader of data that calibrates the model, with labels for a rule.
    max_risk : largest error rate among accepted predictions; None for no rule.
    make : makes the model from the module, such as `qipf.LayeredQIPF` or `qipf.wrap`.
    path : file to save the model to.

    Attributes
    ----------
    model : the fitted model; None before the end of the training.
    """

    def __init__(
        self,
        held_out: Iterable[Any] | None = None,
        max_risk: float | None = None,
        make: Callable[[Any], Any] = qipf.LayeredQIPF,
        path: Path | str | None = None,
    ) -> None:
        self.held_out, self.max_risk, self.make, self.path = held_out, max_risk, make, path
        self.model: Any = None

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Fit, calibrate, make the rule and save the model."""
        self.model = self.make(pl_module).fit(trainer.train_dataloader)
        if self.held_out is not None:
            self.model.calibrate(self.held_out)
        if self.max_risk is not None:
            self.model.accept_rule(max_risk=self.max_risk)
        if self.path is not None:
            self.model.save(self.path)

    def on_test_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *index: int
    ) -> None:
        """Log the mean scores of the batch, and the share that is accepted."""
        if self.model is None:
            return
        inputs = batch[0] if isinstance(batch, (tuple, list)) else batch
        found = self.model(inputs)
        for name in ("uncertainty", "novelty", "accepted"):
            value = getattr(found, name)
            if value is not None:
                pl_module.log(f"qipf_{name}", value.float().mean(), batch_size=len(value))
