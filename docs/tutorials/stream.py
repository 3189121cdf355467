# %% [markdown]
# # Watch a stream
#
# A network in use meets data without labels. The monitor raises an alarm when the data shifts, and
# the probability of *any* false alarm, however long the stream, is at most `alpha`.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.ndimage import rotate
from sklearn.datasets import load_digits
from torch import nn

import qipf

digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.target))
images, labels = digits.images[order], torch.tensor(digits.target[order])


def inputs(pictures):
    """Images as the network takes them."""
    return torch.tensor(np.ascontiguousarray(pictures), dtype=torch.float32)[:, None] / 16


torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 10),
)  # fmt: skip
optimizer = torch.optim.Adam(net.parameters(), lr=0.005)
for _ in range(60):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(inputs(images[:700])), labels[:700]).backward()
    optimizer.step()

model = qipf.LayeredQIPF(net).fit([(inputs(images[:700]), labels[:700])])
model.calibrate([(inputs(images[700:1200]), labels[700:1200])])

# %% [markdown]
# ## A stream that shifts
#
# 597 images: the camera is straight for 300 of them and then turns, a degree every eight images.

# %%
stream = images[1200:]
angles = np.maximum(0, np.arange(len(stream)) - 300) / 8
turned = np.stack(
    [rotate(x, a, reshape=False, order=1) for x, a in zip(stream, angles, strict=True)]
)

monitor = qipf.ShiftMonitor(model, alpha=0.01, window=100)
history = []
for start in range(0, len(stream), 20):
    verdict = monitor.update(inputs(turned[start : start + 20]))
    history.append((verdict.seen, verdict.accuracy))
print("alarm:", verdict.alarm, "at prediction", verdict.alarm_at)
print("estimated change point:", verdict.change_point, "(true: 300)")
print("angle at the alarm:", angles[verdict.alarm_at], "degrees")

# %% [markdown]
# `p_value` is valid at any time: look as often as you like.
#
# ## Accuracy without labels
#
# `verdict.accuracy` estimates the accuracy of the last window. The true one, which a stream does
# not have, is shown beside it. Here it is close. Under other strong shifts the estimate can be far
# too high: read it together with the alarm.

# %%
right = (net(inputs(turned)).argmax(1) == labels[1200:]).float().numpy()
counts = [count for count, _ in history]
true = [right[max(0, count - 100) : count].mean() for count in counts]
guess = [each.accuracy for _, each in history]
fig, (left, other) = plt.subplots(1, 2, figsize=(9, 3))
monitor.plot(left)
other.plot(counts, true, color="black", label="true")
other.plot(counts, guess, color="#d55e00", ls="--", label="estimated without labels")
other.axvline(300, color="gray", lw=0.8)
other.set(xlabel="predictions", ylabel="accuracy of the last 100", ylim=(0, 1.02))
other.legend(loc="lower left")
fig.tight_layout()

# %% [markdown]
# ## A quiet stream
#
# The same images, straight, in 50 random orders: how often is there a false alarm? `alpha` is 0.01.

# %%
uncertainty, novelty = model.both_scores(inputs(stream))
alarms = 0
for seed in range(50):
    shuffled = torch.randperm(len(stream), generator=torch.Generator().manual_seed(seed))
    quiet = qipf.ShiftMonitor(model, alpha=0.01, window=100)
    alarms += quiet.update_scores(uncertainty[shuffled], novelty[shuffled]).alarm
print(f"false alarms: {alarms} of 50")

# %% [markdown]
# ## Keep the state
#
# A monitor can be saved and continued, also after a crash. `qipf monitor` does this in a shell,
# with a growing file of logits: [Monitoring](../monitor.md#from-the-command-line).

# %%
monitor.save("watch.qipf")
again = qipf.ShiftMonitor.load("watch.qipf", model)
again.verdict().alarm_at
