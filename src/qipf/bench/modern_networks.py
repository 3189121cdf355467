"""Networks of the kinds in use: residual, a vision transformer, a transformer of texts."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from qipf.bench.methods.network import Centre, LayeredNetwork
from qipf.errors import QIPFInputError


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions with batch norm, added to their input (He et al., 2016)."""

    def __init__(self, given: int, filters: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(given, filters, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(filters)
        self.shortcut = nn.Sequential()
        if stride > 1 or given != filters:
            self.shortcut = nn.Sequential(
                nn.Conv2d(given, filters, 1, stride, bias=False), nn.BatchNorm2d(filters)
            )

    def forward(self, maps: Tensor) -> Tensor:  # (n, given, H, W) -> (n, filters, H/stride, …)
        """ReLU of the sum."""
        hidden = functional.relu(self.norm1(self.conv1(maps)))
        return functional.relu(self.norm2(self.conv2(hidden)) + self.shortcut(maps))


class ResNet18(LayeredNetwork):
    """ResNet-18 for small images: a 3×3 first convolution without pooling, 64 to 512 filters.

    >>> sum(weights.numel() for weights in ResNet18().parameters())
    11173962
    """

    def __init__(
        self, channels: int = 3, classes: int = 10, size: int = 32, width: int = 64
    ) -> None:
        if size < 8:
            raise QIPFInputError(f"ResNet18 needs images of at least 8×8 pixels; got size={size}.")
        body: list[nn.Module] = [
            Centre(),
            nn.Conv2d(channels, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
        given = width
        for stage, filters in enumerate((width, 2 * width, 4 * width, 8 * width)):
            body.append(ResidualBlock(given, filters, stride=1 if stage == 0 else 2))
            body.append(ResidualBlock(filters, filters, stride=1))
            given = filters
        body += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.0)]
        super().__init__(body, nn.Linear(given, classes))


class Block(nn.Module):
    """A layer of a transformer, normalised first: attention, then two dense layers."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, shown: Tensor | None = None) -> Tensor:  # (n, L, width)
        """`shown`: (n, 1, 1, L), false where there is padding, to which nothing attends."""
        n, length, width = tokens.shape
        split = self.qkv(self.norm1(tokens)).view(n, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (n, heads, L, width / heads)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=shown)
        tokens = tokens + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        hidden = functional.gelu(self.expand(self.norm2(tokens)))
        return tokens + self.dropout(self.contract(hidden))


class Places(nn.Module):
    """Maps (n, width, H, W) as tokens (n, H W, width), with a learned embedding of their place."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.places = nn.Embedding(count, width)
        with torch.no_grad():
            self.places.weight.mul_(0.02)

    def forward(self, maps: Tensor) -> Tensor:
        """One token for each place."""
        return maps.flatten(2).transpose(1, 2) + self.places.weight


class MeanOfTokens(nn.Module):
    """The mean over the tokens."""

    def forward(self, tokens: Tensor) -> Tensor:  # (n, L, width) -> (n, width)
        """Over all places."""
        return tokens.mean(dim=1)


class VisionTransformer(LayeredNetwork):
    """Six transformer layers over patches of 4×4 pixels, embedded by two small convolutions.

    Convolutions as the first layers make transformers learn from few images (Xiao et al., 2021).

    >>> sum(weights.numel() for weights in VisionTransformer().parameters())
    3331658
    """

    def __init__(
        self, channels: int = 3, classes: int = 10, size: int = 32, width: int = 256
    ) -> None:
        if size < 8 or size % 4:
            raise QIPFInputError(
                "VisionTransformer cuts images into 4×4 pixels: their size must be a multiple of "
                f"4, 8 or more; got size={size}."
            )
        stem = [
            nn.Conv2d(channels, width // 4, 3, 2, padding=1, bias=False),
            nn.BatchNorm2d(width // 4),
            nn.ReLU(),
            nn.Conv2d(width // 4, width, 3, 2, padding=1),
        ]
        layers = [Block(width, heads=max(1, width // 64)) for _ in range(6)]
        body = [Centre(), *stem, Places(width, (size // 4) ** 2), *layers, nn.LayerNorm(width)]
        super().__init__([*body, MeanOfTokens(), nn.Dropout(0.0)], nn.Linear(width, classes))


class TextEncoder(nn.Module):
    """Tokens (n, L), 0 for padding, to the mean of the last layer's tokens (n, width)."""

    def __init__(self, pieces: int, length: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(pieces, width, padding_idx=0)
        self.places = nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList([Block(width, width // 32, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """The mean leaves padding out; a text without a token is a text of padding."""
        shown = tokens != 0
        shown = shown | ~shown.any(dim=1, keepdim=True)
        hidden = self.dropout(self.words(tokens) + self.places.weight[: tokens.shape[1]])
        for layer in self.layers:
            hidden = layer(hidden, shown[:, None, None])
        weights = shown[:, :, None].to(hidden.dtype)
        return (self.norm(hidden) * weights).sum(dim=1) / weights.sum(dim=1)


class TextTransformer(LayeredNetwork):
    """Two transformer layers over word pieces, learned from scratch.

    >>> TextTransformer(pieces=50, classes=3, length=8)(torch.ones(2, 8, dtype=torch.int64)).shape
    torch.Size([2, 3])
    """

    def __init__(
        self, pieces: int = 4000, classes: int = 150, length: int = 24, width: int = 128
    ) -> None:
        encoder = TextEncoder(pieces, length, width, layers=2, dropout=0.3)
        super().__init__([encoder, nn.Dropout(0.3)], nn.Linear(width, classes))
