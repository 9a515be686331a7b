"""Existing runs are found under paths and grouped into labelled arms."""

from pathlib import Path

import pytest
from tests.compare.existing_runs import run

from gxpo.base.errors import ConfigError, RecordError
from gxpo.compare.discovery import distinguishes_arms, format_value
from gxpo.compare.existing import read_existing


def test_runs_of_one_configuration_are_one_arm(tmp_path: Path) -> None:
    paths = [run(tmp_path / f"{m}-{s}", m, s) for m in ("dr_grpo", "grpo") for s in (0, 1)]
    shuffled = run(tmp_path / "control", "grpo", 0, scoring__shuffle=True)
    actual = read_existing([*paths, shuffled, run(tmp_path / "control-1", "grpo", 1, scoring__shuffle=True)])
    assert [(a.label, a.kind) for a in actual.arms] == [
        ("grpo", "base"),
        ("dr_grpo", "arm"),
        ("grpo shuffle=true", "control"),
    ]
    assert [(r.arm, r.seed) for r in actual.runs[:4]] == [("dr_grpo", 0), ("dr_grpo", 1), ("grpo", 0), ("grpo", 1)]
    assert actual.arms[1].keys == {"method": "dr_grpo"} and actual.arms[2].keys["scoring.shuffle"] is True
    assert str(actual.budget) == "400 generated tokens" and actual.measure == "eval_accuracy"
    assert actual.setting == "arithmetic, tiny" and actual.notes == []
    assert actual.keys == {"model": "tiny", "task": "arithmetic", "eval.tasks": 2, "eval.samples": 1}


def test_arms_of_one_method_are_called_by_what_was_stated(tmp_path: Path) -> None:
    paths = [run(tmp_path / "a"), run(tmp_path / "b", optim__lr=1e-4), run(tmp_path / "c", "dr_grpo", optim__lr=1e-4)]
    actual = read_existing(paths)
    assert [a.label for a in actual.arms] == ["grpo", "grpo lr=1e-4", "dr_grpo"]
    (note,) = [n for n in actual.notes if "differ in more" in n]
    assert note.endswith("optim.lr: 1e-3 (grpo), 1e-4 (grpo lr=1e-4, dr_grpo)")
    assert "one seed each: the interval covers held-out tasks only, not what another seed would give" in actual.notes


def test_directories_and_labels_name_arms(tmp_path: Path) -> None:
    for arm in ("mine", "other"):
        for seed in (0, 1):
            run(tmp_path / "out" / arm / f"seed-{seed}", seed=seed)
    run(tmp_path / "out" / "tuning" / "seed-1000", seed=1000)  # never reported
    actual = read_existing([tmp_path / "out"], base="other")
    assert [(a.label, a.kind) for a in actual.arms] == [("other", "base"), ("mine", "arm")]
    again = [f"x={tmp_path / 'out' / 'mine'}", tmp_path / "out" / "other"]
    assert [a.label for a in read_existing(again).arms] == ["x", "other"]
    listed_existing = read_existing([str(tmp_path / "out" / "mine"), str(tmp_path / "out" / "other")],
                          labels={str(tmp_path / "out" / "mine"): "y"})  # fmt: skip
    assert [a.label for a in listed_existing.arms] == ["y", "other"]
    with pytest.raises(ConfigError, match=r"base 'othr' is no arm; did you mean 'other'\?"):
        read_existing([tmp_path / "out"], base="othr")
    with pytest.raises(ConfigError, match="two runs of arm grpo have seed 0"):
        read_existing([tmp_path / "out" / "mine" / "seed-0", tmp_path / "out" / "other" / "seed-0"])


def test_one_arm_is_no_comparison(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"one arm alone \(grpo, 2 runs\)"):
        read_existing([run(tmp_path / "a"), run(tmp_path / "b", seed=1)])
    with pytest.raises(RecordError, match="no such file or directory"):
        read_existing([tmp_path / "none"])
    with pytest.raises(ConfigError, match="is given twice"):
        read_existing([tmp_path / "a", tmp_path / "a"])


def test_values_are_formatted_as_one_would_type_them() -> None:
    assert [format_value(v) for v in (1e-5, 2.5e-3, 0.25, "a", True)] == ["1e-5", "2.5e-3", "0.25", "a", "true"]


def test_keys_of_the_machine_make_no_second_arm() -> None:
    assert not distinguishes_arms("seed") and not distinguishes_arms("trainer.steps")
    assert distinguishes_arms("optim.lr") and distinguishes_arms("seeds")
