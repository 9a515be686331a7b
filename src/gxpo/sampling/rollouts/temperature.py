"""Adaptive sampling temperatures: hotter for tasks whose groups are alike (ERPO), hot or cold by entropy (AEPO)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Interval

from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.attempts import Attempts, Draw
from gxpo.sampling.rollouts.base import Count, Rollout, Round
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.ways import TEMPERED


def heat_of(start: float, visits: int, step: float, max_temperature: float) -> float:
    """Return min(start + visits step, max_temperature), and never less than `start`.

    >>> [round(heat_of(1.0, c, 0.05, 1.2), 6) for c in range(6)]
    [1.0, 1.05, 1.1, 1.15, 1.2, 1.2]
    """
    return max(start, min(start + visits * step, max_temperature))


@part("task_temperature", stage="rollout")
@dataclass(frozen=True)
class TaskTemperature(Rollout):
    """`group_size` samples of each task, hotter by `step` for every earlier visit at which its group was all alike.

    groups  which visits count: groups that were "all_right", "all_wrong", or either ("uniform"), by known verdicts
    step    added to the run's temperature T0 for each visit that counted, up to `max_temperature` in all: T = min(T0 +
            c step, max_temperature), not below T0
    reset   a visit that does not count sets c back to 0; False: c stays

    c is counted by task id after the step's update, and is part of the checkpoint. A rollout's log-probs and ratios are
    those of the policy at the temperature that it was sampled at, info["temperature"], and that policy is trained, with
    a slope of 1 / T. A group without verdicts does not count. Held-out tasks are sampled at the evaluation's
    temperature. It helps only if tasks are drawn again later. Source: ERPO, arXiv 2511.04800.
    """

    group_size: Count = 8
    groups: Literal["all_right", "all_wrong", "uniform"] = "all_right"
    step: Annotated[float, Ge(0)] = 0.05
    max_temperature: Annotated[float, Gt(0)] = 1.2
    reset: bool = True
    team: str = ""
    visits: dict[str, int] = field(init=False, repr=False, compare=False, default_factory=dict)

    def first(self, draws: Sequence[Draw], play: Play) -> list[Attempts]:
        run_sampling, requests = play.session.sampling, []
        for draw in draws:
            heat = heat_of(run_sampling.temperature, self.visits.get(draw.task.id, 0), self.step, self.max_temperature)
            hot_sampling = None
            if heat != run_sampling.temperature:
                hot_sampling = dataclasses.replace(run_sampling, temperature=heat)
            requests.append(draw.attempts(self.group_size, sampling=hot_sampling, info={"temperature": heat}))
        return requests

    # ------------------------------------------------------------ memory
    def observe(self, forest: Forest) -> None:
        """Count the step's groups as visits of their tasks."""
        group, has_verdict_R = forest.ids("group", axis="R"), forest.scored & forest.success.isfinite()
        is_right_R = torch.where(has_verdict_R, forest.success >= 1, False)
        best_R, worst_R = grouped.max(is_right_R, group, has_verdict_R), grouped.min(is_right_R, group, has_verdict_R)
        counts = {"all_right": worst_R >= 1, "all_wrong": best_R < 1, "uniform": best_R == worst_R}[
            self.groups
        ].tolist()
        has_verdicts = (grouped.count(group, has_verdict_R) > 0).tolist()
        each = zip(forest.group, forest.task, has_verdicts, counts, strict=True)
        # one visit for a group, not for each of its members
        for task, is_counted in {name: (task, c) for name, task, has_verdict, c in each if has_verdict}.values():
            earlier_visits = self.visits.get(task, 0)
            self.visits[task] = earlier_visits + 1 if is_counted else 0 if self.reset else earlier_visits

    def state_dict(self) -> dict[str, Any]:
        return {"visits": {task: n for task, n in sorted(self.visits.items()) if n}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"visits"}:
            raise CheckpointError(f"the checkpoint's task temperatures hold {sorted(state)}, not 'visits'")
        self.visits.clear()
        self.visits.update({task: int(n) for task, n in state["visits"].items()})


