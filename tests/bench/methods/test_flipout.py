from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from qipf.bench.methods.flipout import FlipoutConv2d, FlipoutLinear
from qipf.bench.methods.network import seeded
from qipf.errors import QIPFInputError

#: Draws of each Monte Carlo check; the variance is then known to about 2 %.
PASSES = 5_000


def linear(inputs: int = 3, outputs: int = 2, initial_std: float = 0.5) -> FlipoutLinear:
    with seeded("cpu", 0):
        return _spread_out(FlipoutLinear(nn.Linear(inputs, outputs).double(), initial_std))


def convolution(initial_std: float = 0.5, **options) -> FlipoutConv2d:
    with seeded("cpu", 1):
        layer = nn.Conv2d(2, 3, 2, **options).double()
        return _spread_out(FlipoutConv2d(layer, initial_std))


def _spread_out(layer):
    """Give means and deviations of the posterior values of their own."""
    with torch.no_grad():
        layer.weight_rho.add_(torch.randn_like(layer.weight_rho))
        layer.weight_mean.add_(0.3 * torch.randn_like(layer.weight_mean))
    return layer


def drawn(layer, inputs: torch.Tensor, passes: int) -> torch.Tensor:
    with torch.no_grad(), seeded("cpu", 2):
        return torch.stack([layer(inputs) for _ in range(passes)])


@pytest.mark.parametrize("layer", [linear(), convolution()], ids=["linear", "conv"])
def test_kl_is_the_sum_over_weights(layer):
    posterior = Normal(layer.weight_mean, layer.weight_std)
    prior = Normal(layer.prior_mean, layer.prior_std)
    torch.testing.assert_close(layer.kl(), kl_divergence(posterior, prior).sum())


def test_kl_vanishes_only_where_posterior_and_prior_agree():
    layer = FlipoutLinear(nn.Linear(4, 5).double(), initial_std=1.0)
    assert layer.kl().item() == pytest.approx(0.0, abs=1e-12)
    with torch.no_grad():
        layer.weight_mean[0, 0] += layer.prior_std
    assert layer.kl().item() == pytest.approx(0.5)


def test_the_prior_s_deviation_is_rounded_once():
    """Computed in float64: the same on every device, which checkpoints are compared by."""
    with seeded("cpu", 4):
        layer = nn.Linear(513, 257)
    weight = layer.weight.detach().numpy().astype(np.float64)
    assert FlipoutLinear(layer).prior_std.numpy() == np.float32(np.sqrt((weight**2).mean()))
    assert FlipoutLinear(layer).prior_std.dtype == torch.float32


def test_the_prior_and_the_start_come_from_the_trained_weights():
    trained = nn.Linear(4, 5)
    layer = FlipoutLinear(trained, initial_std=0.2)
    rms = math.sqrt(sum(w * w for w in trained.weight.flatten().tolist()) / 20)
    assert layer.prior_std.item() == pytest.approx(rms, rel=1e-6)
    assert torch.equal(layer.prior_mean, trained.weight)
    assert torch.equal(layer.weight_mean, trained.weight)
    assert torch.equal(layer.bias, trained.bias)
    assert layer.weight_std.flatten().tolist() == pytest.approx([0.2 * rms] * 20, rel=1e-5)


def test_dense_mean_and_variance_are_the_posteriors():
    layer = linear()
    inputs = torch.tensor([[1.0, -2.0, 0.5], [0.0, 1.0, 3.0]], dtype=torch.float64)
    outputs = drawn(layer, inputs, PASSES)
    mean = inputs @ layer.weight_mean.T + layer.bias
    variance = inputs.square() @ layer.weight_std.square().T
    error = (variance / PASSES).sqrt()
    assert ((outputs.mean(0) - mean).abs() < 4.5 * error).all()
    torch.testing.assert_close(outputs.var(0), variance, rtol=0.1, atol=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"bias": False}])
