"""Looks at a trial: differences by seed, limits, and verdicts of the stopping rule in a comparison."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from gxpo.base.errors import ConfigError
from gxpo.compare.conclude import conclude
from gxpo.compare.looks import Ledger, differences_of, resolution_of, rule, run_seeds, with_decision
from gxpo.compare.results import Arm, Budget, Point, RunResult
from gxpo.compare.stopping import Decision, TrialBudget

ARMS = [Arm("base", {}, "base"), Arm("good", {}), Arm("idle", {})]


def result(arm: str, seed: int, end: float, trouble: str = "") -> RunResult:
    points = (Point(0, 0, 0, 0.0, 0.1), Point(10, 100, 10, 1.0, end))
    return RunResult(arm, seed, "", points, trouble=trouble, trace={"loss": [end, seed]})


# by seed: the base, an arm .5 above it but for a hundredth, and one that changes sign
ENDS = {
    "base": [0.20, 0.21, 0.19, 0.20, 0.20, 0.21],
    "good": [0.70, 0.72, 0.69, 0.71, 0.70, 0.71],
    "idle": [0.22, 0.19, 0.20, 0.19, 0.21, 0.20],
}


class Made:
    """Runs that a trial has made, and in which order."""

    def __init__(self, ledger: Ledger, seconds: float = 1.0) -> None:
        self.ledger, self.seconds = ledger, seconds
        self.runs: list[tuple[str, int]] = []

    def results(self) -> list[RunResult]:
        return [result(arm, seed, ENDS[arm][seed]) for arm, seed in self.runs]

    def look(self) -> Decision:
        return self.ledger.decide(differences_of(self.results(), ARMS, range(6)))

    def run(self, seed: int, arms: list[Arm]) -> None:
        for arm in arms:
            if (arm.label, seed) not in self.runs:
                self.runs.append((arm.label, seed))
                self.ledger.seconds, self.ledger.runs = self.ledger.seconds + self.seconds, self.ledger.runs + 1

    def go(self) -> Decision:
        return run_seeds(ARMS, range(6), self.ledger, self.look, self.run)


def test_arm_that_is_decided_gets_no_further_seed(tmp_path: Path) -> None:
    trial = Made(Ledger.open(tmp_path, TrialBudget(6)))
    decision = trial.go()
    assert [s for a, s in trial.runs if a == "good"] == [0, 1, 2]
    assert [s for a, s in trial.runs if a == "idle"] == [s for a, s in trial.runs if a == "base"] == [*range(6)]
    assert (decision.reason, trial.ledger.reason) == ("seeds", "seeds")
    assert (decision.arms["good"].verdict, decision.arms["idle"].verdict) == ("better", "undecided")


def test_fixed_budget_runs_all_arms_to_its_end(tmp_path: Path) -> None:
    trial = Made(Ledger.open(tmp_path, TrialBudget(6, sequential=False)))
    assert trial.go().reason == "seeds"
    assert len(trial.runs) == 18


def test_minutes_end_a_trial_before_the_seed_that_passes_them(tmp_path: Path) -> None:
    trial = Made(Ledger.open(tmp_path, TrialBudget(6, minutes=2.0)), seconds=10.0)
    # a seed of three arms takes 30 s; the fourth begins with one arm decided: 90 s, and 110 s after it; a fifth 130
    assert trial.go().reason == "minutes"
    assert len(trial.runs) == 11
    # the same command makes nothing more
    assert Ledger.open(tmp_path, TrialBudget(6, minutes=2.0)).reason == "minutes"
    trial.ledger = Ledger.open(tmp_path, TrialBudget(6, minutes=2.0))
    trial.go()
    assert len(trial.runs) == 11


def test_other_budget_is_refused_after_the_first_look(tmp_path: Path) -> None:
    Ledger.open(tmp_path, TrialBudget(6)).write()
    assert json.loads((tmp_path / "trial.json").read_text())["budget"]["seeds"] == 6
    with pytest.raises(ConfigError, match="this trial was planned with seeds=6, not 12"):
        Ledger.open(tmp_path, TrialBudget(12))


def test_failed_and_missing_pairs_of_an_arm() -> None:
    results = [result("base", s, 0.2) for s in range(4)]
    results += [result("good", 0, 0.5), result("good", 1, 0.9, trouble="killed"), result("good", 3, 0.6)]
    differences = differences_of(results, ARMS, range(4))
    # seed 1 has no figure, seed 2 is not finished: what lies behind it waits
    assert differences["good"][0] == pytest.approx(0.3) and math.isnan(differences["good"][1])
    assert len(differences["good"]) == 2 and differences["idle"] == []
    assert differences_of(results, ARMS, range(1), "less")["good"][0] == pytest.approx(-0.3)


def test_verdicts_and_intervals_are_those_of_the_rule(tmp_path: Path) -> None:
    trial = Made(Ledger.open(tmp_path, TrialBudget(6)))
    decision = trial.go()
    comparison = conclude(
        trial.results(), ARMS, setting="s", measure="reward", better="more", budget=Budget("updates", 10), keys={}
    )
    good, idle = with_decision(comparison, decision).differences
    # differences .50, .51, .50: their mean, after three seeds
    assert good.sentence.startswith("good is better than base: +.503 (") and good.sentence.endswith(
        "decided after 3 seeds"
    )
    assert (good.end.n, good.verdict, idle.verdict) == (3, "better", "undecided")
    assert not any("no pair of equal seed" in note for note in with_decision(comparison, decision).notes)


def test_rule_is_stated_with_its_limits() -> None:
    assert rule(TrialBudget(12, minutes=10), 3) == (
        "looks after every seed from the third and stops arms that are decided, all after 12 seeds or 10 minutes: "
        "at most 5 % false positives over all 3 arms and looks"
    )


def test_fewer_than_three_seeds_promise_nothing() -> None:
    text = "stops after 1 seed, a fixed budget with one look at its end: fewer than 3 seeds are not ranked"
    assert rule(TrialBudget(1, sequential=False), 2) == text


def test_step_of_an_accuracy_is_one_held_out_task() -> None:
    run = RunResult("base", 0, "", (), after={"a": 1.0, "b": 0.0, "c": 1.0, "d": 1.0})
    assert (resolution_of([run], "eval_accuracy"), resolution_of([run], "reward")) == (0.25, 0.0)
