"""Reasons why a method has no estimator or loss in verl, and settings of verl that contradict a method."""

import re
from types import SimpleNamespace

import pytest
import torch

import gxpo
from gxpo.adapters.verl import estimator, policy_loss
from gxpo.adapters.verl_asks import actor_against, algorithm_against, term_entries, why_not
from gxpo.base.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "what", "says"),
    [
        ("tree_grpo", "advantage", r"rollout="),
        ("gigpo", "advantage", r"credit=relative\+state_relative.*states"),
        ("gae", "advantage", r"credit=gae.*value"),
        ("tis", "advantage", r"weight\.mismatch.*log-probs"),
        ("gdpo_multi", "advantage", r"credit=decoupled.*named rewards"),
        ("v05", "advantage", r"signal\.task_mean.*checkpoints"),
        ("dpo", "advantage", r"objective=.*outcomes"),
        ("sfpo", "advantage", r"update=slow_fast"),
        ("gvpo", "loss", r"objective="),
        ("flow_grpo", "advantage", r"rollout="),
    ],
)
def test_a_need_that_verl_lacks_is_named_by_its_key(name, what, says):
    assert re.search(says, why_not(name, what) or "")
    make = estimator if what == "advantage" else policy_loss
    with pytest.raises(ConfigError, match=says):
        make(name)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"objective.ratio": "turn"}, "objective.ratio=turn.*where a turn ends"),
        ({"objective.entropy.coef": 0.1}, "entropy_coeff"),
        ({"objective.kl.coef": 0.1}, "use_kl_loss"),
        ({"objective.kl.coef": 0.1, "objective.kl.control": "adaptive_kl"}, "adapts to figures of the step"),
        ({"objective.ratio_over": "behaviour"}, "sampler's log-probs"),
    ],
)
def test_a_loss_that_needs_more_than_verls_inputs_is_refused(overrides, says):
    assert re.search(says, why_not("grpo", "loss", overrides) or "")


def test_only_advantage_and_loss_can_be_asked_for():
    with pytest.raises(ConfigError, match="what is 'advantage' or 'loss', not 'both'"):
        why_not("grpo", "both")


def test_a_schedule_is_refused_in_the_part_that_it_moves():
    entropy = {"objective.entropy.coef": {"schedule": "linear", "from": 0.1, "to": 0.0}}
    assert "schedule can't move it" in (why_not("grpo", "loss", entropy) or "")
    assert why_not("grpo", "advantage", entropy) is None


def actor(**settings):
    """verl's ActorConfig at its defaults."""
    usual = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0}
    return SimpleNamespace(**{**usual, **settings})


def test_settings_at_verls_defaults_contradict_nothing():
    for name in ("grpo", "gspo", "dapo", "cispo"):
        assert actor_against(gxpo.method(name).terms["policy"], actor()) == []


def test_another_clip_than_the_methods_names_the_key():
    (problem,) = actor_against(gxpo.method("grpo").terms["policy"], actor(clip_ratio_high=0.28))
    assert "actor.clip_ratio_high=0.28 is objective.clip_high=0.28 here, and the method has 0.2" in problem
    assert actor_against(gxpo.method("dapo").terms["policy"], actor(clip_ratio_high=0.28)) == []


def test_a_scaled_estimator_contradicts_an_unscaled_setting():
    unscaled = {"norm_adv_by_std_in_grpo": False}
    (problem,) = algorithm_against(gxpo.method("grpo"), unscaled)
    assert "credit.scale=none" in problem
    assert algorithm_against(gxpo.method("dr_grpo"), unscaled) == []
    assert algorithm_against(gxpo.method("grpo"), None) == algorithm_against(gxpo.method("grpo"), {}) == []


def test_entries_have_the_ratio_of_their_level():
    logprob = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64)
    old = torch.tensor([-1.2, -1.8, -0.8], dtype=torch.float64)
    owner, credit = torch.tensor([0, 0, 1]), torch.ones(3, dtype=torch.float64)
    by_token = term_entries(gxpo.method("grpo").terms["policy"], logprob, old, credit, owner, owner)
    assert by_token.log_ratio.tolist() == pytest.approx([0.2, -0.2, 0.3])
    assert by_token.ratio.tolist() == pytest.approx([1.2214027581601699, 0.8187307530779818, 1.3498588075760032])
    # GSPO: the mean of a row's log-ratios, (0.2 - 0.2) / 2 and 0.3
    by_row = term_entries(gxpo.method("gspo").terms["policy"], logprob, old, credit, owner, owner)
    assert by_row.ratio.tolist() == pytest.approx([1.0, 1.0, 1.3498588075760032])
