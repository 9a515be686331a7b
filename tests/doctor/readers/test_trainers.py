"""Files of trainers' keys: names and settings that the doctor knows, keys as each trainer's source writes them."""

import re

import pytest

from gxpo.doctor.diagnosis import MISSING
from gxpo.doctor.readers.keys import OPERATIONS, source, trainer, trainers
from gxpo.doctor.runlog import SETTINGS
from gxpo.doctor.series import NAMES

TRAINERS = sorted(trainers())


@pytest.mark.parametrize("name", TRAINERS)
def test_every_key_has_a_name_that_the_doctor_knows(name):
    one = trainer(name)
    used = {*one.keys.values(), *(n for n, _, _ in one.formulas), *(n for _, n in one.evaluations)}
    known_names = {*NAMES, *(f"eval/{n}" for n in NAMES), "eval/picture_kl"}
    assert used <= known_names and "reward" in used and "lr" in used
    assert {operation for _, operation, _ in one.formulas} <= set(OPERATIONS)


@pytest.mark.parametrize("name", TRAINERS)
def test_settings_and_lines_are_of_names_that_there_are(name):
    one = trainer(name)
    assert set(one.settings) <= set(SETTINGS)
    assert set(one.lines) <= {"reward", *MISSING} and "reward" in one.lines
    assert name == "unknown" or (one.settings and one.own_settings)


@pytest.mark.parametrize("name", sorted({*TRAINERS} - {"unknown"}))
def test_a_trainers_own_keys_are_no_keys_of_another(name):
    own_keys = {key for key in trainer(name).keys if trainer(name).own_keys.match(key)}
    shared = {"reward_std"}  # TRL's and gxpo's, which is told by two of its own
    for other in {*TRAINERS} - {name, "unknown"}:
        assert not (own_keys - shared) & set(trainer(other).keys), other


def test_keys_of_each_trainer_as_its_source_writes_them():
    assert trainer("trl").keys["frac_reward_zero_std"] == "zero_signal"
    assert trainer("unsloth") is trainer("trl")
    assert trainer("verl").name("critic/score/mean") == "reward"
    assert trainer("verl").name("actor/pg_clipfrac_lower") is None  # the dual clip
    assert trainer("roll").name("critic/rewards/mean") is None  # after clipping and normalisation
    assert trainer("slime").name("rollout/rewards") is None  # what GRPO makes of them, of mean 0
    assert trainer("trinity").name("actor/ppo_kl") == "gap_kl" != trainer("verl").name("actor/ppo_kl")
    assert trainer("areal").name("grpo_actor/task_reward/avg") == "reward"
    assert trainer("trinity").name("rollout/format_score/mean") == "component/format_score"


# The reward as each trainer's documentation names it.
REWARDS = {
    "nemo-rl": ["train/reward", "train/total_reward/mean", "train/mean_total_reward"],
    "slime": ["rollout/raw_reward"],
    "roll": ["critic/score/mean", "rollout/score/mean"],
    "skyrl": ["reward/avg_raw_reward"],
    "areal": ["rollout/reward", "ppo_actor/task_reward/avg", "grpo_actor/task_reward/avg"],
    "trinity": ["rollout/reward/mean", "experience_pipeline/group_advantages/reward_mean/mean", "critic/rewards/mean"],
}


@pytest.mark.parametrize(("name", "key"), [(n, k) for n, keys in REWARDS.items() for k in keys])
def test_the_documented_reward_is_known(name, key):
    assert trainer(name).name(key) == "reward"


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        (["train/reward", "train/token_mult_prob_error"], "nemo-rl"),
        (["rollout/raw_reward", "rollout/response_lengths"], "slime"),
        (["critic/score/mean", "actor/pg_loss", "token/response_length/mean"], "roll"),
        (["math_rule/critic/entropy/mean", "critic/score/mean"], "roll"),
        (["reward/avg_raw_reward", "policy/policy_loss"], "skyrl"),
        (["grpo_actor/task_reward/avg", "rollout/reward"], "areal"),
        (["rollout/accuracy/mean", "rollout/model_version"], "trinity"),
        (["critic/score/mean", "actor/pg_loss", "time/train_step"], "trinity"),
        (["critic/score/mean", "actor/pg_loss", "timing_s/step"], "verl"),
        (["critic/score/mean", "actor/pg_loss", "actor/grad_norm"], "unknown"),  # verl's and Trinity's
        (["train/reward", "train/loss"], "unknown"),
    ],
)
def test_a_trainer_is_told_by_its_own_keys_alone(keys, name):
    assert source(keys) == name


def test_patterns_are_read_as_patterns():
    assert isinstance(trainer("verl").own_keys, re.Pattern)
    assert trainer("trl").name("eval_rewards/exact/mean") == "eval/component/exact"
    assert trainer("verl").name("gdpo/form/std") == "component_std/form"