def test_convolution_mean_and_variance_are_the_posteriors(options):
    layer = convolution(**options)
    inputs = torch.randn(
        2, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
    )
    outputs = drawn(layer, inputs, PASSES)
    place = {key: value for key, value in options.items() if key != "bias"}
    mean = nn.functional.conv2d(inputs, layer.weight_mean, layer.bias, **place)
    variance = nn.functional.conv2d(inputs.square(), layer.weight_std.square(), **place)
    error = (variance / PASSES).sqrt()
    assert ((outputs.mean(0) - mean).abs() <= 4.5 * error + 1e-12).all()
    torch.testing.assert_close(outputs.var(0), variance, rtol=0.12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer", "example"),
    [(linear(), torch.ones(3)), (convolution(), torch.ones(2, 2, 2))],
    ids=["linear", "conv"],
)
def test_equal_examples_of_one_pass_are_uncorrelated(layer, example):
    inputs = example.double().expand(2, *example.shape)
    outputs = drawn(layer, inputs, PASSES).flatten(2)  # (passes, 2, outputs)
    for unit in range(outputs.shape[2]):
        correlation = torch.corrcoef(outputs[:, :, unit].T)[0, 1].item()
        assert abs(correlation) < 4.5 / math.sqrt(PASSES)


def test_signs_differ_between_examples_and_channels_but_not_over_the_area():
    """One weight draw serves the whole pass: only signs tell equal examples apart."""
    layer = convolution()
    # constant images: a kernel sees the same everywhere
    inputs = torch.ones(200, 2, 5, 5, dtype=torch.float64)
    outputs = drawn(layer, inputs, 1)[0]
    assert torch.equal(outputs, outputs[:, :, :1, :1].expand_as(outputs).contiguous())
    mean = nn.functional.conv2d(inputs[:1], layer.weight_mean, layer.bias)
    for channel in range(3):
        away = (outputs[:, channel, 0, 0] - mean[0, channel, 0, 0]).tolist()
        # two input channels and one output channel: signs (±, ±) give at most four values
        assert len({round(value, 9) for value in away}) == 4
        assert len({round(abs(value), 9) for value in away}) == 2


def test_signs_are_drawn_for_every_input_and_every_output():
    """With one weight draw, 200 equal examples show every pattern of signs."""
    one_to_two = linear(inputs=1, outputs=2)
    inputs = torch.ones(200, 1, dtype=torch.float64)
    away = drawn(one_to_two, inputs, 1)[0] - one_to_two.weight_mean[:, 0] - one_to_two.bias
    assert {tuple(row) for row in away.sign().tolist()} == {(1, 1), (1, -1), (-1, 1), (-1, -1)}
    two_to_one = linear(inputs=2, outputs=1)
    inputs = torch.ones(200, 2, dtype=torch.float64)
    sizes = (drawn(two_to_one, inputs, 1)[0] - two_to_one.weight_mean.sum() - two_to_one.bias).abs()
    assert len({round(size, 9) for size in sizes.flatten().tolist()}) == 2


@pytest.mark.parametrize(
    ("layer", "shape"), [(linear(), (4, 3)), (convolution(), (3, 2, 3, 3))], ids=["linear", "conv"]
)
def test_gradients_of_output_and_kl(layer, shape):
    inputs = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    names = ["weight_mean", "weight_rho", "bias"]
    values = [getattr(layer, name).detach().clone().requires_grad_() for name in names]

    def output_and_kl(*parameters: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with seeded("cpu", 6):
            given = dict(zip(names, parameters, strict=True))
            outputs = torch.func.functional_call(layer, given, (inputs,))
        return outputs, _kl_with(layer, given)

    assert torch.autograd.gradcheck(output_and_kl, tuple(values))


def _kl_with(layer, given: dict[str, torch.Tensor]) -> torch.Tensor:
    class KL(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self) -> torch.Tensor:
            return self.layer.kl()

    return torch.func.functional_call(KL(), {f"layer.{k}": v for k, v in given.items()}, ())


def test_float32_and_autocast_keep_their_dtype():
    layer = FlipoutLinear(nn.Linear(3, 2))
    assert layer(torch.ones(4, 3)).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.ones(4, 3)).dtype == torch.bfloat16


def test_untrained_zeros_and_other_paddings_are_refused():
    zero = nn.Linear(3, 2)
    nn.init.zeros_(zero.weight)
    with pytest.raises(QIPFInputError, match="layer has no weight other than zero, so no prior"):
        FlipoutLinear(zero)
    message = "layer has padding_mode 'reflect'; Flipout here knows 'zeros' only."
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        FlipoutConv2d(nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"))
