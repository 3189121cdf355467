# %% [markdown]
# # Decide with a guarantee
#
# An accept rule is a threshold on the uncertainty that comes with a promise: with 95 % confidence,
# at most a given share of the accepted predictions is wrong. Here we make rules, and check the
# promise.

# %%
import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import binomtest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import qipf

images, labels = load_digits(return_X_y=True)
random = np.random.default_rng(0)
noisy = np.repeat(images, 4, 0) + random.normal(0, 4, (4 * len(images), 64))  # harder, and more
classes = np.repeat(labels, 4)
order = random.permutation(len(classes))
noisy, classes = noisy[order], classes[order]

net = LogisticRegression(max_iter=2000, C=0.01).fit(noisy[:1500], classes[:1500])
logits = net.decision_function(noisy)
train, held_out, new = slice(0, 1500), slice(1500, 4000), slice(4000, None)
field = qipf.QIPF().fit(logits[train], classes[train])
field.calibrate(logits[held_out], classes[held_out])
wrong = logits.argmax(1) != classes
print(f"error rate of all new predictions: {wrong[new].mean():.1%}")

# %% [markdown]
# ## The risk is given

# %%
for max_risk in (0.01, 0.02, 0.05):
    rule = field.accept_rule(max_risk=max_risk)
    accepted = field.accepts(logits[new])
    risk = wrong[new][accepted].mean() if accepted.any() else float("nan")
    print(f"risk ≤ {max_risk:.0%}: accepts {accepted.mean():.0%}, {risk:.1%} of them wrong")

# %% [markdown]
# Decide on one risk beforehand. If several are tried and the best is kept, the guarantee is lost.
#
# ## The coverage is given

# %%
print(field.accept_rule(min_coverage=0.8))

# %% [markdown]
# ## Nothing can be certified
#
# With few held-out predictions no threshold may be safe enough. The rule then accepts nothing, and
# says what is missing.

# %%
scores = field.uncertainty(logits[held_out])
few = qipf.accept_rule(scores[:100], wrong[held_out][:100], max_risk=0.01)
print(few)

# %% [markdown]
# ## The whole curve
#
# `risk_coverage` shows what can be had. Its band holds for one threshold, chosen beforehand.

# %%
curve = qipf.risk_coverage(scores, wrong[held_out])
confidence = np.exp(logits - logits.max(1, keepdims=True))
confidence = confidence.max(1) / confidence.sum(1)
other = qipf.risk_coverage(1 - confidence[held_out], wrong[held_out])
fig, axis = plt.subplots(figsize=(6, 3.2))
curve.plot(axis, name=f"QIPF ({field.score_})", color="#d55e00")
other.plot(axis, name="softmax confidence", color="#0072b2", linestyle="--")
fig.tight_layout()

# %% [markdown]
# ## Is the promise kept?
#
# Take all predictions that were not used for training as the population. Draw many calibration sets
# from it, make a rule with each, and look at its true risk, that in the population. At most 5 % of
# the rules may break a promise made with 95 % confidence.

# %%
pool = np.arange(1500, len(classes))
every_score = field.uncertainty(logits)
risks, coverages = [], []
for _ in range(1000):
    drawn = random.choice(pool, 1000)
    rule = qipf.accept_rule(every_score[drawn], wrong[drawn], max_risk=0.05)
    taken = rule(every_score[pool])
    risks.append(wrong[pool][taken].mean() if taken.any() else 0.0)
    coverages.append(taken.mean())
broken = binomtest(int(np.sum(np.array(risks) > 0.05)), len(risks))
low, high = broken.proportion_ci()
print(f"broken in {broken.k} of {broken.n} calibration sets: {broken.statistic:.1%}")
print(f"95 % interval of that share: {low:.1%} to {high:.1%}")
print(f"mean coverage {np.mean(coverages):.0%}, mean risk {np.mean(risks):.1%}")

# %% [markdown]
# The guarantee is for data like the calibration set. [Watch a stream](stream.md) to know when that
# ends; [Accept rules](../decisions.md) has the proof.
