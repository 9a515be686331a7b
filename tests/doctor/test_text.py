"""The diagnosis as text."""

from __future__ import annotations

import numpy as np

from gxpo.doctor import Diagnosis, Finding, RunLog, Series, Unchecked, diagnose
from gxpo.doctor.diagnosis import progress, unchecked
from gxpo.doctor.text import text


def series(values: list[float], key: str, steps: list[float] | None = None) -> Series:
    return Series(np.array(steps or range(1, len(values) + 1), dtype=float), np.array(values), key)


def test_consequences_stand_under_their_cause_and_do_not_repeat_it():
    cause = Finding(
        ("no_eos", "all_masked"),
        "critical",
        "likely",
        "nothing ends",
        ("limit 12", "grad_norm = 0"),
        remedy=("no_eos: one (untested here)", "all_masked: two (untested here)", "computed on these rollouts: x"),
    )
    then = Finding(
        ("all_wrong",), "warning", "possible", "all wrong", ("grad_norm = 0", "reward = 0"), (), ("z",), "no_eos"
    )
    said = text(Diagnosis("trl", ["a/1.parquet", "b.txt"], [cause, then], progress="reward falls; eval falls"))
    assert said.splitlines() == [
        "trl run: nothing ends (likely); in consequence all wrong",
        "reward falls",
        "eval falls",
        "",
        "critical, likely: nothing ends [no_eos or all_masked]",
        "  - limit 12",
        "  - grad_norm = 0",
        "  if no_eos, try (untested here):",
        "    - one",
        "  if all_masked, try (untested here):",
        "    - two",
        "  computed on these rollouts: x",
        "",
        "    follows from no_eos: warning, possible: all wrong [all_wrong]",
        "      - reward = 0",
        "",
        "read: a/1.parquet, b.txt",
    ]


def test_many_files_of_a_kind_are_one_pattern():
    files = ["config.yaml", *(f"rollouts/{i}.jsonl" for i in range(30)), "rollouts/notes"]
    assert (
        text(Diagnosis("verl", files)).splitlines()[-1]
        == "read: config.yaml, rollouts/*.jsonl (30 files), rollouts/notes"
    )


def test_at_most_six_lines_of_what_was_not_checked_the_widest_first():
    left = [Unchecked(f"s{i}", f"why {i}", f"line {i}") for i in range(8)] + [Unchecked("s9", "why 7", "line 7")]
    lines = text(Diagnosis("trl", ["x"], unchecked=left)).splitlines()[-6:]
    assert lines[0] == "not checked, why 7: s7, s9; to check: line 7"
    assert lines[1] == "not checked, why 0: s0; to check: line 0"
    assert lines[5] == "not checked either, see --json: s4, s5, s6"


def test_what_no_setting_can_show_is_not_listed():
    rows = {n: series([0.1, 0.2, 0.3], n) for n in ("reward", "grad_norm", "entropy", "length", "truncated")}
    log = RunLog("trl", ["x"], {**rows, "loss": series([float("nan")] * 3, "loss")})
    ids = {u.id for u in unchecked(log)}
    assert not ids & {"tool_failures", "slow_tail", "kl_too_high", "non_finite", "too_off_policy"}
    assert {"wrong_template", "memorising", "stale_sampler"} <= ids
    log.source = "unknown"
    assert {u.enable for u in unchecked(log)} == {
        "keep the completions of some steps beside the metrics: prompt, completion, reward, step",
        "evaluate on held-out prompts every few steps",
    }
    log.read = []
    assert unchecked(log) == []


def test_figures_are_quoted_by_how_many_there_are():
    held = {
        "kl": series([0.5], "kl", [83]),
        "entropy": series([2.0, 1.0], "entropy", [10, 20]),
        "reward": series([0.25] * 7, "reward"),
        "eval/accuracy": series([0.1, 0.2, 0.3, 0.2, 0.3, 0.5], "eval_acc", [0, 1, 2, 3, 4, 5]),
        "length": series([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10], "len"),
    }
    case = RunLog("trl", ["x"], held)
    assert case.quote("kl") == "kl = 0.5 at step 83, the only one logged"
    assert case.quote("entropy") == "entropy 2, 1 at steps 10, 20"
    assert case.quote("reward") == "reward = 0.25 in all 7 logged steps"
    assert case.quote("eval/accuracy") == "eval_acc 0.1 at step 0, 0.5 at step 5"
    assert case.quote("length") == "len 3 in the first steps, 9 in the last (steps 1 to 10)"
    assert case.quote("grad_norm") == ""


def test_progress_in_a_line():
    assert progress(RunLog("trl", ["x"], {"reward": series([0.5], "reward")})) == (
        "1 step: too few to say whether the reward gains"
    )
    flat = RunLog("trl", ["x"], {"reward": series([0.0] * 40, "reward")})
    assert progress(flat) == "reward = 0 in all 40 steps"
    noise = [0.0, 0.1] * 10
    unsure = RunLog("trl", ["x"], {"reward": series([n + i * 0.0054 for i, n in enumerate(noise)], "reward")})
    assert progress(unsure).endswith("may gain, but by less than three standard errors")
    assert "gains" in diagnose(RunLog("trl", ["x"], {"reward": series([i / 40 for i in range(40)], "reward")})).progress
