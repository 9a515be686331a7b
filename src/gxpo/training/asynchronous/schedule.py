"""Which groups of an asynchronous run are dispatched under which weights, and which of them a step trains.

Groups may be sampled as long as running, finished and trained ones are at most (max_staleness + version + 1)
`tasks.per_step` (AReaL's capacity). With `async.order: dispatch` the groups drawn for step n are sampled under version
max(0, n - 1 - max_staleness) and trained in step n, whatever the clock says.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from gxpo.parts.protocols import TaskSource
from gxpo.parts.settings import RunSettings
from gxpo.training.asynchronous.group import Group
from gxpo.training.asynchronous.ledger import Cost, Entry, Ledger


class Schedule:
    """Groups from their drawing to their use. Whoever calls it holds the pipeline's lock.

    version  of the newest published weights; -1 before the first
    oldest   published version that can still be sampled under
    groups   by place, those that were dispatched and that no step has used
    queue    those of them that wait to be begun
    """

    def __init__(self, settings: RunSettings, source: TaskSource, ledger: Ledger) -> None:
        s = settings.async_
        self.seed, self.source, self.ledger = settings.seed, source, ledger
        self.behind, self.per_step, self.steps = s.max_staleness, settings.tasks.per_step, settings.trainer.steps
        self.in_order, self.drops = s.order == "dispatch", s.over_age == "drop"
        auto = (s.max_staleness + 1) * self.per_step
        self.most = auto if s.groups_in_flight == "auto" else s.groups_in_flight
        self.version, self.oldest = -1, 0
        self.groups: dict[int, Group] = {}
        self.queue: list[Group] = []
        self._backlog: list[Group] = []  # drawn and not dispatched
        self._states: dict[int, dict[str, Any]] = {}  # of the source before each draw that is still needed
        self._resumed: dict[int, dict[str, Any]] = {}  # the same, of a checkpoint
        self._next = 1  # step of the next draw

    # ------------------------------------------------------------ over a checkpoint
    def state(self) -> dict[str, dict[str, Any]]:
        """By step of a draw of which groups are left: the state that the source had before it."""
        needed = {g.step for g in (*self.groups.values(), *self._backlog)}
        return {str(s): x for s, x in {**self._states, **self._resumed}.items() if s in needed or s in self._resumed}

    def resume(self, states: dict[str, dict[str, Any]], step: int, ledger: Mapping[str, Any] | None = None) -> None:
        """Go back to `step`, with the `state` of then and that of the ledger."""
        self._resumed = {int(s): x for s, x in states.items()}
        self._next = step + 1
        self.ledger.go_back(step, ledger)

    # ------------------------------------------------------------ dispatching
    def advance(self) -> None:
        """Draw and dispatch whatever may be sampled now."""
        self._draw()
        self._admit()

    def _draw(self) -> None:
        """Draw the tasks of all steps that may be sampled now; first those that a checkpoint had drawn, as it did."""
        if self._resumed:
            source, now = self.source, self.source.state_dict()
            for step, state in sorted(self._resumed.items()):
                source.load_state_dict(state)
                self._draw_step(step)
            source.load_state_dict(now)
            self._resumed = {}
        if self.in_order:
            while self._next <= min(self.version + self.behind + 1, self.steps) and not self._is_exhausted:
                self._draw_step(self._next)

    @property
    def _is_exhausted(self) -> bool:
        """True if the sampler has dropped every task: the run ends after the steps that are drawn."""
        return getattr(self.source, "exhausted", None) is not None

    def _draw_step(self, step: int) -> None:
        source = self.source
        self._states[step] = source.state_dict()
        self._next = max(self._next, step + 1)
        by_task: dict[str, Group] = {}
        for i, task in enumerate(source.draw(self.per_step, step)):
            if task.id in by_task:
                by_task[task.id].tasks.append(task)
            else:
                by_task[task.id] = Group((step - 1) * self.per_step + i, step, [task], 0)
        used = self.ledger.entries
        fresh = [g for g in by_task.values() if g.place not in used or used[g.place].used is None]
        self._backlog += fresh

    def _admit(self) -> None:
        """Dispatch as many groups as there is room for."""
        if self.in_order:
            waves, self._backlog = self.waves(self._backlog), []
            for wave in waves:
                self._dispatch(wave)
            return
        room = self._room()
        while room > 0:
            if not self._backlog:
                if self._is_exhausted:
                    return
                self._draw_step(self._next)
            group = self._backlog.pop(0)
            room -= group.draws
            self._dispatch([group])

    def _room(self) -> int:
        """AReaL's capacity, less the groups that are running, finished or trained."""
        trained = self.version * self.per_step
        live = sum(g.draws for g in self.groups.values())
        return min(self.version + self.behind + 1, self.steps) * self.per_step - trained - live

    def waves(self, groups: Sequence[Group]) -> list[list[Group]]:
        """Groups that are sampled together: at most `groups_in_flight`, all of one step."""
        waves: list[list[Group]] = []
        for group in groups:
            last = waves[-1] if waves else []
            if last and last[0].step == group.step and sum(g.draws for g in last) + group.draws <= self.most:
                last.append(group)
            else:
                waves.append([group])
        return waves

    def _dispatch(self, groups: Sequence[Group]) -> None:
        """Begin groups, unless the ledger has all of them: they were sampled together."""
        for group in groups:
            self.groups[group.place] = group
            planned = max(0, group.step - 1 - self.behind) if self.in_order else self.version
            group.version = planned
        if all(self._known(g) for g in groups):
            for group in groups:
                group.version = self.ledger.entries[group.place].version
            return
        for group in groups:
            if group.version < self.oldest:
                warnings.warn(
                    f"{group} is sampled under version {self.oldest} instead of {group.version}: its records are not "
                    f"in {self.ledger.folder}, so this run goes another way than it would have gone on",
                    stacklevel=2,
                )
                group.version = self.oldest
            told = (group.place, group.step, group.tasks[0].id, group.draws, self.seed, group.version)
            self.ledger.dispatch(Entry(*told))
        self.queue += groups

    def _known(self, group: Group) -> bool:
        """Whether the ledger has this very group, of weights that this run has had."""
        entry = self.ledger.entries.get(group.place)
        if entry is None or (entry.task, entry.draws) != (group.tasks[0].id, group.draws):
            return False
        return entry.state in ("finished", "failed") and (self.in_order or entry.version <= self.version)

    # ------------------------------------------------------------ using
    def state_of(self, group: Group) -> str:
        """What the ledger says of it."""
        return self.ledger.entries[group.place].state

    def useless(self, step: int) -> tuple[list[Group], list[Group]]:
        """Groups that failed, and that are over age at `step`; in order, only those of the step."""
        live = [g for g in self.groups.values() if not self.in_order or g.step == step]
        lost = [g for g in live if self.state_of(g) == "failed"]
        old = [g for g in live if self.state_of(g) == "dropped"]
        if self.drops and not self.in_order:
            late = [g for g in live if step - 1 - g.version > self.behind]
            for group in (g for g in late if self.state_of(g) == "finished"):
                self.ledger.drop(group.place, step, self.ledger.entries[group.place].cost)
                old.append(group)
            for group in late:
                group.over_age = True
        return lost, old

    def chosen(self, step: int) -> list[Group] | None:
        """The groups that a step trains; None: not yet."""
        if self.in_order:
            own = [g for g in self.groups.values() if g.step == step]
            return None if any(self.state_of(g) == "dispatched" for g in own) else own
        chosen, draws = [], 0
        for group in sorted(self.finished, key=lambda g: g.place):
            if draws < self.per_step:
                chosen.append(group)
                draws += group.draws
        return chosen if draws >= self.per_step else None

    @property
    def unfinished(self) -> list[Group]:
        """Groups that were dispatched and are not on the disk."""
        return [g for g in self.groups.values() if self.state_of(g) == "dispatched"]

    @property
    def finished(self) -> list[Group]:
        """Groups that a step could train."""
        return [g for g in self.groups.values() if self.state_of(g) == "finished"]

    def take(self, group: Group) -> Cost:
        """A group that is used up, and what it took."""
        del self.groups[group.place]
        return self.ledger.entries[group.place].cost
