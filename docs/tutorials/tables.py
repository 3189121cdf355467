# %% [markdown]
# # Two-class tables with XGBoost
#
# Boosted trees give one number for two classes, the margin. What distinguishes examples with the
# same margin are the leaves that they fall into. `FeatureQIPF` reads both.
#
# scikit-learn's forests and boosted trees work the same way: `forest.apply(rows)` gives the leaves.

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.preprocessing import OneHotEncoder
from xgboost import XGBClassifier

import qipf

inputs, labels = load_digits(return_X_y=True)  # 64 columns
labels = labels % 2  # is the digit odd?
order = np.random.default_rng(0).permutation(len(labels))
inputs, labels = inputs[order], labels[order]
train, held_out, new = slice(0, 600), slice(600, 1200), slice(1200, None)

trees = XGBClassifier(n_estimators=40, max_depth=4, learning_rate=0.3, n_jobs=1, random_state=0)
trees.fit(inputs[train], labels[train])
print(f"accuracy on new rows: {trees.score(inputs[new], labels[new]):.1%}")

# %% [markdown]
# ## Leaves and margins
#
# A column for each leaf of each tree, 1 for the leaf that a row falls into.

# %%
encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
encoder.fit(trees.apply(inputs[train]))


def leaves(rows):
    """(n, leaves) zeros and ones, by name."""
    return {"leaves": encoder.transform(trees.apply(rows))}


def margins(rows):
    """(n, 1) log-odds of class 1."""
    return trees.predict(rows, output_margin=True)[:, None]


print("leaves:", leaves(inputs[:3])["leaves"].shape, "margins:", margins(inputs[:3])[:, 0])

# %% [markdown]
# ## Copies with noise
#
# The trees know their training rows by heart. Rows with noise, run through the trees again, show
# `fit` what errors look like. They are optional: without them, the leaves themselves are perturbed.

# %%
random = np.random.default_rng(0)
perturbed = {}
for strength in (2, 4, 6):  # values go from 0 to 16
    noisy = inputs[train] + strength * random.normal(size=inputs[train].shape)
    perturbed[f"noise {strength}"] = (leaves(noisy), margins(noisy))

model = qipf.FeatureQIPF().fit(
    leaves(inputs[train]), margins(inputs[train]), labels[train], perturbed=perturbed
)
model.calibrate(leaves(inputs[held_out]), margins(inputs[held_out]), labels[held_out])
print(model.summary())

# %% [markdown]
# ## Decide

# %%
rule = model.accept_rule(max_risk=0.02)
prediction = model(leaves(inputs[new]), margins(inputs[new]))
wrong = prediction.predicted != labels[new]
print(rule)
print(f"wrong: {wrong.mean():.1%} of all, {wrong[prediction.accepted].mean():.1%} of the accepted")

# %% [markdown]
# ## Risk and coverage
#
# The error rate among the most certain share of the predictions, by the score of `FeatureQIPF` and
# by the margin alone.

# %%
fig, axis = plt.subplots(figsize=(6, 3.2))
qipf.risk_coverage(prediction.uncertainty, wrong).plot(axis, name="FeatureQIPF", color="#d55e00")
size = np.abs(margins(inputs[new]))[:, 0]
qipf.risk_coverage(-size, wrong).plot(axis, name="margin", color="#0072b2", linestyle="--")
fig.tight_layout()
