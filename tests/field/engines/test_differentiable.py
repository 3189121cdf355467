import torch

from qipf.field.engines.differentiable import averages


def test_averages_and_their_gradients_are_those_of_softmax():
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(24, 3, generator=generator).double()
    given = [torch.randn(7, *shape, generator=generator).double() for shape in ((3,), (), (3,), ())]
    keys, bias, values, squares = given
    scores = queries @ keys.T + bias
    lse, mean, mean_square = averages(queries, *given)
    torch.testing.assert_close(lse, torch.logsumexp(scores, 1))
    torch.testing.assert_close(mean, torch.softmax(scores, 1) @ values)
    torch.testing.assert_close(mean_square, torch.softmax(scores, 1) @ squares)
    leaves = [part.requires_grad_() for part in given]
    assert torch.autograd.gradcheck(lambda *parts: averages(queries, *parts), leaves)
    # any number of queries, not only those that fill all blocks
    assert torch.autograd.gradcheck(lambda *parts: averages(queries[:5], *parts), leaves)
