"""Features, logits and labels for the tests of `FeatureQIPF`."""

import numpy as np

FEW = {"max_centers": 200, "max_tuning": 60, "reduction": "random"}


def examples(count, seed, classes=4):
    """Two layers that know the class and logits that err where the second layer is noisy."""
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=count)
    deep = np.eye(classes)[labels] + 0.25 * random.normal(size=(count, classes))
    early = np.repeat(np.eye(classes)[labels], 2, 1) + 0.3 * random.normal(size=(count, 8))
    logits = 6 * deep + 1.5 * random.normal(size=(count, classes))
    return {"early": early, "deep": deep}, logits, labels


TRAIN, HELD_OUT, FRESH = examples(400, 0), examples(600, 1), examples(30, 2)
