"""Optimisers by kind: reference numbers in float64, bounds, checkpoints, refusals; AdamW with stochastic rounding."""

import math

import pytest
import torch
from tests.learning.llamas import clean_llama, small_llama
from torch import nn

from gxpo.base.errors import CheckpointError, ConfigError, ModelError
from gxpo.forest.forest import Forest
from gxpo.learning.lora import LoraSettings
from gxpo.learning.optimiser import Optimiser
from gxpo.learning.optimiser_kinds import (
    CHUNK,
    KINDS,
    RoundedAdamW,
    Rule,
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


# ---------------------------------------------------------------- direction and caution
LION_CARD = {"lr": 0.1, "weight_decay": 0.1}
AVERAGE, GRADIENT = [0.2, -0.3, 0.0], [-1.0, -0.1, 0.0]


def after_average(kind, gradient, average, rule=None, value=(1.0, 1.0, 1.0), **settings):
    """A step of an optimiser that has an average: the parameter and the new average."""
    p, optimiser = one(list(value), kind, rule=rule, **settings)
    saved = {name: torch.zeros_like(x) for name, x in optimiser.expected_tensors(1).items()}
    saved |= {"parameter/w": p.detach().clone(), "exp_avg/w": torch.tensor([average], dtype=torch.float64)}
    optimiser.load_tensors(saved, 1)
    return step(p, optimiser, gradient), optimiser.tensors()["exp_avg/w"][0].tolist()


def test_lion_from_an_average():
    """c = .9 m + .1 g = (.08, -.28, 0): x = .99 - .1 (1, -1, 0); m = .99 m + .01 g."""
    moved, average = after_average("lion", GRADIENT, AVERAGE, **LION_CARD)
    assert moved == pytest.approx([0.89, 1.09, 0.99], abs=1e-12)
    assert average == pytest.approx([0.188, -0.298, 0.0], abs=1e-12)


def test_signum_without_momentum_is_signsgd():
    moved, _ = after_average("signum", [0.3, -2.0, 0.0], AVERAGE, lr=0.1, betas=(0.0, 0.0))
    assert moved == pytest.approx([0.9, 1.1, 1.0], abs=1e-12)


@pytest.mark.parametrize(("caution", "second"), [("plus_one", 1.14), ("mean_floor", 1.29)])
def test_cautious_lion_by_hand(caution, second):
    """Only the second coordinate's sign is that of its gradient: scale 3 / 2, or 3 / 1; x = .99 + .1 scale."""
    moved, average = after_average("lion", GRADIENT, AVERAGE, Rule(caution=caution), **LION_CARD)
    assert moved == pytest.approx([0.99, second, 0.99], abs=1e-12)
    assert average == pytest.approx([0.188, -0.298, 0.0], abs=1e-12)


def test_cautious_adamw_stays_where_momentum_and_gradient_differ():
    """Gradients 1, then -.1: the average is still above 0, so the first coordinate rests; the second goes on."""
    p, optimiser = one([0.0, 0.0], "adamw", lr=0.1, rule=Rule(caution="mean_floor"))
    first = step(p, optimiser, [1.0, 1.0])
    second = step(p, optimiser, [-0.1, 1.0])
    assert first == pytest.approx([-0.1, -0.1], abs=1e-6) and second == pytest.approx([-0.1, -0.3], abs=1e-5)


def test_a_direction_over_its_norm_by_hand():
    """Betas 0: c = g = (3, 4), norm 5: x = -.5 (.6, .8). Of two tensors the norm is of both: (3) and (4)."""
    rule = Rule(direction="norm")
    p, optimiser = one([0.0, 0.0], "lion", lr=0.5, betas=(0.0, 0.0), rule=rule)
    assert step(p, optimiser, [3.0, 4.0]) == pytest.approx([-0.3, -0.4], abs=1e-12)
    a, b = (nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2))
    optimiser = Optimiser({"a": a, "b": b}, kind="lion", lr=0.5, betas=(0.0, 0.0), rule=rule, max_grad_norm=None)
    a.grad, b.grad = torch.tensor([3.0]).double(), torch.tensor([4.0]).double()
    optimiser.step()
    assert [x.item() for x in (a.detach(), b.detach())] == pytest.approx([-0.3, -0.4], abs=1e-12)


def test_a_clipped_direction_by_hand():
    """Threshold .1, c = (.05, -.4): .05 / .1 = .5, and -4 is cut to -1."""
    p, optimiser = one([0.0, 0.0], "lion", lr=1.0, betas=(0.0, 0.0), rule=Rule("clip", 0.1))
    assert step(p, optimiser, [0.05, -0.4]) == pytest.approx([-0.5, 1.0], abs=1e-12)


