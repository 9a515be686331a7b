"""Runs that exist become arms, cut where all have spent as much; what can't be compared is refused or said."""

import json
import tarfile
from pathlib import Path

import pytest
from tests.compare.existing_runs import run, verl

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.compare.existing import read_existing

CORPUS = Path(__file__).parents[1] / "doctor" / "corpus"


# ---------------------------------------------------------------- budget
def test_curves_are_cut_where_all_have_spent_as_much(tmp_path: Path) -> None:
    short = run(tmp_path / "short", "dr_grpo", tokens=75)
    actual = read_existing([run(tmp_path / "long", end=0.75), short])
    assert actual.budget.amount == 300 and actual.budget.unit == "tokens"
    (long, least) = actual.runs
    # 300 tokens lie half way between the evaluations at 200 (0.25) and at 400 (0.75), which is step 3
    end = long.points[-1]
    assert [p.tokens for p in long.points] == [0, 200, 300]
    assert (end.value, end.step, end.updates, end.seconds) == (0.5, 3, 3, 3.0)
    assert long.after == {"a": 0.5, "b": 0.5} and long.before == {"a": 0.0, "b": 0.0}
    assert least.end == 0.5 and len(least.points) == 3 and not long.trouble and not least.trouble
    assert any(n.startswith("compared over 300 generated tokens") and str(short) in n for n in actual.notes)


def test_a_run_that_ended_at_once_does_not_cut_the_others(tmp_path: Path) -> None:
    full_process = [
        run(tmp_path / f"{m}-{s}", m, s, steps=40, trainer__steps=40) for m in ("grpo", "dr_grpo") for s in (0, 1)
    ]
    actual = read_existing([*full_process, run(tmp_path / "dead", "dr_grpo", 2, steps=2, trainer__steps=40)])
    assert actual.budget.amount == 4000
    assert {r.path: r.trouble for r in actual.runs if r.trouble} == {
        str(tmp_path / "dead"): "ended after step 2, at 200 of 4,000 generated tokens"
    }


def test_a_run_without_two_evaluations_is_left_out_and_named(tmp_path: Path) -> None:
    paths = [run(tmp_path / "a"), run(tmp_path / "b", "dr_grpo"), run(tmp_path / "c", "dr_grpo", 1)]
    (paths[2] / "evaluations.jsonl").write_text('{"step": 0, "eval_accuracy": 0.0}\n')
    actual = read_existing(paths)
    assert [r.path for r in actual.runs] == [str(p) for p in paths[:2]]
    assert any(n.startswith(f"left out: {paths[2]}: ended after step 4 with one evaluation") for n in actual.notes)


def test_budgets_that_the_runs_state(tmp_path: Path) -> None:
    paths = [run(tmp_path / m, m, tokens=t, trainer__max_updates=4) for m, t in (("grpo", 100), ("dr_grpo", 50))]
    actual = read_existing(paths)
    assert str(actual.budget) == "4 updates" and [len(r.points) for r in actual.runs] == [3, 3]


def test_runs_without_a_common_seed_are_paired_in_order(tmp_path: Path) -> None:
    paths = [run(tmp_path / f"g{s}", "grpo", s) for s in (3, 5)] + [
        run(tmp_path / f"d{s}", "dr_grpo", s) for s in (7, 9)
    ]
    actual = read_existing(paths)
    assert [r.seed for r in actual.runs] == [3, 5, 3, 5]
    assert any(
        n.startswith("no seed in common with grpo (3, 5): dr_grpo (7, 9); runs are paired in order")
        for n in actual.notes
    )


def test_another_measure(tmp_path: Path) -> None:
    paths = [run(tmp_path / "a"), run(tmp_path / "b", "dr_grpo")]
    actual = read_existing(paths, measure="eval_length")
    assert actual.measure == "eval_length" and [p.value for p in actual.runs[0].points] == [9.0, 7.0, 5.0]
    assert actual.better == "less"
    assert read_existing(paths, measure="eval_length", better="more").better == "more"
    trained = read_existing(paths, measure="reward_mean")
    assert trained.better == "more"
    assert [p.value for p in trained.runs[0].points] == [0.1, 0.2, 0.3, 0.4]
    assert any(n.startswith("reward_mean is a figure of training, not held-out") for n in trained.notes)
    with pytest.raises(ConfigError, match=r"no figure 'eval_size'.*evaluations have eval_accuracy, eval_length"):
        read_existing(paths, measure="eval_size")


def test_gxpo_beside_another_trainer(tmp_path: Path) -> None:
    mixed = [run(tmp_path / "a"), verl(tmp_path / "b")]
    actual = read_existing(mixed)
    assert actual.measure == "reward" and actual.budget.amount == 100
    assert actual.setting == "arithmetic, tiny; logs of verl" and actual.keys == {}
    assert any("measured by different trainers, each in its own way: gxpo (grpo), verl (b)" in n for n in actual.notes)
    with pytest.raises(ConfigError, match="no figure 'eval/accuracy'"):
        read_existing(mixed, measure="eval_accuracy")


def test_runs_of_the_corpus(tmp_path: Path) -> None:
    for name in ("verl-001", "verl-004"):
        (archive,) = CORPUS.glob(f"*/{name}.tar.xz")
        with tarfile.open(archive, "r:xz") as tar:
            tar.extractall(tmp_path / name, filter="data")
    actual = read_existing([tmp_path / "verl-001", tmp_path / "verl-004"])
    rows = [json.loads(line)["data"] for line in (tmp_path / "verl-004" / "metrics.jsonl").read_text().splitlines()]
    # its batch is 64 completions: 3653 tokens of the last step are 64 times the mean lengths, 33 and 24.078125
    tokens = sum(64 * row["response_length/mean"] for row in rows[1:])
    full_existing = read_existing([tmp_path / "verl-004", tmp_path / "verl-001"], measure="reward")
    assert max(r.tokens for r in actual.runs) <= actual.budget.amount <= tokens + 1
    assert full_existing.setting == "logs of verl" and all(len(r.points) > 1 for r in actual.runs)


@pytest.mark.slow
def test_runs_of_the_trainer(tmp_path: Path) -> None:
    keys = {
        "tasks.per_step": 2,
        "rollout.group_size": 4,
        "sampling.max_new_tokens": 6,
        "eval.tasks": 5,
        "doctor.every": 0,
        "trainer.rollouts_every": 0,
    }
    runs = [
        gxpo.train("tiny:cold", "arithmetic", m, 2, seed=0, out=tmp_path / m, set=keys) for m in ("grpo", "dr_grpo")
    ]
    actual = read_existing([r.path for r in runs])
    assert [a.label for a in actual.arms] == ["grpo", "dr_grpo"]
    assert actual.budget.amount == min(r.metrics[-1]["generated_tokens"] for r in runs)
    assert not any("differ in more" in n or "not evaluated alike" in n for n in actual.notes)
    assert [len(r.after) for r in actual.runs] == [5, 5]
