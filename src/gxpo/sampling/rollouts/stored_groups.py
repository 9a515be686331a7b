"""Replay of groups of earlier steps: all of the last step (PIPO), or single rollouts by advantage (SSB, EFRame)."""

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
from gxpo.sampling.rollouts.replay import Json, Remembers, StoredGroups, as_replay
from gxpo.sampling.rollouts.retried import Retried


def _again(record: Json, *, trained: bool = True) -> Json:
    """A stored rollout in a group of its stored companions; `trained` False: there for their statistics alone."""
    back = as_replay(record, group=f"{record['group']}/again", id=f"{record['id']}/again")
    if trained:
        return back
    return {**back, "weight": 0.0, "turns": [{**turn, "trainable": False} for turn in back["turns"]]}


def draw_by_weight(weights: Sequence[float], k: int, key: Sequence[Any]) -> list[int]:
    """Places of `k` of these, drawn one after the other without replacement with P(i) in proportion to weights[i] >= 0.

    Fewer where fewer weights are above 0. A function of its arguments alone: the uniform of place i is a hash of `key`
    and i; the k largest log(u) / weight are such a draw (Efraimidis and Spirakis, 2006). Ascending order.

    >>> draw_by_weight([2.0, 1.0, 0.0, 1.0], 4, ("key",))
    [0, 1, 3]
    """
    rank = {}
    for i, weight in enumerate(weights):
        if weight > 0:
            hashed = hashlib.blake2b(json.dumps([*key, i]).encode(), digest_size=8).digest()
            rank[i] = math.log((int.from_bytes(hashed, "big") + 0.5) / 2**64) / weight
    return sorted(sorted(rank, key=rank.__getitem__, reverse=True)[:k])


@part("group_replay", stage="rollout")
@dataclass(frozen=True)
class GroupReplay(Remembers, Retried):
    """`group_size` fresh samples of each task, and after them scored rollouts of earlier steps, group by group.

    choice      "all": every stored rollout. "advantage": for every fresh rollout whose advantage in its group is 0,
                `fill` stored ones of any task are drawn with P in proportion to |A|, A GRPO's advantage of the outcome
                in the group that it was sampled in. "largest": of those with |A| above `least` as many as `fill` times
                the fresh ones, all where there are fewer, each equally likely
    fill        drawn for each rollout of no advantage ("largest": for each), on average; 1: as many as there are
    least       see "largest"
    every       steps from one replay to the next: those that it divides
    max_groups  stored, the newest; 0: those of the step before. But for "all", groups of equal outcomes are not
    when, how, keep, warmup_steps  what is attempted again and kept of it: see `again`

    A returning rollout has origin "replay" and the log-probs, policy version, outcome and verdict of its own, in the
    group "GROUP/again". The other members of a drawn one's group come with it, not trained and in no denominator, so
    that any group-relative credit gives it the advantage that it had. The task's scores come back; the method's own
    shaping is added anew. What is drawn depends on (seed, step) and on what was sampled before.

    With these settings this is, among others: PIPO, choice all, max_groups 0; SSB of Skywork R1V2, the defaults;
    EFRame, choice largest, least 1, fill 2, every 5.
    """

    group_size: Count = 8
    choice: Literal["advantage", "all", "largest"] = "advantage"
    fill: Annotated[float, Gt(0)] = 1.0
    least: Annotated[float, Ge(0)] = 1.0
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
        outcome, group, taken = self._compared(fresh)
        if self.choice == "all":
            self.buffer.hold(fresh)
        else:
            self.buffer.hold(fresh.select(~grouped.degenerate(outcome, group, taken)))
        if play.session.step % self.every:
            return fresh
        stored = [record for records in self.buffer.kept.values() for record in records]
        drawn = set(range(len(stored)) if self.choice == "all" else self._drawn(fresh, play.session))
        alive = {stored[i]["group"] for i in drawn}
        records = [_again(r, trained=i in drawn) for i, r in enumerate(stored) if r["group"] in alive]
        return Forest.concat([fresh, Forest.from_records(records)]) if records else fresh

    @staticmethod
    def _compared(fresh: Forest) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Outcomes, groups, and which of them enter statistics."""
        return torch.nan_to_num(fresh.outcome), fresh.ids("group", axis="R"), fresh.scored & fresh.compared

    def _drawn(self, fresh: Forest, session: Session) -> list[int]:
        """Places of the stored rollouts that are trained."""
        strengths, key = self._strengths(), (session.seed, session.step)
        if self.choice == "largest":
            return draw_by_weight(
                [float(a > self.least) for a in strengths], int(self.fill * fresh.n_trajectories), key
            )
        outcome, group, taken = self._compared(fresh)
        idle = grouped.normalize(outcome, group, taken) == 0
        return draw_by_weight(strengths, int(self.fill * int((idle & taken).sum())), key)

    def _strengths(self) -> list[float]:
        """|A| of every stored rollout."""
        groups = list(self.buffer.kept.values())
        ids = [g for g, records in enumerate(groups) for _ in records]
        outcome = torch.tensor([r["reward"] for records in groups for r in records], dtype=torch.float64)
        compared = torch.tensor([r.get("compared", True) for records in groups for r in records], dtype=torch.bool)
        return grouped.normalize(outcome, torch.tensor(ids, dtype=torch.int64), compared).abs().tolist()
