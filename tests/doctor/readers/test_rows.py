"""Rows in JSON (trainer_state.json of TRL, FileLogger of verl, metrics.jsonl of gxpo, other programs) and in tables."""

import json

import numpy as np
import pytest

from gxpo.base.errors import RecordError
from gxpo.doctor import diagnose, read
from gxpo.doctor.readers.rows import from_delimited

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


def test_a_trainers_own_step_is_before_wandbs():
    table = from_delimited(
        "Step,r - rollout/step,r - train/step,r - rollout/raw_reward\n7,2,,0.5\n8,,4,\n9,3,,0.75\n", "w.csv"
    )
    assert table is not None and table.rows == [(2.0, {"rollout/raw_reward": 0.5}), (3.0, {"rollout/raw_reward": 0.75})]


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


def test_a_table_without_steps_and_metrics_is_none():
    assert from_delimited("name,size\na,1\nb,2\nc,3\n", "list.csv") is None


def test_a_break_in_a_table_of_six_rows_is_possible(tmp_path):
    (tmp_path / "report.md").write_text(
        "| step | critic/score/mean (acc) | **entropy** | `trunc%` | tokens |\n|---:|---|---|---|---|\n"
        "| 100 | +0.768 | 0.18 | 2% | 4,172 |\n| **115** | **+0.936** | 0.27 | 3% | 4,100* |\n"
        "| 118 (late) | 0.592 | 0.40 | 41% | - |\n| 125 | 0.257 | 1.16 | 40% | 3,900 |\n"
    )
    run = read(tmp_path)
    assert run.values("reward").tolist() == [0.768, 0.936, 0.592, 0.257]
    assert run.values("truncated").tolist() == [0.02, 0.03, 0.41, 0.4]
    assert run.steps("reward").tolist() == [100, 115, 118, 125] and run.raw["tokens"].values.tolist()[0] == 4172
    first = diagnose(run).findings[0]
    assert first.ids[0] == "lr_too_high" and first.grade == "possible" and diagnose(run).exit_code == 1


def test_lists_of_figures_by_key_are_rows(tmp_path):
    path = tmp_path / "history.json"
    path.write_text(json.dumps({"steps": [10, 20, 30], "rewards": [0.1, 0.2, 0.3], "kl": [0.0, 0.1, 0.2]}))
    run = read(path)
    assert run.steps("reward").tolist() == [10, 20, 30] and run.values("kl").tolist() == [0.0, 0.1, 0.2]
    path.write_text(json.dumps({"betas": [0.9, 0.99, 0.999], "seeds": [1, 2, 3]}))
    assert not read(path).series


@pytest.mark.parametrize(
    ("cell", "figure"),
    [
        ("**~0.5**", 0.5),
        ("51 s", 51.0),
        ("10 %", 0.1),
        ("**38.5B**", 3.85e10),
        ("1.2k", 1200.0),
        ("\u22120.989", -0.989),
        ("0.41-0.45", 0.43),
        ("0.14 \u2192 0.21", 0.175),
        ("1700+", 1700.0),
        ("0.08\uff08\u6301\u7eed\u4e0b\u964d\uff09", 0.08),
        ("0.45 \u2193", 0.45),
        ("1e-6", 1e-6),
        ("7.03e-06", 7.03e-06),
    ],
)
def test_a_cell_is_a_figure_with_remarks_units_and_signs_around_it(cell, figure):
    table = from_delimited(f"| step | reward |\n|---|---|\n| 1 | {cell} |\n", "t.md")
    assert table is not None and table.rows == [(1.0, {"reward": pytest.approx(figure)})]


@pytest.mark.parametrize("cell", ["\u2014 (val)", "lr=1e-6", "21:19:46", "yes", "11-berl", "0.196 / 0.527"])
def test_a_cell_of_anything_else_is_no_figure(cell):
    table = from_delimited(f"| step | reward | kl |\n|---|---|---|\n| 1 | {cell} | 2 |\n", "t.md")
    assert table is not None and table.rows == [(1.0, {"kl": 2.0})]


def test_three_figures_of_a_cell_are_three_columns():
    text = "| step | reward | staleness avg/max/dropped |\n|---|---|---|\n| 5 | 0.7 | 5.0/5/0 |\n"
    table = from_delimited(text, "t.md")
    row = {"reward": 0.7, "staleness avg": 5.0, "staleness max": 5.0, "staleness dropped": 0.0}
    assert table is not None and table.rows == [(5.0, row)]


BOX = "| step | reward |\n|-+-|\n| 1 | .1 |\n| 2 | .2 |\n".replace("|", "\u2502").replace("-", "\u2500")
ALIGNED = (
    "words\n\n  step    reward      kl\n------  --------  ------\n     5      0.1   0.01\n    10      0.2   0.02\n"
)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("| Checkpoint | Avg. Reward |\n|---|---|\n| step-10 | 0.1 |\n| ckpt-20 | 0.2 |\n| 30 | 0.3 |\n", [10, 20, 30]),
        (
            "| steps | reward |\n|---|---|\n| 1\u201380 | 0.1 |\n| 81-160 | 0.2 |\n| **161 (late)** | 0.3 |\n",
            [80, 160, 161],
        ),
        ("| metric | step 1 | step 50 | step 90 |\n|---|---|---|---|\n| Mean Reward | .1 | .2 | .3 |\n", [1, 50, 90]),
        ("| Step | 1 | 50 | 90 |\n|---|---|---|---|\n| Mean Reward | .1 | .2 | .3 |\n", [1, 50, 90]),
        (BOX, [1, 2]),
        (ALIGNED, [5, 10]),
        ("step reward kl\n1 0.1 0.01\n2 0.2 0.02\n", [1, 2]),
        ("> | step | reward |\n> |---|---|\n> | 4 | .1 |\n> | 8 | .2 |\n", [4, 8]),
    ],
)
def test_tables_of_several_forms_have_their_steps(tmp_path, text, steps):
    (tmp_path / "report.md").write_text(text)
    run = read(tmp_path / "report.md")
    assert run.steps("reward").tolist() == steps
    assert run.values("reward").tolist() == [0.1, 0.2, 0.3][: len(steps)]


def test_a_second_table_of_the_same_steps_adds_its_columns():
    text = "| step | reward |\n|---|---|\n| 1 | .1 |\n| 2 | .2 |\n\nand\n\n"
    text += "| step | reward | KL |\n|---|---|---|\n| 1 | 9 | .3 |\n| 2 | 9 | .4 |\n"
    table = from_delimited(text, "t.md")
    assert table is not None and table.rows == [(1.0, {"reward": 0.1, "KL": 0.3}), (2.0, {"reward": 0.2, "KL": 0.4})]
    other = text.replace("| 2 | 9 | .4 |", "| 3 | 9 | .4 |")
    assert from_delimited(other, "t.md").rows == [(1.0, {"reward": 0.1}), (2.0, {"reward": 0.2})]


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
