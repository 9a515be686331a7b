"""Experience replay of rollouts (RePO): those of earlier steps stand beside the fresh ones of the same task."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge

from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.base.media import PICTURES, pictures_of
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Session
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.base import Count, Round
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.retried import Retried

Json = dict[str, Any]
Choice = Literal["all", "random", "recent", "highest", "max_variance"]


class Store:
    """Rollouts that are held until they have been trained on, and then stored as records in JSON values only: a resumed
    run holds exactly what the stopped one held.

    They are held as the task scored them: what shaping then adds depends on the step, and is added anew when they come
    back.
    """

    kept: dict[str, list[Json]]
    name: str  # in a checkpoint

    def __init__(self) -> None:
        self._held: Forest | None = None

    def hold(self, fresh: Forest) -> None:
        """Rollouts that may be stored once they have been trained on."""
        self._held = fresh

    def store(self, used: Forest) -> None:
        """Store those of the held rollouts that are scored and were part of the step's forest `used`."""
        held, self._held = self._held, None
        if held is None:
            return
        names = set(used.id)
        keep = held.scored & torch.tensor([name in names for name in held.id], dtype=torch.bool)
        stored = held.select(keep)
        PICTURES.retain(pictures_of(stored.media))
        self.add([plain(record) for record in stored.to_records(share=False)])

    def add(self, records: Sequence[Json]) -> None:
        """Store these, and drop what is too much."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        return {self.name: [[key, list(records)] for key, records in self.kept.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {self.name}:
            raise CheckpointError(f"the checkpoint's stored rollouts hold {sorted(state)}, not {self.name!r}")
        self.kept = {key: list(records) for key, records in state[self.name]}
        self._held = None


class ReplayBuffer(Store):
    """Trajectories of earlier steps by task: of each task the newest `per_task`, of tasks the `tasks` last used.

    apart  the newest `per_task` right ones and as many others, so that a rare success outlives failures

    A trajectory is kept as its record of `gxpo.rollouts/1` (ids, behaviour log-probs, policy version, finish, support,
    outcome, components, verdict). A task is used when something of it is stored or looked up. Where tasks come round in
    epochs of more than `tasks`, each is dropped before it is seen again, and nothing is ever replayed. Memory: some 70
    bytes a token.
    """

    name = "stored"

    def __init__(self, per_task: int, tasks: int, apart: bool = False) -> None:
        super().__init__()
        self.per_task, self.tasks, self.apart = per_task, tasks, apart
        self.kept = {}  # the task last used stands last

    def of(self, task: str) -> list[Json]:
        """What is stored of a task, oldest first."""
        if task in self.kept:
            self.kept[task] = self.kept.pop(task)
        return list(self.kept.get(task, ()))

    def add(self, records: Sequence[Json]) -> None:
        for record in records:
            own = [*self.kept.pop(record["task"], []), record]
            alike = [i for i, r in enumerate(own) if not self.apart or r.get("success") == record.get("success")]
            surplus = set(alike[: -self.per_task])
            self.kept[record["task"]] = [r for i, r in enumerate(own) if i not in surplus]
        while len(self.kept) > self.tasks:
            del self.kept[next(iter(self.kept))]


class StoredGroups(Store):
    """The scored rollouts of earlier steps by group, oldest group first.

    limit  groups that are kept, the newest; 0: those of the newest step
    """

    name = "groups"

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.kept: dict[str, list[Json]] = {}

    def add(self, records: Sequence[Json]) -> None:
        if not self.limit:
            self.kept.clear()
        for record in records:
            self.kept.setdefault(record["group"], []).append(record)
        for name in list(self.kept)[: -self.limit] if self.limit else ():
            del self.kept[name]


class Remembers:
    """A rollout whose `buffer` stores what it has trained."""

    buffer: Store

    def observe(self, forest: Forest) -> None:
        self.buffer.store(forest)

    def state_dict(self) -> dict[str, Any]:
        return self.buffer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.buffer.load_state_dict(state)


def plain(record: Mapping[str, Any]) -> Json:
    """The record in JSON values, tensors as lists with their type."""

    def listed(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return {"dtype": str(value.dtype).removeprefix("torch."), "values": value.tolist()}
        raise TypeError(f"a {type(value).__name__} can't be stored for replay")

    return json.loads(json.dumps(record, default=listed, allow_nan=False))


def as_replay(record: Mapping[str, Any], *, group: str, id: str, weight: float = 1.0) -> Json:
    """A stored record as a row of `group`: origin "replay", its own log-probs and policy version, times `weight`."""
    turns = [
        {**turn, "extras": {name: _tensor(value) for name, value in turn.get("extras", {}).items()}}
        for turn in record["turns"]
    ]
    return {
        **record,
        "turns": turns,
        "group": group,
        "id": id,
        "origin": "replay",
        "weight": weight * record.get("weight", 1.0),
        "info": {**record.get("info", {}), "sampled_as": record["id"]},
    }


def _tensor(value: Mapping[str, Any]) -> torch.Tensor:
    return torch.tensor(value["values"], dtype=getattr(torch, value["dtype"]))


def choose(outcomes: Sequence[float], k: int, how: Choice, key: Sequence[Any] = ()) -> list[int]:
    """Places of `k` of the stored rollouts (all, where there are fewer), in ascending order.

    outcomes  oldest first
    how       "all": every one, whatever `k`; "random": equally likely, a function of `key` alone; "recent": the last;
              "highest": the greatest outcomes; "max_variance": those whose outcomes have the greatest population
              variance, of such sets the one with the greatest sum. Of equal outcomes the newer are taken.

    >>> choose([0.0, 1.0, 0.5, 1.0], 2, "highest"), choose([0.0, 1.0, 0.5, 1.0], 2, "max_variance")
    ([1, 3], [0, 3])
    """
    n = len(outcomes)
    if how == "all" or k >= n:
        return list(range(n))
    if how == "random":
        hashed = [hashlib.blake2b(json.dumps([*key, i]).encode(), digest_size=16).digest() for i in range(n)]
        return sorted(sorted(range(n), key=hashed.__getitem__)[:k])
    if how == "recent":
        return list(range(n - k, n))
    if how == "highest":
        return sorted(sorted(range(n), key=lambda i: (outcomes[i], i))[n - k :])
    # variance is strictly convex in each member: a best set has no member between two that are left out
    values = sorted(outcomes)
    ends = [values[:low] + values[n - (k - low) :] for low in range(k + 1)]
    wanted = Counter(max(ends, key=lambda chosen: (statistics.pvariance(chosen), math.fsum(chosen))))
    places = []
    for i in range(n - 1, -1, -1):
        if wanted[outcomes[i]] > 0:
            wanted[outcomes[i]] -= 1
            places.append(i)
    return places[::-1]


def side_by_side(forest: Forest, groups: Sequence[str] | None = None) -> Forest:
    """The trajectories group by group, in the order in which groups and their members first appear.

    groups  [R] where each belongs, if not to its own group
    """
    names = forest.group if groups is None else groups
    place = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return forest.select(sorted(range(forest.n_trajectories), key=lambda r: place[names[r]]))


def last_failed(forest: Forest, group: str) -> int | None:
    """The group's last scored trajectory whose verdict is known and no success."""
    failed = (forest.scored & (forest.success < 1)).tolist()
    rows = [r for r, (name, bad) in enumerate(zip(forest.group, failed, strict=True)) if bad and name == group]
    return rows[-1] if rows else None


