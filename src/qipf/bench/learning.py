"""One step of Adam, for one network or a stack of them; on a GPU recorded and replayed."""

import copy
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional

from qipf.bench.methods.network import mixed_seed, unit_range

#: Largest shift of an augmented image, in pixels, each way.
SHIFT = 4


class Batches:
    """Examples and labels on the device, in an order of their own for each epoch.

    Order, shifts and flips are drawn on the CPU from (seed, epoch) alone, so that an epoch is the
    same on any device and after any interruption. The tensors stay in place when redrawn, as a
    CUDA graph requires.
    """

    def __init__(
        self,
        inputs: Tensor,
        labels: Tensor,
        batch_size: int,
        seed: int,
        augment: bool = False,
        device: torch.device | str = "cpu",
        cutout: int = 0,
    ) -> None:
        count = len(labels)
        self.seed, self.augment, self.cutout = seed, augment, cutout
        self.size = min(batch_size, count)
        # the examples beyond the last full batch are left out of this epoch
        self.steps = count // self.size
        self.labels = labels.to(device)
        self.inputs = inputs.to(device)
        if augment:
            # (n, H + 2 SHIFT, W + 2 SHIFT, C): one gather shifts, flips and selects
            self.inputs = functional.pad(self.inputs, [SHIFT] * 4).movedim(1, -1).contiguous()
        self.order = torch.zeros(count, dtype=torch.int64, device=device)  # (n,)
        self.shift = torch.zeros((count, 2), dtype=torch.int64, device=device)  # (n, 2)
        self.flip = torch.zeros(count, dtype=torch.bool, device=device)  # (n,)
        self.hole = torch.zeros((count, 2), device=device)  # (n, 2) middle, as share of the side
        self._offsets = torch.arange(self.size, device=device)

    def draw(self, epoch: int) -> None:
        """Draw the order of an epoch."""
        generator = torch.Generator().manual_seed(mixed_seed(self.seed, epoch))
        count = len(self.order)
        self.order.copy_(torch.randperm(count, generator=generator))
        if self.augment:
            self.shift.copy_(torch.randint(0, 2 * SHIFT + 1, (count, 2), generator=generator))
            self.flip.copy_(torch.rand(count, generator=generator) < 0.5)
        if self.cutout:
            self.hole.copy_(torch.rand((count, 2), generator=generator))

    def __call__(self, step: Tensor) -> tuple[Tensor, Tensor]:  # (B, …), (B,)
        """The batch at this step of the epoch, `step` of shape (1,)."""
        rows = step * self.size + self._offsets
        chosen = self.order[rows]
        inputs = (
            shifted_and_flipped(self.inputs, chosen, self.shift[rows], self.flip[rows])
            if self.augment
            else self.inputs[chosen]
        )
        inputs = unit_range(inputs)
        if self.cutout:
            inputs = cut_out(inputs, self.hole[rows], self.cutout)
        return inputs, self.labels[chosen]


class BatchStack:
    """Batches of several networks that train together, each in an order of its own."""

    def __init__(self, batches: Sequence[Batches]) -> None:
        self._batches = batches
        self.size, self.steps = batches[0].size, batches[0].steps
        self.labels = batches[0].labels

    def draw(self, epoch: int) -> None:
        """Draw the order of an epoch for every network."""
        for batches in self._batches:
            batches.draw(epoch)

    def __call__(self, step: Tensor) -> tuple[Tensor, Tensor]:  # (M, B, …), (M, B)
        """The batches of all networks at this step of the epoch."""
        inputs, labels = zip(*(batches(step) for batches in self._batches), strict=True)
        return torch.stack(inputs), torch.stack(labels)


def shifted_and_flipped(
    padded: Tensor,  # (n, H + 2 SHIFT, W + 2 SHIFT, C)
    chosen: Tensor,  # (...)
    shift: Tensor,  # (..., 2) in 0 … 2 SHIFT; SHIFT leaves the image where it is
    flip: Tensor,  # (...)
) -> Tensor:  # (..., C, H, W)
    """The chosen images, cropped from their padding at `shift` and mirrored where `flip`."""
    height, width = padded.shape[1] - 2 * SHIFT, padded.shape[2] - 2 * SHIFT
    down = torch.arange(height, device=padded.device) + shift[..., :1]  # (..., H)
    across = torch.arange(width, device=padded.device)
    across = torch.where(flip[..., None], width - 1 - across, across) + shift[..., 1:]  # (..., W)
    cut = padded[chosen[..., None, None], down[..., :, None], across[..., None, :]]
    return cut.movedim(-1, -3)


def cut_out(
    images: Tensor,  # (n, C, H, W) in [0, 1]
    middle: Tensor,  # (n, 2) in [0, 1)
    side: int,
) -> Tensor:  # (n, C, H, W)
    """Images with a grey square about `middle`, as far as it lies inside."""
    inside = torch.ones(1, dtype=torch.bool, device=images.device)
    for axis in (2, 3):
        size = images.shape[axis]
        start = (middle[:, axis - 2, None] * size).floor() - side // 2
        line = torch.arange(size, device=images.device)
        within = (line >= start) & (line < start + side)  # (n, size)
        inside = inside & within[:, None, :, None].movedim(2, axis)
    return images.masked_fill(inside, 0.5)


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


