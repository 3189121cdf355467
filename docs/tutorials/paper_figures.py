# %% [markdown]
# # The paper's figures
#
# The kernel uncertainty framework of Singh & Principe (2021) in pictures: the field, its potential
# and its modes, and how the uncertainty grows as images are rotated. [Theory](../theory.md) has the
# equations.

# %% [markdown]
# ## A sine wave in one dimension
#
# 3,000 samples of a sine wave are the centres. The density is the field. The potential is low where
# the density is high, and grows outside the data. Odd modes grow outside too; even modes peak where
# their Hermite polynomial is zero (poles, which are softened here).

# %%
import warnings

import matplotlib.pyplot as plt
import numpy as np

import qipf

warnings.filterwarnings("ignore", category=qipf.QIPFScoreWarning)  # these are pictures, no scores

samples = np.sin(np.linspace(0, 30 * np.pi, 3000))[:, None]
grid = np.linspace(-2, 2, 600)[:, None]
orders = (1, 2, 3, 4, 5, 6)
field = qipf.QIPF(
    orders=orders, bandwidth=0.3, normalization="peak", softening=0.01, reduction="random"
).fit(samples)

fig, axis = plt.subplots(figsize=(8, 3.6))
density = np.exp(field.log_density(grid))
axis.plot(grid, density / density.max(), "k--", label="density")
potential = field.potential(grid)
axis.plot(grid, potential / potential.max(), "k:", label="potential")
modes = field.modes(grid)
for order, mode in zip(orders, modes.T, strict=True):
    axis.plot(grid, mode / np.abs(mode).max(), lw=1, label=f"mode {order}")
axis.set(xlabel="x", ylabel="scaled to 1", ylim=(-0.3, 1.05))
axis.legend(ncols=4, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 1.25))

# %% [markdown]
# `qipf figure sine -o sine.png` draws the paper's version of this figure.
#
# ## The potential of two classes
#
# Two groups of points as the logits of two classes: the potential is a landscape with a valley at
# each class and a ridge between them.

# %%
random = np.random.default_rng(0)
points = np.concatenate(
    [random.normal((-2, 0), 0.6, (300, 2)), random.normal((2, 0.5), 0.6, (300, 2))]
)
field = qipf.QIPF(bandwidth="silverman", reduction="random").fit(points)
x, y = np.meshgrid(np.linspace(-5, 5, 120), np.linspace(-3.5, 4, 90))
places = np.stack([x.ravel(), y.ravel()], 1)
fig, axes = plt.subplots(1, 3, figsize=(10, 2.9))
drawn = {
    "log density": field.log_density(places),
    "potential": field.potential(places),
    "uncertainty": field.uncertainty(places),
}
for axis, (name, values) in zip(axes, drawn.items(), strict=True):
    values = np.clip(values, np.quantile(values, 0.05), np.quantile(values, 0.95))
    axis.contourf(x, y, values.reshape(x.shape), levels=20, cmap="magma")
    axis.scatter(*points.T, s=1, color="white", alpha=0.5)
    axis.set_title(name)
    axis.set_axis_off()

# %% [markdown]
# ## Rotated digits
#
# The paper's experiment in small: a network on digits, test images rotated more and more. The
# mean uncertainty rises at first, while the accuracy falls, and then stays high.

# %%
from scipy.ndimage import rotate
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from qipf.metrics.error_detection import roc_auc

digits = load_digits()
order = random.permutation(len(digits.target))
images, labels = digits.images[order] / 16, digits.target[order]
net = MLPClassifier((32,), max_iter=200, random_state=0).fit(
    images[:1000].reshape(-1, 64), labels[:1000]
)


def logits(pictures):
    """Outputs of the network before the softmax."""
    hidden = np.maximum(pictures.reshape(-1, 64) @ net.coefs_[0] + net.intercepts_[0], 0)
    return hidden @ net.coefs_[1] + net.intercepts_[1]


field = qipf.QIPF(normalization="peak", reduction="random", fallback=False)
field.fit(logits(images[:1000]), labels[:1000])

rows = []
for angle in range(0, 91, 15):
    outputs = logits(rotate(images[1000:], angle, axes=(1, 2), reshape=False, order=1))
    wrong = outputs.argmax(1) != labels[1000:]
    probabilities = np.exp(outputs - outputs.max(1, keepdims=True))
    probabilities /= probabilities.sum(1, keepdims=True)
    entropy = -(probabilities * np.log(probabilities + 1e-30)).sum(1)
    score = field.uncertainty(outputs)
    rows.append(
        [angle, 1 - wrong.mean(), score.mean(), roc_auc(score, wrong), roc_auc(entropy, wrong)]
    )
    print(
        "{:3d}°: accuracy {:.3f}, ROC-AUC qipf {:.3f}, entropy {:.3f}".format(
            *rows[-1][:2], *rows[-1][3:]
        )
    )

# %%
angle, accuracy, mean, by_field, by_entropy = map(list, zip(*rows, strict=True))
fig, (left, other) = plt.subplots(1, 2, figsize=(9, 3))
left.plot(angle, accuracy, "o-", color="black")
left.set(xlabel="rotation (degrees)", ylabel="accuracy", ylim=(0, 1.02))
beside = left.twinx()
beside.plot(angle, mean, "s--", color="#d55e00")
beside.set_ylabel("mean uncertainty", color="#d55e00")
other.plot(angle, by_field, "s-", color="#d55e00", label="qipf, the paper's method")
other.plot(angle, by_entropy, "o--", color="#0072b2", label="softmax entropy")
other.set(xlabel="rotation (degrees)", ylabel="ROC-AUC of error detection", ylim=(0.4, 1.02))
other.legend(loc="lower left", fontsize=8)
fig.tight_layout()

# %% [markdown]
# As a detector of *which* predictions are wrong, the paper's method is not always ahead of the
# entropy: [the whole experiment](../results/paper/README.md) has four networks and all methods,
# with `qipf bench run --suite paper`. `LayeredQIPF` is the better score where the network is
# at hand: [First steps](first_steps.md).
