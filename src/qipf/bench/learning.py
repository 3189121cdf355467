"""One step of Adam, for one network or for several at once; on a GPU recorded and replayed."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional

from qipf.bench.batches import Batches

#: Steps run before a CUDA graph is recorded, so that libraries and optimiser have set up.
WARM_UP = 5


def one_cycle(steps: int, peak: float) -> Tensor:  # (steps,)
    """Learning rates that rise linearly to `peak` over 30 % of the steps, then fall as a cosine.

    >>> one_cycle(5, 1.0)
    tensor([0.0400, 0.6800, 0.9505, 0.6113, 0.1883])
    """
    step, top = torch.arange(steps), 0.3 * steps
    rise = 0.04 + 0.96 * step / top
    fall = (1 + torch.cos(math.pi * (step - top) / (steps - top))) / 2
    return peak * torch.where(step < top, rise, fall)


class Learner(Protocol):
    """Networks that learn together, M of them; often one."""

    parameters: list[Tensor]

    def logits(self, inputs: Tensor) -> Tensor:
        """(M, B, …) to (M, B, classes), in training mode."""

    def penalty(self) -> Tensor | float:
        """What is added to the cross-entropy."""

    def state(self) -> dict[str, Tensor]:
        """All tensors by name, not copied: writing into them changes the networks."""


class Single:
    """One network, as it is."""

    def __init__(self, network: nn.Module, penalty: Callable[[], Tensor] | None = None) -> None:
        self.network = network.train()
        self.parameters: list[Tensor] = [p for p in network.parameters() if p.requires_grad]
        self._penalty = penalty

    def logits(self, inputs: Tensor) -> Tensor:
        """(1, B, …) to (1, B, classes)."""
        logits: Tensor = self.network(inputs[0])
        return logits[None]

    def penalty(self) -> Tensor | float:
        """What the method adds, such as a divergence from a prior."""
        return 0.0 if self._penalty is None else self._penalty()

    def state(self) -> dict[str, Tensor]:
        """Parameters and buffers."""
        state: dict[str, Tensor] = self.network.state_dict()
        return state


class Stacked:
    """Networks of one architecture with their tensors stacked, so that one kernel serves all."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        for network in networks:
            network.train()
        self._networks = networks
        self._skeleton = copy.deepcopy(networks[0]).to("meta")
        self._weights, self._buffers = stack_module_state(list(networks))
        self.parameters: list[Tensor] = list(self._weights.values())

    def logits(self, inputs: Tensor) -> Tensor:
        """(M, B, …) to (M, B, classes), each network on its own batch with its own dropout."""

        def one(weights: dict[str, Tensor], buffers: dict[str, Tensor], batch: Tensor) -> Tensor:
            logits: Tensor = functional_call(self._skeleton, (weights, buffers), (batch,))
            return logits

        stacked: Tensor = vmap(one, randomness="different")(self._weights, self._buffers, inputs)
        return stacked

    def penalty(self) -> float:
        """None."""
        return 0.0

    def state(self) -> dict[str, Tensor]:
        """Stacked parameters and buffers."""
        return {name: t.detach() for name, t in {**self._weights, **self._buffers}.items()}

    def unstack(self) -> None:
        """Write what was learned back into the networks."""
        for index, network in enumerate(self._networks):
            network.load_state_dict({name: t[index] for name, t in self.state().items()})


class Steps:
    """A training's moving parts; calling it makes one step.

    Everything a step reads or writes is a tensor that stays in place, the step's own number too:
    that lets a GPU replay it without Python.
    """

    def __init__(
        self, learner: Learner, batches: Batches, rates: Tensor, bfloat16: bool = False
    ) -> None:
        device = batches.labels.device
        self.learner = learner
        self.batches = batches
        self.number = torch.zeros(1, dtype=torch.int64, device=device)  # since the beginning
        self.correct = torch.zeros((), dtype=torch.int64, device=device)  # since it was zeroed
        self.loss = torch.zeros((), device=device)  # likewise, summed over steps
        self._rates = rates.to(device)
        self._rate = self._rates[0].clone()
        self._bfloat16 = bfloat16 and device.type == "cuda"
        self.adam = torch.optim.Adam(learner.parameters, lr=self._rate, fused=True)

    def __call__(self) -> None:
        """One batch for each network."""
        inputs, labels = self.batches(self.number % self.batches.steps)
        # without its cache, autocast casts anew at each replay of a recorded step
        with torch.autocast(
            inputs.device.type, torch.bfloat16, enabled=self._bfloat16, cache_enabled=False
        ):
            logits = self.learner.logits(inputs).float()
        # a sum over networks of means over their batches, so that each learns as if alone
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten()) * len(labels)
        loss = loss + self.learner.penalty()
        gradients = torch.autograd.grad(loss, self.learner.parameters)
        for parameter, gradient in zip(self.learner.parameters, gradients, strict=True):
            parameter.grad = _laid_out_as(parameter, gradient)
        self._rate.copy_(self._rates.index_select(0, self.number)[0])
        self.adam.step()
        self.correct += (logits.argmax(dim=-1) == labels).sum()
        self.loss += loss.detach()
        self.number += 1

    def restart_counts(self) -> None:
        """Count correct answers and sum losses from here."""
        self.correct.zero_()
        self.loss.zero_()

    def accuracy_and_loss(self, steps: int) -> tuple[float, float]:
        """Means over the networks and the `steps` made since the counts were restarted."""
        networks = len(self.batches.plan.seeds)
        examples = steps * networks * self.batches.size
        return int(self.correct) / examples, float(self.loss) / (steps * networks)

    def finish(self) -> None:
        """Let go of the gradients."""
        self.adam.zero_grad(set_to_none=True)

    def resume(self, number: int, adam: dict[str, object]) -> None:
        """Go on from a saved step."""
        self.number.fill_(number)
        self.adam.load_state_dict(adam)
        for group in self.adam.param_groups:
            group["lr"] = self._rate  # loading put a copy in its place
        self.allow_recording(False)

    def allow_recording(self, allowed: bool = True) -> None:
        """Tell Adam whether the coming steps are recorded; it warns of, or refuses, the other."""
        for group in self.adam.param_groups:
            group["capturable"] = allowed


def _laid_out_as(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient in its parameter's strides: fused Adam goes through both in memory order."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


class Replayed:
    """Makes a few steps as they are, then records one as a CUDA graph and replays that.

    Small networks spend their time in launching kernels; a replay launches them all at once.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._device = steps.number.device
        self._side = torch.cuda.Stream(self._device)
        self._made = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """One step, however it is run."""
        with torch.cuda.device(self._device):
            if self._made < WARM_UP:
                self._made += 1
                self._beside()
                return
            if self._graph is None:
                self._graph = torch.cuda.CUDAGraph()
                self._steps.allow_recording()
                with torch.cuda.graph(self._graph):  # records, does not run
                    self._steps()
            self._graph.replay()

    def _beside(self) -> None:
        """A step on a side stream, which is where CUDA wants to be warmed up for recording."""
        current = torch.cuda.current_stream()
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            self._steps()
        current.wait_stream(self._side)
