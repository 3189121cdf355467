"""What the methods of the benchmark are, in a sentence each."""

#: Methods that score a prediction from one pass.
_ONE_PASS = {
    "softmax": "One minus the probability of the predicted class.",
    "entropy": "Entropy of the predicted class probabilities.",
    "max_logit": "Minus the largest logit.",
    "energy": "Free energy of the logits: minus the logarithm of the sum of their exponentials.",
    "knn": "Distance of the features to the k-th nearest training example.",
    "mahalanobis": "Distance of the features to the nearest class mean, by the common covariance.",
    "qipf": "The paper's method: mean of the modes of a field over the training logits.",
    "qipf_normalized": "As qipf, with a kernel that integrates to one.",
    "qipf_standardized": "As qipf, with a standard normal kernel.",
    "qipf_default": "qipf.QIPF() with its default options.",
    "qipf_potential": "The potential of the field over the training logits alone.",
    "qipf_density": "Minus the log density of the training logits.",
    "qipf_plus": "qipf.LayeredQIPF: log-odds of an error, from the fields of all layers.",
    "qipf_plus_novelty": "qipf.LayeredQIPF: how unlike the training data an input is.",
    "gen": "Generalised entropy of the class probabilities.",
    "doctor": "Log-odds that a class drawn from the probabilities differs from another draw.",
    "max_logit_pnorm": "Minus the largest centred logit, divided by the p-norm of the logits.",
    "temperature": "As softmax, at a temperature fitted to held-out training data.",
    "kl_matching": "Divergence of the class probabilities from the nearest typical ones.",
    "she": "Minus the inner product of the features with their class's mean.",
    "nci": "Minus the alignment of the features with the weights of their class.",
    "fdbd": "Minus the mean distance of the features to the decision boundaries.",
    "vim": "Part of the features outside their principal subspace, as one more logit.",
    "sirc": "Softmax, raised where the features are small.",
    "react": "Energy after clipping large features.",
    "ash": "Energy of the largest features alone, rescaled.",
    "scale": "Energy of all features, rescaled as in ash.",
    "nnguide": "Energy, weighted by similarity to training features.",
    "trust_score": "Distance to the predicted class, relative to the nearest other class.",
    "nuq": "Uncertainty of a kernel classifier over the features.",
    "rmds": "Mahalanobis distance to the nearest class, relative to that to all classes together.",
    "laplace_ll": "Entropy under a Gaussian posterior of the last layer's weights (Laplace).",
    "stacked": "Logistic regression of errors on entropy, max_logit, energy and knn.",
}

#: How the samples of a sampling method are drawn.
_SAMPLERS = {
    "mc_dropout": "passes with dropout",
    "mc_dropout_ll": "passes with dropout before the last layer",
    "svi": "passes with random weights (variational inference)",
    "svi_ll": "passes with random weights of the last layer",
    "ensemble": "networks trained alike",
    "tta": "shifted and mirrored copies of the image",
}

#: The score of these samples, by what it adds to the name.
_SCORES = {
    "": "Standard deviation of the predicted class's probability over",
    "_entropy": "Entropy of the mean class probabilities of",
    "_own_class": "Standard deviation of the probability of the class most likely on average, over",
    "_log_odds": "Log-odds of an error by the mean class probabilities of",
}

EXPLANATIONS: dict[str, str] = _ONE_PASS | {
    name + suffix: f"{score} {samples}."
    for suffix, score in _SCORES.items()
    for name, samples in _SAMPLERS.items()
}


def explanation(method: str) -> str:
    """A method in one sentence; empty for a method of the user's own.

    >>> explanation("ensemble_entropy")
    'Entropy of the mean class probabilities of networks trained alike.'
    """
    return EXPLANATIONS.get(method, "")
