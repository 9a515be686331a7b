"""Panel of judges: several judged rewards combined into one, and held-out judges whose verdicts are never paid."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.environments.rewards.combine import Combination
from gxpo.environments.rewards.group_level import Failure, GroupReward

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Task


def exploitation_rate(
    weight: Sequence[float], credited: Sequence[bool], rejected: Sequence[bool], before: Sequence[bool] | None = None
) -> float:
    """Share, by weight, of what the training judge credits that every judge of the held-out panel rejects; nan where
    nothing is credited.

    before  what it credited at the previous checkpoint: only what is newly credited counts (as in the paper)

    Source: Reward Hacking in Rubric-Based Reinforcement Learning, sections 2 to 4.

    >>> exploitation_rate([2, 1, 3], [True] * 3, [True, True, False])
    0.5
    """
    old = [False] * len(weight) if before is None else before
    fresh = [w if now and not was else 0.0 for w, now, was in zip(weight, credited, old, strict=True)]
    total = sum(fresh)
    return sum(w for w, wrong in zip(fresh, rejected, strict=True) if wrong) / total if total else math.nan


def self_internalisation_gap(plain: Sequence[float], conditioned: Sequence[float]) -> float:
    """Mean of l(o | prompt) - l(o | prompt, rubric) over texts o that the policy writes when it is shown the rubric; at
    most 0 in expectation, and 0 where the policy does what the rubric asks without being told.

    plain, conditioned  mean log-prob (nats) a token of each text under the two prompts

    Source: as `exploitation_rate`; training is to stop at its maximum.

    >>> round(self_internalisation_gap([-1.10], [-0.85]), 6)
    -0.25
    """
    return sum(a - b for a, b in zip(plain, conditioned, strict=True)) / len(plain)


@dataclass(eq=False)
class Panel:
    """{"judge": [R]}: the scores of several judges combined. Recorded beside it, and paid only if given a weight by
    name: "judge_NAME", each judge's own score, "held_out_NAME" and "held_out", those of held-out judges and their mean,
    and "exploitation": of attempts that "judge" credits (`pass_mark` or more), 1 where all held-out judges that could
    be read give less, else 0; nan of the others. Its mean in the metrics is the `exploitation_rate` of the step.

    members   judged rewards by name; None of a single judge, whose score is "judge" itself
    combine   see `combine.combination`; over the judges that could be read: one bad reply costs one verdict
    every     the held-out judges are asked in every n-th step

    An attempt is unscored where no judge could be read, and counted with the first of its failures; a held-out judge's
    failures are nan alone.
    """

    members: Mapping[str, GroupReward]
    combine: Combination | None
    held_out: Mapping[str, GroupReward] = field(default_factory=dict)
    pass_mark: float = 0.5
    every: int = 1
    _step: int = 0
    _failures: list[Failure] = field(default_factory=list, init=False, repr=False)

    name = "judge"

    @property
    def gives(self) -> tuple[str, ...]:
        """Names of the components."""
        own = tuple(f"judge_{x}" for x in self.members) if self.combine is not None else ()
        beside = (*(f"held_out_{x}" for x in self.held_out), "held_out", "exploitation") if self.held_out else ()
        return (self.name, *own, *beside)

    @property
    def reports(self) -> tuple[str, ...]:
        """Components that are recorded and not paid."""
        return self.gives[1:]

    def at(self, step: int) -> None:
        """Say which step is scored next."""
        self._step = step
        for member in (*self.members.values(), *self.held_out.values()):
            getattr(member, "at", lambda step: None)(step)

    def failures(self) -> list[Failure]:
        """Return and clear the failures since the last call, one per trajectory that has no score."""
        found, self._failures = self._failures, []
        return found

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        scores, failed = _asked(self.members, forest, texts, tasks)
        groups = forest.ids("group", axis="R").tolist()
        rows = list(zip(*scores.values(), strict=True))
        made = [row[0] for row in rows] if self.combine is None else self.combine(rows, groups)
        judge = [math.nan if isinstance(x, tuple) else x for x in made]
        lost = sum(map(math.isnan, judge))
        failed = [*(x for x in made if isinstance(x, tuple)), *failed]
        self._failures += (failed + [("nonsense", "no judge's answer can be read")] * lost)[:lost]
        columns: dict[str, list[float]] = {"judge": judge}
        if self.combine is not None:
            columns |= {f"judge_{name}": x for name, x in scores.items()}
        if self.held_out:
            columns |= self._beside(judge, forest, texts, tasks)
        return {name: torch.tensor(x, dtype=torch.float64) for name, x in columns.items()}

    def _beside(
        self, judge: Sequence[float], forest: Forest, texts: Sequence[str], tasks: Sequence[Task]
    ) -> dict[str, list[float]]:
        """Scores of the held-out judges, their mean, and what the paid judge credits against all of them."""
        none = [math.nan] * len(texts)
        seen = dict.fromkeys(self.held_out, none)
        if self._step % self.every == 0:
            seen, _ = _asked(self.held_out, forest, texts, tasks)
        known = [[x for x in row if not math.isnan(x)] for row in zip(*seen.values(), strict=True)]
        exploited = [
            float(max(x) < self.pass_mark) if x and paid >= self.pass_mark else math.nan
            for x, paid in zip(known, judge, strict=True)
        ]
        means = [sum(x) / len(x) if x else math.nan for x in known]
        return {f"held_out_{name}": x for name, x in seen.items()} | {"held_out": means, "exploitation": exploited}


def _asked(
    judges: Mapping[str, Callable[..., Mapping[str, Tensor] | Tensor]],
    forest: Forest,
    texts: Sequence[str],
    tasks: Sequence[Task],
) -> tuple[dict[str, list[float]], list[Failure]]:
    """[R] scores of each judge, and what failed."""
    found, failed = {}, list[Failure]()
    for name, judge in judges.items():
        given = judge(forest, texts, tasks)
        (column,) = given.values() if isinstance(given, Mapping) else (given,)
        found[name] = column.tolist()
        failed += getattr(judge, "failures", list)()
    return found, failed