def test_a_stochastic_sign_is_right_on_the_mean():
    """m (.3, -.5) with bounds (.6, .5): the mean sign is (.5, -1), the second without chance."""
    n = 20000
    p = nn.Parameter(torch.zeros(2, n, dtype=torch.float64))
    optimiser = Optimiser(
        {"w": p}, kind="signum", lr=1.0, betas=(0.0, 0.0), rule=Rule("stochastic"), max_grad_norm=None
    )
    bound = torch.tensor([[0.6], [0.5]]).double().expand(2, n)
    states = {"parameter/w": p.detach().clone(), "exp_avg/w": torch.zeros_like(bound), "bound/w": bound}
    optimiser.load_tensors(states, 1)
    p.grad = torch.tensor([[0.3], [-0.5]]).double().expand(2, n).clone()
    optimiser.step()
    first, second = (-p.detach()).mean(1).tolist()
    assert first == pytest.approx(0.5, abs=0.03) and second == -1.0


def test_implicit_gradient_transport_by_hand():
    """x_before (0, 0), x (1, 0), b .5: the parameters are y = (2, 0). d = (1, 1), g = (3, 1) upwards: d = (2, 1), and x
    = (1, 0) + .1 (2, 1) / sqrt 5; y = x + (x - (1, 0))."""
    p, optimiser = one([2.0, 0.0], "igt", lr=0.1, betas=(0.5, 0.0))
    states = {"parameter/w": [2.0, 0.0], "point/w": [1.0, 0.0], "exp_avg/w": [-1.0, -1.0]}
    optimiser.load_tensors({k: torch.tensor([x], dtype=torch.float64) for k, x in states.items()}, 1)
    moved = step(p, optimiser, [-3.0, -1.0])
    assert optimiser.tensors()["point/w"][0].tolist() == pytest.approx([1.089443, 0.044721], abs=1e-6)
    assert moved == pytest.approx([1.178885, 0.089443], abs=1e-6)


def test_muon_maps_singular_values_as_its_polynomial_does():
    """Gradient diag(.8, .6) has Frobenius norm 1; five rounds of 3.4445 s - 4.7750 s^3 + 2.0315 s^5 make .8 1.119204,
    in bfloat16 up to .03. Its rate is lr .2 sqrt(2)."""
    p = nn.Parameter(torch.zeros(2, 2))
    optimiser = Optimiser({"w": p}, kind="muon", lr=1.0, max_grad_norm=None)
    p.grad = torch.diag(torch.tensor([0.8, 0.6]))
    optimiser.step()
    assert float(-p[0, 0]) / (0.2 * math.sqrt(2)) == pytest.approx(1.119204, abs=0.03)


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
    optimiser = Optimiser(listed_settings, kind="muon", lr=0.1, max_grad_norm=None, outer_names=("embed.",))
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


RULES = [Rule("norm"), Rule("clip"), Rule("stochastic"), Rule(caution="plus_one"), Rule("norm", caution="mean_floor")]


@pytest.mark.parametrize(("kind", "rule"), [*((kind, Rule()) for kind in KINDS), *(("lion", rule) for rule in RULES)])
def test_two_steps_and_two_more_are_four(kind, rule):
    def fresh():
        torch.manual_seed(1)
        listed_settings = {"a.w": nn.Parameter(torch.randn(4, 3)), "b": nn.Parameter(torch.randn(3))}
        return listed_settings, Optimiser(listed_settings, kind=kind, lr=1e-2, weight_decay=0.1, rule=rule)

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
    assert saved.keys() == begun.expected_tensors(2).keys()
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
        (["learner.optimiser=muon", "optim.direction=norm"], "signum and lion"),
        (["learner.optimiser=igt", "optim.caution=plus_one"], "not of learner.optimiser=igt"),
        (["optim.caution=plus_one", "learner.states=bfloat16", "learner.dtype=bfloat16"], "states=bfloat16"),
        (["learner.optimiser=igt", "method=sfpo"], "slow_fast"),
    ],
)
def test_what_cannot_be_had_is_refused(sets, said):
    resolved = config.load(None, sets)
    with pytest.raises((ConfigError, ModelError), match=said):
        check_settings(resolved.settings, resolved.method)


LORA = LoraSettings(rank=2, targets=("q_proj",))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "muon"])
def test_adapters_take_a_step(kind):
    rule = Rule(caution="plus_one") if kind in ("adamw", "lion") else Rule()
    learner = TorchLearner(clean_llama(), lr=1e-2, optimiser=kind, rule=rule, lora=LORA)
    forest = Forest.from_completions([[3, 4]], [[[6, 7], [8]]], [[1.0, 0.0]])
    before = learner.fingerprint()
    learner.step(forest, lambda x: -x["logprob"].mean())
    assert learner.fingerprint() != before


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
