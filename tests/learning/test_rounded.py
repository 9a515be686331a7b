"""AdamW with bfloat16 parameters and moments, rounded at random."""

import pytest
import torch
from tests.learning.llamas import small_llama

from gxpo.base.errors import ModelError
from gxpo.forest.forest import Forest
from gxpo.learning.optimiser_kinds import CHUNK, RoundedAdamW, round_stochastically
from gxpo.learning.torch import TorchLearner


def test_rounding_keeps_the_expectation():
    # 65536 noises, each once: the mean of the rounded values is the value, exactly; neighbours of 1 are 2^-7 apart
    x = torch.full((65536,), 1.0 + 0.3 * 2.0**-7)
    found = round_stochastically(x.clone(), torch.arange(65536, dtype=torch.int32))
    assert sorted(set(found.tolist())) == [1.0, 1.0 + 2.0**-7]
    assert abs(float(found.double().mean()) - float(x[0])) < 2.0**-7 / 65536
    negative = round_stochastically(-x, torch.arange(65536, dtype=torch.int32))
    assert abs(float(negative.double().mean()) + float(x[0])) < 2.0**-7 / 65536


def test_values_of_bfloat16_stay():
    x = torch.randn(1000).to(torch.bfloat16).to(torch.float32)
    assert torch.equal(round_stochastically(x.clone(), torch.randint(0, 65536, (1000,), dtype=torch.int32)), x)


def by_hand(p, gradients, lr, betas, eps, decay):
    """AdamW in float64."""
    m = v = torch.zeros_like(p)
    for t, g in enumerate(gradients, start=1):
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
        p = p * (1 - lr * decay)
        p = p - lr * (m / (1 - betas[0] ** t)) / ((v / (1 - betas[1] ** t)).sqrt() + eps)
    return p


def test_many_small_steps_add_up_as_in_float64():
    # a step of 1e-4 is a fortieth of the distance between neighbours at 1: to nearest, nothing would ever move
    n = 3 * CHUNK // 2
    p = torch.nn.Parameter(torch.ones(n, dtype=torch.bfloat16))
    adamw = RoundedAdamW([{"params": [p], "weight_decay": 0.01}], lr=1e-4, betas=(0.9, 0.999), eps=1e-8)
    generator = torch.Generator().manual_seed(0)
    gradients = [float(x) for x in 1 + 0.2 * torch.randn(40, generator=generator)]
    for g in gradients:
        p.grad = torch.full_like(p, g)
        adamw.step()
    exact = [torch.tensor(float(torch.tensor(g).to(torch.bfloat16)), dtype=torch.float64) for g in gradients]
    expected = float(by_hand(torch.tensor(1.0, dtype=torch.float64), exact, 1e-4, (0.9, 0.999), 1e-8, 0.01))
    assert expected < 0.9963
    # of so many parameters the mean is good to 1e-5; each alone is a neighbour of what it should be, or a little beside
    assert float(p.detach().double().mean()) == pytest.approx(expected, abs=5e-5)
    assert float(p.detach().double().std()) > 1e-4


def test_the_same_steps_are_the_same_to_the_bit_and_go_on_from_a_checkpoint():
    forest = Forest.from_completions([[3, 4]], [[[6, 7], [8]]], [[1.0, 0.0]])

    def learner():
        return TorchLearner(small_llama(), lr=1e-2, dtype="bfloat16", states="bfloat16")

    def run(policy, steps):
        for _ in range(steps):
            policy.step(forest, lambda x: -x["logprob"].mean())
        return policy.weights_crc()

    first = learner()
    run(first, 2)
    saved, meta = first.tensors(), first.meta()
    assert saved["exp_avg_sq/lm_head.weight"].dtype == torch.bfloat16
    second = learner()
    second.load_tensors(saved, meta)
    assert run(first, 2) == run(second, 2) == run(learner(), 4)
    before = small_llama().to(torch.bfloat16).lm_head.weight
    assert not torch.equal(first.model.lm_head.weight, before)


def test_float32_parameters_have_nothing_to_save():
    with pytest.raises(ModelError, match=r"needs learner\.dtype=bfloat16"):
        TorchLearner(small_llama(), lr=1e-2, states="bfloat16")
