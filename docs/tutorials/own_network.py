# %% [markdown]
# # A network of your own
#
# What a model needs from a network and a loader: logits, and batches of inputs and labels. Here a
# network with two inputs, keyword arguments and a dictionary as its output.

# %%
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

import qipf


class TwoHalves(nn.Module):
    """Reads the upper and the lower half of an image by two branches."""

    def __init__(self):
        super().__init__()
        self.upper = nn.Sequential(nn.Linear(32, 24), nn.ReLU())
        self.lower = nn.Sequential(nn.Linear(32, 24), nn.ReLU())
        self.trunk = nn.Sequential(nn.Linear(48, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, upper, lower):
        """A dictionary with the logits, as many libraries return it."""
        both = torch.cat([self.upper(upper), self.lower(lower)], 1)
        return {"logits": self.head(self.trunk(both))}


class Halves(Dataset):
    """The two halves of an image and its label, as a dictionary."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        image = self.images[i]
        return {"upper": image[:32], "lower": image[32:], "labels": self.labels[i]}


# %%
digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
train, held_out, new = (Halves(images[part], labels[part]) for part in order.split([800, 600, 397]))

torch.manual_seed(0)
net = TwoHalves()
optimizer = torch.optim.Adam(net.parameters(), lr=0.005)
for _ in range(8):
    for batch in DataLoader(train, batch_size=50, shuffle=True):
        optimizer.zero_grad()
        logits = net(batch["upper"], batch["lower"])["logits"]
        nn.functional.cross_entropy(logits, batch["labels"]).backward()
        optimizer.step()

# %% [markdown]
# ## The loader
#
# A loader of dictionaries passes its entries by name, except `labels`. `(inputs, labels)` and
# `((a, b), labels)` work as well: [all forms](../classifiers.md#inputs).

# %%
model = qipf.LayeredQIPF(net).fit(DataLoader(train, batch_size=200))
model.calibrate(DataLoader(held_out, batch_size=200))
print(model.summary())

# %% [markdown]
# ## Which layers
#
# By default the inputs of up to eight dense or convolutional layers are tried, and those with a
# notable weight are kept. The mixture weights say how much each of them counts:

# %%
for name, weight in zip(["softmax", *model.layers_], model.weights_.tolist(), strict=True):
    print(f"{weight:6.1%}  {name}")

# %% [markdown]
# Name layers to choose them yourself; their outputs are then read.

# %%
named = qipf.LayeredQIPF(net, layers=["trunk"]).fit(DataLoader(train, batch_size=200))
named.calibrate(DataLoader(held_out, batch_size=200))
for title, each in {"chosen by fit": model, "trunk": named}.items():
    print(f"{title:>13}: {each.detection_}")

# %% [markdown]
# ## Predictions
#
# A call takes what the network takes. Results are tensors on the network's device.

# %%
batch = next(iter(DataLoader(new, batch_size=len(new))))
prediction = model(upper=batch["upper"], lower=batch["lower"])
print(prediction.uncertainty.shape, prediction.p_value[:4])

# %% [markdown]
# ## Errors that help
#
# Wrong inputs, a network that ends in a softmax, changed weights: errors say what was expected and
# what to do.

# %%
for wrong_call in (
    lambda: model(batch["upper"]),
    lambda: qipf.LayeredQIPF(nn.Sequential(nn.Linear(64, 3), nn.Softmax(1))).fit(
        [(images[:300], labels[:300] % 3)]
    ),
):
    try:
        wrong_call()
    except qipf.QIPFInputError as error:
        print("QIPFInputError:", error, end="\n\n")
