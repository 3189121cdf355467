# %% [markdown]
# # Explain a doubtful prediction
#
# Why is a prediction uncertain? `explain` shows which layers prefer another class, and the nearest
# training images of both classes.

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import qipf

digits = load_digits()
order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(2))
images = torch.tensor(digits.images, dtype=torch.float32)[order][:, None] / 16
labels = torch.tensor(digits.target)[order]
train_images, train_labels = images[:900], labels[:900]
new_images, new_labels = images[900:], labels[900:]

torch.manual_seed(1)
net = nn.Sequential(
    nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.Flatten(),
    nn.Linear(384, 32), nn.ReLU(), nn.Linear(32, 10),
)  # fmt: skip
optimizer = torch.optim.Adam(net.parameters(), lr=0.005)
for _ in range(40):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(train_images), train_labels).backward()
    optimizer.step()

model = qipf.LayeredQIPF(net).fit([(train_images, train_labels)])
prediction = model(new_images)
wrong = prediction.predicted != new_labels
print(f"{int(wrong.sum())} of {len(wrong)} predictions are wrong")

# %% [markdown]
# ## The most doubtful prediction

# %%
doubtful = int(prediction.uncertainty.argmax())
explanation = model.explain(new_images[doubtful : doubtful + 1], nearest=4)[0]
print(explanation)

# %% [markdown]
# The posterior of each layer has a weight in the mixture and a share of the evidence against the
# prediction. The nearest training images are those of the layer with the largest share, by their
# positions in the loader (with more than 1,500 training images, those nearest to weighted centres):


# %%
def show(i):
    """An image, and its nearest training images of the predicted class and of its rival."""
    why = model.explain(new_images[i : i + 1], nearest=4)[0]
    fig, axes = plt.subplots(2, 5, figsize=(7.5, 4.0))
    rows = {why.predicted: why.nearest, why.rival: why.nearest_rival}
    for row, (label, found) in zip(axes, rows.items(), strict=True):
        row[0].imshow(new_images[i, 0], cmap="gray_r")
        row[0].set_title(f"is it a {label}?")
        for place, each in zip(row[1:], found, strict=False):
            place.imshow(train_images[each.index, 0], cmap="gray_r")
            place.set_title(f"{each.label}, cosine {each.cosine:.2f}", fontsize=9)
        for place in row:
            place.set_axis_off()
    fig.suptitle(f"predicted {why.predicted}, true {int(new_labels[i])}, p_error {why.p_error:.2f}")
    fig.tight_layout()


show(doubtful)

# %% [markdown]
# ## Wrong and certain
#
# The error that the model doubts least.

# %%
errors = wrong.nonzero()[:, 0]
certain = int(errors[prediction.uncertainty[errors].argmin()])
show(certain)

# %% [markdown]
# ## In numbers
#
# An explanation is data too, for a log or a page.

# %%
for each in explanation.posteriors:
    print(
        f"{each.name:>12}: weight {each.weight:.2f}, prefers {each.label}, share {each.share:.2f}"
    )
