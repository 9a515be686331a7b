"""Runs that exist become arms, cut where all have spent as much; what can't be compared is refused or said."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

import gxpo
from gxpo.base.errors import ConfigError, RecordError
from gxpo.compare.existing import read_existing

CORPUS = Path(__file__).parents[1] / "doctor" / "corpus"
SHARED = {"model": "tiny", "task": "arithmetic", "trainer.steps": 4, "eval.tasks": 2, "eval.samples": 1}


def run(
    path: Path, method: str = "grpo", seed: int = 0, tokens: int = 100, end: float = 0.5, tasks: str = "ab",
    steps: int = 4, **keys: Any,
) -> Path:  # fmt: skip
    """A run of `steps` steps with `tokens` each, evaluated before, in the middle and after; keys with __ for a dot."""
    path.mkdir(parents=True)
    stated = {k.replace("__", "."): v for k, v in keys.items()}
    config = [
        f"method: {method} # --set",
        f"seed: {seed} # --set",
        f"out: {path} # default",
        "optim.lr: 0.001 # default",
    ]
    config += [f"{k}: {json.dumps(v)} # run.yaml:3" for k, v in {**SHARED, **stated}.items()]
    if "optim.lr" in stated:
        config.remove("optim.lr: 0.001 # default")
    config.append(f"credit.scale: {'none' if method == 'dr_grpo' else 'std'} # {method}")
    (path / "config.yaml").write_text("\n".join(config) + "\n")
    lines = [
        {"step": n, "optimiser_steps": 1, "generated_tokens": n * tokens, "time_step_s": 1.0, "reward_mean": n / 10}
        for n in range(1, steps + 1)
    ]
    found = {0: 0.0, steps // 2: 0.25, steps: end}
    rows = [{"step": n, "eval_accuracy": v, "eval_length": 9.0 - n} for n, v in found.items()]
    for name, written in (("metrics", lines), ("evaluations", rows)):
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in written))
    (path / "evaluations").mkdir()
    for n, value in found.items():
        (path / "evaluations" / f"step-{n:06d}.json").write_text(json.dumps({tasks[0]: value, tasks[1]: value}))
    return path


def verl(path: Path, reward: float = 0.5) -> Path:
    """Two steps of 4 completions: prompts of 10 tokens, completions of 5 and then of 20."""
    path.mkdir(parents=True)
    lengths = {1: 5.0, 2: 20.0}
    rows = [{"step": 0, "data": {"val-core/gsm8k/reward/mean@1": 0.25}}]
    for step, length in lengths.items():
        data = {
            "critic/score/mean": reward,
            "response_length/mean": length,
            "prompt_length/mean": 10.0,
            "perf/total_num_tokens": 4 * (10.0 + length),
            "timing_s/step": 2.0,
            "actor/grad_norm": 1.0,
            "val-core/gsm8k/reward/mean@1": reward,
        }
        rows.append({"step": step, "data": data})
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def trl(path: Path, steps: int = 20, gain: float = 0.01) -> Path:
    path.mkdir(parents=True)
    history = [
        {"step": n, "reward": gain * n, "rewards/exact/mean": 1.0, "completions/mean_length": 5.0,
         "num_tokens": 60.0 * n, "frac_reward_zero_std": 0.0, "step_time": 0.5}
        for n in range(1, steps + 1)
    ]  # fmt: skip
    state = {"global_step": steps, "max_steps": steps, "logging_steps": 1, "log_history": history}
    (path / "trainer_state.json").write_text(json.dumps(state))
    return path


# ---------------------------------------------------------------- arms
def test_runs_of_one_configuration_are_one_arm(tmp_path: Path) -> None:
    paths = [run(tmp_path / f"{m}-{s}", m, s) for m in ("dr_grpo", "grpo") for s in (0, 1)]
    shuffled = run(tmp_path / "control", "grpo", 0, scoring__shuffle=True)
    found = read_existing([*paths, shuffled, run(tmp_path / "control-1", "grpo", 1, scoring__shuffle=True)])
    assert [(a.label, a.kind) for a in found.arms] == [
        ("grpo", "base"),
        ("dr_grpo", "arm"),
        ("grpo shuffle=true", "control"),
    ]
    assert [(r.arm, r.seed) for r in found.runs[:4]] == [("dr_grpo", 0), ("dr_grpo", 1), ("grpo", 0), ("grpo", 1)]
    assert found.arms[1].keys == {"method": "dr_grpo"} and found.arms[2].keys["scoring.shuffle"] is True
    assert str(found.budget) == "400 generated tokens" and found.measure == "eval_accuracy"
    assert found.setting == "arithmetic, tiny" and found.notes == []
    assert found.keys == {"model": "tiny", "task": "arithmetic", "eval.tasks": 2, "eval.samples": 1}


def test_arms_of_one_method_are_called_by_what_was_stated(tmp_path: Path) -> None:
    paths = [run(tmp_path / "a"), run(tmp_path / "b", optim__lr=1e-4), run(tmp_path / "c", "dr_grpo", optim__lr=1e-4)]
    found = read_existing(paths)
    assert [a.label for a in found.arms] == ["grpo", "grpo lr=1e-4", "dr_grpo"]
    (note,) = [n for n in found.notes if "differ in more" in n]
    assert note.endswith("optim.lr: 1e-3 (grpo), 1e-4 (grpo lr=1e-4, dr_grpo)")
    assert "one seed each: the interval covers held-out tasks only, not what another seed would give" in found.notes


def test_directories_and_labels_name_arms(tmp_path: Path) -> None:
    for arm in ("mine", "other"):
        for seed in (0, 1):
            run(tmp_path / "out" / arm / f"seed-{seed}", seed=seed)
    run(tmp_path / "out" / "tuning" / "seed-1000", seed=1000)  # never reported
    found = read_existing([tmp_path / "out"], base="other")
    assert [(a.label, a.kind) for a in found.arms] == [("other", "base"), ("mine", "arm")]
    again = [f"x={tmp_path / 'out' / 'mine'}", tmp_path / "out" / "other"]
    assert [a.label for a in read_existing(again).arms] == ["x", "other"]
    named = read_existing([str(tmp_path / "out" / "mine"), str(tmp_path / "out" / "other")],
                          labels={str(tmp_path / "out" / "mine"): "y"})  # fmt: skip
    assert [a.label for a in named.arms] == ["y", "other"]
    with pytest.raises(ConfigError, match=r"base 'othr' is no arm; did you mean 'other'\?"):
        read_existing([tmp_path / "out"], base="othr")
    with pytest.raises(ConfigError, match="two runs of arm grpo have seed 0"):
        read_existing([tmp_path / "out" / "mine" / "seed-0", tmp_path / "out" / "other" / "seed-0"])


# ---------------------------------------------------------------- budget
def test_curves_are_cut_where_all_have_spent_as_much(tmp_path: Path) -> None:
    short = run(tmp_path / "short", "dr_grpo", tokens=75)
    found = read_existing([run(tmp_path / "long", end=0.75), short])
    assert found.budget.amount == 300 and found.budget.unit == "tokens"
    (long, least) = found.runs
    # 300 tokens lie half way between the evaluations at 200 (0.25) and at 400 (0.75), which is step 3
    end = long.points[-1]
    assert [p.tokens for p in long.points] == [0, 200, 300]
    assert (end.value, end.step, end.updates, end.seconds) == (0.5, 3, 3, 3.0)
    assert long.after == {"a": 0.5, "b": 0.5} and long.before == {"a": 0.0, "b": 0.0}
    assert least.end == 0.5 and len(least.points) == 3 and not long.trouble and not least.trouble
    assert any(n.startswith("compared over 300 generated tokens") and str(short) in n for n in found.notes)


def test_a_run_that_ended_at_once_does_not_cut_the_others(tmp_path: Path) -> None:
    whole = [run(tmp_path / f"{m}-{s}", m, s, steps=40, trainer__steps=40) for m in ("grpo", "dr_grpo") for s in (0, 1)]
    found = read_existing([*whole, run(tmp_path / "dead", "dr_grpo", 2, steps=2, trainer__steps=40)])
    assert found.budget.amount == 4000
    assert {r.path: r.trouble for r in found.runs if r.trouble} == {
        str(tmp_path / "dead"): "ended after step 2, at 200 of 4,000 generated tokens"
    }


def test_a_run_without_two_evaluations_is_left_out_and_named(tmp_path: Path) -> None:
    paths = [run(tmp_path / "a"), run(tmp_path / "b", "dr_grpo"), run(tmp_path / "c", "dr_grpo", 1)]
    (paths[2] / "evaluations.jsonl").write_text('{"step": 0, "eval_accuracy": 0.0}\n')
    found = read_existing(paths)
    assert [r.path for r in found.runs] == [str(p) for p in paths[:2]]
    assert any(n.startswith(f"left out: {paths[2]}: ended after step 4 with one evaluation") for n in found.notes)


def test_budgets_that_the_runs_state(tmp_path: Path) -> None:
    paths = [run(tmp_path / m, m, tokens=t, trainer__max_updates=4) for m, t in (("grpo", 100), ("dr_grpo", 50))]
    found = read_existing(paths)
    assert str(found.budget) == "4 updates" and [len(r.points) for r in found.runs] == [3, 3]


# ---------------------------------------------------------------- what can't be compared, and what has to be said
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"task": "countdown"}, r"task is arithmetic in .*a and countdown in .*b"),
        ({"model": "other"}, "model is tiny"),
        ({"eval__samples": 4}, "eval.samples is 1 in .* and 4"),
        ({"tasks": "xy"}, "2 held-out tasks and .*b on 2, 0 of them the same"),
    ],
)
def test_other_tasks_are_refused(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_existing([run(tmp_path / "a"), run(tmp_path / "b", "dr_grpo", **keys)])


def test_one_arm_is_no_comparison(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"one arm alone \(grpo, 2 runs\)"):
        read_existing([run(tmp_path / "a"), run(tmp_path / "b", seed=1)])
    with pytest.raises(RecordError, match="no such file or directory"):
        read_existing([tmp_path / "none"])
    with pytest.raises(ConfigError, match="is given twice"):
        read_existing([tmp_path / "a", tmp_path / "a"])


def test_what_arms_do_not_share_is_said(tmp_path: Path) -> None:
    a = run(tmp_path / "a", sampling__max_new_tokens=8, init_from="warm/0", versions={"torch": "2.0"})
    b = run(tmp_path / "b", "dr_grpo", sampling__max_new_tokens=16, init_from="warm/1", versions={"torch": "2.1"})
    text = "\n".join(read_existing([a, b]).notes)
    assert "not evaluated alike: sampling.max_new_tokens is 8 (grpo), 16 (dr_grpo)" in text
    assert "pairs did not begin alike: init_from differs between the arms at seed 0" in text
    assert "made with different versions of torch: 2.0, 2.1" in text


def test_runs_without_a_common_seed_are_paired_in_order(tmp_path: Path) -> None:
    paths = [run(tmp_path / f"g{s}", "grpo", s) for s in (3, 5)] + [
        run(tmp_path / f"d{s}", "dr_grpo", s) for s in (7, 9)
    ]
    found = read_existing(paths)
    assert [r.seed for r in found.runs] == [3, 5, 3, 5]
    assert any(
        n.startswith("no seed in common with grpo (3, 5): dr_grpo (7, 9); runs are paired in order")
        for n in found.notes
    )


def test_another_measure(tmp_path: Path) -> None:
    paths = [run(tmp_path / "a"), run(tmp_path / "b", "dr_grpo")]
    found = read_existing(paths, measure="eval_length")
    assert found.measure == "eval_length" and [p.value for p in found.runs[0].points] == [9.0, 7.0, 5.0]
    assert found.better == "less"
    assert read_existing(paths, measure="eval_length", better="more").better == "more"
    trained = read_existing(paths, measure="reward_mean")
    assert trained.better == "more"
    assert [p.value for p in trained.runs[0].points] == [0.1, 0.2, 0.3, 0.4]
    assert any(n.startswith("reward_mean is a figure of training, not held-out") for n in trained.notes)
    with pytest.raises(ConfigError, match=r"no figure 'eval_size'.*evaluations have eval_accuracy, eval_length"):
        read_existing(paths, measure="eval_size")


# ---------------------------------------------------------------- other trainers
def test_verl_counts_its_generated_tokens(tmp_path: Path) -> None:
    found = read_existing([verl(tmp_path / "one"), f"two={verl(tmp_path / 'b', 0.75)}"])
    assert [(a.label, a.kind) for a in found.arms] == [("one", "base"), ("two", "arm")]
    # 4 completions of 5 tokens, then 4 of 20; two seconds a step
    assert [(p.step, p.tokens, p.seconds, p.value) for p in found.runs[1].points] == [
        (0, 0, 0.0, 0.25),
        (1, 20, 2.0, 0.75),
        (2, 100, 4.0, 0.75),
    ]
    assert str(found.budget) == "100 generated tokens" and found.measure == "eval/reward"
    assert "one seed each, and no verdicts by held-out task: there is nothing to make an interval of" in found.notes
    assert any("seeds are not in all of the other trainers' logs" in n for n in found.notes)


def test_trl_is_compared_over_updates_where_its_completions_are_not_counted(tmp_path: Path) -> None:
    found = read_existing([trl(tmp_path / "a" / "trainer"), trl(tmp_path / "seed_4", steps=30)])
    assert found.budget.unit == "updates" and found.budget.amount == 20 and found.measure == "reward"
    assert [r.tokens for r in found.runs] == [0, 0] and [a.label for a in found.arms] == ["trainer", "seed_4"]
    # twenty steps make ten parts of two, whose means are .015, .035, ... .195
    assert [p.value for p in found.runs[0].points] == pytest.approx([0.015 + 0.02 * i for i in range(10)])
    text = "\n".join(found.notes)
    assert "reward is a figure of training, not held-out" in text and "num_tokens counts prompts, too" in text
    assert [r.seed for r in found.runs] == [0, 0] and "no seed in common with trainer (0): seed_4 (4)" in text
    longer = read_existing([tmp_path / "a" / "trainer", trl(tmp_path / "b", steps=30)]).runs[1]
    assert [p.step for p in longer.points][-1] == 20 and longer.end == pytest.approx(0.195)  # of steps 19 and 20 alone


def test_gxpo_beside_another_trainer(tmp_path: Path) -> None:
    mixed = [run(tmp_path / "a"), verl(tmp_path / "b")]
    found = read_existing(mixed)
    assert found.measure == "reward" and found.budget.amount == 100
    assert found.setting == "arithmetic, tiny; logs of verl" and found.keys == {}
    assert any("measured by different trainers, each in its own way: gxpo (grpo), verl (b)" in n for n in found.notes)
    with pytest.raises(ConfigError, match="no figure 'eval/accuracy'"):
        read_existing(mixed, measure="eval_accuracy")


def test_runs_of_the_corpus(tmp_path: Path) -> None:
    for name in ("verl-001", "verl-004"):
        (archive,) = CORPUS.glob(f"*/{name}.tar.xz")
        with tarfile.open(archive, "r:xz") as tar:
            tar.extractall(tmp_path / name, filter="data")
    found = read_existing([tmp_path / "verl-001", tmp_path / "verl-004"])
    rows = [json.loads(line)["data"] for line in (tmp_path / "verl-004" / "metrics.jsonl").read_text().splitlines()]
    # its batch is 64 completions: 3653 tokens of the last step are 64 times the mean lengths, 33 and 24.078125
    tokens = sum(64 * row["response_length/mean"] for row in rows[1:])
    whole = read_existing([tmp_path / "verl-004", tmp_path / "verl-001"], measure="reward")
    assert max(r.tokens for r in found.runs) <= found.budget.amount <= tokens + 1
    assert whole.setting == "logs of verl" and all(len(r.points) > 1 for r in found.runs)


def test_runs_of_the_trainer(tmp_path: Path) -> None:
    keys = {
        "tasks.per_step": 2,
        "rollout.group_size": 4,
        "sampling.max_new_tokens": 6,
        "eval.tasks": 5,
        "doctor.every": 0,
        "trainer.rollouts_every": 0,
    }
    made = [
        gxpo.train("tiny:cold", "arithmetic", m, 2, seed=0, out=tmp_path / m, set=keys) for m in ("grpo", "dr_grpo")
    ]
    found = read_existing([r.path for r in made])
    assert [a.label for a in found.arms] == ["grpo", "dr_grpo"]
    assert found.budget.amount == min(r.metrics[-1]["generated_tokens"] for r in made)
    assert not any("differ in more" in n or "not evaluated alike" in n for n in found.notes)
    assert [len(r.after) for r in found.runs] == [5, 5]
