"""Looks at a trial: differences in the planned order of seeds, what the trial has spent, and the decision as verdicts.

The rule is `gxpo.compare.stopping`; `gxpo try` and `gxpo compare --sequential` ask it after every seed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from gxpo.compare.conclude import ACCURACY, subtract, trouble
from gxpo.compare.inference import FEWEST_SEEDS
from gxpo.compare.results import Arm, Comparison, RunResult
from gxpo.compare.stopping import Decision, Reason, TrialBudget, decide, sentence
from gxpo.compare.wording import count, places
from gxpo.training.checkpoint import write_atomic

FILE = "trial.json"
UNPAIRED = "have no pair of equal seed"  # in a note, where an arm that is decided has fewer seeds than the base


@dataclass
class Ledger:
    """Budget of a trial and what it has spent, over all calls that continue it; stored in OUT/trial.json.

    seconds  of all runs so far, runs: how many these were
    reason   why the trial is over; empty while it goes on
    """

    path: Path
    budget: TrialBudget
    seconds: float = 0.0
    runs: int = 0
    reason: Reason = ""

    @classmethod
    def open(cls, out: Path, budget: TrialBudget) -> Ledger:
        """The ledger of a directory; `ConfigError` if it was begun with another budget."""
        path = out / FILE
        if not path.is_file():
            return cls(path, budget)
        document: Mapping[str, Any] = json.loads(path.read_text())
        return cls(path, budget.same_as(document["budget"]), document["seconds"], document["runs"], document["reason"])

    def write(self) -> None:
        """Store the ledger."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        document = {"budget": asdict(self.budget), "seconds": self.seconds, "runs": self.runs, "reason": self.reason}
        write_atomic(self.path, json.dumps(document))

    def spent_after(self, runs: int, tokens: float) -> Reason:
        """The limit that so many further runs would pass, at the mean cost so far; empty if there is none."""
        share = 1 + runs / self.runs if self.runs else 1.0
        if self.budget.minutes is not None and self.seconds * share > 60 * self.budget.minutes:
            return "minutes"
        return "tokens" if self.budget.tokens is not None and tokens * share > self.budget.tokens else ""

    def decide(self, differences: Mapping[str, Sequence[float]], resolution: float = 0.0) -> Decision:
        """Decide on the differences so far; the last look if minutes or tokens have ended the trial."""
        minutes = self.budget.minutes if self.reason == "minutes" else None
        tokens = self.budget.tokens if self.reason == "tokens" else None
        return decide(
            differences, self.budget, minutes=minutes or 0.0, tokens=tokens or 0.0, resolution=resolution
        )  # fmt: skip


def rule(budget: TrialBudget, arms: int) -> str:
    """State in a line when a trial ends, and what holds its false positives.

    >>> rule(TrialBudget(seeds=3, sequential=False), 1)
    'stops after 3 seeds, a fixed budget with one look at its end: at most 5 % false positives'
    """
    limits = [f"{budget.minutes:g} minutes"] if budget.minutes is not None else []
    limits += [f"{count(budget.tokens)} generated tokens"] if budget.tokens is not None else []
    within = "".join(f" or {limit}" for limit in limits)
    scope = f" over all {arms} arms" if arms > 1 else ""
    error = f"at most {budget.alpha * 100:.3g} % false positives{scope}"
    if budget.seeds < FEWEST_SEEDS:
        error = f"fewer than {FEWEST_SEEDS} seeds are not ranked"
    if not budget.sequential:
        seeds = f"{budget.seeds} seed{'' if budget.seeds == 1 else 's'}"
        return f"stops after {seeds}{within}, a fixed budget with one look at its end: {error}"
    looks = " and looks" if arms > 1 else " over all looks"
    return (
        f"looks after every seed from the third and stops arms that are decided, all after {budget.seeds} seeds"
        f"{within}: {error}{looks}"
    )


def differences_of(
    results: Sequence[RunResult], arms: Sequence[Arm], seeds: Sequence[int], better: Literal["more", "less"] = "more"
) -> dict[str, list[float]]:
    """Differences of each arm from the base by seed, in the planned order, up to its first pair that is not finished.

    nan where a run of the pair failed; positive is better.
    """
    base = next(arm.label for arm in arms if arm.kind == "base")
    runs = {(r.arm, r.seed): r for r in results}
    sign = 1.0 if better == "more" else -1.0
    differences: dict[str, list[float]] = {}
    for label in (arm.label for arm in arms if arm.kind == "arm"):
        differences[label] = []
        for seed in seeds:
            pair = runs.get((label, seed)), runs.get((base, seed))
            if pair[0] is None or pair[1] is None:
                break
            is_known = not (trouble(pair[0]) or trouble(pair[1]))
            differences[label].append(sign * subtract(pair[0].end, pair[1].end) if is_known else math.nan)
    return differences


def resolution_of(results: Sequence[RunResult], measure: str) -> float:
    """Step of the measure: 1 / held-out tasks of an accuracy; 0 for others, whose step no log tells."""
    tasks = max((len(r.after) for r in results), default=0) if measure == ACCURACY else 0
    return 1 / tasks if tasks else 0.0


def with_decision(comparison: Comparison, decision: Decision) -> Comparison:
    """The comparison with the verdicts and intervals of a sequential trial, in place of those of a single look.

    An arm that equals the base in every step stays so.
    """
    digits = places(comparison.arms)
    differences = []
    for difference in comparison.differences:
        arm = decision.arms.get(difference.arm)
        if arm is not None and difference.verdict != "equal":
            verdict = arm.verdict if arm.decided_at is not None else "undecided"
            difference = replace(
                difference, end=arm.estimate, p_adjusted=math.nan, seeds_needed=arm.seeds_needed, verdict=verdict,
                sentence=sentence(difference.arm, arm, digits).replace("the base", difference.against),
            )  # fmt: skip
        differences.append(difference)
    notes = [note for note in comparison.notes if UNPAIRED not in note]
    return replace(comparison, differences=differences, notes=notes)


def run_seeds(
    arms: Sequence[Arm], seeds: Sequence[int], ledger: Ledger, look: Callable[[], Decision],
    run: Callable[[int, Sequence[Arm]], None], tokens: Callable[[], float] = lambda: 0.0,
) -> Decision:  # fmt: skip
    """Run seed by seed until the rule or a limit ends the trial; the decision at its end.

    look  decides on the runs so far
    run   makes what is missing of a seed with these arms
    """
    base_and_controls = [arm for arm in arms if arm.kind != "arm"]
    for seed in seeds:
        # With a fixed budget no look stops a trial, and runs that failed are made again.
        decision = look()
        if ledger.reason in ("minutes", "tokens") or (ledger.budget.sequential and decision.stop):
            break
        next_arms = [*base_and_controls, *(a for a in arms if a.label in decision.next_seeds)]
        if not ledger.budget.sequential:
            next_arms = list(arms)
        # A seed is begun only if all of its arms can end in time, so that pairs stay whole. It is the last look then.
        limit = ledger.spent_after(len(next_arms), tokens()) if seed != seeds[0] else ""
        if limit:
            ledger.reason = limit
            break
        run(seed, next_arms)
    # Nothing is added after the last look: the ledger says that the trial is over.
    decision = look()
    ledger.reason = ledger.reason or decision.reason
    ledger.write()
    return decision
