"""Changes that no test once noticed: file below src/qipf, text before, text after."""

NAMED = [
    # the KL term of SVI counts once per training set, not once per batch
    (
        "bench/methods/svi.py",
        "penalty=lambda: network.kl() / len(clean.labels)",
        "penalty=lambda: network.kl()",
    ),
    (
        "bench/methods/svi.py",
        "penalty=lambda: head.kl() / len(clean.labels)",
        "penalty=lambda: head.kl()",
    ),
    # the certified sequence: reset after a failed threshold, its comparison, errors, ties
    (
        "calibration/fixed_sequence.py",
        "if len(failed):\n            carried = 0.0",
        "if False:\n            carried = 0.0",
    ),
    ("calibration/fixed_sequence.py", "max_risk) > carried", "max_risk) >= carried"),
    ("calibration/fixed_sequence.py", "FORGIVEN = (1, 4, 16)", "FORGIVEN = (0, 4, 16)"),
    (
        "calibration/accept_rule.py",
        "order = np.random.default_rng(0).permutation(len(scores))",
        "order = np.arange(len(scores))",
    ),
    # the change point of an alarm
    (
        "monitor/martingale.py",
        "change_point=int(best_start[largest]) + 1",
        "change_point=int(best_start[largest])",
    ),
    # the interval of the estimated accuracy
    ("calibration/accuracy.py", "(share**2) @", "share @"),
    ("calibration/accuracy.py", "missed * (1.0 - rates) ** 2", "missed * (1.0 - rates)"),
    ("calibration/accuracy.py", "false * rates**2", "false * rates"),
    # coresets
    ("field/kmeans.py", "POWER = 8", "POWER = 2"),
    # class sums on the CPU: the squared copies of the kernel and of what scales earlier tiles
    (
        "layered/class_sums.py",
        "kernel, lowered = kernel.square_(), lowered.square_()",
        "kernel, lowered = kernel.square_(), lowered",
    ),
    (
        "layered/class_sums.py",
        "kernel, lowered = kernel.square_(), lowered.square_()",
        "kernel, lowered = kernel, lowered.square_()",
    ),
    ("layered/class_sums.py", "nearest = nearest * 2**steps", "nearest = nearest"),
    # the recipe of LayeredQIPF
    ("layered/mixture_fit.py", "WIDTHS = (0.5, 0.5**0.5, 1.0, 2**0.5)", "WIDTHS = (1.0,)"),
    ("layered/tuning.py", "family), 1 / classes, halvings", "family), 0.0, halvings"),
    ("layered/predictions.py", "strengths(accuracy, 1 / classes)", "strengths(accuracy, 0.0)"),
    ("layered/selection.py", ".log().clamp(min=FLOOR)", ".log()"),
    # what the benchmark measures
    (
        "bench/methods/fields.py",
        'reduction: str = "random"\n    softening',
        'reduction: str = "coreset"\n    softening',
    ),
    (
        "bench/methods/fields.py",
        "LayeredQIPF(clean.network, random_state=clean.seed, **options)",
        "LayeredQIPF(clean.network, random_state=0, **options)",
    ),
    (
        "bench/networks.py",
        '"lenet": (LeNet, Recipe(epochs=20))',
        '"lenet": (LeNet, Recipe(epochs=10))',
    ),
    (
        "bench/networks.py",
        "epochs=40,\n            batch_size=256,\n            learning_rate=3e-3,\n"
        "            augment=True",
        "epochs=40,\n            batch_size=256,\n            learning_rate=3e-3,\n"
        "            augment=False",
    ),
    ("bench/networks.py", "Recipe(epochs=40, batch_size=64)", "Recipe(epochs=20, batch_size=64)"),
    ("bench/scoring.py", "(batch.predicted != labels)", "(batch.predicted == labels)"),
    (
        "bench/scoring.py",
        "self._part(self.dataset.test_images)",
        "self._part(self.dataset.train_images[: len(self.dataset.test_images)])",
    ),
]
