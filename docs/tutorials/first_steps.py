# %% [markdown]
# # First steps
#
# From data to a calibrated decision: train a small network, score its predictions, and decide
# which of them to accept. Replace data and network by your own.

# %% [markdown]
# ## Data and a network
#
# scikit-learn's digits: 1,797 images of 8 × 8 pixels. Three parts: training data, held-out data
# for the calibration, and new data.

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import qipf

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
labels = torch.tensor(digits.target)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
train, held_out, new = order[:800], order[800:1400], order[1400:]

torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 10),
)  # fmt: skip
optimizer = torch.optim.Adam(net.parameters(), lr=0.005)
for _ in range(12):
    for batch in train.split(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images[batch]), labels[batch]).backward()
        optimizer.step()

right = net(images[new]).argmax(1) == labels[new]
print(f"accuracy on new data: {right.float().mean():.1%}")

# %% [markdown]
# ## Fit
#
# `fit` reads the training data once. It holds some of it out, perturbs it to see what errors look
# like, and chooses layers, bandwidths and weights by itself. The network is not changed.

# %%
model = qipf.LayeredQIPF(net).fit([(images[train], labels[train])])

prediction = model(images[new])
print("uncertainty of the first five:", prediction.uncertainty[:5].numpy().round(2))
print("estimated probability of error:", prediction.p_error[:5].numpy().round(4))

# %% [markdown]
# Higher is less trustworthy. The most and the least uncertain of the new images:

# %%
ranked = prediction.uncertainty.argsort(descending=True)
fig, axes = plt.subplots(2, 8, figsize=(9, 2.9))
for row, chosen in zip(axes, (ranked[:8], ranked[-8:]), strict=True):
    for place, i in zip(row, chosen.tolist(), strict=True):
        place.imshow(images[new][i, 0], cmap="gray_r")
        predicted, true = int(prediction.predicted[i]), int(labels[new][i])
        place.set_title(f"{predicted} ({true})", color="black" if predicted == true else "#d55e00")
        place.set_axis_off()
fig.suptitle("most and least uncertain: predicted (true) class")

# %% [markdown]
# ## Calibrate
#
# Held-out predictions turn scores into p-values and decisions. With labels, the model also measures
# how well it detects errors, beside the entropy of the softmax and the largest logit.

# %%
model.calibrate([(images[held_out], labels[held_out])])
print(model.summary())

# %% [markdown]
# ## Decide
#
# At most 2 % of the accepted predictions are to be wrong. The rule finds the largest threshold for
# which this holds with 95 % confidence, for data like the held-out data.

# %%
rule = model.accept_rule(max_risk=0.02)
print(rule)

# %%
prediction = model(images[new])
accepted, wrong = prediction.accepted, prediction.predicted != labels[new]
print(f"accepted: {accepted.float().mean():.1%}")
print(f"wrong among the accepted: {wrong[accepted].float().mean():.1%}")
print(f"wrong among the others: {wrong[~accepted].float().mean():.1%}")

# %% [markdown]
# ## Data of another kind
#
# Upside down, most digits are no longer what the network knows. It accepts fewer of them, and their
# novelty is high.

# %%
turned = model(images[new].flip(2))
for name, each in {"usual": prediction, "upside down": turned}.items():
    share = each.accepted.float().mean()
    novel = (each.novelty_p_value <= 0.01).float().mean()
    print(f"{name:>12}: accepted {share:.0%}, novel (p ≤ 0.01) {novel:.0%}")

# %% [markdown]
# The guarantee does not hold for such data: abstain from novel inputs with
# `accept_rule(max_risk=0.02, min_novelty_p=0.05)`, and [watch the stream](stream.md).
#
# ## Keep it
#
# The file holds the fields, the calibration set and the rule, but not the network.

# %%
model.save("model.qipf")
again = qipf.load("model.qipf", net)
bool((again(images[new]).uncertainty == prediction.uncertainty).all())
