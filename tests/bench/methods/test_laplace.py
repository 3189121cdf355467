from __future__ import annotations

import math

import pytest
import torch

from qipf.bench.methods import Batch, CleanData, LayeredNetwork, create


def test_equals_the_dense_posterior_where_the_hessian_factorises():
    # equal inputs: the mean of Kronecker products is the product of the means
    torch.manual_seed(0)
    network = LayeredNetwork([torch.nn.Flatten()], torch.nn.Linear(2, 3))
    clean = CleanData(
        network, torch.tensor([[1.0, 2.0]]).repeat(5, 1)[:, None, None], torch.zeros(5).long()
    )
    method = create("laplace_ll").fit(clean)
    phi = torch.tensor([1.0, 2.0, 1.0]).double()
    p = torch.softmax(clean.logits[0].double(), 0)
    hessian = 5 * torch.kron(torch.outer(phi, phi), torch.diag(p) - torch.outer(p, p))
    hessian += method.chosen()["prior_precision"] * torch.eye(9)
    batch = Batch.of(network, torch.tensor([[[[0.5, -1.0]]]]))
    psi = torch.kron(torch.tensor([[0.5, -1.0, 1.0]]).double(), torch.eye(3).double())  # (3, 9)
    variance = (psi @ torch.linalg.inv(hessian) @ psi.T).diagonal()
    scaled = batch.logits[0].double() / (1 + math.pi / 8 * variance).sqrt()
    q = torch.softmax(scaled, 0)
    assert method.score(batch).item() == pytest.approx(-float((q * q.log()).sum()), rel=1e-6)


def test_the_prior_maximises_the_evidence(relu_data):
    best = create("laplace_ll").fit(relu_data).chosen()["prior_precision"]
    phi = torch.nn.functional.pad(relu_data.features.double(), (0, 1), value=1.0)
    p = torch.softmax(relu_data.logits.double(), 1)
    b = torch.diag(p.mean(0)) - p.T @ p / len(p)
    hessian = torch.kron(phi.T @ phi, b)
    head = relu_data.network.head
    size = sum(float(part.detach().double().square().sum()) for part in head.parameters())

    def evidence(prior: float) -> float:
        eye = torch.eye(len(hessian)).double()
        return (
            len(hessian) * math.log(prior) - prior * size
            - float(torch.linalg.slogdet(hessian + prior * eye)[1])
        ) / 2  # fmt: skip

    assert evidence(best) > evidence(best * 10**0.5)
    assert evidence(best) > evidence(best / 10**0.5)


def test_doubt_grows_away_from_the_data(relu_data):
    method = create("laplace_ll").fit(relu_data)
    features = torch.tensor([[1.0], [1e3], [1e6]]) * relu_data.features[:1]
    with torch.no_grad():
        logits = relu_data.network.head(features)
    plain = create("entropy").score(Batch(features, logits, features))
    found = method.score(Batch(features, logits, features))
    assert bool((found > plain).all())
    assert found[2].item() > 0.01  # scaling the logits up does not make it sure
