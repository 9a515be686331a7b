"""Schedule of an asynchronous run: which groups are dispatched under which weights, and which of them a step trains.

Groups may be sampled as long as running, finished and trained ones are at most (max_staleness + version + 1)
`tasks.per_step` (AReaL's capacity). With `async.order: dispatch` the groups drawn for step n are sampled under version
max(0, n - 1 - max_staleness) and trained in step n, independent of the clock.
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
    """Groups from their draw to their training step. Callers hold the pipeline's lock.

    version         newest published weights; -1 before the first
    oldest_version  oldest published version that can still be sampled under
    groups          by place: dispatched groups that no step has used
    queue           those of them whose sampling has not begun
    """

    def __init__(self, settings: RunSettings, source: TaskSource, ledger: Ledger) -> None:
        s = settings.async_
        self.seed, self.source, self.ledger = settings.seed, source, ledger
        self.max_staleness, self.per_step, self.steps = s.max_staleness, settings.tasks.per_step, settings.trainer.steps
        self.in_order, self.drops_over_age = s.order == "dispatch", s.over_age == "drop"
        auto = (s.max_staleness + 1) * self.per_step
        self.max_in_flight = auto if s.groups_in_flight == "auto" else s.groups_in_flight
        self.version, self.oldest_version = -1, 0
        self.groups: dict[int, Group] = {}
        self.queue: list[Group] = []
        self._backlog: list[Group] = []  # drawn, not yet dispatched
        self._source_states: dict[int, dict[str, Any]] = {}  # by step: the source's state before that step's draw
        self._checkpoint_states: dict[int, dict[str, Any]] = {}  # the same from a checkpoint, until drawn again
        self._next_step = 1  # next step to draw tasks for

    # ------------------------------------------------------------ over a checkpoint
    def state(self) -> dict[str, dict[str, Any]]:
        """Return the source's state before each draw that still has unused groups, by step, for a checkpoint."""
        unused_steps = {g.step for g in (*self.groups.values(), *self._backlog)}
        states = {**self._source_states, **self._checkpoint_states}
        return {str(s): x for s, x in states.items() if s in unused_steps or s in self._checkpoint_states}

    def resume(self, states: dict[str, dict[str, Any]], step: int, ledger: Mapping[str, Any] | None = None) -> None:
        """Go back to the checkpoint of `step`, with the states of this schedule and of the ledger in it."""
        self._checkpoint_states = {int(s): x for s, x in states.items()}
        self._next_step = step + 1
        self.ledger.rewind(step, ledger)

    # ------------------------------------------------------------ dispatching
    def advance(self) -> None:
        """Draw and dispatch all groups that may be sampled now."""
        self._draw()
        self._admit()

    def _draw(self) -> None:
        """Draw the tasks of all steps that may be sampled now, beginning with the draws of a checkpoint."""
        # A draw of a source that learns depends on its state at that time, so each is repeated from the state that the
        # checkpoint has for it; then the source goes on from where the run is.
        if self._checkpoint_states:
            source, current_state = self.source, self.source.state_dict()
            for step, state in sorted(self._checkpoint_states.items()):
                source.load_state_dict(state)
                self._draw_step(step)
            source.load_state_dict(current_state)
            self._checkpoint_states = {}
        if self.in_order:
            while self._next_step <= min(self.version + self.max_staleness + 1, self.steps) and not self._is_exhausted:
                self._draw_step(self._next_step)

    @property
    def _is_exhausted(self) -> bool:
        """True if the sampler has dropped every task: the run ends after the steps that are drawn."""
        return getattr(self.source, "exhausted", None) is not None

    def _draw_step(self, step: int) -> None:
        source = self.source
        self._source_states[step] = source.state_dict()
        self._next_step = max(self._next_step, step + 1)
        by_task: dict[str, Group] = {}
        for i, task in enumerate(source.draw(self.per_step, step)):
            if task.id in by_task:
                by_task[task.id].tasks.append(task)
            else:
                by_task[task.id] = Group((step - 1) * self.per_step + i, step, [task], 0)
        # A draw that is repeated after a resume includes groups that an earlier step has trained or dropped.
        entries = self.ledger.entries
        self._backlog += [
            g for g in by_task.values() if g.place not in entries or entries[g.place].consumed_step is None
        ]

    def _admit(self) -> None:
        """Dispatch as many groups as there is room for."""
        if self.in_order:
            waves, self._backlog = self.waves(self._backlog), []
            for wave in waves:
                self._dispatch(wave)
            return
        # By order of finishing there is no plan of steps: tasks are drawn as there is room, a step's worth at a time.
        room = self._room()
        while room > 0:
            if not self._backlog:
                if self._is_exhausted:
                    return
                self._draw_step(self._next_step)
            group = self._backlog.pop(0)
            room -= group.draws
            self._dispatch([group])

    def _room(self) -> int:
        """Return AReaL's capacity minus the groups that are running, finished or trained."""
        n_trained = self.version * self.per_step
        live = sum(g.draws for g in self.groups.values())
        return min(self.version + self.max_staleness + 1, self.steps) * self.per_step - n_trained - live

    def waves(self, groups: Sequence[Group]) -> list[list[Group]]:
        """Cut groups into waves that are sampled together: each of one step and at most `groups_in_flight` draws."""
        waves: list[list[Group]] = []
        for group in groups:
            last = waves[-1] if waves else []
            if last and last[0].step == group.step and sum(g.draws for g in last) + group.draws <= self.max_in_flight:
                last.append(group)
            else:
                waves.append([group])
        return waves

    def _dispatch(self, groups: Sequence[Group]) -> None:
        """Queue groups for sampling, unless the ledger has finished records of all of them."""
        # All or none: a wave is sampled in common batches, and sampling a part of it again would give other bits.
        for group in groups:
            self.groups[group.place] = group
            version = max(0, group.step - 1 - self.max_staleness) if self.in_order else self.version
            group.version = version
        if all(self._is_recorded(g) for g in groups):
            for group in groups:
                group.version = self.ledger.entries[group.place].version
            return
        # A resumed run has the checkpoint's weights alone; groups planned under older ones were to be read back.
        for group in groups:
            if group.version < self.oldest_version:
                warnings.warn(
                    f"{group} is sampled under version {self.oldest_version} instead of {group.version}: its records "
                    f"are not in {self.ledger.folder}, so this run differs from the one that was interrupted",
                    stacklevel=2,
                )
                group.version = self.oldest_version
            columns = (group.place, group.step, group.tasks[0].id, group.draws, self.seed, group.version)
            self.ledger.dispatch(Entry(*columns))
        self.queue += groups

    def _is_recorded(self, group: Group) -> bool:
        """Return True if the ledger has this group's outcome under a version of the weights that this run has had."""
        entry = self.ledger.entries.get(group.place)
        if entry is None or (entry.task, entry.draws) != (group.tasks[0].id, group.draws):
            return False
        return entry.state in ("finished", "failed") and (self.in_order or entry.version <= self.version)

    # ------------------------------------------------------------ using
    def state_of(self, group: Group) -> str:
        """Return the group's state in the ledger: dispatched, finished, failed or dropped."""
        return self.ledger.entries[group.place].state

    def unusable_groups(self, step: int) -> tuple[list[Group], list[Group]]:
        """Mark groups that are over age at `step`; return failed and dropped groups. In order, only those of `step`."""
        # In order a later step's groups are charged to that step; they can't be over age.
        live = [g for g in self.groups.values() if not self.in_order or g.step == step]
        failed_groups = [g for g in live if self.state_of(g) == "failed"]
        dropped_groups = [g for g in live if self.state_of(g) == "dropped"]
        if self.drops_over_age and not self.in_order:
            over_age_groups = [g for g in live if step - 1 - g.version > self.max_staleness]
            for group in (g for g in over_age_groups if self.state_of(g) == "finished"):
                self.ledger.drop(group.place, step, self.ledger.entries[group.place].cost)
                dropped_groups.append(group)
            for group in over_age_groups:  # one that is still being sampled ends at its next action
                group.over_age = True
        return failed_groups, dropped_groups

    def choose(self, step: int) -> list[Group] | None:
        """Return the groups that a step trains; None while they are incomplete."""
        if self.in_order:
            step_groups = [g for g in self.groups.values() if g.step == step]
            return None if any(self.state_of(g) == "dispatched" for g in step_groups) else step_groups
        # The oldest draws first, so that no group is overtaken for ever.
        selection, draws = [], 0
        for group in sorted(self.finished_groups, key=lambda g: g.place):
            if draws < self.per_step:
                selection.append(group)
                draws += group.draws
        return selection if draws >= self.per_step else None

    @property
    def unfinished_groups(self) -> list[Group]:
        """Return groups that were dispatched and have no outcome yet."""
        return [g for g in self.groups.values() if self.state_of(g) == "dispatched"]

    @property
    def finished_groups(self) -> list[Group]:
        """Return groups whose records are complete and which no step has used."""
        return [g for g in self.groups.values() if self.state_of(g) == "finished"]

    def remove(self, group: Group) -> Cost:
        """Forget a group and return its cost."""
        del self.groups[group.place]
        return self.ledger.entries[group.place].cost
