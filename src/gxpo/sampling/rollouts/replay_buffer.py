"""Stores of earlier rollouts for replay: buffers by task or by group, and the choice and order of replayed rows."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from gxpo.base.errors import CheckpointError
from gxpo.base.media import PICTURES, pictures_of
from gxpo.forest.forest import Forest

Json = dict[str, Any]
Choice = Literal["all", "random", "recent", "highest", "max_variance"]


class Store:
    """Base class of stores: fresh rollouts wait until they have been trained on, and are then stored as records.

    Records are JSON values only, so that a resumed run holds exactly what the stopped one held. Rollouts are stored as
    the task scored them: shaping depends on the step, and is added anew when they come back.
    """

    records_by_key: dict[str, list[Json]]
    name: str  # its key in a checkpoint

    def __init__(self) -> None:
        self._candidates: Forest | None = None

    def hold(self, fresh: Forest) -> None:
        """Set the rollouts that `store` may store once they have been trained on."""
        self._candidates = fresh

    def store(self, step_forest: Forest) -> None:
        """Store the waiting rollouts that are scored and were part of the `step_forest`."""
        candidates, self._candidates = self._candidates, None
        if candidates is None:
            return
        names = set(step_forest.id)
        is_used_R = candidates.scored & torch.tensor([name in names for name in candidates.id], dtype=torch.bool)
        stored_forest = candidates.select(is_used_R)
        PICTURES.retain(pictures_of(stored_forest.media))
        self.add([plain(record) for record in stored_forest.to_records(share=False)])

    def add(self, records: Sequence[Json]) -> None:
        """Store these records, and drop the oldest beyond the limits."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        return {self.name: [[key, list(records)] for key, records in self.records_by_key.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {self.name}:
            raise CheckpointError(f"the checkpoint's stored rollouts hold {sorted(state)}, not {self.name!r}")
        self.records_by_key = {key: list(records) for key, records in state[self.name]}
        self._candidates = None


class ReplayBuffer(Store):
    """Buffer of trajectories by task: the newest `per_task` of each of the `tasks` tasks that were used last.

    apart  store the newest `per_task` successes and as many others, so that failures don't push out a rare success

    A trajectory is stored as its `gxpo.rollouts/1` record (ids, behaviour log-probs, policy version, finish, support,
    outcome, components, verdict). A task is used when something of it is stored or looked up. If an epoch has more than
    `tasks` tasks, each is dropped before it is drawn again, and nothing is ever replayed. Memory: about 70 bytes a
    token.
    """

    name = "stored"

    def __init__(self, per_task: int, tasks: int, apart: bool = False) -> None:
        super().__init__()
        self.per_task, self.tasks, self.apart = per_task, tasks, apart
        self.records_by_key = {}  # in order of use, the task used last at the end

    def of(self, task: str) -> list[Json]:
        """Return the stored records of a task, oldest first."""
        if task in self.records_by_key:
            self.records_by_key[task] = self.records_by_key.pop(task)
        return list(self.records_by_key.get(task, ()))

    def add(self, records: Sequence[Json]) -> None:
        for record in records:
            task_records = [*self.records_by_key.pop(record["task"], []), record]
            alike = [
                i for i, r in enumerate(task_records) if not self.apart or r.get("success") == record.get("success")
            ]
            surplus = set(alike[: -self.per_task])
            self.records_by_key[record["task"]] = [r for i, r in enumerate(task_records) if i not in surplus]
        # the first key is the task used longest ago
        while len(self.records_by_key) > self.tasks:
            del self.records_by_key[next(iter(self.records_by_key))]


class StoredGroups(Store):
    """Buffer of scored rollouts by group, oldest group first.

    limit  most groups, the newest ones; 0: those of the newest step
    """

    name = "groups"

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.records_by_key: dict[str, list[Json]] = {}

    def add(self, records: Sequence[Json]) -> None:
        if not self.limit:
            self.records_by_key.clear()
        for record in records:
            self.records_by_key.setdefault(record["group"], []).append(record)
        for name in list(self.records_by_key)[: -self.limit] if self.limit else ():
            del self.records_by_key[name]


