"""MDPO: the estimate's value and gradient by enumeration, the tabular solution, its coefficient over a run."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.objectives.by_position import Annealed, Unclipped
from tests.algorithms.objectives.conftest import figures_of, grow_forest

import gxpo
from gxpo.algorithms.objectives.penalty import MirrorKl, mirror_kl
from gxpo.base.errors import CheckpointError, ConfigError, GxpoError
from gxpo.parts.protocols import PolicyTokens

F64 = torch.float64
OLD = torch.tensor([0.5, 0.3, 0.2], dtype=F64)
CREDIT = torch.tensor([1.0, 0.0, -1.0], dtype=F64)


# ---------------------------------------------------------------- the estimate
def test_it_is_unbiased_in_value_and_gradient_under_the_old_policy():
    logits = torch.tensor([0.2, -0.4, 0.9], dtype=F64, requires_grad=True)
    log_policy = torch.log_softmax(logits, 0)
    exact = (log_policy.exp() * (log_policy - OLD.log())).sum()  # KL(policy || old)
    (wanted,) = torch.autograd.grad(exact, logits, retain_graph=True)
    sampled = (OLD * mirror_kl(log_policy - OLD.log())).sum()  # every token as often as the old policy draws it
    (found,) = torch.autograd.grad(sampled, logits)
    assert float(sampled.detach()) == pytest.approx(float(exact.detach()))
    torch.testing.assert_close(found, wanted)


@settings(max_examples=50, deadline=None)
@given(st.floats(-14, 14))
def test_value_and_slope(gap):
    x = torch.tensor([gap], dtype=F64, requires_grad=True)
    value = mirror_kl(x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    assert float(value.detach()) == pytest.approx(math.exp(gap) * gap - math.exp(gap) + 1, abs=1e-9)
    assert float(value.detach()) >= -1e-9 and float(slope) == pytest.approx(math.exp(gap) * gap, abs=1e-9)
    assert float(value.detach()) >= 0 or abs(gap) < 1e-6


def test_card_the_minimum_over_all_policies_is_the_tilted_one():
    """pi ~ old exp(t A), t = .5: [.661783 .240835 .097382]; the loss's slope in the logits vanishes there."""
    best = torch.softmax(OLD.log() + 0.5 * CREDIT, 0)
    assert best.tolist() == pytest.approx([0.661783, 0.240835, 0.097382], abs=1e-6)
    forest = grow_forest([("a", 1)] * 3)
    logits = best.log().clone().requires_grad_()
    logprob = torch.log_softmax(logits, 0)
    m = gxpo.method("mdpo", {"objective.add.mirror_kl.coef": 2.0, "objective.aggregate": "token_mean"})
    # each of the three answers once, weighing as often as the old policy draws it
    policy = PolicyTokens(logprob, OLD.log(), proximal_logprob=OLD.log())
    gain = m.terms["policy"](forest, policy, CREDIT, OLD, {}, 0)[0]
    near = m.terms["mirror_kl"](forest.replace(weight=OLD), policy, CREDIT, OLD, {}, 0)[0]
    (slope,) = torch.autograd.grad(gain + near, logits, retain_graph=True)
    assert slope.tolist() == pytest.approx([0.0] * 3, abs=1e-12)
    assert float(torch.autograd.grad(gain, logits)[0].abs().max()) > 0.05


# ---------------------------------------------------------------- the term
def test_it_is_of_every_trained_token_whatever_it_earned(toy):
    term = MirrorKl(coef=0.5)
    value, gradient = toy.loss(term, weight=0 * toy.weight)  # weights of tokens are not for it
    gaps = [0.3, -0.1, -0.4, 0.2, 0.5]
    each = [math.exp(d) * d - math.exp(d) + 1 for d in gaps]
    assert value == pytest.approx(0.5 * (sum(each[:2]) / 4 + sum(each[2:]) / 6))
    assert gradient == pytest.approx([0.5 * math.exp(d) * d / (4 if i < 2 else 6) for i, d in enumerate(gaps)])
    found = figures_of(term, toy.forest, toy.policy(), toy.credit, toy.weight)
    assert found["mirror_kl"] == pytest.approx(sum(each) / 5)


