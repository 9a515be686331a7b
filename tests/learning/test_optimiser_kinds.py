"""Optimisers by kind: reference numbers in float64, bounds, checkpoints, refusals; AdamW with stochastic rounding."""

import math

import pytest
import torch
from tests.learning.llamas import clean_llama, small_llama
from torch import nn

from gxpo.base.errors import CheckpointError, ConfigError, ModelError
from gxpo.forest.forest import Forest
from gxpo.learning.optimiser import Optimiser
from gxpo.learning.optimiser_kinds import (
    CHUNK,
    KINDS,
    RoundedAdamW,
    SignMomentum,
    betas_of,
    round_stochastically,
)
from gxpo.learning.torch import TorchLearner
from gxpo.training import config
from gxpo.training.preflight import check_settings


def one(value, kind, **settings):
    """An optimiser of one float64 matrix [1, n]."""
    p = nn.Parameter(torch.tensor([value], dtype=torch.float64))
    return p, Optimiser({"w": p}, kind=kind, max_grad_norm=None, **settings)


def step(p, optimiser, gradient):
    p.grad = torch.tensor([gradient], dtype=torch.float64)
    optimiser.step()
    return p.detach()[0].tolist()


def test_lion_by_hand():
    """b1 .9, b2 .99, lr .1, w .5. Step 1: m 0, c = .1 g, sign (1, -1): x = .95 (2, 1) - .1 (1, -1) = (1.8, 1.05), m =
    .01 (1, -4). Step 2, g (-.05, 0): c = .9 m + .1 g = (.004, -.036): x = .95 (1.8, 1.05) - .1 (1, -1)."""
    p, optimiser = one([2.0, 1.0], "lion", lr=0.1, weight_decay=0.5)
    assert step(p, optimiser, [1.0, -4.0]) == pytest.approx([1.8, 1.05], abs=1e-12)
    assert step(p, optimiser, [-0.05, 0.0]) == pytest.approx([1.61, 1.0975], abs=1e-12)


def test_signum_by_hand():
    """b .9, lr .1. m = .1 (1, -4) = (.1, -.4), then .9 m + .1 (-2, 1) = (-.11, -.26)."""
    p, optimiser = one([0.0, 0.0], "signum", lr=0.1)
    assert step(p, optimiser, [1.0, -4.0]) == pytest.approx([-0.1, 0.1], abs=1e-12)
    assert step(p, optimiser, [-2.0, 1.0]) == pytest.approx([0.0, 0.2], abs=1e-12)


def test_sgd_by_hand():
    """No momentum by default; with b .9 the buffer is g, then .9 g + g."""
    p, optimiser = one([1.0], "sgd", lr=0.5)
    assert step(p, optimiser, [1.0]) == pytest.approx([0.5], abs=1e-12)
    p, optimiser = one([1.0], "sgd", lr=0.1, betas=(0.9, 0.0))
    assert step(p, optimiser, [1.0]) == pytest.approx([0.9], abs=1e-12)
    assert step(p, optimiser, [1.0]) == pytest.approx([0.71], abs=1e-12)


@pytest.mark.parametrize("kind", ["lion", "signum"])
def test_a_coordinate_never_leaves_one_over_the_decay(kind):
    generator = torch.Generator().manual_seed(0)
    p = nn.Parameter(torch.rand(4, 5, generator=generator, dtype=torch.float64) * 4 - 2)  # within 1 / .5
    optimiser = Optimiser({"w": p}, kind=kind, lr=0.3, weight_decay=0.5, max_grad_norm=None)
    for _ in range(200):
        p.grad = torch.randn(4, 5, generator=generator, dtype=torch.float64) + 0.5
        optimiser.step()
        assert float(p.detach().abs().max()) <= 2.0 + 1e-12


def test_the_scale_of_the_gradient_does_not_matter_to_signs():
    actual = []
    for scale in (1.0, 1e-6):
        p, optimiser = one([0.3, -0.2], "lion", lr=0.1)
        for g in ([0.1, -0.4], [-0.3, 0.2], [0.2, 0.2]):
            moved = step(p, optimiser, [scale * x for x in g])
        actual.append(moved)
    assert actual[0] == pytest.approx(actual[1], abs=1e-12)


def test_muon_makes_steps_of_hidden_matrices_orthogonal():
    """The step of a hidden matrix [6, 4] divided by lr .2 sqrt(6) has singular values about 1; AdamW moves the rest."""
    torch.manual_seed(0)
    listed_settings = {"layers.0.w": nn.Parameter(torch.zeros(6, 4)), "embed.weight": nn.Parameter(torch.zeros(6, 4))}
    optimiser = Optimiser(listed_settings, kind="muon", lr=0.1, max_grad_norm=None, apart=("embed.",))
    for p in listed_settings.values():
        p.grad = torch.randn(6, 4) @ torch.diag(torch.tensor([10.0, 3.0, 1.0, 0.3]))
    sign = listed_settings["embed.weight"].grad.sign()
    optimiser.step()
    values = torch.linalg.svdvals(listed_settings["layers.0.w"].detach() / (0.1 * 0.2 * math.sqrt(6)))
    assert float(values.min()) > 0.6 and float(values.max()) < 1.3
    assert torch.allclose(listed_settings["embed.weight"].detach(), -0.1 * sign, atol=1e-5)


