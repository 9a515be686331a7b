"""`read`: one run or several, resumes, settings that disagree, files that are left alone."""

import json

import pytest

from gxpo.base.errors import RecordError
from gxpo.doctor import read

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


def test_newest_checkpoint_contains_the_older(tmp_path):
    for step in (2, 3):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        history = [row for row in STATE["log_history"] if row["step"] <= step and "train_runtime" not in row]
        (folder / "trainer_state.json").write_text(json.dumps({**STATE, "log_history": history}))
    log = read(tmp_path)
    assert log.values("reward").tolist() == [0.25, 0.5, 1.0]
    assert len(log.series["reward"]) == 3
    assert log.read == ["checkpoint-2/trainer_state.json", "checkpoint-3/trainer_state.json"]


def test_two_histories_are_two_runs(tmp_path):
    for name, factor in (("a", 1.0), ("b", 0.5)):
        (tmp_path / name).mkdir()
        rows = [{"reward": factor * i, "grad_norm": factor, "step": i} for i in range(1, 5)]
        (tmp_path / name / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    with pytest.raises(RecordError, match="holds 2 runs: a, b: give one of them"):
        read(tmp_path)
    assert read(tmp_path / "b").values("reward").tolist() == [0.5, 1.0, 1.5, 2.0]


def test_several_gxpo_runs_are_named(tmp_path):
    for name in ("seed0", "seed1", "seed2"):
        (tmp_path / name).mkdir()
        for step, file in ((1, "metrics.jsonl"), (0, "evaluations.jsonl")):
            row = {"step": step, "reward_mean": 0.0, "eval_accuracy": 0.0}
            (tmp_path / name / file).write_text(json.dumps(row) + "\n")
    with pytest.raises(RecordError, match="holds 3 runs: seed0, seed1, seed2: give one of them"):
        read(tmp_path)


def test_missing_path_and_nothing_to_read(tmp_path):
    with pytest.raises(RecordError, match="no such file or directory"):
        read(tmp_path / "none")
    (tmp_path / "notes.txt").write_text("nothing here\n")
    (tmp_path / "training_args.bin").write_bytes(b"\x80\x02")
    log = read(tmp_path)
    assert log.read == [] and log.series == {}
    assert log.notes[0] == "not opened, as unpickling could run code: training_args.bin"
    assert log.notes[1].startswith(f"{tmp_path}: none of 1 files could be read; looked for: trainer_state.json")


def test_a_run_after_a_resume_keeps_its_repeated_steps_in_order(tmp_path):
    seen_values = ((1, 0.5), (2, 0.25), (2, 0.75))
    rows = [{"step": s, "reward_mean": r, "success_rate": r, "weights_fingerprint": s} for s, r in seen_values]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    log = read(tmp_path)
    assert log.series["reward"].steps.tolist() == [1, 2, 2]
    assert log.series["reward"].values.tolist() == [0.5, 0.25, 0.75]
    assert log.values("reward").tolist() == [0.5, 0.75]


def test_logs_before_and_after_a_resume_are_one_run(tmp_path):
    for name, steps, shift in (("a.jsonl", range(1, 8), 0), ("b.jsonl", range(5, 11), 1)):
        rows = [{"step": s, "reward": (s + shift) / 16, "reward_std": 0.5} for s in steps]
        (tmp_path / name).write_text("".join(json.dumps(r) + "\n" for r in rows))
    log = read(tmp_path)
    assert log.steps("reward").tolist() == list(range(1, 11))
    assert log.values("reward").tolist()[-1] == 11 / 16


def test_settings_that_disagree_are_said(tmp_path):
    (tmp_path / "m.jsonl").write_text('{"step": 1, "reward": 0.5, "reward_std": 0.5, "completions/mean_length": 3}\n')
    (tmp_path / "a.yaml").write_text("learning_rate: 1.0e-6\nnum_generations: 8\n")
    (tmp_path / "b.yaml").write_text("learning_rate: 2.0e-6\nnum_generations: 8\n")
    log = read(tmp_path)
    assert log.config == {"lr": 1e-6, "group_size": 8}
    assert log.notes == ["b.yaml: lr is 2e-06 there, but 1e-06 elsewhere, which counts"]


def one(tmp_path, text, name="log.txt"):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return read(tmp_path / name)


def test_logging_steps_number_rows_without_bars(tmp_path):
    text = "".join(f"{{'loss': 0.0, 'reward': {r}, 'reward_std': 0.5, 'kl': 0.01}}\n" for r in (0.25, 0.5, 0.75))
    (tmp_path / "config.yaml").write_text("learning_rate: 1.0e-5\nnum_generations: 8\nlogging_steps: 10\nbeta: 0.04\n")
    log = one(tmp_path, text)
    assert log.steps("reward").tolist() == [10, 20, 30]
    assert log.config == {"lr": 1e-5, "group_size": 8, "beta": 0.04}
    assert log.read == ["config.yaml", "log.txt"]
    assert log.notes == ["log.txt: rows have no step number: they were numbered by logging_steps (10)"]


def test_a_console_that_goes_on_adds_later_steps(tmp_path):
    rows = [f'{{"reward": {i / 8}, "grad_norm": 0.{i}, "step": {i}}}' for i in (1, 2)]
    (tmp_path / "checkpoint-2").mkdir()
    (tmp_path / "checkpoint-2/trainer_state.json").write_text(
        f'{{"log_history": [{", ".join(rows)}], "logging_steps": 1}}'
    )
    printed = "".join(f"{{'reward': '{i / 8:.4g}', 'grad_norm': '0.{i}', 'reward_std': '0.5'}}\n" for i in (1, 2, 3))
    (tmp_path / "console").write_text(printed)
    log = read(tmp_path)
    assert log.series["reward"].values.tolist() == [0.125, 0.25, 0.375]
    assert log.series["reward_std"].values.tolist() == [0.5, 0.5, 0.5]


def test_a_console_beside_a_state_takes_its_logging_steps(tmp_path):
    rows = [{"reward": i / 8, "reward_std": 0.5, "step": 10 * i} for i in (1, 2)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": rows, "logging_steps": 10}))
    printed = "".join(f"{{'reward': '{i / 8:.4g}', 'entropy': '0.{i}'}}\n" for i in (1, 2, 3))
    (tmp_path / "console").write_text(printed)
    log = read(tmp_path)
    assert log.steps("reward").tolist() == [10, 20, 30]
    assert log.steps("entropy").tolist() == [10, 20, 30]


def test_a_console_whose_steps_nothing_tells_is_no_other_run(tmp_path):
    rows = [{"reward": i / 8, "reward_std": 0.5, "step": 10 * i} for i in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    printed = "".join(f"{{'reward': '{i / 8:.4g}', 'entropy': '0.{i}'}}\n" for i in range(1, 21))
    (tmp_path / "console").write_text(printed)
    log = read(tmp_path)
    assert log.steps("reward").tolist() == [10, 20, 30]
    assert log.notes == ["console: rows have no step number: they were numbered in their order"]


def test_questions_with_numbers_as_answers_are_no_figures(tmp_path):
    lines = [{"question": f"{i} + 1 = ?", "answer": str(i + 1)} for i in range(12)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = [{"input": f"{i} + 1 = ?", "output": str(i), "score": 0.0, "step": i + 1} for i in range(12)]
    (tmp_path / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows for _ in range(2)))
    log = read(tmp_path)
    assert log.rollouts is not None and log.rollouts.reference[:2] == ["1", "1"]


def test_a_lightning_run_is_no_run_of_skyrl(tmp_path):
    (tmp_path / "a.csv").write_text("trainer/global_step,epoch,loss\n" + "".join(f"{i},0,0.5\n" for i in range(3)))
    assert read(tmp_path).source == "unknown"


def test_files_of_one_run_that_disagree_are_named(tmp_path):
    rows = [{"reward": i / 10, "reward_std": 0.1 * i, "grad_norm": 0.5 + i, "step": i} for i in range(1, 11)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({**STATE, "log_history": rows}))
    other_rows = [{**row, "reward": row["reward"] + 0.2 * (row["step"] == 4)} for row in rows]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in other_rows))
    log = read(tmp_path)
    assert log.values("reward")[3] == 0.4
    assert (
        "trainer_state.json and log.jsonl differ in 1 step: reward is 0.4 and 0.6 at 4; trainer_state.json counts"
        in (log.notes)
    )


def test_prefixes_of_a_trainer_in_files_of_one_key_each(tmp_path):
    for key, value in (("train/reward", 0.25), ("train/approx_entropy", 1.5), ("train/grad_norm", 0.5)):
        lines = ["Step,run - " + key, *(f"{step},{value}" for step in range(1, 5))]
        (tmp_path / (key.replace("/", "_") + ".csv")).write_text("\n".join(lines) + "\n")
    log = read(tmp_path)
    assert log.source == "nemo-rl"
    assert log.values("reward").tolist() == [0.25] * 4 and log.values("grad_norm").tolist() == [0.5] * 4


def test_verdicts_that_nobody_gave_are_set_aside(tmp_path):
    key = "critic/correct/mean"
    rows = [
        {"step": i, key: 0.0, "group/all_incorrect_groups_ratio": 0.0, "critic/score/mean": 0.1 * i}
        for i in range(1, 9)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = read(tmp_path)
    assert not log.has("success") and log.has("reward")
    assert log.notes == [f"{key} and group/all_incorrect_groups_ratio are 0 in all steps: not taken for verdicts"]


def phased(folder, rows):
    """A run of imitation and of GRPO after it: step k is of phase `rows[k - 1]`, its rollouts beside it."""
    phases = [
        {"method": "grpo", "credit": "constant_advantage", "credit.origin": "demonstration", "rollout.group_size": 4},
        {"method": "grpo", "credit": "relative", "credit.among": ["group"], "rollout.group_size": 2},
    ]
    config = {"method": "grpo", "trainer.steps": 4, "optim.lr": 1e-4, "phases": phases}
    (folder / "rollouts").mkdir(parents=True)
    (folder / "config.yaml").write_text(json.dumps(config))
    metrics = [{"step": k, "phase": phase, "reward_mean": 0.5, "loss": 0.1} for k, phase in enumerate(rows, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    for step in range(1, len(rows) + 1):
        record = {"schema": "gxpo.rollouts/1", "group": f"s{step}", "prompt": [1], "prompt_text": "p", "reward": 1.0}
        turns = [{"action": [5], "action_text": "a"}]
        lines = [{**record, "id": f"{step}/{i}", "turns": turns, "info": {"advantage": 1.0}} for i in range(2)]
        lines[1]["turns"] = [{**turns[0], "trainable": False}]
        lines[1]["compared"] = step % 2 == 0
        (folder / f"rollouts/step-{step:06d}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    return folder


def test_settings_and_rollouts_are_those_of_the_phase_that_the_run_is_in(tmp_path):
    log = read(phased(tmp_path / "second", [1, 1, 2, 2]))
    assert (log.phase_begin, log.setting("group_size")) == (3, 2)
    # the older name of `group_by`
    assert log.setting("credit") == {"credit": "relative", "credit.group_by": ["group"]} and log.centres_outcomes
    assert log.rollouts.step.tolist() == [3, 3, 4, 4] and log.steps("reward").tolist() == [3, 4]
    assert any("phase 2, from step 3" in note for note in log.notes)
    # of a rollout without a trained token no advantage is known
    assert [x == x for x in log.rollouts.advantage] == [True, False, True, False]
    assert log.rollouts.compared.tolist() == [True, False, True, True]
    first = read(phased(tmp_path / "first", [1, 1]))
    assert (first.phase_begin, first.setting("group_size")) == (None, 4)
    assert first.setting("credit") == {"credit": "constant_advantage", "credit.origin": "demonstration"}
    assert sorted(set(first.rollouts.step.tolist())) == [1, 2]
