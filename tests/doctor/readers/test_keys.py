"""Names of trainers' metric keys, the trainer told by its keys, evaluations over several data sources."""

import json

import pytest

from gxpo.doctor import read
from gxpo.doctor.readers.keys import (
    by_words,
    evaluations,
    is_metric,
    names,
    restore_keys,
    source,
    trainer_key,
    written_key,
)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("reward", "reward"),
        ("train/reward", "reward"),
        ("eval/reward", "eval_reward"),
        ("run-7 - train/kl", "kl"),
        ("eval/rewards/exact/mean", "eval_rewards/exact/mean"),
        ("train/global_step", "train/global_step"),
        ("critic/score/mean", "critic/score/mean"),
        ("Training Loss", "loss"),
    ],
)
def test_what_trackers_put_before_a_key_is_taken_off(key, expected):
    assert trainer_key(key) == expected


@pytest.mark.parametrize(
    ("trainer", "key", "name"),
    [
        ("trl", "rewards/exact/mean", "component/exact"),
        ("trl", "rewards/exact/std", "component_std/exact"),
        ("trl", "rewards/exact", "component/exact"),
        ("trl", "eval_rewards/exact/mean", "eval/component/exact"),
        ("verl", "critic/score/mean", "reward"),
        ("verl", "gdpo/form/std", "component_std/form"),
        ("gxpo", "reward_form", "component/form"),
        ("unknown", "Train / Learning-Rate", "lr"),
    ],
)
def test_keys_have_the_names_of_the_doctor(trainer, key, name):
    assert names([trainer_key(key)], trainer) == {trainer_key(key): name}


def test_of_two_keys_with_one_name_the_first_of_the_table_counts():
    assert names(["actor/entropy_loss", "actor/entropy"], "verl") == {"actor/entropy": "entropy"}


def test_the_trainer_is_told_by_keys_that_it_alone_writes():
    assert source(["reward", "rewards/f/mean", "frac_reward_zero_std"]) == "trl"
    assert source(["critic/score/mean", "timing_s/step"]) == "verl"
    assert source(["critic/score/mean", "actor/pg_loss"]) == "unknown"  # ROLL and Trinity write them, too
    assert source(["success_rate", "zero_signal_groups"]) == "gxpo"
    assert source(["success_rate"]) == "unknown"  # one such key may be anybody's
    assert source(["reward", "loss"]) == "unknown"


def test_a_clock_is_no_metric():
    assert is_metric("reward") and is_metric("val-core/gsm8k/acc/mean@1") and is_metric("actor/lr")
    assert not is_metric("epoch") and not is_metric("Time") and not is_metric("name")


def test_an_evaluation_with_most_samples_counts():
    columns = {
        "val-core/gsm8k/acc/mean@1": ([1.0], [0.25]),
        "val-core/gsm8k/acc/mean@8": ([1.0], [0.5]),
        "val-aux/gsm8k/reward/mean@8": ([1.0], [0.75]),
    }
    out, notes = evaluations(columns, "verl")
    assert out["eval/accuracy"] == ([1.0], [0.5], "val-core/gsm8k/acc/mean@8")
    assert out["eval/reward"] == ([1.0], [0.75], "val-aux/gsm8k/reward/mean@8") and notes == []


def test_a_mean_over_data_sources_takes_steps_that_all_have():
    columns = {"eval_a_reward": ([1.0, 2.0], [0.0, 1.0]), "eval_b_reward": ([2.0, 3.0], [0.5, 1.0])}
    out, notes = evaluations(columns, "trl")
    assert out == {"eval/reward": ([2.0], [0.75], "mean of eval_a_reward, eval_b_reward")}
    assert notes == ["eval/reward is the mean of 2 data sources: a, b"]


def test_several_data_sets_of_evaluation_are_averaged(tmp_path):
    rows = [{"reward": 0.5, "reward_std": 0.5, "step": 1}]
    rows.append({"eval_math_reward": 0.25, "eval_code_reward": 0.75, "step": 1})
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    log = read(tmp_path)
    assert log.values("eval/reward").tolist() == [0.5]
    assert log.key("eval/reward") == "mean of eval_code_reward, eval_math_reward"
    assert log.notes == ["eval/reward is the mean of 2 data sources: code, math"]


def test_a_key_of_thousands_of_characters_is_cut_and_has_no_name():
    key = "train/" + "reward_" * 5000
    assert len(written_key(key)) == 323 and not is_metric(key) and source([key]) == "unknown"


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("AvgLen", "length"),
        ("GrpStd", "reward_std"),
        ("Val Acc", "eval/accuracy"),
        ("Ref KL", "kl"),
        ("t_succ%", "success"),
        ("pct truncated", "truncated"),
        ("clip\u2191", "clip_high"),
        ("train-rollout KL", "gap_kl"),
        ("log-prob gap", "gap_mean"),
        ("groups with zero reward spread", "zero_signal"),
        ("step time (s)", "seconds"),
        ("\u5e73\u5747\u5956\u52b1", "reward"),
        ("syntax_rew", "component/syntax"),
        ("reward/compilable_g", "component/compilable_g"),
        ("Value Loss", None),
        ("entropy_coef", None),
        ("rew_var", None),
        ("PlanRate", None),
        ("pass@8", None),
    ],
)
def test_words_of_a_key_give_its_name_in_any_order_and_spelling(key, name):
    assert by_words(key) == name


def test_a_spread_of_the_reward_and_a_rate_are_keys_of_many_trainers():
    assert source(["reward", "reward_std", "loss", "grad_norm"]) == "unknown"
    assert source(["optim/lr", "reward/mean", "progress/step"]) == "unknown"
    assert source(["optim/lr", "optim/grad_norm", "reward/mean"]) == "prime-rl"


def test_a_trainers_keys_with_underlines_for_strokes(tmp_path):
    text = (
        "step,actor_grad_norm,actor_lr,critic_score_mean,response_length_mean,timing_s_gen,timing_s_step,"
        "training_epoch,val-core_textcraft_acc_mean@1\n"
        "1,0.0,5e-06,0.25,3462.2,50.4,74.9,0,0.5\n2,0.1,5e-06,0.5,3100.9,42.5,64.0,0,0.75\n"
    )
    (tmp_path / "metrics.csv").write_text(text, encoding="utf-8")
    log = read(tmp_path / "metrics.csv")
    assert log.source == "verl"
    assert log.values("reward").tolist() == [0.25, 0.5]
    assert log.values("grad_norm").tolist() == [0.0, 0.1]
    assert log.values("eval/accuracy").tolist() == [0.5, 0.75]


def test_two_keys_with_underlines_tell_no_trainer():
    assert restore_keys(["actor_grad_norm", "actor_lr", "critic_score_mean"]) == {}


def test_a_second_estimate_of_the_kl_is_no_gap_of_sampler_and_learner() -> None:
    """OpenRLHF's logprobs_diff is the policy's less the reference's."""
    keys = ["kl", "logprobs_diff", "policy_loss", "actor_lr"]
    assert names(keys, "openrlhf") == {"kl": "kl", "policy_loss": "loss", "actor_lr": "lr"}