def without(forest: Forest, rows: Sequence[int]) -> Forest:
    """The forest without these trajectories."""
    keep = torch.ones(forest.n_trajectories, dtype=torch.bool)
    keep[list(rows)] = False
    return forest.select(keep)


@part("replay", stage="rollout")
@dataclass(frozen=True)
class Replay(Remembers, Retried):
    """`group_size` fresh samples of each task, and up to `replays` rollouts of it from earlier steps.

    replays     rows a task, once at least `min_stored` rollouts of it that may be replayed are stored
    choice      which of them: see `choose`
    into        "all" groups get some; "uniform": those alone whose known verdicts are all alike, and rows of the other
                verdict: right ones where all failed, failures where all were right
    max_stored  of a task, the newest ("uniform": of each verdict); `max_tasks`: see `ReplayBuffer`
    statistics  "split": replayed rows are a group of their own, "GROUP/replay"; "mixed": they join the fresh group
    coef        weight of replayed rows; 0 leaves them in statistics and denominators only
    when, how, keep, warmup_steps  what is attempted again and kept of it: see `again`

    A replayed row has origin "replay" and the log-probs and policy version that it was sampled with, keeps its outcome
    and verdict, and stands next to its task's fresh rows, so that minibatches hold both. Fresh rollouts are stored
    after they have been trained on, unscored ones never, replayed ones not again, nor those of a group beside a task's
    own, whose prompt is another. What is replayed depends on what was sampled before and, for "random", on (seed, step,
    draw). Replaying pays only where tasks come round again.

    Which ratio replayed rows get is the objective's: `objective.ratio_over: behaviour` measures them against who
    sampled them. Source: RePO, arXiv 2506.09340; "uniform": R^3, arXiv 2601.19620.
    """

    group_size: Count = 8
    replays: Count = 8
    choice: Choice = "highest"
    min_stored: int = 16
    max_stored: Count = 16
    max_tasks: Count = 10_000
    statistics: Literal["split", "mixed"] = "split"
    coef: Annotated[float, Ge(0)] = 1.0
    into: Literal["all", "uniform"] = "all"
    team: str = ""
    buffer: ReplayBuffer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "buffer", ReplayBuffer(self.max_stored, self.max_tasks, self.into == "uniform"))
        if not 1 <= self.min_stored <= self.max_stored:
            raise ConfigError(
                f"rollout.min_stored={self.min_stored} must be from 1 to rollout.max_stored={self.max_stored}"
            )

    @property
    def stored(self) -> ReplayBuffer:
        return self.buffer

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        fresh = play.session.score(super().merge(rounds, play))
        own = {draw.group for draw in play.drawn}
        self.buffer.hold(fresh.select(torch.tensor([group in own for group in fresh.group], dtype=torch.bool)))
        wanted = opposite(fresh) if self.into == "uniform" else dict.fromkeys(fresh.group)
        task_of = dict(zip(fresh.group, fresh.task, strict=True))
        records, beside = [], list(fresh.group)
        for group, verdict in wanted.items():
            chosen = self._chosen(task_of[group], group, verdict, play.session) if group in own else []
            name = f"{group}/replay" if self.statistics == "split" else group
            records += [
                as_replay(r, group=name, id=f"{group}/replay/{i}", weight=self.coef) for i, r in enumerate(chosen)
            ]
            beside += [group] * len(chosen)
        if not records:
            return fresh
        return side_by_side(Forest.concat([fresh, Forest.from_records(records)]), beside)

    def _chosen(self, task: str, group: str, verdict: bool | None, session: Session) -> list[Json]:
        """Stored rollouts of a task, of one verdict where that is given."""
        stored = [r for r in self.buffer.of(task) if verdict is None or r.get("success") is verdict]
        if len(stored) < self.min_stored:
            return []
        key = (session.seed, session.step, group)
        return [stored[i] for i in choose([r["reward"] for r in stored], self.replays, self.choice, key)]


def opposite(forest: Forest) -> dict[str, bool]:
    """The verdict that is missing, by group, of those whose compared, scored members have one known verdict only."""
    forest.need_verdicts("rollout replay, into uniform")
    known = (forest.scored & forest.compared & forest.success.isfinite()).tolist()
    found: dict[str, set[bool]] = {}
    for group, counts, verdict in zip(forest.group, known, (forest.success >= 1).tolist(), strict=True):
        found.setdefault(group, set()).update({verdict} if counts else ())
    return {group: not next(iter(verdicts)) for group, verdicts in found.items() if len(verdicts) == 1}