class Remembers:
    """Mixin for rollouts whose `buffer` stores what has been trained on, as part of the checkpoint."""

    buffer: Store

    def observe(self, forest: Forest) -> None:
        self.buffer.store(forest)

    def state_dict(self) -> dict[str, Any]:
        return self.buffer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.buffer.load_state_dict(state)


def plain(record: Mapping[str, Any]) -> Json:
    """Convert a record to JSON values, tensors as lists with their type."""

    def to_list(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return {"dtype": str(value.dtype).removeprefix("torch."), "values": value.tolist()}
        raise TypeError(f"a {type(value).__name__} can't be stored for replay")

    return json.loads(json.dumps(record, default=to_list, allow_nan=False))


def as_replay(record: Mapping[str, Any], *, group: str, id: str, weight: float = 1.0) -> Json:
    """Make a stored record a row of `group`: origin "replay", its own log-probs and policy version, times `weight`."""
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


def choose(outcomes: Sequence[float], k: int, choice: Choice, key: Sequence[Any] = ()) -> list[int]:
    """Choose `k` of the stored rollouts (all if there are fewer); return their indices in ascending order.

    outcomes  oldest first
    how       "all": every one, whatever `k`; "random": equally likely, a function of `key` alone; "recent": the last;
              "highest": the greatest outcomes; "max_variance": those whose outcomes have the greatest population
              variance, of such sets the one with the greatest sum. Of equal outcomes the newer are taken.

    >>> choose([0.0, 1.0, 0.5, 1.0], 2, "highest"), choose([0.0, 1.0, 0.5, 1.0], 2, "max_variance")
    ([1, 3], [0, 3])
    """
    n = len(outcomes)
    if choice == "all" or k >= n:
        return list(range(n))
    # a hash of key and index, so that the choice does not depend on a generator's state
    if choice == "random":
        digests = [hashlib.blake2b(json.dumps([*key, i]).encode(), digest_size=16).digest() for i in range(n)]
        return sorted(sorted(range(n), key=digests.__getitem__)[:k])
    if choice == "recent":
        return list(range(n - k, n))
    if choice == "highest":
        return sorted(sorted(range(n), key=lambda i: (outcomes[i], i))[n - k :])
    # variance is strictly convex in each member, so a best set has no member between two that are left out: it is
    # the `low` smallest and the k - low largest for some `low`
    values = sorted(outcomes)
    ends = [values[:low] + values[n - (k - low) :] for low in range(k + 1)]
    places_left = Counter(max(ends, key=lambda chosen: (statistics.pvariance(chosen), math.fsum(chosen))))
    places = []
    for i in range(n - 1, -1, -1):
        if places_left[outcomes[i]] > 0:
            places_left[outcomes[i]] -= 1
            places.append(i)
    return places[::-1]


def side_by_side(forest: Forest, groups: Sequence[str] | None = None) -> Forest:
    """Reorder trajectories group by group, in the order in which groups and their members first appear.

    groups  [R] group that each is sorted under, if not its own
    """
    names = forest.group if groups is None else groups
    name_order = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return forest.select(sorted(range(forest.n_trajectories), key=lambda r: name_order[names[r]]))


def last_failed(forest: Forest, group: str) -> int | None:
    """Return the row of the group's last known failure; None if it has none."""
    has_failed_R = (forest.scored & (forest.success < 1)).tolist()
    rows = [r for r, (name, bad) in enumerate(zip(forest.group, has_failed_R, strict=True)) if bad and name == group]
    return rows[-1] if rows else None


def drop_rows(forest: Forest, rows: Sequence[int]) -> Forest:
    """Return the forest without these trajectories."""
    keep_R = torch.ones(forest.n_trajectories, dtype=torch.bool)
    keep_R[list(rows)] = False
    return forest.select(keep_R)
