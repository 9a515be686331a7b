"""Rows in JSON (trainer_state.json of TRL, FileLogger of verl, metrics.jsonl of gxpo, other programs) and in tables."""

import json

import numpy as np
import pytest

from gxpo.base.errors import RecordError
from gxpo.doctor import diagnose, read

TWO = '"Step","a - train/reward","a - train/reward__MIN","b - train/reward"\n1,0.5,0.5,0.25\n2,0.75,0.75,\n'
STATE = {
    "best_metric": None,
    "epoch": 0.5,
    "global_step": 3,
    "is_hyper_param_search": False,
    "log_history": [
        {"reward": 0.25, "rewards/exact/mean": 0.25, "rewards/exact/std": 0.5, "grad_norm": float("nan"), "step": 1},
        {"reward": 0.5, "rewards/exact/mean": 0.5, "rewards/exact/std": 0.4, "grad_norm": 1.5, "step": 2},
        {"eval_reward": 0.75, "eval_rewards/exact/mean": 0.7, "eval_loss": 0.0, "epoch": 0.2, "step": 2},
        {"reward": 1.0, "frac_reward_zero_std": 1.0, "completions/clipped_ratio": 0.125, "num_tokens": 99, "step": 3},
        {"train_runtime": 4.0, "train_loss": 0.1, "total_flos": 0.0, "step": 3},
    ],
    "logging_steps": 1,
    "max_steps": 3,
}


def test_trainer_state_gives_series_of_what_each_row_has(tmp_path):
    (tmp_path / "trainer_state.json").write_text(json.dumps(STATE, indent=2))
    log = read(tmp_path / "trainer_state.json")
    assert log.source == "trl"
    assert log.read == ["trainer_state.json"]
    assert log.values("reward").tolist() == [0.25, 0.5, 1.0]
    assert log.steps("reward").tolist() == [1, 2, 3]
    assert log.series["grad_norm"].steps.tolist() == [1, 2]
    assert np.isnan(log.series["grad_norm"].values[0])
    assert log.components() == ["exact"]
    assert log.values("component_std/exact").tolist() == [0.5, 0.4]
    assert log.series["eval/reward"].values.tolist() == [0.75]
    assert log.steps("eval/component/exact").tolist() == [2]
    assert (log.key("truncated"), log.key("zero_signal")) == ("completions/clipped_ratio", "frac_reward_zero_std")
    assert log.raw["num_tokens"].values.tolist() == [99]
    assert "train_loss" not in log.raw
    assert log.last_step == 3


def test_trainer_state_cut_short_gives_its_complete_rows(tmp_path):
    text = json.dumps(STATE, indent=2)
    (tmp_path / "state").write_text(text[: text.index("frac_reward_zero_std")])
    log = read(tmp_path)
    assert log.values("reward").tolist() == [0.25, 0.5]
    assert log.notes == ["state: the end is cut short and was left out"]


def test_verl_file_logger(tmp_path):
    lines = [
        {"step": 0, "data": {"val-core/math/acc/mean@4": 0.2, "val-core/gsm/acc/mean@4": 0.4}},
        {
            "step": 1,
            "data": {
                "critic/score/mean": 0.5,
                "critic/rewards/mean": 0.4,
                "actor/pg_clipfrac": 0.01,
                "actor/pg_clipfrac_lower": 0.5,
                "actor/ppo_kl": -0.001,
                "actor/kl_loss": 0.02,
                "actor/grad_norm": None,
                "actor/lr": 1e-6,
                "rollout_corr/kl": 0.003,
                "rollout_corr/k3_kl": 0.004,
                "training/global_step": 1,
            },
        },
    ]
    text = "\n".join(json.dumps(line) for line in lines) + '\n{"step": 2, "data": {"critic/sc'
    (tmp_path / "run.jsonl").write_text(text)
    log = read(tmp_path / "run.jsonl")
    assert log.source == "verl"
    assert log.values("reward").tolist() == [0.5]
    assert log.key("reward") == "critic/score/mean"
    assert log.values("approx_kl").tolist() == [-0.001]
    assert log.values("kl").tolist() == [0.02]
    assert log.values("clip_fraction").tolist() == [0.01]
    assert "clip_low" not in log
    assert log.raw["actor/pg_clipfrac_lower"].values.tolist() == [0.5]
    assert log.values("gap_kl").tolist() == [0.004]
    assert log.values("lr").tolist() == [1e-6]
    assert np.isnan(log.series["grad_norm"].values).tolist() == [True]
    assert log.values("eval/accuracy").tolist() == pytest.approx([0.3])
    assert log.steps("eval/accuracy").tolist() == [0]
    assert log.notes == [
        "eval/accuracy is the mean of 2 data sources: gsm, math",
        "run.jsonl: the end is cut short and was left out",
    ]


