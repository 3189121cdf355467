"""The benchmark: datasets, corruptions, networks, training, evaluation, runner."""
