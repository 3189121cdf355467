"""Python numbers in a graph keep all their digits."""

import math

import torch
from torch import nn

from qipf.export.constants import ExactConstants


class Constants(nn.Module):
    """The functions that the field's graph calls with Python numbers."""

    def forward(self, x):
        with ExactConstants():
            return torch.stack(
                [
                    x * math.pi,
                    torch.add(x, 1e300),
                    torch.full_like(x, 0.1),
                    torch.nan_to_num(x / 0.0, 0.1, 1e300, -1e300),
                    torch.clamp(x, min=1 / 3),
                ]
            )


def test_the_values_are_those_of_plain_torch():
    x = torch.tensor([0.0, 1.5, -2.0], dtype=torch.float64)
    expected = torch.stack(
        [
            x * math.pi,
            x + 1e300,
            torch.full_like(x, 0.1),
            torch.tensor([0.1, 1e300, -1e300], dtype=torch.float64),
            x.clamp(min=1 / 3),
        ]
    )
    assert torch.equal(Constants()(x), expected)
