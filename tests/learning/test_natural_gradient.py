"""The natural gradient: against a Fisher matrix written out, within its bound, and better than where it began."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learning.llamas import clean_llama, random_forest, small_llama

import gxpo
from gxpo.algorithms.signals import Signals
from gxpo.base.errors import ConfigError
from gxpo.learning.natural_gradient import NaturalGradient, conjugate_gradient, flatten, mean_kl, unflatten
from gxpo.learning.torch import TorchLearner
from gxpo.training.bound_learner import BoundLearner

TINY = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1}  # fmt: skip


# ---------------------------------------------------------------- conjugate gradients
@given(st.integers(0, 1000), st.integers(1, 8))
def test_n_iterations_solve_n_dimensions(seed, n):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(n, n, generator=generator, dtype=torch.float64)
    matrix = root @ root.T + torch.eye(n, dtype=torch.float64)
    b = torch.randn(n, generator=generator, dtype=torch.float64)
    x = conjugate_gradient(lambda v: matrix @ v, b, n + 2)
    assert torch.allclose(matrix @ x, b, atol=1e-8)


def test_two_iterations_by_hand():
    # A = diag(1, 3), b = (1, 1): alpha = 2/4, r = (.5, -.5), beta = .5/2, d = (.75, -.25), alpha = .5/.75: x = (1, 1/3)
    matrix, b = torch.diag(torch.tensor([1.0, 3.0], dtype=torch.float64)), torch.ones(2, dtype=torch.float64)
    assert conjugate_gradient(lambda v: matrix @ v, b, 1).tolist() == pytest.approx([0.5, 0.5])
    assert conjugate_gradient(lambda v: matrix @ v, b, 2).tolist() == pytest.approx([1.0, 1 / 3])


def test_a_direction_without_curvature_ends_it():
    b = torch.ones(2, dtype=torch.float64)
    assert conjugate_gradient(torch.zeros_like, b).tolist() == [0.0, 0.0]
    assert conjugate_gradient(lambda v: v, torch.zeros(2)).tolist() == [0.0, 0.0]


def test_the_kl_of_the_card_toy():
    # Delta = .3, -.1, -.4, .2, .5: rho - 1 - Delta = .049859, .004837, .070320, .021403, .148721; mean .059028
    old = torch.tensor([-0.5, -1.0, -2.0, -0.3, -0.7], dtype=torch.float64)
    new = old + torch.tensor([0.3, -0.1, -0.4, 0.2, 0.5], dtype=torch.float64)
    assert mean_kl(new, old) == pytest.approx(0.059028, abs=1e-6) and mean_kl(old, old) == 0.0


def test_one_column_and_back():
    tensors = {"b": torch.arange(4.0).view(2, 2), "a": torch.tensor([9.0])}
    assert flatten(tensors).tolist() == [9, 0, 1, 2, 3]
    back = unflatten(flatten(tensors), tensors)
    assert all(torch.equal(back[k], tensors[k]) for k in tensors)


# ---------------------------------------------------------------- on a model
def bound(learner, seed=1, overrides=None):
    forest = random_forest(seed)
    forest = forest.replace(outcome=torch.nan_to_num(forest.outcome))
    m = gxpo.method("trpo", overrides)
    signals = Signals.of(forest, {})
    noise = torch.Generator().manual_seed(seed)
    credit = torch.randn(forest.n_entries, generator=noise, dtype=torch.float64)
    weight = m.token_weights(forest, credit, signals, 1)
    return forest, BoundLearner(learner, m, forest, signals, 1), credit, weight


def fresh(**settings):
    return TorchLearner(clean_llama(**TINY), lr=1e-2, **settings)


def explicit(learner, forest, credit, weight):
    """Gradient of -mean A log pi and the Fisher matrix, token by token."""
    tokens = forest.path_trainable.nonzero().squeeze(1).tolist()
    rows = []
    for p in tokens:
        one = torch.zeros(forest.n_entries, dtype=torch.float64)
        one[p] = 1.0
        actual = learner.gradient(forest, lambda x, one=one: (one * x["logprob"]).sum())
        rows.append(flatten(actual))
    jacobian = torch.stack(rows)
    own_credit = (credit * weight)[tokens]
    return -(own_credit @ jacobian) / len(tokens), jacobian.T @ jacobian / len(tokens)


def run(part, learner, **given):
    forest, bound_learner, credit, weight = bound(learner, **given)
    before = bound_learner.learner.outputs(forest)["logprob"]
    infos = part.run(forest, credit, weight, bound_learner)
    tokens = forest.path_trainable
    gap = (bound_learner.learner.outputs(forest)["logprob"] - before)[tokens]
    kl = float((gap.exp() - 1 - gap).mean())
    surrogate = -float((credit * weight)[tokens] @ gap.exp()) / int(tokens.sum())
    plain = -float((credit * weight)[tokens].sum()) / int(tokens.sum())
    return infos, bound_learner, kl, surrogate, plain


@pytest.mark.parametrize("radius", [0.01, 1e-6])
def test_the_direction_solves_the_damped_system(radius):
    learner = fresh()
    forest, bound_learner, credit, weight = bound(learner)
    gradient, fisher = explicit(learner, forest, credit, weight)
    start = flatten(learner.snapshot())
    exact = torch.linalg.solve(fisher + 0.1 * torch.eye(len(start), dtype=torch.float64), gradient)
    NaturalGradient(radius=radius, iterations=100).run(forest, credit, weight, bound_learner)
    moved = start - flatten(learner.snapshot())
    cosine = float(moved @ exact) / float(moved.norm() * exact.norm())
    assert cosine > 1 - 1e-7
    # the length: sqrt(2 delta / (x'Fx + 0.1 x'x)) times a power of 0.5
    full = math.sqrt(2 * radius / float(exact @ fisher @ exact + 0.1 * exact @ exact)) * float(exact.norm())
    power = math.log(float(moved.norm()) / full) / math.log(0.5)
    assert power == pytest.approx(round(power), abs=1e-4) and round(power) >= 0


@pytest.mark.slow
def test_ten_iterations_approach_the_natural_gradient():
    learner = fresh()
    forest, bound_learner, credit, weight = bound(learner)
    gradient, fisher = explicit(learner, forest, credit, weight)
    start = flatten(learner.snapshot())
    NaturalGradient(radius=1e-8, damping=0.0, iterations=200).run(forest, credit, weight, bound_learner)
    moved = start - flatten(learner.snapshot())
    exact = torch.linalg.pinv(fisher, rtol=1e-10, hermitian=True) @ gradient
    assert float(moved @ exact) / float(moved.norm() * exact.norm()) > 1 - 1e-4
    again = fresh()
    forest, bound_learner, credit, weight = bound(again)
    NaturalGradient(radius=1e-8).run(forest, credit, weight, bound_learner)
    short = start - flatten(again.snapshot())
    damped = torch.linalg.solve(fisher + 0.1 * torch.eye(len(start), dtype=torch.float64), gradient)
    assert float(short @ damped) / float(short.norm() * damped.norm()) > 0.98


@settings(max_examples=4, deadline=None)
@given(st.integers(1, 30), st.sampled_from([1e-4, 0.01, 0.3]))
def test_the_step_is_better_and_within_the_radius(seed, radius):
    learner = fresh()
    crc = learner.fingerprint()
    infos, bound_learner, kl, surrogate, plain = run(NaturalGradient(radius=radius, iterations=4), learner, seed=seed)
    assert len(infos) == 1 and not infos[0].empty
    assert 0 < kl <= 1.5 * radius and surrogate < plain and learner.fingerprint() != crc
    assert bound_learner.metrics[0]["approx_kl"] > 0 and bound_learner.metrics[0]["on_policy"] == 0.0
    assert infos[0].loss == pytest.approx(plain) and infos[0].grad_norm > 0


def test_a_small_radius_is_used_up():
    """To second order the KL of the full step is delta, where its length is taken from F alone."""
    _, _, kl, _, _ = run(NaturalGradient(radius=1e-8, damped_length=False), fresh())
    assert kl == pytest.approx(1e-8, rel=2e-2)
    _, _, less, _, _ = run(NaturalGradient(radius=1e-8), fresh())
    assert 0 < less < kl


def test_the_optimiser_is_not_used():
    learner = fresh(weight_decay=0.5)
    before = learner.meta()
    infos, bound_learner, *_ = run(NaturalGradient(), learner)
    assert learner.meta() == before == {"steps": 0} and not learner.optimiser.tensors().keys() - {
        f"parameter/{name}" for name in learner.snapshot()
    }
    other = TorchLearner(clean_llama(**TINY), lr=1.0)
    run(NaturalGradient(), other)
    assert other.fingerprint() == learner.fingerprint() and bound_learner.infos == infos


def test_nothing_to_learn_from_is_an_empty_step():
    learner = fresh()
    crc = learner.fingerprint()
    forest, bound_learner, credit, weight = bound(learner)
    infos = NaturalGradient().run(forest, 0 * credit, weight, bound_learner)
    assert [i.empty for i in infos] == [True] == [i.empty for i in bound_learner.infos] and learner.fingerprint() == crc


def test_where_no_length_will_do_everything_stays():
    learner = fresh()
    crc = learner.fingerprint()
    forest, bound_learner, credit, weight = bound(learner)
    evaluate = bound_learner.evaluate
    calls = []

    def never_better(*args):
        calls.append(1)
        info = evaluate(*args)
        return info if len(calls) == 1 else type(info)(empty=False, loss=math.inf, outputs=info.outputs)

    bound_learner.evaluate = never_better
    infos = NaturalGradient(backtracks=3).run(forest, credit, weight, bound_learner)
    assert learner.fingerprint() == crc and len(calls) == 5 and not infos[0].empty
    assert bound_learner.metrics[0]["approx_kl"] == pytest.approx(0, abs=1e-12)


def test_float32_is_near_float64():
    wide = TorchLearner(small_llama(**TINY).double(), lr=1.0, kernels="transformers")
    narrow = TorchLearner(small_llama(**TINY), lr=1.0, kernels="transformers")
    moves = []
    for learner in (wide, narrow):
        start = flatten(learner.snapshot()).double()
        run(NaturalGradient(), learner)
        moves.append(flatten(learner.snapshot()).double() - start)
    assert float(moves[0] @ moves[1]) / float(moves[0].norm() * moves[1].norm()) > 0.999


def test_bfloat16_is_refused():
    learner = TorchLearner(small_llama(**TINY), lr=1.0, dtype="bfloat16")
    forest, bound_learner, credit, weight = bound(learner)
    with pytest.raises(ConfigError, match=r"learner\.dtype=float32"):
        NaturalGradient().run(forest, credit, weight, bound_learner)


@pytest.mark.slow
def test_a_run_stopped_and_resumed_is_the_run_that_was_not():
    full_fresh = fresh()
    for seed in (1, 2, 3):
        run(NaturalGradient(), full_fresh, seed=seed)
    first = fresh()
    run(NaturalGradient(), first, seed=1)
    second = fresh()
    second.load_tensors(first.tensors(), first.meta())
    for seed in (2, 3):
        run(NaturalGradient(), second, seed=seed)
    assert second.fingerprint() == full_fresh.fingerprint()


def test_refusals():
    with pytest.raises(ConfigError, match=r"update\.slack"):
        NaturalGradient(slack=0.5)
    for fields in ({"radius": 0.0}, {"damping": -1.0}):
        with pytest.raises(ConfigError, match=rf"update\.{next(iter(fields))} is "):
            NaturalGradient(**fields)
    for fields in ({"iterations": 0}, {"backtracks": -1}, {"shrink": 1.0}):
        with pytest.raises(ConfigError, match=rf"update\.{next(iter(fields))} is "):
            NaturalGradient(**fields)
    assert NaturalGradient().optimiser_steps(5) == 1
