"""A run directory is read as it was measured and paid for: written by hand, and by the trainer itself."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

import gxpo
from gxpo.base.errors import CheckpointError, ConfigError, RecordError
from gxpo.compare.reading import read_run

KEYS = {
    "tasks.per_step": 2,
    "rollout.group_size": 4,
    "sampling.max_new_tokens": 6,
    "eval.tasks": 5,
    "eval.every": 2,
    "trainer.rollouts_every": 1,
    "doctor.every": 0,
    "optim.lr": 0.01,
}


def step(number: int, generated: int, updates: int = 1, **more: Any) -> dict[str, Any]:
    return {"step": number, "optimiser_steps": updates, "generated_tokens": generated, "time_step_s": 0.5, **more}


def write(path: Path, lines: Any, evaluations: Any, verdicts: Any = ()) -> Path:
    path.mkdir(parents=True)
    (path / "config.yaml").write_text("method: grpo\ntrainer.steps: 4\n")
    for name, rows in (("metrics.jsonl", lines), ("evaluations.jsonl", evaluations)):
        (path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "evaluations").mkdir()
    for number, table in dict(verdicts).items():
        (path / "evaluations" / f"step-{number:06d}.json").write_text(json.dumps(table))
    return path


LINES = [
    step(1, 100, reward_mean=0.0, discarded_rollouts=0),
    step(2, 250, updates=2, reward_mean=0.5, discarded_rollouts=8),
    step(3, 300, updates=0, reward_mean=None, discarded_rollouts=8),
    step(4, 420, reward_mean=1.0, discarded_rollouts=12),
]
EVALUATIONS = [
    {"step": 0, "eval_accuracy": 0.25, "eval_length": 9.0, "time_eval_s": 3.0},
    {"step": 2, "eval_accuracy": 0.5, "eval_length": 8.0, "time_eval_s": 3.0},
    {"step": 4, "eval_accuracy": 0.75, "eval_length": 7.0, "eval_high": None, "time_eval_s": 3.0},
]
FIRST, LAST = {"a": 0.0, "b": 0.5}, {"a": 0.5, "b": 1.0}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return write(tmp_path / "run", LINES, EVALUATIONS, {0: FIRST, 2: FIRST, 4: LAST})


def test_every_evaluation_is_a_point_with_its_cost_so_far(whole: Path) -> None:
    run = read_run(whole, "grpo", 3)
    assert (run.arm, run.seed, run.path, run.trouble) == ("grpo", 3, str(whole), "")
    # updates 1 + 2 by step 2, and 0 + 1 more by step 4; half a second a step; tokens are counted since the beginning
    assert [(p.step, p.tokens, p.updates, p.seconds, p.value) for p in run.points] == [
        (0, 0, 0, 0.0, 0.25),
        (2, 250, 3, 1.0, 0.5),
        (4, 420, 4, 2.0, 0.75),
    ]
    assert run.before == FIRST and run.after == LAST
    assert run.discarded_rollouts == 12 and math.isnan(run.judge_tokens)
    assert run.figures == {"eval_accuracy": 0.75, "eval_length": 7.0}


def test_other_evaluation_figures_have_no_verdicts_by_task(whole: Path) -> None:
    run = read_run(whole, "grpo", 0, "eval_length")
    assert [p.value for p in run.points] == [9.0, 8.0, 7.0] and not run.before and not run.after


def test_training_figures_are_means_over_stretches_of_steps(whole: Path, tmp_path: Path) -> None:
    # four steps make four parts of one; the third is not known. The first part stands at the beginning
    points = read_run(whole, "grpo", 0, "reward_mean").points
    assert [(p.step, p.tokens, p.value) for p in points] == [(0, 0, 0.0), (2, 250, 0.5), (4, 420, 1.0)]
    longer = write(tmp_path / "longer", [step(n, 10 * n, reward_mean=float(n)) for n in range(1, 31)], EVALUATIONS)
    points = read_run(longer, "grpo", 0, "reward_mean").points
    assert [p.value for p in points] == [2.0, 5.0, 8.0, 11.0, 14.0, 17.0, 20.0, 23.0, 26.0, 29.0]  # of three each
    assert [p.step for p in points] == [0, 5, 8, 11, 14, 17, 20, 23, 26, 30] and points[-1].tokens == 300


def test_an_unknown_measure_lists_those_there_are(whole: Path) -> None:
    with pytest.raises(ConfigError, match=r"no figure 'eval_lenght'; did you mean 'eval_length'\? evaluations have"):
        read_run(whole, "grpo", 0, "eval_lenght")
    with pytest.raises(ConfigError, match=r"evaluations have eval_accuracy, eval_length; steps have .*reward_mean"):
        read_run(whole, "grpo", 0, "xyzzy")


def test_a_killed_run_ends_with_its_last_whole_lines(whole: Path) -> None:
    (whole / "metrics.jsonl").write_bytes((whole / "metrics.jsonl").read_bytes()[:-20])  # in the line of step 4
    run = read_run(whole, "grpo", 0)
    assert [p.step for p in run.points] == [0, 2] and run.after == FIRST  # that of step 2
    assert run.figures["eval_length"] == 8.0 and run.discarded_rollouts == 8
    assert run.trouble == "ended after step 3 without an evaluation; its last is of step 2"
    (whole / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(RecordError, match="step 1 does not say what it cost"):
        read_run(whole, "grpo", 0)


def test_fewer_than_two_evaluations_are_said(tmp_path: Path) -> None:
    one = read_run(write(tmp_path / "one", LINES, EVALUATIONS[:1]), "grpo", 0)
    assert len(one.points) == 1 and not one.before
    assert one.trouble == "ended after step 4 with one evaluation alone, of step 0: a comparison needs two"
    none = read_run(write(tmp_path / "none", [], []), "grpo", 0)
    assert not none.points and none.trouble == "ended before its first step with no evaluation: a comparison needs two"
    with pytest.raises(CheckpointError, match="is not a run directory"):
        read_run(tmp_path, "grpo", 0)


@pytest.mark.slow
def test_a_run_of_the_trainer(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def short(tokens):\n    return -float(len(tokens))\n")
    reward = f"{tmp_path / 'mine.py'}:short"
    trained_run = gxpo.train("tiny:cold", "arithmetic", "grpo", 3, reward, seed=1, out=tmp_path / "run", set=KEYS)
    run = read_run(trained_run.path, "grpo", 1)
    assert [p.step for p in run.points] == [0, 2, 3] and not run.trouble
    assert [p.value for p in run.points] == [row["eval_accuracy"] for row in trained_run.evaluations]
    texts = [file.read_text().splitlines() for file in sorted((trained_run.path / "rollouts").glob("step-*.jsonl"))]
    lengths = [sum(len(turn["action"]) for line in lines for turn in json.loads(line)["turns"]) for lines in texts]
    assert [p.tokens for p in run.points] == [0, sum(lengths[:2]), sum(lengths)]
    assert len(run.before) == len(run.after) == 5 and run.before.keys() == run.after.keys()
