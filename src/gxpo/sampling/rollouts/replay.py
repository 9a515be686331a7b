"""Experience replay: rollouts of earlier steps beside fresh ones (RePO, R^3), or whole groups (PIPO, SSB, EFRame)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt

from gxpo.base.errors import ConfigError
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Session
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.base import Count, Round
from gxpo.sampling.rollouts.build import Limit
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.replay_buffer import (
    Choice,
    Json,
    Remembers,
    ReplayBuffer,
    StoredGroups,
    as_replay,
    choose,
    side_by_side,
)
from gxpo.sampling.rollouts.retry import RetryRounds


@part("replay", stage="rollout")
@dataclass(frozen=True)
class Replay(Remembers, RetryRounds):
    """`group_size` fresh samples of each task, and up to `replays` rollouts of the task from earlier steps.

    replays     rows a task, once at least `min_stored` rollouts of it that may be replayed are stored
    choice      rule that chooses them: see `replay_buffer.choose`
    groups      groups that get some: "all"; "uniform": only those whose known verdicts are all alike, which get rows of
                the other verdict: successes where all failed, failures where all succeeded
    max_stored  most rollouts stored of a task, the newest ones ("uniform": of each verdict); `max_tasks`: see
                `ReplayBuffer`
    statistics  "split": replayed rows are a group of their own, "GROUP/replay"; "mixed": they join the fresh group
    coef        weight of replayed rows; 0 leaves them in statistics and denominators only
    retry_if, retry_with, keep, warmup_steps  what is attempted again and kept of it: see `retry`

    A replayed row has origin "replay" and the log-probs and policy version that it was sampled with, keeps its outcome
    and verdict, and comes next to its task's fresh rows, so that minibatches hold both. Fresh rollouts are stored after
    they have been trained on; unscored ones never are, nor replayed ones again, nor those of a further group of the
    task, whose prompt is another. The choice depends on what was sampled before and, for "random", on (seed, step,
    draw). Replay helps only if tasks are drawn again later.

    The objective chooses the ratio of replayed rows: `objective.ratio_over: behaviour` measures them against the policy
    that sampled them. Source: RePO, arXiv 2506.09340; "uniform": R^3, arXiv 2601.19620.
    """

    group_size: Count = 8
    replays: Count = 8
    choice: Choice = "highest"
    min_stored: int = 16
    max_stored: Count = 16
    max_tasks: Count = 10_000
    statistics: Literal["split", "mixed"] = "split"
    coef: Annotated[float, Ge(0)] = 1.0
    groups: Literal["all", "uniform"] = "all"
    team: str = ""
    buffer: ReplayBuffer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "buffer", ReplayBuffer(self.max_stored, self.max_tasks, self.groups == "uniform"))
        if not 1 <= self.min_stored <= self.max_stored:
            raise ConfigError(
                f"rollout.min_stored={self.min_stored} must be from 1 to rollout.max_stored={self.max_stored}"
            )

    @property
    def stored(self) -> ReplayBuffer:
        return self.buffer

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        fresh = play.session.score(super().merge(rounds, play))
        # a further group of a task (as of `reflect`) had another prompt: its rollouts must not come back as the task's
        own_groups = {draw.group for draw in play.step_draws}
        self.buffer.hold(fresh.select(torch.tensor([group in own_groups for group in fresh.group], dtype=torch.bool)))
        verdict_by_group = opposite(fresh) if self.groups == "uniform" else dict.fromkeys(fresh.group)
        task_of = dict(zip(fresh.group, fresh.task, strict=True))
        records, neighbours = [], list(fresh.group)
        for group, verdict in verdict_by_group.items():
            stored_records = (
                self._choose_stored(task_of[group], group, verdict, play.session) if group in own_groups else []
            )
            name = f"{group}/replay" if self.statistics == "split" else group
            records += [
                as_replay(r, group=name, id=f"{group}/replay/{i}", weight=self.coef)
                for i, r in enumerate(stored_records)
            ]
            neighbours += [group] * len(stored_records)
        if not records:
            return fresh
        return side_by_side(Forest.concat([fresh, Forest.from_records(records)]), neighbours)

    def _choose_stored(self, task: str, group: str, verdict: bool | None, session: Session) -> list[Json]:
        """Choose stored rollouts of a task, of one verdict if that is given."""
        records = [r for r in self.buffer.of(task) if verdict is None or r.get("success") is verdict]
        if len(records) < self.min_stored:
            return []
        key = (session.seed, session.step, group)
        return [records[i] for i in choose([r["reward"] for r in records], self.replays, self.choice, key)]


def opposite(forest: Forest) -> dict[str, bool]:
    """Return the missing verdict by group, for groups whose compared, scored members have one known verdict only."""
    forest.need_verdicts("rollout replay, into uniform")
    is_known = (forest.scored & forest.compared & forest.success.isfinite()).tolist()
    verdicts_by_group: dict[str, set[bool]] = {}
    for group, counts, verdict in zip(forest.group, is_known, (forest.success >= 1).tolist(), strict=True):
        verdicts_by_group.setdefault(group, set()).update({verdict} if counts else ())
    return {group: not next(iter(verdicts)) for group, verdicts in verdicts_by_group.items() if len(verdicts) == 1}


def _as_returning(record: Json, *, is_trained: bool = True) -> Json:
    """Bring a stored rollout back in a group with its companions; `is_trained` False: for their statistics alone."""
    back = as_replay(record, group=f"{record['group']}/again", id=f"{record['id']}/again")
    if is_trained:
        return back
    return {**back, "weight": 0.0, "turns": [{**turn, "trainable": False} for turn in back["turns"]]}


def draw_by_weight(weights: Sequence[float], k: int, key: Sequence[Any]) -> list[int]:
    """Draw `k` indices without replacement, one after the other with P(i) in proportion to weights[i] >= 0.

    In ascending order; fewer if fewer weights are above 0. A function of its arguments alone: the uniform of index i is
    a hash of `key` and i; the k largest log(u) / weight are such a draw (Efraimidis and Spirakis, 2006).

    >>> draw_by_weight([2.0, 1.0, 0.0, 1.0], 4, ("key",))
    [0, 1, 3]
    """
    log_ranks = {}
    for i, weight in enumerate(weights):
        if weight > 0:
            digest = hashlib.blake2b(json.dumps([*key, i]).encode(), digest_size=8).digest()
            log_ranks[i] = math.log((int.from_bytes(digest, "big") + 0.5) / 2**64) / weight
    return sorted(sorted(log_ranks, key=log_ranks.__getitem__, reverse=True)[:k])


@part("group_replay", stage="rollout")
@dataclass(frozen=True)
class GroupReplay(Remembers, RetryRounds):
    """`group_size` fresh samples of each task, followed by scored rollouts of earlier steps, group by group.

    choice      "all": every stored rollout. "advantage": for every fresh rollout whose advantage in its group is 0,
                `replay_ratio` stored ones of any task are drawn with P in proportion to |A|, A GRPO's advantage of the
                outcome in the group that it was sampled in. "largest": of those with |A| above `min_advantage` as many
                as `replay_ratio` times the fresh ones, all where there are fewer, each equally likely
    replay_ratio  drawn for each rollout of no advantage ("largest": for each), on average; 1: as many as there are
    min_advantage  see "largest"
    every       steps from one replay to the next: those that it divides
    max_groups  stored, the newest; 0: those of the step before. But for "all", groups of equal outcomes are not
    retry_if, retry_with, keep, warmup_steps  what is attempted again and kept of it: see `retry`

    A returning rollout has origin "replay" and the log-probs, policy version, outcome and verdict of its own, in the
    group "GROUP/again". The other members of a drawn one's group come with it, not trained and in no denominator, so
    that any group-relative credit gives it the advantage that it had. The task's scores come back; the method's own
    shaping is added anew. What is drawn depends on (seed, step) and on what was sampled before.

    With these settings this is, among others: PIPO, choice all, max_groups 0; SSB of Skywork R1V2, the defaults;
    EFRame, choice largest, least 1, fill 2, every 5.
    """

    group_size: Count = 8
    choice: Literal["advantage", "all", "largest"] = "advantage"
    replay_ratio: Annotated[float, Gt(0)] = 1.0
    min_advantage: Annotated[float, Ge(0)] = 1.0
    every: Count = 1
    max_groups: Limit = 1024
    buffer: StoredGroups = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "buffer", StoredGroups(self.max_groups))
        if self.choice != "all" and self.group_size < 2:
            raise ConfigError("rollout.group_size is 1, in which nothing has an advantage; it is 2 or more")

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        fresh = play.session.score(super().merge(rounds, play))
        # groups of equal outcomes have no advantage to draw by, so they are stored only if all are replayed
        outcome, group, is_compared_R = self._comparison(fresh)
        if self.choice == "all":
            self.buffer.hold(fresh)
        else:
            self.buffer.hold(fresh.select(~grouped.degenerate(outcome, group, is_compared_R)))
        if play.session.step % self.every:
            return fresh
        stored_records = [record for records in self.buffer.records_by_key.values() for record in records]
        drawn_places = set(
            range(len(stored_records)) if self.choice == "all" else self._draw_places(fresh, play.session)
        )
        # the rest of a drawn rollout's group comes back too, so that its advantage is what it was
        drawn_groups = {stored_records[i]["group"] for i in drawn_places}
        records = [
            _as_returning(r, is_trained=i in drawn_places)
            for i, r in enumerate(stored_records)
            if r["group"] in drawn_groups
        ]
        return Forest.concat([fresh, Forest.from_records(records)]) if records else fresh

    @staticmethod
    def _comparison(fresh: Forest) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return outcomes [R], group ids [R], and a mask [R] of the rows that enter statistics."""
        return torch.nan_to_num(fresh.outcome), fresh.ids("group", axis="R"), fresh.scored & fresh.compared

    def _draw_places(self, fresh: Forest, session: Session) -> list[int]:
        """Draw the indices of the stored rollouts to train."""
        strengths, key = self._strengths(), (session.seed, session.step)
        if self.choice == "largest":
            return draw_by_weight(
                [float(a > self.min_advantage) for a in strengths], int(self.replay_ratio * fresh.n_trajectories), key
            )
        outcome, group, is_compared_R = self._comparison(fresh)
        is_idle_R = grouped.normalize(outcome, group, is_compared_R) == 0
        return draw_by_weight(strengths, int(self.replay_ratio * int((is_idle_R & is_compared_R).sum())), key)

    def _strengths(self) -> list[float]:
        """Return |A| of every stored rollout, in its own group."""
        groups = list(self.buffer.records_by_key.values())
        ids = [g for g, records in enumerate(groups) for _ in records]
        outcome = torch.tensor([r["reward"] for records in groups for r in records], dtype=torch.float64)
        is_compared = torch.tensor([r.get("compared", True) for records in groups for r in records], dtype=torch.bool)
        return grouped.normalize(outcome, torch.tensor(ids, dtype=torch.int64), is_compared).abs().tolist()
