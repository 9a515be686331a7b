"""One token for every row."""

import math

import pytest
import torch

from gxpo.parts.protocols import Sampling
from gxpo.sampling.engines.decode import draw, support_of


def by_hand(logits: list[float], sampling: Sampling) -> dict[int, float]:
    """The processed distribution from its definition, with loops and dictionaries."""
    scaled = {i: z / sampling.temperature for i, z in enumerate(logits)}
    order = sorted(scaled, key=lambda i: -scaled[i])
    if sampling.top_k:
        order = order[: sampling.top_k]
    total = math.fsum(math.exp(scaled[i]) for i in order)
    kept, mass = [], 0.0
    for i in order:
        if mass >= sampling.top_p:
            break
        kept.append(i)
        mass += math.exp(scaled[i]) / total
    total = math.fsum(math.exp(scaled[i]) for i in kept)
    return {i: math.exp(scaled[i]) / total for i in kept}


SETTINGS = [
    Sampling(),
    Sampling(temperature=0.6),
    Sampling(temperature=1.7, top_k=3),
    Sampling(top_p=0.8),
    Sampling(temperature=1.3, top_k=6, top_p=0.7),
    Sampling(top_k=1),
    Sampling(top_p=1e-9),
    Sampling(top_k=1000),
]


# one block of columns, two whole ones, several and a rest; probabilities of float32 logits are computed in float32
@pytest.mark.parametrize("columns", [11, 256, 300])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("sampling", SETTINGS)
def test_token_and_logprob_are_those_of_the_processed_distribution(sampling, dtype, close, columns):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(40, columns, generator=generator, dtype=dtype)
    uniform = torch.rand(40, generator=generator, dtype=torch.float64)
    drawn = draw(logits, uniform, sampling)
    for i in range(40):
        p = by_hand(logits[i].double().tolist(), sampling)
        below, chosen = 0.0, None
        for token in sorted(p):
            below += p[token]
            if below > float(uniform[i]):
                chosen = token
                break
        assert int(drawn.token[i]) == chosen
        assert math.isclose(float(drawn.logprob[i]), math.log(p[chosen]), abs_tol=close)
        if sampling.truncated_support:
            assert [t for t in drawn.support[i].tolist() if t >= 0] == sorted(p)
    assert (drawn.support is None) == (not sampling.truncated_support)


def test_greedy_takes_the_most_likely_with_certainty():
    drawn = draw(torch.tensor([[0.0, 3.0, 1.0]]), torch.tensor([0.99], dtype=torch.float64), Sampling(temperature=0))
    assert (drawn.token.tolist(), drawn.logprob.tolist(), drawn.support) == ([1], [0.0], None)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_ends_of_the_unit_interval_never_draw_an_impossible_token(uniform):
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]])
    drawn = draw(logits, torch.tensor([uniform], dtype=torch.float64), Sampling())
    assert int(drawn.token) == (1 if uniform == 0.0 else 2)


def test_support_counts_the_token_that_reaches_top_p():
    # p = 0.5, 0.3, 0.2: 0.5 is below 0.6, with 0.3 it is reached; exactly 0.5 is reached by the first alone
    scaled = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64).log()
    assert support_of(scaled, 0, 0.6).tolist() == [[1, 2]]
    assert support_of(scaled, 0, 0.4999).tolist() == [[1]]
    assert support_of(scaled, 2, 1.0).tolist() == [[1, 2]]


def test_rows_of_different_support_are_padded():
    scaled = torch.tensor([[0.98, 0.01, 0.01], [0.34, 0.33, 0.33]], dtype=torch.float64).log()
    assert support_of(scaled, 0, 0.9).tolist() == [[0, -1, -1], [0, 1, 2]]


def test_nearly_equal_logits_may_change_places():
    # the order of ids, not of probabilities: rounding noise must not change which token a uniform number names
    uniform = torch.tensor([0.25], dtype=torch.float64)
    sampling = Sampling(top_k=2)
    one = draw(torch.tensor([[1.0, 1.0 + 1e-6, -5.0]], dtype=torch.float64), uniform, sampling)
    other = draw(torch.tensor([[1.0 + 1e-6, 1.0, -5.0]], dtype=torch.float64), uniform, sampling)
    assert int(one.token) == int(other.token) == 0


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="uniform"):
        draw(torch.zeros(3, 4), torch.zeros(2, dtype=torch.float64), Sampling())
