"""Conclusions from runs made by hand; expected figures are worked out beside them or come from scipy."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest
import scipy.stats

from gxpo.base.errors import ConfigError
from gxpo.compare import conclude as module
from gxpo.compare.conclude import conclude, overall
from gxpo.compare.results import Arm, Budget, Comparison, Point, RunResult
from gxpo.compare.sentences import verdict

GRPO, RLOO, SHUFFLED = Arm("grpo", {}, "base"), Arm("rloo", {}), Arm("shuffled", {}, "control")


def run(arm: str, seed: int, values: Sequence[float], **more: Any) -> RunResult:
    """A run whose evaluations come after equal shares of 1000 tokens."""
    share = 1000 // max(1, len(values) - 1)
    points = [Point(10 * i, share * i, i, 2.0 * i, v) for i, v in enumerate(values)]
    return RunResult(arm, seed, f"runs/{arm}/{seed}", points, **more)


def bits(said: str) -> dict[str, float]:
    return {f"t{i}": float(c) for i, c in enumerate(said)}


def judged(arm: str, seed: int, before: str, after: str) -> RunResult:
    """A run with verdicts, and the measure that is their mean."""
    ends = [value.count("1") / len(value) for value in (before, after)]
    return run(arm, seed, ends, before=bits(before), after=bits(after))


def concluded(runs: Sequence[RunResult], arms: Sequence[Arm] = (GRPO, RLOO), **changes: Any) -> Comparison:
    fields = {
        "setting": "sums",
        "measure": "eval_accuracy",
        "better": "more",
        "budget": Budget("tokens", 1000),
        "keys": {},
    }
    return conclude(runs, arms, **{**fields, **changes})


def test_differences_over_seeds_alone() -> None:
    ends = {"grpo": [0.40, 0.44, 0.50, 0.46], "rloo": [0.50, 0.53, 0.58, 0.57]}
    runs = [run(arm, s, [0.2, 0.3, end]) for arm, values in ends.items() for s, end in enumerate(values)]
    c = concluded(runs)
    d = c.differences[0]
    expected = scipy.stats.ttest_rel(ends["rloo"], ends["grpo"])
    interval = expected.confidence_interval(0.95)
    assert d.end.mean == pytest.approx(0.095)  # .10 .09 .08 .11
    assert (d.end.low, d.end.high, d.end.p) == pytest.approx((interval.low, interval.high, expected.pvalue))
    assert d.p_adjusted == pytest.approx(expected.pvalue) and d.verdict == "better"
    # .095 ± 3.182 x .01291 / 2
    assert d.sentence == "rloo is better than grpo by .095 (95 % .074 to .116; 4 seeds, p <.001)"
    assert d.improves.mean == pytest.approx(15.5 / 16)  # of 16 pairs .50 = .50 is a tie, the others are won
    # area: (.2 + .3) / 4 + (.3 + end) / 4, so the ends' differences count a quarter
    assert d.area.mean == pytest.approx(0.095 / 4)
    grpo = c.arm("grpo")
    assert grpo.end.mean == pytest.approx(0.45) and grpo.gain.mean == pytest.approx(0.25)
    assert grpo.area.mean == pytest.approx(0.2 + 0.45 / 4)
    assert grpo.middle.mean == pytest.approx(0.45)  # of .44 and .46
    assert (grpo.tokens, grpo.updates, grpo.seconds) == (1000, 2, 4.0)
    assert any("not paired by held-out task" in n for n in c.notes)
    assert any("no control" in n for n in c.notes)


def test_differences_over_seeds_and_tasks() -> None:
    right = {"grpo": ["11000000", "10100000", "11100000"], "rloo": ["11110000", "11111000", "11111010"]}
    c = concluded([judged(a, s, "10000000", v) for a, message in right.items() for s, v in enumerate(message)])
    d = c.differences[0].end
    # Rows of differences: 0 0 1 1 0 0 0 0; 0 1 0 1 1 0 0 0; 0 0 0 1 1 0 1 0.
    # Seeds 2/8, 3/8, 3/8: MS = 8 x 1/192 = 1/24.
    # Tasks (sum) 0 1 1 3 2 0 1 0: mean 1/3 of each, MS = 3 x sum((x/3 - 1/3)^2) / 7 = 3 x 8/9 / 7 = 8/21.
    # All: 8 x 1 in 24, SS = 8 - 64/24 = 16/3; rest 16/3 - 2/24 - 8/3 = 31/12, MS = 31/168 > 1/24.
    rest, of_task = 31 / 168, 8 / 21
    variance = (rest + of_task - rest) / 24
    freedom = of_task**2 / ((1 / 24) ** 2 / 2 + of_task**2 / 7 + rest**2 / 14)
    low, high = scipy.stats.t.interval(0.95, freedom, 1 / 3, math.sqrt(variance))
    assert (d.mean, d.low, d.high) == pytest.approx((1 / 3, low, high))
    assert d.by_task == pytest.approx(math.sqrt((of_task - rest) / 24))
    assert c.arm("rloo").gain.mean == pytest.approx((3 + 4 + 5) / 24)
    assert not any("not paired" in n for n in c.notes)


def test_tasks_that_only_some_runs_have() -> None:
    runs = [judged(a, s, "10010000", "1101100") for a in ("grpo", "rloo") for s in range(3)]
    alike = concluded(runs).differences[0].end
    assert alike.by_task == 0.0 and alike.mean == 0.0
    other = [run(r.arm, r.seed, [0.25, 4 / 7], after={f"u{k}": v for k, v in r.after.items()}) for r in runs[3:]]
    c = concluded([*runs[:3], *other])
    assert math.isnan(c.differences[0].end.by_task)
    assert any("not paired by held-out task" in n for n in c.notes)
    # verdicts whose mean is not the measure are not what is compared
    off = [run(r.arm, r.seed, [0.25, 0.9], after=r.after) for r in runs]
    assert math.isnan(concluded(off).differences[0].end.by_task)


def test_too_few_seeds_are_never_ranked() -> None:
    def two(n: int) -> Comparison:
        return concluded([run(a, s, [0.2, e + s / 1000]) for a, e in (("grpo", 0.3), ("rloo", 0.9)) for s in range(n)])

    assert two(2).differences[0].verdict == "undecided"
    assert two(2).differences[0].sentence == (
        "rloo can't be told from grpo, +.600 (+.600 to +.600), 2 seeds: fewer than 3 are not ranked; "
        "about 3 seeds would"
    )
    one = two(1).differences[0]
    assert one.sentence == "rloo can't be told from grpo, +.600, 1 seed: one seed says nothing of other seeds"
    assert one.seeds_needed is None
    assert two(3).differences[0].verdict == "better"
    apart = concluded([run("grpo", 0, [0.2, 0.3]), run("rloo", 1, [0.2, 0.4])]).differences[0]
    assert apart.sentence == "rloo can't be told from grpo: there is no seed that both have"
    assert apart.end.n == 0 and math.isnan(apart.end.mean)


def test_undecided_says_how_many_seeds_would() -> None:
    # Differences .06 -.04 .05 -.03: mean .01, sd .05228. By statsmodels: TTestPower().solve_power(.01 / .05228,
    # power=.8, alpha=.05) = 216.4.
    gaps = [0.06, -0.04, 0.05, -0.03]
    runs = [run(a, s, [0.2, 0.4 + (g if a == "rloo" else 0)]) for s, g in enumerate(gaps) for a in ("grpo", "rloo")]
    d = concluded(runs).differences[0]
    assert d.verdict == "undecided" and d.seeds_needed == 217
    assert d.sentence.endswith("4 seeds: n too small to say; about 220 seeds would")


def test_tasks_alone_can_be_too_few() -> None:
    # Every seed the same: 12 tasks of 20, of which the arm wins 3 and loses 2. More seeds change nothing.
    right = {"grpo": "11110000000000000000", "rloo": "11001110000000000000"}
    c = concluded([judged(a, s, "1" * 2 + "0" * 18, v) for a, v in right.items() for s in range(5)])
    d = c.differences[0]
    assert d.end.by_seed < 1e-12 and d.seeds_needed is None and d.verdict == "undecided"
    # Variance of the 20 differences: (5 - 20 x .05^2) / 19 = .26053, error of the mean .11413; .05 is found with
    # .05 / 2.80159 = .01785 at the most, and with half of that variance: 2 x (.11413 / .01785)^2 = 81.8.
    assert d.sentence.endswith("more seeds alone would not: it takes about 82 times as many held-out tasks")


def test_holm_over_arms_without_controls() -> None:
    arms = [GRPO, RLOO, Arm("opo", {}), SHUFFLED]
    gaps = {"rloo": [0.03, 0.01, 0.05, 0.05], "opo": [0.0, 0.01, -0.01, 0.02], "shuffled": [-0.2, -0.21, -0.19, -0.2]}
    runs = [run("grpo", s, [0.2, 0.4]) for s in range(4)]
    runs += [run(a, s, [0.2, 0.4 + g]) for a, values in gaps.items() for s, g in enumerate(values)]
    c = concluded(runs, arms)
    p = {a: scipy.stats.ttest_1samp(g, 0).pvalue for a, g in gaps.items()}
    assert 0.025 < p["rloo"] < 0.05 < p["opo"]
    actual = {d.arm: d for d in c.differences}
    assert actual["rloo"].p_adjusted == pytest.approx(2 * p["rloo"])
    assert not actual["rloo"].end.holds_zero and actual["rloo"].verdict == "undecided"
    assert "after Holm's correction for 2 arms" in actual["rloo"].sentence
    assert math.isnan(actual["shuffled"].p_adjusted) and actual["shuffled"].verdict == "worse"


def test_less_is_better() -> None:
    runs = [run(a, s, [50, e + s]) for a, e in (("grpo", 40.0), ("rloo", 30.0)) for s in (0, 1, 2, 4)]
    runs[0] = run("grpo", 0, [50, 40.5])
    d = concluded(runs, measure="eval_length", better="less").differences[0]
    assert d.end.mean == pytest.approx(10.125) and d.verdict == "better" and d.improves.mean == 1.0
    assert d.sentence.startswith("rloo is better than grpo by 10.1 ")


def test_failed_and_unpaired_runs_are_counted_and_left_out() -> None:
    runs = [run(a, s, [0.2, 0.4 + s / 100]) for a in ("grpo", "rloo") for s in range(4)]
    runs[5] = run("rloo", 1, [0.2, 0.9], trouble="the disk was full")
    runs[6] = RunResult("rloo", 2, "runs/rloo/2", [])
    runs[7] = run("rloo", 7, [0.25, 0.9])
    c = concluded(runs)
    rloo = c.arm("rloo")
    assert rloo.failed == {1: "the disk was full", 2: "no evaluation"} and len(rloo.runs) == 4
    assert rloo.end.mean == pytest.approx((0.4 + 0.9) / 2)
    assert c.differences[0].end.n == 1 and c.differences[0].end.mean == pytest.approx(0)
    assert any("2 of 4 runs ended before their budget" in n for n in c.notes)
    assert any("4 runs have no pair" in n for n in c.notes)  # seeds 1 2 3 of grpo, 7 of rloo


def test_notes_on_starts_and_budgets() -> None:
    runs = [run(a, s, [0.2, 0.4]) for a in ("grpo", "rloo") for s in range(3)]
    runs[4] = run("rloo", 1, [0.3, 0.4])
    short = [Point(0, 0, 0, 0, 0.2), Point(10, 600, 3, 3.0, 0.4)]
    runs[5] = RunResult("rloo", 2, "runs/rloo/2", short, judge_tokens=500.0)
    notes = concluded(runs).notes
    assert "rloo: began differently from grpo at seeds 1" in notes
    assert "rloo: 1 of 3 runs spent less than the budget, 60% at the least" in notes
    assert "rloo: judges and teachers generated 500 tokens a run besides" in notes


def test_a_control_that_gains_is_said() -> None:
    def with_control(end: float) -> Comparison:
        runs = [run(a, s, [0.2, e + s / 100]) for a, e in (("grpo", 0.4), ("shuffled", end)) for s in range(4)]
        return concluded(runs, [GRPO, SHUFFLED])

    assert any(n.startswith("shuffled gained +.115") and "leak" in n for n in with_control(0.3).notes)
    assert not any("gained" in n for n in with_control(0.19).notes)
    assert not any("no control" in n for n in with_control(0.19).notes)


@pytest.mark.parametrize(
    ("values", "fallen"),
    [([0.2, 0.6, 0.2], True), ([0.2, 0.6, 0.31], False), ([0.0, 0.04, 0.0], False), ([0.06, 0.0], True)],
)
def test_collapsed(values: list[float], fallen: bool) -> None:
    assert module.has_collapsed(run("grpo", 0, values), "more") is fallen
    assert not module.has_collapsed(run("grpo", 0, values), "less")


def test_arms_and_runs_that_do_not_fit() -> None:
    good = [run("grpo", 0, [0.2, 0.4])]
    with pytest.raises(ConfigError, match="one of them the base"):
        concluded(good, [RLOO, Arm("grpo", {})])
    with pytest.raises(ConfigError, match="of arm gspo, which is not compared"):
        concluded([run("gspo", 0, [0.2])])
    with pytest.raises(ConfigError, match="both grpo with seed 0"):
        concluded([*good, *good])


def test_nothing_has_run_yet() -> None:
    c = concluded([])
    assert c.arm("grpo").end.n == 0 and c.differences[0].verdict == "undecided"
    assert "grpo: no run" in c.notes


def test_rounding_is_no_difference() -> None:
    runs = [run(a, s, [0.2, e]) for a, e in (("grpo", 0.3), ("rloo", 0.1 + 0.2)) for s in range(4)]
    d = concluded(runs).differences[0]
    assert runs[0].end != runs[4].end and d.end.mean == 0 and d.verdict == "undecided"


def test_over_several_settings() -> None:
    def setting(gaps: Sequence[float]) -> Comparison:
        runs = [run(a, s, [0.2, 0.4 + (g if a == "rloo" else 0)]) for s, g in enumerate(gaps) for a in ("grpo", "rloo")]
        return concluded(runs)

    actual = overall([setting([0.01, 0.02, 0.03]), setting([0.0, 0.01, 0.05])])
    assert len(actual) == 1 and actual[0].arm == "rloo" and actual[0].against == "grpo"
    # As in test_inference.test_mean_over_settings, a hundredth: variance (1/3 + 7/3) / 4, freedom 64 / 25.
    low, high = scipy.stats.t.interval(0.95, 64 / 25, 0.02, 0.01 * math.sqrt(2 / 3))
    assert (actual[0].difference.low, actual[0].difference.high) == pytest.approx((low, high))
    assert actual[0].improves.mean == pytest.approx((1 + 2.5 / 3) / 2)  # a gap of 0 ties with all
    assert actual[0].of_base.mean == pytest.approx(0.4)
    assert actual[0].middle.mean == pytest.approx((0.41 + 0.41 + 0.42 + 0.43) / 4)  # of 40 41 41 42 43 45
    with pytest.raises(ConfigError, match="no common mean"):
        overall([setting([0.1, 0.2, 0.3]), concluded([], measure="eval_length")])


def test_arm_that_never_acted_equals_the_base() -> None:
    def traced(arm: str, seed: int, trace: dict[str, list[float]]) -> RunResult:
        return dataclasses.replace(run(arm, seed, [0.2, 0.4 + seed / 100]), trace=trace)

    alike = {"reward": [0.1, 0.3], "entropy": [1.0, math.nan]}
    runs = [traced(a, s, {**alike, f"{a}_alone": [1.0, 2.0]}) for a in ("grpo", "rloo") for s in range(2)]
    d = concluded(runs).differences[0]
    assert d.verdict == "equal"
    assert d.sentence == "rloo equals grpo in every step of 2 seeds: what it changes never acted"
    assert verdict(concluded(runs)) == [d.sentence]
    # one step of one seed apart, a step less, or nothing that varies: not known to be equal
    for other in ({**alike, "reward": [0.1, 0.31]}, {"reward": [0.1]}, {"reward": [0.0, 0.0]}, {}):
        changed = [traced("rloo", 1, other) if r.arm == "rloo" and r.seed == 1 else r for r in runs]
        assert concluded(changed).differences[0].verdict == "undecided"
    flat = [dataclasses.replace(r, trace={"reward": [0.0, 0.0]}) for r in runs]
    assert concluded(flat).differences[0].verdict == "undecided"