def test_muon_leaves_embeddings_and_head_to_adamw():
    learner = TorchLearner(clean_llama(), lr=1e-3, optimiser="muon", value_heads=("value",))
    kinds = {
        name: kind
        for name, kind in learner.optimiser._kind_by_name.items()
        if learner.optimiser.parameter_by_name[name].dim() == 2
    }
    apart = {name for name, kind in kinds.items() if kind == "adamw"}
    assert {name.split(".")[-2] for name in apart} <= {"embed_tokens", "lm_head", "value_head"} and apart
    assert sum(kind == "muon" for kind in kinds.values()) == len(kinds) - len(apart) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_two_steps_and_two_more_are_four(kind):
    def fresh():
        torch.manual_seed(1)
        listed_settings = {"a.w": nn.Parameter(torch.randn(4, 3)), "b": nn.Parameter(torch.randn(3))}
        return listed_settings, Optimiser(listed_settings, kind=kind, lr=1e-2, weight_decay=0.1)

    def run(named, optimiser, gradients):
        for g in gradients:
            for name, p in named.items():
                p.grad = g[name].clone()
            optimiser.step()

    torch.manual_seed(2)
    gradients = [{"a.w": torch.randn(4, 3), "b": torch.randn(3)} for _ in range(4)]
    full_value, calm = fresh()
    run(full_value, calm, gradients)
    first, begun = fresh()
    run(first, begun, gradients[:2])
    saved = begun.tensors()
    assert saved.keys() == begun.expected(2).keys()
    second, resumed = fresh()
    resumed.load_tensors(saved, 2)
    run(second, resumed, gradients[2:])
    assert all(torch.equal(full_value[name], second[name]) for name in full_value)


def test_another_optimisers_state_is_refused():
    _, lion = one([1.0], "lion", lr=0.1)
    p, adamw = one([1.0], "adamw", lr=0.1)
    step(p, adamw, [1.0])
    with pytest.raises(CheckpointError, match="exp_avg_sq"):
        lion.load_tensors(adamw.tensors(), 1)


def test_betas_are_the_optimisers_own_unless_stated():
    assert betas_of("lion", None) == (0.9, 0.99) and betas_of("adamw", None) == (0.9, 0.999)
    assert betas_of("lion", [0.5, 0.6]) == (0.5, 0.6)
    assert SignMomentum([{"params": [nn.Parameter(torch.ones(1))]}], lr=1.0, betas=(0.1, 0.2)).defaults["lr"] == 1.0
    with pytest.raises(ConfigError, match="adamw, sgd"):
        betas_of("adam", None)


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["learner.optimiser=muon", "learner.lora_rank=4"], "LoRA"),
        (["learner.optimiser=muon", "model=flow", "method=flow_grpo"], "model flow"),
        (["learner.optimiser=lion", "learner.states=bfloat16", "learner.dtype=bfloat16"], "float32 states"),
        (["learner.optimiser=lion", "cluster.backend=verl"], "AdamW"),
        (["learner.optimiser=lion", "cluster.backend=tinker"], "AdamW"),
        (["learner.optimiser=muon", "cluster.backend=fsdp"], "muon"),
    ],
)
def test_what_cannot_be_had_is_refused(sets, said):
    resolved = config.load(None, sets)
    with pytest.raises((ConfigError, ModelError), match=said):
        check_settings(resolved.settings, resolved.method)


# ---------------------------------------------------------------- AdamW with stochastic rounding
def test_rounding_keeps_the_expectation():
    # 65536 noises, each once: the mean of the rounded values is the value, exactly; neighbours of 1 are 2^-7 apart
    x = torch.full((65536,), 1.0 + 0.3 * 2.0**-7)
    actual = round_stochastically(x.clone(), torch.arange(65536, dtype=torch.int32))
    assert sorted(set(actual.tolist())) == [1.0, 1.0 + 2.0**-7]
    assert abs(float(actual.double().mean()) - float(x[0])) < 2.0**-7 / 65536
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


@pytest.mark.slow
def test_steps_repeat_to_the_bit_and_from_a_checkpoint():
    forest = Forest.from_completions([[3, 4]], [[[6, 7], [8]]], [[1.0, 0.0]])

    def learner():
        return TorchLearner(small_llama(), lr=1e-2, dtype="bfloat16", states="bfloat16")

    def run(policy, steps):
        for _ in range(steps):
            policy.step(forest, lambda x: -x["logprob"].mean())
        return policy.fingerprint()

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