def test_gxpo_run(tmp_path):
    rows = [
        {"step": 1, "reward_mean": 0.5, "reward_correct": 0.25, "success_rate": 0.25, "zero_signal_groups": 0.5},
        {"step": 2, "reward_mean": 0.75, "reward_correct": 0.5, "success_rate": 0.5, "sampler_gap": 0.01},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    evaluation = {"step": 0, "eval_accuracy": 0.125, "eval_low": 0.1, "eval_correct": 0.125, "eval_pass_at_4": 0.5}
    (tmp_path / "evaluations.jsonl").write_text(json.dumps(evaluation) + "\n")
    log = read(tmp_path)
    assert log.source == "gxpo"
    assert log.read == ["evaluations.jsonl", "metrics.jsonl"]
    assert log.values("reward").tolist() == [0.5, 0.75]
    assert log.values("success").tolist() == [0.25, 0.5]
    assert log.components() == ["correct"]
    assert log.key("component/correct") == "reward_correct"
    assert log.values("gap_max").tolist() == [0.01]
    assert log.values("eval/accuracy").tolist() == [0.125]
    assert log.values("eval/component/correct").tolist() == [0.125]
    assert log.raw["eval_pass_at_4"].values.tolist() == [0.5]


def one(tmp_path, text, name):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return read(tmp_path / name)


def test_json_lines_with_flags_texts_and_padding(tmp_path):
    rows = [
        {
            "global_step": 1,
            "reward": 0.5,
            "ok": True,
            "note": "x",
            "nested": {"a": 1},
            "eval_reward": None,
            "loss": None,
        },
        {"global_step": 2, "reward": "0.75", "eval_reward": 0.25, "loss": 0.5},
        {"global_step": 3, "reward": float("inf"), "eval_reward": None, "loss": 0.25},
        {"global_step": 3, "reward": 0.125, "eval_reward": None, "loss": 0.125},
        {"global_step": 4, "reward": 1, "eval_reward": 0.5, "loss": float("nan")},
    ]
    log = one(
        tmp_path, "".join(json.dumps(r) + "\n" for r in rows) + "not json\n" + '{"global_step": 5}\n{"glob', "m.jsonl"
    )
    assert log.series["reward"].steps.tolist() == [1, 2, 3, 3, 4]
    assert log.series["reward"].values.tolist() == [0.5, 0.75, float("inf"), 0.125, 1]
    assert log.series["eval/reward"].values.tolist() == [0.25, 0.5]
    assert np.isnan(log.series["loss"].values).tolist() == [True, False, False, False, True]
    assert log.raw == {}
    assert log.notes == [
        "m.jsonl: 1 lines or rows could not be read",
        "m.jsonl: the end is cut short and was left out",
    ]


def test_one_run_of_an_export_of_two(tmp_path):
    (tmp_path / "w.csv").write_text(TWO)
    assert read(tmp_path / "w.csv", run="a").values("reward").tolist() == [0.5, 0.75]
    assert read(tmp_path / "w.csv", run="b").values("reward").tolist() == [0.25]
    with pytest.raises(RecordError, match=r"w.csv holds no run 'c': it holds a, b"):
        read(tmp_path / "w.csv", run="c")


def test_a_table_of_unknown_columns_is_no_verdict(tmp_path):
    (tmp_path / "own.csv").write_text(
        "step,episode_returns_avg,zed\n" + "".join(f"{i},0.5,1\n" for i in range(12)) + "12,0"
    )
    result = diagnose(read(tmp_path))
    assert result.exit_code == 2 and result.read == ["own.csv"]
    assert result.unknown_keys == ["episode_returns_avg", "zed"]
    assert result.advice[0] == "'episode_returns_avg' looks like the reward: --map reward=episode_returns_avg"
    assert result.notes == ["own.csv: 1 lines or rows could not be read"]
    mapped = diagnose(read(tmp_path, mapping={"reward": "episode_returns_avg"}))
    assert mapped.points == 12 and "episode_returns_avg" in mapped.progress


def test_lists_of_figures_by_key_are_rows(tmp_path):
    path = tmp_path / "history.json"
    path.write_text(json.dumps({"steps": [10, 20, 30], "rewards": [0.1, 0.2, 0.3], "kl": [0.0, 0.1, 0.2]}))
    run = read(path)
    assert run.steps("reward").tolist() == [10, 20, 30] and run.values("kl").tolist() == [0.0, 0.1, 0.2]
    path.write_text(json.dumps({"betas": [0.9, 0.99, 0.999], "seeds": [1, 2, 3]}))
    assert not read(path).series


def test_rows_below_a_key_of_their_own(tmp_path):
    rows = [{"step": 10 * i, "reward": 0.25 * i, "rewards/f/mean": 0.25 * i} for i in range(1, 5)]
    (tmp_path / "m.json").write_text(json.dumps({"total_steps": 4, "steps": rows}, indent=2))
    log = read(tmp_path / "m.json")
    assert log.source == "trl" and log.values("reward").tolist() == [0.25, 0.5, 0.75, 1.0]


def test_rows_that_list_the_rewards_of_a_group(tmp_path):
    (tmp_path / "grpo_log.jsonl").write_text(
        '{"step": 1, "rewards": [0.0, 1.0], "mean_reward": 0.5, "skipped": false, "lr": 0.01}\n'
        '{"step": 2, "rewards": [1.0, 1.0], "mean_reward": 1.0, "skipped": true, "lr": 0.01}\n'
    )
    log = read(tmp_path / "grpo_log.jsonl")
    assert log.values("reward").tolist() == [0.5, 1.0]
    assert log.values("zero_signal").tolist() == [0.0, 1.0]
    assert log.group_size == 2


def test_starts_that_were_given_up_are_left_out(tmp_path):
    steps = [1, 2, 1, 2, 3, 1, *range(2, 61)]
    (tmp_path / "m.jsonl").write_text("".join(f'{{"step": {s}, "mean_reward": {i}}}\n' for i, s in enumerate(steps)))
    log = read(tmp_path / "m.jsonl")
    assert log.steps("reward").tolist() == list(range(1, 61)) and log.values("reward")[0] == 5
    assert "m.jsonl: 5 rows of starts that were given up were left out" in log.notes