@part("hot_cold_replay", stage="rollout")
@dataclass(frozen=True)
class HotColdReplay(Rollout):
    """`group_size` samples of each task, some of which good samples at another temperature replace in training.

    The first ceil(share * tasks) tasks are sampled once more, at `high_temperature` where the last step's entropy h was
    at most `target`, else at `low_temperature`. Of these samples those with an advantage (GRPO's, among themselves)
    above `min_advantage` come in: the first m = min(max_rows, how many there are), m // 2 of them where h > target.
    They are trained in the place of the first m fresh rollouts, which stay in their groups' statistics and are neither
    trained nor counted.

    target   nats a token; h is the mean of -log p of the last step's own samples; step 1 draws nothing more
    high_temperature, low_temperature  temperatures

    A row that comes in has origin "tempered", is compared with nobody, and is read at the run's temperature: its ratio
    is over the policy at the start of the step. Its behaviour log-probs, of another distribution, are left out.
    Reinforcing samples of a hotter policy raises the entropy, of a colder one lowers it.

    Source: AEPO, arXiv 2510.08141, and its code. The credit of 1 is the part `constant_advantage`.
    """

    group_size: Annotated[int, Ge(2)] = 8
    target: Annotated[float, Gt(0)] = 0.5
    high_temperature: Annotated[float, Gt(0)] = 1.2
    low_temperature: Annotated[float, Gt(0)] = 0.8
    share: Annotated[float, Interval(gt=0, le=1)] = 0.25
    min_advantage: Annotated[float, Ge(0)] = 0.05
    max_rows: Count = 60
    team: str = ""
    _memory: dict[str, float] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        if not self.low_temperature <= self.high_temperature:
            raise ConfigError(
                f"rollout.low_temperature={self.low_temperature} must be at most rollout.high_temperature="
                f"{self.high_temperature}"
            )

    def then(self, rounds: Sequence[Round], play: Play) -> list[Attempts]:
        entropy = self._memory.get("entropy")
        if entropy is None or len(rounds) > 1:
            return []
        # the entropy is steered towards the target: low entropy asks for hotter samples to learn from
        heat = self.high_temperature if entropy <= self.target else self.low_temperature
        # less a rounding error, so that a share of exactly k tasks is not k + 1
        draws, run_sampling = (
            play.step_draws[: math.ceil(self.share * len(play.step_draws) - 1e-9)],
            play.session.sampling,
        )
        return [
            draw.attempts(
                self.group_size, first=self.group_size, label=TEMPERED, group=f"{draw.group}/{TEMPERED}",
                sampling=dataclasses.replace(run_sampling, temperature=heat), read=run_sampling,
            )
            for draw in draws
        ]  # fmt: skip

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        fresh = rounds[0].scored
        if len(rounds) == 1:
            return fresh
        tempered_forest = rounds[1].scored
        outcome_R, group_R = torch.nan_to_num(tempered_forest.outcome), tempered_forest.ids("group", axis="R")
        # their advantage among themselves decides, in the order in which they were sampled
        is_good_R = tempered_forest.scored & (
            grouped.normalize(outcome_R, group_R, tempered_forest.scored) > self.min_advantage
        )
        # above the target only half as many come in
        m = min(self.max_rows, int(is_good_R.sum()), fresh.n_trajectories)
        m = m // 2 if self._memory["entropy"] > self.target else m
        play.session.budget.discarded += tempered_forest.n_trajectories - m
        if not m:
            return fresh
        return Forest.concat(
            [_as_tempered_rows(tempered_forest.select(is_good_R.nonzero().squeeze(1)[:m])), _untrain_first(fresh, m)]
        )

    def observe(self, forest: Forest) -> None:
        """Measure the step's entropy on the policy's own samples."""
        is_own_R = torch.tensor([o == "policy" for o in forest.origin], dtype=torch.bool)
        logprob = forest.path_behaviour_logprob[forest.to_path(is_own_R, "R")]
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


def _as_tempered_rows(rows: Forest) -> Forest:
    """Mark rows as tempered: compared with nobody, without behaviour log-probs (another temperature's)."""
    n = rows.n_trajectories
    return rows.replace(
        group=list(rows.id),
        origin=[TEMPERED] * n,
        compared=torch.zeros(n, dtype=torch.bool),
        behaviour_logprob=torch.full_like(rows.behaviour_logprob, torch.nan),
    )


def _untrain_first(fresh: Forest, m: int) -> Forest:
    """Take the first m rollouts out of training; they stay in their groups' statistics."""
    trainable, weight = fresh.trainable.clone(), fresh.weight.clone()
    trainable[fresh.path_token[fresh.entries_of(torch.arange(m))]] = False
    weight[:m] = 0.0
    return fresh.replace(trainable=trainable, weight=weight)
