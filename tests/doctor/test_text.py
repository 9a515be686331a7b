"""Text of a diagnosis: consequences under their cause, files as patterns, bounded lines."""

from __future__ import annotations

from gxpo.doctor import Diagnosis, Finding, Unchecked
from gxpo.doctor.text import text


def test_consequences_stand_under_their_cause_without_repeats():
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
    printed = text(Diagnosis("trl", ["a/1.parquet", "b.txt"], [cause, then], progress="reward falls; eval falls"))
    assert printed.splitlines() == [
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


def test_unchecked_sicknesses_take_six_lines_the_widest_first():
    left = [Unchecked(f"s{i}", f"why {i}", f"line {i}") for i in range(8)] + [Unchecked("s9", "why 7", "line 7")]
    lines = text(Diagnosis("trl", ["x"], unchecked=left)).splitlines()[-6:]
    assert lines[0] == "not checked, why 7: s7, s9; to check: line 7"
    assert lines[1] == "not checked, why 0: s0; to check: line 0"
    assert lines[5] == "not checked either, see --json: s4, s5, s6"


def test_without_a_verdict_columns_and_advice_are_listed():
    keys = [f"key{i:02d}" for i in range(23)]
    lines = text(Diagnosis("unknown", ["own.csv"], unknown_keys=keys, advice=["run on"])).splitlines()
    assert lines[0] == "unknown run: no verdict: no logged point of a reward or success rate, and 10 are needed"
    assert lines[-2:] == [f"not recognised: {', '.join(keys[:20])} and 3 more", "for a verdict: run on"]
    # with a verdict the columns of a program that nobody knows are still listed, those of a known trainer are not
    healthy = text(Diagnosis("unknown", ["own.csv"], points=10, unknown_keys=keys))
    assert f"not recognised: {', '.join(keys[:20])} and 3 more" in healthy and "for a verdict" not in healthy
    assert "not recognised" not in text(Diagnosis("trl", ["own.csv"], points=10, unknown_keys=keys))
