"""A converted launch of verl computes what it did, with verl's defaults, and says what it leaves out."""

from pathlib import Path

import pytest

import gxpo
from gxpo.adapters.convert_verl import convert_verl
from gxpo.base.errors import ConfigError

LAUNCH = """#!/bin/bash
MODEL=tiny:cold
N=${N:-4}
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files=$HOME/train.parquet \\
    data.train_batch_size=8 \\
    actor_rollout_ref.model.path=$MODEL \\
    actor_rollout_ref.actor.ppo_mini_batch_size=2 \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.clip_ratio_high=0.28 \\
    actor_rollout_ref.rollout.n=$N \\
    actor_rollout_ref.rollout.name=vllm \\
    +trainer.moon=full \\
    trainer.total_training_steps=30 $@
"""


def test_a_launch_is_read_with_variables_and_defaults(resolved):
    Path("run.sh").write_text(LAUNCH)
    found = convert_verl(["run.sh"])
    keys = dict(found.keys)
    assert keys["model"] == "tiny:cold" and keys["method"] == "grpo@verl" and keys["rollout.group_size"] == 4
    assert (keys["tasks.per_step"], keys["update.minibatches"], keys["trainer.steps"]) == (8, 4, 30)
    assert keys["objective.kl.coef"] == 0.001 and keys["objective.clip_high"] == 0.28
    assert keys["objective.aggregate"] == "token_mean" and keys["optim.weight_decay"] == 0.01
    assert found.origins["rollout.group_size"] == "actor_rollout_ref.rollout.n, line 12"
    assert ("line 6", "data.train_files: its value is known when the script runs") in found.notes
    assert ("line 14", "trainer.moon=full: no counterpart") in found.notes
    assert found.text("run.sh").startswith("# what run.sh computes in verl 0.9.1")
    assert resolved(found).settings.tasks.per_step == 8


def test_overrides_of_verl_with_an_objective_of_another_kind(resolved):
    given = "algorithm.adv_estimator=rloo actor_rollout_ref.actor.policy_loss.loss_mode=gspo"
    more = "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean algorithm.use_kl_in_reward=True"
    found = convert_verl([given, more, "actor_rollout_ref.rollout.n=4"])
    made = resolved(found).method
    assert made.terms["policy"].ratio == gxpo.method("gspo").terms["policy"].ratio
    assert made.kl_reward is not None and made.kl_reward.coef == 0.001
    with pytest.raises(ConfigError, match="no KEY=VALUE of verl"):
        convert_verl(["hello"])
    unknown = convert_verl(["algorithm.adv_estimator=remax"])
    assert any("adv_estimator=remax: gxpo has grpo, rloo" in said for _, said in unknown.notes)
