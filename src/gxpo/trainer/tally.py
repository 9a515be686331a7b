"""Whether a run has had anything to learn from: counts over its steps, and the problem in a line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gxpo import former
from gxpo.pipeline import Method

PATIENCE = 10  # steps of zero-signal groups before a warning: at first a weak policy may get all of them wrong


@dataclass
class Tally:
    """What the lines of metrics.jsonl say of steps 1 to `steps`."""

    steps: int = 0
    rollouts: int = 0
    unscored: int = 0
    groups: int = 0
    zero_signal: float = 0.0
    updates: int = 0
    labelled: int = 0  # steps whose turns could have tags
    tagged: float = 0.0  # the sum of their shares of turns that have some

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Tally:
        tally = cls()
        for row in rows:
            tally.add(row)
        return tally

    def add(self, row: Mapping[str, Any]) -> None:
        self.steps += 1
        self.rollouts += row["trajectories"]
        self.unscored += row["unscored"]
        self.groups += row["groups"]
        self.zero_signal += (row["zero_signal_groups"] or 0.0) * row["groups"]  # None where there are no groups
        self.updates += row["optimiser_steps"]
        if (untagged := row.get("untagged_turns")) is not None:
            self.labelled += 1
            self.tagged += 1.0 - untagged

    @property
    def all_unscored(self) -> bool:
        return self.unscored == self.rollouts > 0

    def problem(self, method: Method, why: Mapping[str, str] | None = None) -> str | None:
        """Why nothing, or not what the method says, can have been learned in these steps, in a line; None where it can.

        why  messages of what could not be scored, by kind

        Groups of zero advantage are no problem where a term of the objective teaches without it.
        """
        steps = "step 1" if self.steps == 1 else f"the first {self.steps} steps"
        if self.all_unscored:
            said = "; ".join(why.values()) if why else "see the run's warnings"
            return f"nothing is learned: all {self.rollouts} rollouts of {steps} were unscored ({said})"
        if self.labelled and not self.tagged:
            return (
                f"no turn of {steps} has anything that segment.patterns look for, so what the method does with it is "
                "left out: ask for that form of replies in the prompt or chat.system, or change the patterns"
            )
        if any(map(former.learns_from_equal_groups, method.terms.values())):
            return None
        if self.groups and self.zero_signal > self.groups - 0.5:
            return (
                f"nothing is learned: all {self.groups} groups of {steps} had zero signal, all advantages 0 "
                "(equal rewards within a group?): see `gxpo check-reward` and `gxpo methods --for 'all-wrong groups'`"
            )
        if self.steps and not self.updates:
            return f"nothing is learned: no parameter has moved in {steps}, no rollout had advantage and weight"
        return None
