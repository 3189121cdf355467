from __future__ import annotations

import torch

from qipf.bench.methods import Batch, create
from qipf.bench.methods.network import predict


def test_it_draws_the_predictions_of_its_networks(clean, shifted):
    members = []
    ensemble = create("ensemble", networks=2)

    class Recording:
        def train(self, *args, **kwargs):
            raise AssertionError("an ensemble trains its networks at once")

        def train_ensemble(self, network, count, inputs, labels):
            assert network is clean.network
            assert inputs is clean.images
            trained = clean.trainer.train_ensemble(network, count, inputs[:200], labels[:200])
            members.extend(trained)
            return trained

    data = type(clean)(clean.network, clean.images, clean.labels, Recording())
    batch = Batch(shifted.images, shifted.logits, shifted.features)
    samples = ensemble.fit(data).samples(batch)
    assert len(members) == 2
    probabilities = [predict(m, batch.images).logits.double().softmax(1) for m in members]
    torch.testing.assert_close(samples.mean, sum(probabilities) / 2)
    for drawn, expected in zip(samples.predicted, probabilities, strict=True):
        torch.testing.assert_close(drawn, expected[torch.arange(599), batch.predicted])


def test_members_differ_from_each_other_and_from_the_network(clean):
    members = clean.trainer.train_ensemble(clean.network, 2, clean.images[:200], clean.labels[:200])
    weights = [m.head.weight for m in (*members, clean.network)]
    for i in range(3):
        for j in range(i):
            assert (weights[i] - weights[j]).abs().mean() > 0.01
