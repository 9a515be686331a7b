"""The study of remedies: estimates on made-up runs, what the doctor and `gxpo methods --for` make of them, the list."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import remedy_study  # noqa: E402
import study  # noqa: E402
from gxpo.doctor import Finding, RunLog, evidence  # noqa: E402
from gxpo.doctor.evidence import Measurement, OfTask  # noqa: E402
from gxpo.doctor.finding import Diagnosis  # noqa: E402
from gxpo.doctor.remedies import SOURCES, remedies, remedy_table  # noqa: E402
from gxpo.doctor.text import text  # noqa: E402
from gxpo.explain.advice import recommendations  # noqa: E402
from gxpo.explain.methods import advice_text  # noqa: E402
from gxpo.parts.definition import SettingValue  # noqa: E402
from gxpo.training import config  # noqa: E402
from study_rows import digest  # noqa: E402

LIST = remedy_study.read_lists()
ARMS = {(n, a["label"]) for e in LIST["experiments"] for n in remedy_study.sicknesses_of(e) for a in e["arms"]}


def remedy(label: str, *differences: tuple[float, float, float], **more: Any) -> Measurement:
    """A remedy with (difference, low, high) of each task; the mean's interval is the tasks' mean one."""
    tasks = tuple(OfTask(f"task{i}", *d, 20) for i, d in enumerate(differences))
    mean = [sum(x) / len(x) for x in zip(*differences, strict=True)]
    keys = more.pop("keys", {"method": label})
    p = more.pop("p", 0.01)
    return Measurement("all_wrong", label, f"method={label}", keys, *mean, p, 20, tasks, 0, 0, 40, "abc", **more)


# ---------------------------------------------------------------- the list
@pytest.mark.parametrize("experiment", LIST["experiments"], ids=lambda e: e["id"])
def test_every_arm_of_the_list_resolves(experiment):
    for setting, arms, _ in study.sides(LIST, experiment):
        for arm in arms:
            keys = {**study.keys_of(setting, arm), "seed": 0}
            assert config.resolve({k: SettingValue(v, "list") for k, v in keys.items()}).keys


def test_every_sickness_has_two_tasks_and_three_arms():
    by_name: dict[str, set[str]] = {}
    for e in LIST["experiments"]:
        for name in remedy_study.sicknesses_of(e):
            by_name.setdefault(name, set()).add(e["setting"])
        assert len(e["arms"]) >= 3 and e["base"]["keys"] == {"method": "grpo"} and e["seeds"] == 5
    assert all(len(settings) >= 2 for settings in by_name.values())
    assert {"all_wrong", "all_right", "reward_noise", "length_hack", "entropy_collapse", "too_off_policy"} < set(
        by_name
    )
    assert "q7" in by_name["all_wrong"]


# ---------------------------------------------------------------- estimates
def store_of(experiment: dict[str, Any], setting: dict[str, Any], ends: dict[str, list[float]]) -> dict[Any, Any]:
    """Rows of runs from 0.2 at 0 tokens, at 1,000 tokens halfway, at 2,000 tokens at their end."""
    out = {}
    for arm in (experiment["base"], *experiment["arms"]):
        name = digest(study.keys_of(setting, arm))
        for seed, end in enumerate(ends.get(arm["label"], [])):
            points = [(0, 0.2), (1000, (0.2 + end) / 2), (2000, end)]
            evaluations = [
                {"step": i, "tokens": t, "updates": i, "seconds": 1.0 * i, "eval_accuracy": v}
                for i, (t, v) in enumerate(points)
            ]
            curves = {"zero_signal_groups": [[1, 0.9], [9, 0.6]], "success_rate": [[1, 0.02], [9, end]]}
            out[name, seed] = {
                "digest": name, "seed": seed, "keys": arm["keys"], "evaluations": evaluations, "curves": curves,
                "discarded_rollouts": 0, "trouble": "", "commit": "abc",
            }  # fmt: skip
    return out


SETTING = {"keys": {"model": "tiny", "task": "arithmetic"}, "budget": {"tokens": 2000}, "measure": "eval_accuracy"}


def listed(*labels: str, seeds: int = 5) -> dict[str, Any]:
    arms = [{"label": x, "keys": {"method": x}, "remedy": f"method={x}"} for x in labels]
    one = {"sickness": "all_wrong", "setting": "s", "seeds": seeds, "target": 0.4, "arms": arms, "id": "one"}
    return {"settings": {"s": SETTING}, "experiments": [{**one, "base": {"label": "grpo", "keys": {"method": "grpo"}}}]}


BASE = [0.30, 0.32, 0.34, 0.36, 0.38]


def test_a_difference_is_paired_by_seed():
    actual = listed("ngrpo", "lens")
    ends = {"grpo": BASE, "ngrpo": [x + d for x, d in zip(BASE, (0.1, 0.1, 0.1, 0.1, 0.2), strict=True)]}
    (m,) = remedy_study.measure_remedies(actual, store_of(actual["experiments"][0], SETTING, ends))
    # mean .12, standard deviation sqrt(.002) = .0447, over sqrt 5 times t(4) = 2.7764: .0555
    assert (m.sickness, m.label, m.seeds, m.commit) == ("all_wrong", "ngrpo", 5, "abc")
    assert (m.difference, m.low, m.high) == pytest.approx((0.12, 0.0645, 0.1755), abs=1e-4)
    assert m.verdict == "helped" and m.figures == "+.12 (95 % +.06 to +.18), 1 task, 5 seeds"


def test_where_there_are_fresh_seeds_the_pilot_is_left_out():
    actual = listed("ngrpo")
    ends = {"grpo": [0.3] * 12, "ngrpo": [0.9] * 5 + [0.31, 0.32, 0.33, 0.31, 0.32, 0.33, 0.32]}
    store = store_of(actual["experiments"][0], SETTING, ends)
    (m,) = remedy_study.measure_remedies(actual, store)
    assert (m.seeds, m.difference) == (7, pytest.approx(0.02, abs=1e-4))
    assert remedy_study.choose_remedies(actual, store) == [("all_wrong", "ngrpo")]


def test_nothing_is_concluded_from_runs_that_were_not_sick():
    actual = listed("ngrpo")
    store = store_of(actual["experiments"][0], SETTING, {"grpo": BASE, "ngrpo": [0.9] * 5})
    for row in store.values():
        row["curves"]["zero_signal_groups"] = [[1, 0.1], [9, 0.1]]
    assert remedy_study.measure_remedies(actual, store) == []
    assert any("not all_wrong" in line for line in remedy_study.tables(actual, store))


def test_two_best_pilot_arms_of_a_sickness_get_more_seeds():
    actual = listed("ngrpo", "lens", "rloo", "dapo")
    ahead = {"ngrpo": 0.1, "lens": 0.3, "rloo": 0.2, "dapo": -0.1}
    ends = {"grpo": BASE, **{k: [x + d for x in BASE] for k, d in ahead.items()}}
    store = store_of(actual["experiments"][0], SETTING, ends)
    assert remedy_study.choose_remedies(actual, store) == [("all_wrong", "lens"), ("all_wrong", "rloo")]
    (more,) = remedy_study.second_round(actual, store, 20)["experiments"]
    assert [a["label"] for a in more["arms"]] == ["lens", "rloo"] and more["seeds"] == 20


def test_tokens_to_an_unreached_target_count_the_budget():
    actual = listed("ngrpo")
    # ngrpo reaches .4 on the line from (1000, .4): 1,000 tokens; grpo ends at .3: never
    store = store_of(actual["experiments"][0], SETTING, {"grpo": [0.3] * 5, "ngrpo": [0.6] * 5})
    lines = list(remedy_study.tables(actual, store))
    assert next(x for x in lines if x.startswith("| grpo")) == "| grpo | 5 | .300 |  | 0 of 5 | 2,000 | 0 | 0 |"
    ngrpo = next(x for x in lines if x.startswith("| ngrpo"))
    assert ngrpo == "| ngrpo | 5 | .600 | +.300 (+.300 to +.300) | 5 of 5 | 1,000 | 0 | 0 |"


# ---------------------------------------------------------------- verdicts
@pytest.mark.parametrize(
    ("tasks", "p", "verdict"),
    [
        ([(0.1, 0.05, 0.15), (0.0, -0.02, 0.02)], 0.01, "helped"),
        ([(0.1, 0.05, 0.15)], 0.2, "undecided"),
        ([(0.1, -0.05, 0.25)], 0.01, "undecided"),
        ([(-0.1, -0.15, -0.05)], 0.01, "harmed"),
        ([(0.4, 0.35, 0.45), (-0.1, -0.15, -0.05)], 0.01, "mixed"),
    ],
)
def test_verdict_needs_an_interval_holms_p_and_no_contrary_task(tasks, p, verdict):
    assert remedy("x", *tasks, p=p).verdict == verdict


def test_the_file_comes_back(tmp_path):
    actual = (remedy("ngrpo", (0.1, 0.05, 0.15), (0.2, 0.1, 0.3)),)
    (tmp_path / "e.json").write_text(evidence.to_json(actual))
    assert evidence.read(tmp_path / "e.json") == actual
    assert evidence.read(tmp_path / "none.json") == ()


def test_what_gxpo_comes_with_is_of_the_list():
    assert {(m.sickness, m.label) for m in evidence.read()} <= ARMS


# ---------------------------------------------------------------- the doctor
GOOD, BAD = (0.1, 0.05, 0.15), (-0.1, -0.15, -0.05)


def test_each_measured_change_is_in_a_remedy_line_or_is_a_method():
    """A text that no line has is for a remedy that gxpo does not print."""
    message = [line for source in (*SOURCES, "any") for lines in remedy_table(source).values() for line in lines]
    assert set(evidence.SAME) == ARMS
    for texts in evidence.SAME.values():
        for one in texts:
            assert any(one in line for line in message) or one.startswith(("method=", "rollout", "objective."))


def test_what_helped_comes_first_and_what_harmed_is_not_advised():
    lines = remedies(["all_wrong"], RunLog("gxpo"), [remedy("ghpo", GOOD), remedy("ngrpo", BAD)])
    assert lines[0] == ("method=ghpo shows part of the solution [measured: +.10 (95 % +.05 to +.15), 1 task, 20 seeds]")
    assert all(line.endswith("(untested here)") for line in lines[1:]) and len(lines) == 4
    assert not any("ngrpo" in line for line in lines)


def test_what_helped_and_has_no_line_gets_one_in_gxpos_keys():
    actual = [remedy("gcpo_gold", GOOD), remedy("lens", (0.02, -0.05, 0.09))]
    lines = remedies(["all_wrong"], RunLog("gxpo"), actual)
    assert lines[0] == "method=gcpo_gold [measured: +.10 (95 % +.05 to +.15), 1 task, 20 seeds]"
    assert len(lines) == len(remedy_table("gxpo")["all_wrong"]) + 1
    assert not any("measured" in line for line in remedies(["all_wrong"], RunLog("trl"), actual))


def test_other_trainers_see_measurements_of_the_same_change():
    gspo = dataclasses.replace(remedy("gspo", GOOD), sickness="too_off_policy")
    assert not any("measured" in line for line in remedies(["too_off_policy"], RunLog("trl"), [gspo]))
    more = remedy("group of 16", GOOD, keys={"method": "grpo", "rollout.group_size": 16})
    first = remedies(["all_wrong"], RunLog("trl"), [more])[0]
    assert first.startswith("num_generations=16") and "[measured in gxpo: +.10 (95 %" in first


def test_what_can_not_be_told_from_0_comes_last():
    unclear = remedy("ghpo", (0.02, -0.05, 0.09), p=0.5)
    last = remedies(["all_wrong"], RunLog("gxpo"), [unclear])[-1]
    assert last.endswith("[measured, no clear change: +.02 (95 % -.05 to +.09), 1 task, 20 seeds]")


def test_harm_is_said_where_nothing_else_is_known():
    one = dataclasses.replace(remedy("x", BAD), sickness="stale_sampler", label="weights in time")
    (line,) = remedies(["stale_sampler"], RunLog("gxpo"), [one])
    assert line.endswith("[measured, did harm: -.10 (95 % -.15 to -.05), 1 task, 20 seeds]")


def test_the_limits_are_said_once():
    case = RunLog("gxpo")
    lines = remedies(["all_wrong"], case, [remedy("ghpo", GOOD), remedy("ngrpo", (0.01, -0.1, 0.12), p=0.9)])
    message = text(
        Diagnosis("gxpo", ["a"], [Finding(("all_wrong",), "critical", "proved", "none is right", remedy=lines)])
    )
    assert message.count(evidence.LIMITS) == 1
    assert message.splitlines()[3:11] == [
        f"  try (measured: {evidence.LIMITS}):",
        "    - method=ghpo shows part of the solution: +.10 (95 % +.05 to +.15), 1 task, 20 seeds",
        "  try (untested here):",
        f"    - {remedy_table('gxpo')['all_wrong'][0]}",
        f"    - {remedy_table('gxpo')['all_wrong'][1]}",
        f"    - {remedy_table('gxpo')['all_wrong'][4]}",
        "  no clear gain (measured):",
        "    - method=ngrpo learns from groups that are all wrong: no clear change, +.01 (95 % -.10 to +.12), 1 task, "
        "20 seeds",
    ]


# ---------------------------------------------------------------- gxpo methods --for
def test_recommendations_quote_it_and_are_ordered_by_it():
    actual = [remedy("lens", GOOD), remedy("ghpo", BAD), remedy("ar3po", (0.3, 0.2, 0.4))]
    rows = recommendations("all-wrong groups", actual)
    assert [r["method"] for r in rows][:2] == ["ar3po", "lens"] and rows[-1]["method"] == "ghpo"
    message = advice_text("all-wrong groups", rows)
    assert "measured, helped: +.30 (95 % +.20 to +.40), 1 task, 20 seeds" in message
    assert "measured, did harm: -.10 (95 % -.15 to -.05)" in message and message.count(evidence.LIMITS) == 1


def test_a_composition_and_its_base_are_one():
    tis = dataclasses.replace(remedy("grpo+tis", GOOD), sickness="sampler_mismatch")
    rows = {r["method"]: r["measured"] for r in recommendations("sampler mismatch", [tis])}
    assert rows["tis"] is not None and rows["gspo+tis"] is None and rows["dr_grpo+tis"] is None
