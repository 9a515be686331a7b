"""Good samples drawn hotter or colder than the policy take the place of some of its own, to steer its entropy."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gxpo import levels
from gxpo.errors import CheckpointError, ConfigError
from gxpo.forest import Forest
from gxpo.protocols import Request, Session, StreamKey, Task
from gxpo.rollouts.again import need_single_turn
from gxpo.rollouts.build import forest_of, name_draws
from gxpo.rollouts.independent import Independent

TEMPERED = "tempered"


@dataclass(frozen=True)
class Tempered:
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

    group_size: int = 8
    target: float = 0.5
    high: float = 1.2
    low: float = 0.8
    share: float = 0.25
    least: float = 0.05
    most: int = 60
    _memory: dict[str, float] = field(init=False, repr=False, compare=False, default_factory=dict)

    provides = ("states",)
    single_turn = True

    def __post_init__(self) -> None:
        if self.group_size < 2 or self.most < 1 or not 0 < self.share <= 1:
            raise ConfigError(
                f"rollout.group_size ({self.group_size}) is at least 2, rollout.most ({self.most}) at least 1, "
                f"rollout.share ({self.share}) above 0, up to 1"
            )
        if not (self.target > 0 and 0 < self.low <= self.high < math.inf and self.least >= 0):
            raise ConfigError(
                f"rollout.target ({self.target}) is above 0, rollout.least ({self.least}) 0 or more, and "
                f"0 < rollout.low ({self.low}) <= rollout.high ({self.high})"
            )

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        need_single_turn(session, "tempered", "samples the prompts")
        fresh = session.score(Independent(self.group_size).grow(tasks, session))
        entropy = self._memory.get("entropy")
        if entropy is None:
            return fresh
        found = session.score(self._tempered(tasks[: math.ceil(self.share * len(tasks) - 1e-9)], entropy, session))
        outcome, group = torch.nan_to_num(found.outcome), found.ids("group", axis="R")
        good = found.scored & (levels.normalize(outcome, group, found.scored) > self.least)
        m = min(self.most, int(good.sum()), fresh.n_trajectories)
        m = m // 2 if entropy > self.target else m
        session.budget.discarded += found.n_trajectories - m
        if not m:
            return fresh
        return Forest.concat([_coming_in(found.select(good.nonzero().squeeze(1)[:m])), _without_first(fresh, m)])

    def _tempered(self, tasks: Sequence[Task], entropy: float, session: Session) -> Forest:
        """A second group of each task, not scored; its attempts are numbered on from the first one's."""
        draws = name_draws(tasks, Counter())
        prompts = [session.encode(task) for task in tasks]
        attempts = range(self.group_size, 2 * self.group_size)
        asked = [
            Request(prompt, tuple(StreamKey(session.seed, session.step, draw, i) for i in attempts))
            for prompt, draw in zip(prompts, draws, strict=True)
        ]
        heat = self.high if entropy <= self.target else self.low
        completions = session.sample(asked, sampling=dataclasses.replace(session.sampling, temperature=heat))
        groups = [f"s{session.step}/{draw}/{TEMPERED}" for draw in draws]
        return forest_of(tasks, groups, prompts, completions, session.sampling)

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