def test_on_the_first_update_it_is_idle_and_the_policy_term_is_reinforce(toy):
    here = toy.logprob.detach()
    assert toy.loss(MirrorKl(), proximal_logprob=here) == (0.0, [0.0] * 5)
    m = gxpo.method("mdpo", {"objective.aggregate": "token_mean"})
    assert toy.loss(m.terms["policy"], proximal_logprob=here)[1] == pytest.approx([-0.2, -0.2, 0.2, 0.2, 0.2])
    assert m.terms["policy"].surrogate == Unclipped() and m.keys["update.epochs"].value == 4


def test_it_is_measured_from_the_start_of_the_step_else_from_the_sampler(toy):
    proximal = toy.old - 0.3
    both = toy.loss(MirrorKl(), proximal_logprob=proximal)
    assert both == toy.loss(MirrorKl(), behaviour_logprob=proximal) != toy.loss(MirrorKl())
    unknown = toy.old.clone()
    unknown[1] = torch.nan
    with pytest.raises(GxpoError, match="1 of 5 trained tokens have no log-prob of the old"):
        toy.loss(MirrorKl(), behaviour_logprob=unknown)


def test_trajectories_of_weight_zero_and_other_coefficients(grow):
    forest = grow([("a", 2), ("a", 1, {"weight": 0.0})])
    x = torch.tensor([-1.0, -1.2, torch.nan], dtype=F64, requires_grad=True)
    old = torch.tensor([-1.1, -1.1, -1.0], dtype=F64)
    term = MirrorKl(aggregate="token_mean")
    value = term(forest, PolicyTokens(x, old), torch.zeros(3), torch.ones(3), {}, 0)[0]
    assert float(value.detach()) == pytest.approx(sum(math.exp(d) * d - math.exp(d) + 1 for d in (0.1, -0.1)) / 3)
    nothing = MirrorKl(coef=0.0)
    assert not nothing.active(forest, torch.zeros(3), torch.ones(3)).any()
    with pytest.raises(ConfigError, match=r"objective\.add\.mirror_kl\.coef"):
        MirrorKl(coef=-1.0)
    with pytest.raises(ConfigError, match=r"objective\.add\.mirror_kl\.aggregate"):
        MirrorKl(aggregate="mean")  # type: ignore[arg-type]  # not one of the words


# ---------------------------------------------------------------- its coefficient over a run
def test_the_coefficient_grows_as_one_over_t_and_stops():
    term, seen = MirrorKl(coef=0.5, least=0.25, total_steps=4), []
    assert term.control is not None
    for step in range(1, 7):
        seen.append(term.current_coef)
        assert term.control.adjust({"step": step})["schedule_progress"] == min(step / 4, 1.0)
    assert seen == pytest.approx([0.5 / t for t in (1, 0.75, 0.5, 0.25, 0.25, 0.25)])
    still = MirrorKl(least=1.0, total_steps=1)
    assert still.control is not None
    still.control.adjust({"step": 1})
    assert still.current_coef == 1.0


def test_it_is_resumed_exactly():
    first, again = Annealed(total_steps=7), Annealed(total_steps=7)
    for step in (1, 2, 3):
        first.adjust({"step": step})
    again.load_state_dict(first.state_dict())
    for step in (4, 5):
        assert first.coefficient(0.3) == again.coefficient(0.3)
        assert first.adjust({"step": step}) == again.adjust({"step": step})
    with pytest.raises(CheckpointError):
        again.load_state_dict({"factor": 1.0})
    with pytest.raises(ConfigError, match="total_steps"):
        Annealed().adjust({"step": 1})
    for make in (lambda: Annealed(least=0.0), lambda: Annealed(total_steps=0)):
        with pytest.raises(ConfigError, match="control"):
            make()


def test_runs_do_not_share_what_the_control_remembers():
    one, two = (gxpo.method("mdpo").fill(horizon=8.0, max_length=8, total_steps=10) for _ in range(2))
    assert one.terms["mirror_kl"].control.total_steps == 10
    one.adjust({"step": 5.0})
    assert one.terms["mirror_kl"].current_coef == pytest.approx(2.0) and two.terms["mirror_kl"].current_coef == 1.0
    assert gxpo.method("mdpo").terms["mirror_kl"].current_coef == 1.0
    assert gxpo.method("mdpo", {"objective.add.mirror_kl.least": 1.0}).terms["mirror_kl"].control == Annealed(1.0)
    state = one.state_dict()
    two.load_state_dict(state)
    assert two.terms["mirror_kl"].current_coef == pytest.approx(2.0)
