"""A converted launch of verl computes what it did, with verl's defaults, and says what it leaves out or open."""

from pathlib import Path

import pytest

import gxpo
from gxpo.adapters.convert_verl import convert_verl
from gxpo.base.errors import ConfigError
from gxpo.training import config

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
    trainer.total_training_steps=30 "$@"
"""


def converted(*overrides):
    return convert_verl(["algorithm.adv_estimator=grpo", *overrides])


def reasons(*overrides):
    return converted(*overrides).open


def test_a_launch_is_read_with_variables_and_defaults(here):
    Path("run.sh").write_text(LAUNCH)
    actual = convert_verl(["run.sh"])
    keys = dict(actual.keys)
    assert keys["model"] == "tiny:cold" and keys["method"] == "grpo@verl" and keys["rollout.group_size"] == 4
    assert (keys["tasks.per_step"], keys["update.minibatches"], keys["trainer.steps"]) == (8, 4, 30)
    assert keys["objective.kl.coef"] == 0.001 and keys["objective.clip_high"] == 0.28
    assert keys["objective.aggregate"] == "token_mean" and keys["optim.weight_decay"] == 0.01
    assert actual.origins["rollout.group_size"] == "actor_rollout_ref.rollout.n, line 12"
    # $HOME is the caller's, and so is the home directory for which `~` stands
    assert actual.open == {} and keys["task"] == "~/train.parquet"
    assert ("line 14", "trainer.moon=full: no counterpart") in actual.notes
    assert actual.text("run.sh").startswith("# what run.sh computes in verl 0.9.1")


def test_an_open_line_is_refused_until_it_is_filled(here):
    Path("run.sh").write_text(LAUNCH.replace("$HOME", "$DATA"))
    Path("run.yaml").write_text(convert_verl(["run.sh"]).text("run.sh"))
    assert "task: ??? # line 6: data.train_files=$DATA/train.parquet" in Path("run.yaml").read_text()
    with pytest.raises(ConfigError, match=r"run\.yaml:4: write a value in place of \?\?\?, or --set it: task"):
        config.load("run.yaml")
    assert config.load("run.yaml", ["task=arithmetic"]).settings.tasks.per_step == 8


@pytest.mark.parametrize(
    ("files", "task"),
    [
        ("$HOME/a.parquet", "~/a.parquet"),
        ("\"['${HOME}/a.jsonl']\"", "~/a.jsonl"),
        ("~/a.csv", "~/a.csv"),
        ("$HOME/$TASK/a.csv", "???"),
        ("${HOME%/}/a.csv", "???"),
        ("/mnt$HOME/a.csv", "???"),
        ("${HOME}a.csv", "???"),
        ("$HOME/a.json", "???"),
        ("\"['$HOME/a.csv', '$HOME/b.csv']\"", "???"),
    ],
)
def test_files_in_the_home_directory_are_named_by_a_tilde(here, files, task):
    Path("run.sh").write_text(f"F={files}\npython -m verl.trainer.main_ppo data.train_files=$F\n")
    assert convert_verl(["run.sh"]).keys["task"] == task


@pytest.mark.parametrize("line", ["N=4; NÄ=1; n=$NÄ", "N=(2 4); unset 'N[0]'; n=${N[0]}"])
def test_no_value_is_guessed_of_odd_names_and_items(here, line):
    line, _, value = line.rpartition("; n=")
    Path("run.sh").write_text(f"{line}\npython -m verl.trainer.main_ppo actor_rollout_ref.rollout.n={value}X\n")
    assert convert_verl(["run.sh"]).keys["rollout.group_size"] == "???"


def test_environment_and_arguments_of_a_script_are_taken(here):
    Path("run.sh").write_text(LAUNCH)
    actual = convert_verl(["N=2", "HOME=/h", "run.sh", "data.train_batch_size=4", "trainer.save_freq=5"])
    assert (actual.keys["rollout.group_size"], actual.keys["tasks.per_step"]) == (2, 4)
    assert actual.keys["task"] == "/h/train.parquet" and actual.keys["trainer.checkpoint_every"] == 5


def test_overrides_of_verl_with_an_objective_of_another_kind(here):
    arguments = "algorithm.adv_estimator=rloo actor_rollout_ref.actor.policy_loss.loss_mode=gspo"
    more = "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean algorithm.use_kl_in_reward=True"
    actual = convert_verl([arguments, more, "actor_rollout_ref.rollout.n=4"])
    Path("run.yaml").write_text(actual.text("it"))
    method = config.load("run.yaml", ["model=tiny", "task=arithmetic", "trainer.steps=1"]).method
    assert method.terms["policy"].ratio == gxpo.method("gspo").terms["policy"].ratio
    # verl clips GSPO's ratio at its own bounds, which are not the paper's
    assert method.terms["policy"].surrogate.clip_low == 0.2
    assert method.kl_reward is not None and method.kl_reward.coef == 0.001
    with pytest.raises(ConfigError, match="no KEY=VALUE of verl"):
        convert_verl(["hello"])


def test_what_has_no_counterpart_leaves_its_key_open():
    assert "adv_estimator=remax: gxpo has a remax" in reasons("algorithm.adv_estimator=remax")["method"]
    assert "loss_mode=kl_cov" in reasons("actor_rollout_ref.actor.policy_loss.loss_mode=kl_cov")["objective"]
    assert "data.train_batch_size: 0: input should be greater" in reasons("data.train_batch_size=0")["tasks.per_step"]
    assert (
        "input should be 'constant'" in reasons("actor_rollout_ref.actor.optim.lr_scheduler_type=wsd")["optim.schedule"]
    )
    assert "my_main is not read" in convert_verl(["python3 -m my_main algorithm.adv_estimator=grpo"]).open["optim.lr"]
    assert converted().open["model"] == "actor_rollout_ref.model.path is not set"
    assert "15 x the rows of the data / 1024" in reasons("trainer.total_epochs=15")["trainer.steps"]
    assert "compute_score becomes" in reasons("custom_reward_function.path=r.py")["reward"]


def test_dapos_parts_become_keys():
    actual = converted("actor_rollout_ref.rollout.n=8", "algorithm.filter_groups.enable=True",
                      "algorithm.filter_groups.max_num_gen_batches=10",
                      "reward_model.overlong_buffer.enable=True", "reward_model.overlong_buffer.len=512",
                      "reward_model.overlong_buffer.penalty_factor=0.5", "data.max_response_length=2048")  # fmt: skip
    assert actual.keys["rollout"] == "dynamic_sampling" and actual.keys["rollout.max_batches"] == 10
    # 512 of 2048 tokens
    assert actual.keys["reward.add.overlong.buffer"] == 0.25 and actual.keys["reward.add.overlong.factor"] == 0.5


def test_correction_of_the_samplers_log_probs():
    place = "algorithm.rollout_correction"
    actual = converted(f"{place}.rollout_is=token", f"{place}.rollout_is_threshold=3")
    assert (actual.keys["weight.mismatch"], actual.keys["weight.mismatch.cap"]) == ("truncated", 3.0)
    assert converted(f"{place}.bypass_mode=True").keys["objective.ratio_over"] == "behaviour"
    assert "rollout_is=sequence" in reasons(f"{place}.rollout_is=sequence")["weight.mismatch"]


def test_settings_that_verl_ignores_are_said_to_be_without_effect():
    actual = converted("actor_rollout_ref.actor.clip_ratio=0.3", "actor_rollout_ref.actor.grad_clip=0.5")
    assert "objective.clip_low" not in actual.keys and "optim.max_grad_norm" not in actual.keys
    assert sum("without effect" in note for _, note in actual.notes) == 2


def test_warmup_counts_optimiser_steps_here():
    # verl's schedule moves once a step of its trainer, which has 32 / 8 = 4 updates
    sizes = (
        "data.train_batch_size=32",
        "actor_rollout_ref.actor.ppo_mini_batch_size=8",
        "trainer.total_training_steps=20",
    )
    warmup = "actor_rollout_ref.actor.optim.lr_warmup_steps"
    assert converted(*sizes, f"{warmup}=10").keys["optim.warmup_steps"] == 40
    assert converted(*sizes, f"{warmup}_ratio=0.1").keys["optim.warmup_steps"] == 8
    assert "optim.warmup_steps" not in converted(*sizes).keys


def test_a_hydra_file_with_defaults_and_interpolations(here):
    Path("base.yaml").write_text("actor_rollout_ref:\n  rollout: {n: 2, temperature: 0.7}\n")
    Path("mine.yaml").write_text(
        "defaults: [ppo_trainer, base, _self_]\ndata:\n  train_batch_size: 8\n"
        "actor_rollout_ref:\n  rollout:\n    n: ${data.train_batch_size}\n  model:\n    path: ${oc.env:MODEL}\n"
    )
    actual = convert_verl(["mine.yaml", "algorithm.adv_estimator=rloo"])
    assert (actual.keys["rollout.group_size"], actual.keys["sampling.temperature"]) == (8, 0.7)
    assert actual.keys["method"] == "rloo@verl" and "${oc.env:MODEL} is resolved" in actual.open["model"]
    assert actual.origins["tasks.per_step"].endswith("line 3")
    Path("other.yaml").write_text("defaults: [not_here]\ndata: {train_batch_size: 8}\n")
    assert "not_here of the defaults" in convert_verl(["other.yaml"]).open["optim.lr"]


@pytest.mark.parametrize(("script", "message"), [
    (b"# caf\xe9\npython3 -m verl.trainer.main_ppo data.seed=1\n", "line 1 of run.sh is not UTF-8"),
    (b"while true; do :; done\n", "line 1: a loop without end"),
    (b"i=0\nwhile true; do i=$((i + 1)); done\n", "more than 5,000 commands"),
    (b"f() { f; }\nf\n", "call one another more than 10 deep"),
    (b"{ " * 300 + b"\n", "nested more than 40 deep"),
    (b"x=" + b"$(" * 300 + b"\n", "nested more than 40 deep"),
    (b"if true; then\n", "the end is not expected"),
    (b"echo 'open\n", "a quotation has no end"),
    (b"python3 -m verl.trainer.sft_trainer data.train_batch_size=4\n", "no training by reward in it, only line 1"),
    (b"python3 -m verl.trainer.main_ppo data.x=" + b"[" * 300 + b"\n", "nested more than 32 deep"),
])  # fmt: skip
def test_scripts_that_can_not_be_read_end_in_one_line(here, script, message):
    Path("run.sh").write_bytes(script)
    with pytest.raises(ConfigError, match=message) as error:
        convert_verl(["run.sh"])
    assert "\n" not in str(error.value)


def test_texts_that_grow_are_not_followed(here):
    lines = "A=aaaaaaaaaa\n" + "A=$A$A\n" * 60
    Path("run.sh").write_text(
        lines + "python3 -m verl.trainer.main_ppo data.train_batch_size=8 trainer.project_name=$A\n"
    )
    assert convert_verl(["run.sh"]).keys["tasks.per_step"] == 8


def test_a_fully_asynchronous_launch_takes_its_batch_from_the_queue():
    # 32 prompts of a minibatch, 4 of them a step
    sizes = ("data.train_batch_size=0", "data.gen_batch_size=1", "async_training.require_batches=4")
    actual = converted(*sizes, "actor_rollout_ref.actor.ppo_mini_batch_size=32")
    assert (actual.keys["tasks.per_step"], actual.keys["update.minibatches"]) == (128, 4)
    assert actual.keys["objective.ratio_over"] == "behaviour"
    assert any("fully_async_main" in note for _, note in actual.notes)


def test_an_open_line_says_what_the_script_states(here):
    Path("own.sh").write_text(
        "python3 -m team.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=128 \\\n"
        "    actor_rollout_ref.actor.optim.lr_warmup_steps=10 trainer.total_epochs=3\n"
    )
    reason_by_key = convert_verl(["own.sh"]).open
    unread = "the configuration of team.trainer.main_ppo is not read"
    assert reason_by_key["tasks.per_step"] == f"data.gen_batch_size: {unread}; line 1: data.train_batch_size=128"
    assert reason_by_key["trainer.steps"] == f"trainer.total_training_steps: {unread}; line 2: trainer.total_epochs=3"
    # a count is used as it is, whatever share of the run the unread configuration names
    assert "lr_warmup_steps=10: x the optimiser steps" in reason_by_key["optim.warmup_steps"]


@pytest.mark.parametrize("key", ["reward_model.reward_manager", "reward.reward_manager.name"])
def test_a_reward_manager_that_verl_does_not_have_is_noted(key):
    notes = [note for _, note in converted(f"{key}=acecoder").notes]
    assert any(note.startswith(f"{key}=acecoder: no manager of verl") for note in notes)
    assert not any("data_source" in note for note in notes)  # it may score by anything
    assert any("data_source" in note for _, note in converted(f"{key}=dapo").notes)


def test_a_reward_function_is_called_by_its_name():
    path = "custom_reward_function.path=score.py"
    assert "its compute_score becomes" in reasons(path)["reward"]
    assert "its grade becomes" in reasons(path, "custom_reward_function.name=grade")["reward"]


def test_minibatches_of_no_prompt_leave_the_key_open():
    mini = "actor_rollout_ref.actor.ppo_mini_batch_size=0"
    assert reasons("data.train_batch_size=8", mini)["update.minibatches"] == f"{mini} is no value of it"


def test_a_configurations_name_is_no_file_of_the_callers():
    reason_by_key = converted("--config-name", "own.yaml", "data.train_batch_size=8").open
    assert reason_by_key["tasks.per_step"].endswith("; data.train_batch_size=8")
