"""Conformance reward (process mining): fit of a reference's events to the process mined from an attempt's events."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from gxpo.base.errors import ConfigError, GxpoError, need
from gxpo.base.usercode import described
from gxpo.environments.rewards.base import Failure
from gxpo.forest.forest import Forest

if TYPE_CHECKING:
    from gxpo.parts.protocols import Task

EVENT = r"(?m)^[^\w\n]*(?:[Ss]tep \d+\W+)?(\w+)"
THOUGHT = r"(?s)\A(?=.*?</think>)(?:(?:(?!</think>).)*?<think>)?(.*?)</think>"


def events(text: str, pattern: str = EVENT) -> list[str]:
    """Activities of a reasoning text, in order: the first group of each match, in lower case.

    >>> events("Step 1: Define x\\nStep 2: solve for it\\n\\nCheck.")
    ['define', 'solve', 'check']
    """
    return [str(match[1]).lower() for match in re.finditer(pattern, text) if match[1]]


def thought(text: str, pattern: str = THOUGHT) -> str:
    """Thought in a text: first group of the pattern's first match, by default the text between `<think>` and
    `</think>`; the whole text without a match.

    >>> thought("<think>add</think> 4"), thought("add</think> 4"), thought("add")
    ('add', 'add', 'add')
    """
    match = re.search(pattern, text)
    return text if match is None else str(match[1] or "")


def replayed(attempt: Sequence[str], reference: Sequence[str]) -> float:
    """Conformance 2 f p / (f + p) by token replay on the attempt's directly-follows graph; 0 where one has no events.

    The graph has an arc for each pair of events that follow each other in the attempt, from a start and to an end. f is
    the share of the reference's moves that are arcs (a move that is none takes a missing token and leaves one behind),
    p the share of the arcs that leave the events which the reference meets that the reference takes.

    >>> replayed("abc", "abc"), round(replayed("abc", "ac"), 6)
    (1.0, 0.666667)
    """
    if not attempt or not reference:
        return 0.0
    arcs, moves = ({*zip(("", *x), (*x, ""), strict=True)} for x in (tuple(attempt), tuple(reference)))
    steps = list(zip(("", *reference), (*reference, ""), strict=True))
    fitness = sum(move in arcs for move in steps) / len(steps)
    origins = {origin for origin, _ in steps}
    outgoing = {arc for arc in arcs if arc[0] in origins}
    return f1(fitness, len(outgoing & moves) / len(outgoing) if outgoing else 0.0)


def aligned(attempt: Sequence[str], reference: Sequence[str]) -> float:
    """Conformance 2 f p / (f + p) by pm4py: f the log fitness and p the precision of the reference's events, by
    alignments, on the Petri net that the inductive miner finds for the attempt's; 0 where either has no events, or f
    and p are 0.

    MissingExtra where pm4py is not installed (its licence is AGPL-3.0).
    """
    if not attempt or not reference:
        return 0.0
    pm4py, frame = _pm4py()
    net, start, end = pm4py.discover_petri_net_inductive(frame(attempt))
    fitness = pm4py.fitness_alignments(frame(reference), net, start, end)["log_fitness"]
    precision = pm4py.precision_alignments(frame(reference), net, start, end)
    return f1(float(fitness), float(precision))


def f1(fitness: float, precision: float) -> float:
    """Harmonic mean of fitness and precision, 0 of two zeros.

    >>> round(f1(0.8, 0.6), 6)
    0.685714
    """
    return 2 * fitness * precision / (fitness + precision) if fitness + precision > 0 else 0.0


def _pm4py() -> tuple[Any, Any]:
    """Load pm4py without its progress bars, and build a function that makes its one-case log of activities."""
    pandas, pm4py = need("pandas", "process"), need("pm4py", "process")
    need("pm4py.util.constants", "process").SHOW_PROGRESS_BAR = False

    def frame(activities: Sequence[str]) -> Any:
        times = pandas.date_range("2000-01-01", periods=len(activities), freq="s", tz="UTC")
        rows = {"case:concept:name": "1", "concept:name": list(activities), "time:timestamp": times}
        return pandas.DataFrame(rows)

    return pm4py, frame


MINERS = {"follows": replayed, "inductive": aligned}


@dataclass(eq=False)
class Conformance:
    """Conformance reward: {"conformance": fit of the attempt's `events` with the reference's, by `miner`}.

    The reference is the task's `info["events"]`, or the events of its `info["solution"]`; GxpoError where no task of
    the step has either. Equal pairs are computed once; what pm4py can't compute costs the attempts of that pair their
    score.

    miner    "follows": `replayed`, which needs nothing else; "inductive": `aligned`, by pm4py (`gxpo[process]`), which
             is under AGPL-3.0: a program that you offer over a network with it must be offered with its source
    pattern  regular expression of an event, its first group the activity (default: the first word of each line, behind
             "Step 1:" and the like)
    thought  regular expression whose first group is the part of an attempt that is read, the whole where it does not
             match (default: up to the first `</think>`); "": always the whole
    """

    pattern: str = EVENT
    thought: str = THOUGHT
    miner: Literal["follows", "inductive"] = "follows"
    score_by_pair: dict[tuple[tuple[str, ...], tuple[str, ...]], float | Failure] = field(
        default_factory=dict, init=False, repr=False
    )
    _failures: list[Failure] = field(default_factory=list, init=False, repr=False)

    name = "conformance"
    gives = ("conformance",)

    def __post_init__(self) -> None:
        for name, pattern, group in (("pattern", self.pattern, "activity"), ("thought", self.thought, "part")):
            try:
                groups = re.compile(pattern).groups
            except re.error as error:
                raise ConfigError(f"conformance: {name} {pattern!r} is no regular expression: {error}") from None
            if (pattern and not groups) or not self.pattern:
                raise ConfigError(f"conformance: {name} {pattern!r} has no group for the {group}")
        if self.miner not in MINERS:
            raise ConfigError(f"conformance: miner {self.miner!r} is none of {', '.join(MINERS)}")
        if self.miner == "inductive":
            _pm4py()

    def failures(self) -> list[Failure]:
        """Return and clear the failures since the last call, one per trajectory."""
        collected, self._failures = self._failures, []
        return collected

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        reference_events = [t.info.get("events", events(str(t.info.get("solution", "")), self.pattern)) for t in tasks]
        # A data set without events is an error of the set-up, and not of each attempt.
        if tasks and not any(reference_events):
            raise GxpoError("reward conformance: no task has `events` or a `solution` in its info: add one of them")
        read_texts = [thought(x, self.thought) if self.thought else x for x in texts]
        pairs = [(tuple(events(x, self.pattern)), tuple(t)) for x, t in zip(read_texts, reference_events, strict=True)]
        # Alignments take seconds. Scores of the last call are kept, and those of pairs that did not come again dropped.
        distinct = dict.fromkeys(pairs)
        self.score_by_pair = {
            pair: self.score_by_pair[pair] if pair in self.score_by_pair else _score_or_failure(self.miner, *pair)
            for pair in distinct
        }
        scores = [self.score_by_pair[pair] for pair in pairs]
        self._failures += [x for x in scores if isinstance(x, tuple)]
        values = [math.nan if isinstance(x, tuple) else x for x in scores]
        return {"conformance": torch.tensor(values, dtype=torch.float64)}


def _score_or_failure(miner: str, attempt: Sequence[str], reference: Sequence[str]) -> float | Failure:
    """The fit by a miner, or the failure for what pm4py can't compute."""
    try:
        return MINERS[miner](attempt, reference)
    except Exception as error:  # pm4py and its solvers raise many kinds
        return ("raised", f"pm4py: {described(error)}")
