"""Entropy control (AEPO): good samples of a hotter or colder policy take the place of some of its own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Interval

from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.base import Count, Rollout, Round
from gxpo.sampling.rollouts.build import Attempts
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.ways import TEMPERED


@part("hot_cold_replay", stage="rollout")
@dataclass(frozen=True)
class HotColdReplay(Rollout):
    """`group_size` samples of each task; good ones of another temperature replace as many of the first of them.

    The first ceil(share * tasks) tasks are sampled once more, at `high` where the last step's entropy h was at most
    `target`, else at `low`. Of these samples those with an advantage (GRPO's, among themselves) above `least` come in:
    the first m = min(most, how many there are), m // 2 of them where h > target. They are trained in the place of the
    first m fresh rollouts, which stay in their groups' statistics and are neither trained nor counted.

    target   nats a token; h is the mean of -log p of the last step's own samples; step 1 draws nothing more
    high, low  temperatures

    A row that comes in has origin "tempered", is compared with nobody, and is read at the run's temperature: its ratio
    is over the policy at the start of the step. Its behaviour log-probs, of another distribution, are left out.
    Reinforcing samples of a hotter policy raises the entropy, of a colder one lowers it.

    Source: AEPO, arXiv 2510.08141, and its code. The credit of 1 is the part `constant_advantage`.
    """

    group_size: Annotated[int, Ge(2)] = 8
    target: Annotated[float, Gt(0)] = 0.5
    high: Annotated[float, Gt(0)] = 1.2
    low: Annotated[float, Gt(0)] = 0.8
    share: Annotated[float, Interval(gt=0, le=1)] = 0.25
    least: Annotated[float, Ge(0)] = 0.05
    most: Count = 60
    team: str = ""
    _memory: dict[str, float] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ConfigError(f"rollout.low ({self.low}) is at most rollout.high ({self.high})")

    def then(self, rounds: Sequence[Round], play: Play) -> list[Attempts]:
        entropy = self._memory.get("entropy")
        if entropy is None or len(rounds) > 1:
            return []
        heat = self.high if entropy <= self.target else self.low
        drawn, own = play.drawn[: math.ceil(self.share * len(play.drawn) - 1e-9)], play.session.sampling
        return [
            draw.attempts(
                self.group_size, first=self.group_size, label=TEMPERED, group=f"{draw.group}/{TEMPERED}",
                sampling=dataclasses.replace(own, temperature=heat), read=own,
            )
            for draw in drawn
        ]  # fmt: skip

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        fresh = rounds[0].scored
        if len(rounds) == 1:
            return fresh
        found = rounds[1].scored
        outcome, group = torch.nan_to_num(found.outcome), found.ids("group", axis="R")
        good = found.scored & (grouped.normalize(outcome, group, found.scored) > self.least)
        m = min(self.most, int(good.sum()), fresh.n_trajectories)
        m = m // 2 if self._memory["entropy"] > self.target else m
        play.session.budget.discarded += found.n_trajectories - m
        if not m:
            return fresh
        return Forest.concat([_coming_in(found.select(good.nonzero().squeeze(1)[:m])), _without_first(fresh, m)])

    def observe(self, forest: Forest) -> None:
        """Takes the step's entropy from its own samples."""
        own = torch.tensor([o == "policy" for o in forest.origin], dtype=torch.bool)
        logprob = forest.path_behaviour_logprob[forest.to_path(own, "R")]
        logprob = logprob[logprob.isfinite()]
        if logprob.numel():
            self._memory["entropy"] = -float(logprob.mean())

    def state_dict(self) -> dict[str, Any]:
        return dict(self._memory)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not set(state) <= {"entropy"}:
            raise CheckpointError(f"the checkpoint's rollout part holds {sorted(state)}, not 'entropy'")
        self._memory.clear()
        self._memory.update({name: float(value) for name, value in state.items()})


def _coming_in(rows: Forest) -> Forest:
    n = rows.n_trajectories
    return rows.replace(
        group=list(rows.id),
        origin=[TEMPERED] * n,
        compared=torch.zeros(n, dtype=torch.bool),
        behaviour_logprob=torch.full_like(rows.behaviour_logprob, torch.nan),
    )


def _without_first(fresh: Forest, m: int) -> Forest:
    """The first m rollouts are there for their groups' statistics alone."""
    trainable, weight = fresh.trainable.clone(), fresh.weight.clone()
    trainable[fresh.path_token[fresh.entries_of(torch.arange(m))]] = False
    weight[:m] = 0.0
    return fresh.replace(trainable=trainable, weight=weight)