class Stack(nn.Module):
    """Networks of one architecture with stacked weights: one kernel computes them all."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self._skeleton = (copy.deepcopy(networks[0]).train().to("meta"),)  # not a submodule
        weights, buffers = stack_module_state(list(networks))
        self._names = {name.replace(".", "/"): name for name in (*weights, *buffers)}
        for name, tensor in weights.items():
            self.register_parameter(name.replace(".", "/"), nn.Parameter(tensor))
        for name, tensor in buffers.items():
            self.register_buffer(name.replace(".", "/"), tensor)

    def forward(self, inputs: Tensor) -> Tensor:  # (M, B, …) -> (M, B, classes)
        """Each network on its own batch, with its own dropout."""

        def one(state: dict[str, Tensor], batch: Tensor) -> Tensor:
            logits: Tensor = functional_call(self._skeleton[0], state, (batch,))
            return logits

        state = {name: getattr(self, own) for own, name in self._names.items()}
        stacked: Tensor = vmap(one, randomness="different")(state, inputs)
        return stacked

    def unstack(self, networks: Sequence[nn.Module]) -> None:
        """Write the weights back into the networks."""
        state = {self._names[own]: tensor for own, tensor in self.state_dict().items()}
        for k, network in enumerate(networks):
            network.load_state_dict({name: tensor[k] for name, tensor in state.items()})


class Steps:
    """The state of a training; calling it makes one step.

    Everything that a step reads or writes is a tensor that stays in place, including the step's
    number, so that a CUDA graph can replay it.
    """

    def __init__(
        self,
        network: nn.Module,
        batches: Batches | BatchStack,
        rates: Tensor,
        penalty: Callable[[], Tensor] | None = None,
        bfloat16: bool = False,
        networks: int = 1,  # in a stack
        weight_decay: float = 0.0,  # of matrices and filters
    ) -> None:
        device = batches.labels.device
        self._networks = networks
        self.network = network.train()
        self.batches = batches
        self._parameters = [p for p in network.parameters() if p.requires_grad]
        self._penalty = penalty
        self.number = torch.zeros(1, dtype=torch.int64, device=device)  # since the beginning
        self.correct = torch.zeros((), dtype=torch.int64, device=device)  # since it was zeroed
        self.loss = torch.zeros((), device=device)  # likewise, summed over steps
        self._rates = rates.to(device)
        self._rate = self._rates[0].clone()
        self._bfloat16 = bfloat16 and device.type == "cuda"
        # biases and gains, one number for each channel, are not decayed
        matrix = 3 if networks > 1 else 2
        decays: dict[float, list[Tensor]] = {}
        for parameter in self._parameters:
            decay = weight_decay if parameter.ndim >= matrix else 0.0
            decays.setdefault(decay, []).append(parameter)
        groups = [{"params": own, "weight_decay": decay} for decay, own in decays.items()]
        self.adam = torch.optim.AdamW(groups, lr=self._rate, fused=True)

    def __call__(self) -> None:
        """Train on one batch."""
        inputs, labels = self.batches(self.number % self.batches.steps)
        # without its cache, autocast casts anew at each replay of a recorded step
        with torch.autocast(
            inputs.device.type, torch.bfloat16, enabled=self._bfloat16, cache_enabled=False
        ):
            logits = self.network(inputs).float()
        # a sum over networks of means over their batches, so that each learns as if alone
        loss = functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
        loss = loss * self._networks
        if self._penalty is not None:
            loss = loss + self._penalty()
        gradients = torch.autograd.grad(loss, self._parameters)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
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
        """Means over the `steps` made since the counts were restarted."""
        networks = self._networks
        examples = steps * networks * self.batches.size
        return int(self.correct) / examples, float(self.loss) / (steps * networks)

    def finish(self) -> None:
        """Free the gradients."""
        self.adam.zero_grad(set_to_none=True)

    def resume(self, number: int, adam: dict[str, object]) -> None:
        """Continue from a saved step."""
        self.number.fill_(number)
        self.adam.load_state_dict(adam)
        for group in self.adam.param_groups:
            group["lr"] = self._rate  # loading put a copy in its place
        self.allow_recording(False)

    def allow_recording(self, allowed: bool = True) -> None:
        """Set whether Adam's next steps may be recorded in a CUDA graph."""
        for group in self.adam.param_groups:
            group["capturable"] = allowed


def _laid_out_as(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient in its parameter's strides: fused Adam goes through both in memory order."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


class Replayed:
    """Makes a few ordinary steps, then records one as a CUDA graph and replays it.

    Small networks spend their time in launching kernels; a replay launches them all at once.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._device = steps.number.device
        self._side = torch.cuda.Stream(self._device)
        self._made = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """One step."""
        with torch.cuda.device(self._device):
            if self._made < WARM_UP:
                self._made += 1
                self._warm_up()
                return
            if self._graph is None:
                self._graph = torch.cuda.CUDAGraph()
                self._steps.allow_recording()
                with torch.cuda.graph(self._graph):  # records, does not run
                    self._steps()
            self._graph.replay()

    def _warm_up(self) -> None:
        """A step on a side stream, as CUDA requires before recording."""
        current = torch.cuda.current_stream()
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            self._steps()
        current.wait_stream(self._side)
