"""Sampling beside training: which groups are dispatched under which weights, and which of them a step trains.

Groups may be sampled as long as running, finished and trained ones are at most (max_staleness + version + 1)
`tasks.per_step` (AReaL's capacity). With `async.order: dispatch` the groups drawn for step n are sampled under version
max(0, n - 1 - max_staleness) and trained in step n, whatever the clock says; they are sampled together, in batches that
depend on themselves alone. So the same configuration and seed give the same run, killed or not.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gxpo.engines.torch import TorchEngine
from gxpo.engines.vllm import VllmEngine
from gxpo.errors import GxpoError
from gxpo.forest import Forest
from gxpo.protocols import Task, TaskSource
from gxpo.settings import RunSettings
from gxpo.trainer.asynchronous.group import ENGINE, ENVS, REWARDS, Group, GroupEngine, GroupEnvs, GroupRewards, OverAge
from gxpo.trainer.asynchronous.ledger import Cost, Entry, Ledger
from gxpo.trainer.asynchronous.routines import Cancelled, Rounds, Routine
from gxpo.trainer.asynchronous.services import Environments, Gate, Sampler, Scorer
from gxpo.trainer.asynchronous.weights import PublishedPolicy
from gxpo.trainer.session import Session

POLL = 0.05  # seconds after which a sampler looks for newly dispatched groups


@dataclass(frozen=True)
class Gathered:
    """What a step trains: rollouts, in order of dispatch, and what became of other groups since the step before.

    failed  of groups whose rollout raised, why; dropped  how many groups were over age
    """

    forest: Forest
    tasks: list[Task]
    cost: Cost
    dropped: int
    failed: list[str]


@dataclass(frozen=True)
class Stage:
    """What a pipeline samples with: the parts of a run's `Stages`."""

    engine: Any
    learner: Any
    rewards: Any
    envs: Any
    source: TaskSource
    rollout: Any
    segmenter: Any
    session: Callable[..., Session]


class Pipeline:
    """The groups of an asynchronous run, from drawing to training. One thread of its own samples.

    publish, gather, drain  are called by the trainer between its updates
    """

    def __init__(self, settings: RunSettings, stage: Stage, run: Path) -> None:
        s = settings.async_
        self.settings, self.stage = settings, stage
        self.behind, self.per_step, self.steps = s.max_staleness, settings.tasks.per_step, settings.trainer.steps
        self.in_order, self.drops, self.partial = s.order == "dispatch", s.over_age == "drop", s.partial
        auto = (s.max_staleness + 1) * self.per_step
        self.most = auto if s.groups_in_flight == "auto" else s.groups_in_flight
        self.ledger, self.gate, self.totals = Ledger(run), Gate(), Cost()
        self.version = -1
        self._changed = threading.Condition()
        self._groups: dict[int, Group] = {}  # by place, those that no step has used
        self._backlog: list[Group] = []  # drawn and not dispatched
        self._queue: list[Group] = []  # dispatched and not begun
        self._states: dict[int, dict[str, Any]] = {}  # of the source before each draw that is still needed
        self._resumed: dict[int, dict[str, Any]] = {}  # the same, of a checkpoint
        self._next = 1  # step of the next draw
        self._sampler: Sampler | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._closing = False

    # ------------------------------------------------------------ the trainer's side
    def publish(self, version: int) -> None:
        """The learner's weights are those of `version` now: they may be sampled under, and further groups may be."""
        self._start(version)
        with self._changed:
            self._raise()
            if self._sampler is not None and self._sampler.policy is not None:
                self._sampler.policy.publish(version)
            self.version = version
            self._draw()
            self._admit()
            self._retire()
            self._changed.notify_all()

    def gather(self, step: int) -> Gathered:
        """The groups of a step; waits until there are enough. GxpoError where all of them failed."""
        if self.version < step - 1:
            self.publish(step - 1)
        cost, failed, dropped, places = Cost(), [], 0, []
        with self._changed:
            if step > self.steps:
                self.steps = step
                self._draw()
                self._admit()
                self._changed.notify_all()
            while True:
                self._raise()
                lost, old = self._useless(step)
                failed += [self.ledger.entries[g.place].why for g in lost]
                places += [g.place for g in lost]
                dropped += sum(g.draws for g in old)
                for group in (*lost, *old):
                    cost.add(self._take(group))
                    if group in old:
                        cost.discarded += self.ledger.entries[group.place].cost.rollouts
                if lost or old:
                    self._admit()
                if (chosen := self._chosen(step)) is not None:
                    break
                if len(failed) >= self.per_step and self._nothing_works():
                    raise GxpoError(f"all {len(failed)} groups since step {step - 1} failed, the first: {failed[0]}")
                self._changed.wait()
            if not chosen:
                raise GxpoError(f"all {len(failed)} groups of step {step} failed, the first: {failed[0]}")
            for group in chosen:
                cost.add(self._take(group))
            self.ledger.consume(step, [*places, *(g.place for g in chosen)])
        self.totals.add(cost)
        forest = Forest.concat([self.ledger.rollouts(g.place) for g in chosen])
        return Gathered(forest, [g.tasks[0] for g in chosen], cost, dropped, failed)

    def drain(self) -> None:
        """Wait until nothing is sampled any more under weights that a checkpoint of now does not hold."""
        if not self.in_order or self._thread is None:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or not self._unfinished())
            self._raise()

    def _unfinished(self) -> list[Group]:
        """Groups of older versions that are not on the disk."""
        return [g for g in self._groups.values() if g.version < self.version and self._state(g) == "dispatched"]

    @contextmanager
    def alone(self, version: int) -> Iterator[None]:
        """The engine is the trainer's, with the weights of `version`, and rewards and environments are, too."""
        if self._sampler is None:
            yield
            return
        with self.gate.shut():
            policy = self._sampler.policy
            if policy is not None and version not in policy.published:
                policy.publish(version)
            self._sampler.use(version)
            yield

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds beside the ledger."""
        needed = {g.step for g in (*self._groups.values(), *self._backlog)}
        states = self._resumed if self._thread is None else {s: x for s, x in self._states.items() if s in needed}
        return {"sources": {str(step): state for step, state in states.items()}, "totals": asdict(self.totals)}

    def resume(self, state: dict[str, Any], step: int) -> None:
        """Go back to a checkpoint of `step`: what finished is read back, what was under way is sampled again."""
        self._resumed = {int(s): x for s, x in state["sources"].items()}
        self.totals = Cost(**state["totals"])
        self._next = step + 1
        self.ledger.go_back(step)

    def close(self) -> None:
        """End the sampling; what is under way is left for a resumed run."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    # ------------------------------------------------------------ which groups
    def _start(self, version: int) -> None:
        if self._thread is not None:
            return
        engine, policy = self.stage.engine, None
        if isinstance(engine, TorchEngine | VllmEngine):
            policy = PublishedPolicy(self.stage.learner)
            if isinstance(engine, VllmEngine):
                engine.move_to(policy.model)
            else:
                engine.move_to(policy.model, policy.acting)
                engine.interrupted = (lambda: self.version > engine.policy_version) if self.partial else None
        self._sampler = Sampler(engine, policy, (lambda: self.version) if self.partial else None)
        self._thread = threading.Thread(target=self._run, name="sampling", daemon=True)
        if policy is not None:
            policy.publish(version)
        self._thread.start()

    def _draw(self) -> None:
        """Draw the tasks of all steps that may be sampled now; first those that a checkpoint had drawn, as it did."""
        if self._resumed:
            source, now = self.stage.source, self.stage.source.state_dict()
            for step, state in sorted(self._resumed.items()):
                source.load_state_dict(state)
                self._draw_step(step)
            source.load_state_dict(now)
            self._resumed = {}
        if self.in_order:
            while self._next <= min(self.version + self.behind + 1, self.steps):
                self._draw_step(self._next)

    def _draw_step(self, step: int) -> None:
        source = self.stage.source
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
            waves, self._backlog = self._waves(self._backlog), []
            for wave in waves:
                self._dispatch(wave)
            return
        room = self._room()
        while room > 0:
            if not self._backlog:
                self._draw_step(self._next)
            group = self._backlog.pop(0)
            room -= group.draws
            self._dispatch([group])

    def _room(self) -> int:
        """AReaL's capacity, less the groups that are running, finished or trained."""
        trained = self.version * self.per_step
        live = sum(g.draws for g in self._groups.values())
        return min(self.version + self.behind + 1, self.steps) * self.per_step - trained - live

    def _waves(self, groups: Sequence[Group]) -> list[list[Group]]:
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
            self._groups[group.place] = group
            planned = max(0, group.step - 1 - self.behind) if self.in_order else self.version
            group.version = planned
        if all(self._known(g) for g in groups):
            for group in groups:
                group.version = self.ledger.entries[group.place].version
            return
        for group in groups:
            oldest = min(self._published(), default=self.version)
            if group.version < oldest:
                warnings.warn(
                    f"{group} is sampled under version {oldest} instead of {group.version}: its records are not in "
                    f"{self.ledger.folder}, so this run goes another way than it would have gone on",
                    stacklevel=2,
                )
                group.version = oldest
            told = (group.place, group.step, group.tasks[0].id, group.draws, self.settings.seed, group.version)
            self.ledger.dispatch(Entry(*told))
        self._queue += groups

    def _published(self) -> set[int]:
        policy = None if self._sampler is None else self._sampler.policy
        return set() if policy is None else set(policy.published)

    def _known(self, group: Group) -> bool:
        """Whether the ledger has this very group, of weights that this run has had."""
        entry = self.ledger.entries.get(group.place)
        if entry is None or (entry.task, entry.draws) != (group.tasks[0].id, group.draws):
            return False
        return entry.state in ("finished", "failed") and (self.in_order or entry.version <= self.version)

    def _state(self, group: Group) -> str:
        return self.ledger.entries[group.place].state

    def _useless(self, step: int) -> tuple[list[Group], list[Group]]:
        """Groups that failed, and that are over age at `step`; in order, only those of the step."""
        live = [g for g in self._groups.values() if not self.in_order or g.step == step]
        lost = [g for g in live if self._state(g) == "failed"]
        old = [g for g in live if self._state(g) == "dropped"]
        if self.drops and not self.in_order:
            late = [g for g in live if step - 1 - g.version > self.behind]
            for group in (g for g in late if self._state(g) == "finished"):
                self.ledger.drop(group.place, step, self.ledger.entries[group.place].cost)
                old.append(group)
            for group in late:
                group.over_age = True
        return lost, old

    def _chosen(self, step: int) -> list[Group] | None:
        """The groups that a step trains; None: not yet."""
        if self.in_order:
            own = [g for g in self._groups.values() if g.step == step]
            return None if any(self._state(g) == "dispatched" for g in own) else own
        chosen, draws = [], 0
        for group in sorted(self._groups.values(), key=lambda g: g.place):
            if draws < self.per_step and self._state(group) == "finished":
                chosen.append(group)
                draws += group.draws
        return chosen if draws >= self.per_step else None

    def _nothing_works(self) -> bool:
        return not any(self._state(g) == "finished" for g in self._groups.values())

    def _take(self, group: Group) -> Cost:
        """A group that is used up, and what it took."""
        del self._groups[group.place]
        return self.ledger.entries[group.place].cost

    def _retire(self) -> None:
        """Forget weights that nobody will sample under."""
        if self._sampler is None or self._sampler.policy is None:
            return
        pending = {g.version for g in self._groups.values() if self._state(g) == "dispatched"}
        self._sampler.policy.retire({self.version, *pending})

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    # ------------------------------------------------------------ the sampler's side
    def _run(self) -> None:
        try:
            if self.in_order:
                self._run_waves()
            else:
                self._run_freely()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _services(self) -> dict[str, Any]:
        assert self._sampler is not None
        found: dict[str, Any] = {ENGINE: self._sampler, REWARDS: Scorer(self.stage.rewards, self.steps)}
        if self.stage.envs is not None:
            found[ENVS] = Environments(self.stage.envs)
        return found

    def _run_waves(self) -> None:
        """The groups of each step together, one step after the other."""
        assert self._sampler is not None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if self._closing:
                    return
                wave, *_ = self._waves(self._queue)
                del self._queue[: len(wave)]
            with self.gate.passing():
                self._sampler.use(wave[0].version)
                self._sampler.engine.release()
                rounds = Rounds(self._services(), barrier=True)
                try:
                    for group in wave:
                        rounds.add(self._routine(group))
                    while rounds.routines and not self._closing:
                        for routine in rounds.round():
                            self._ended(routine)
                finally:
                    rounds.close()

    def _run_freely(self) -> None:
        """All dispatched groups beside each other, each as fast as it goes."""
        services = {name: _inside(self.gate, serve) for name, serve in self._services().items()}
        rounds = Rounds(services, barrier=False)
        try:
            while not self._closing:
                with self._changed:
                    while self._queue and len(rounds.routines) < self.most:
                        group = self._queue.pop(0)
                        group.version = self.version
                        rounds.add(self._routine(group))
                    if not rounds.routines:
                        self._changed.wait(POLL)
                        continue
                for routine in rounds.round(POLL):
                    self._ended(routine)
        finally:
            rounds.close()

    def _routine(self, group: Group) -> Routine:
        return Routine(group, lambda routine: self._grow(group, routine))

    def _grow(self, group: Group, routine: Routine) -> Forest:
        """In the group's own thread: its rollouts, scored."""
        stage = self.stage
        session = stage.session(
            group.step,
            budget=group.budget,
            engine=GroupEngine(routine, group),
            envs=None if stage.envs is None else GroupEnvs(routine, group, stage.envs),
            rewards=GroupRewards(routine, stage.rewards),
            learner=None,
        )
        session.know(group.tasks)
        forest = stage.rollout.grow(group.tasks, session)
        if not getattr(stage.segmenter, "reads_entropy", False):  # else by the learner, in the step that trains it
            forest = session.segment(forest)
        if not forest.n_trajectories:
            raise GxpoError("its rollout gave no trajectories")
        return session.score(forest)

    def _ended(self, routine: Routine) -> None:
        group: Group = routine.owner
        error, cost = routine.error, group.spent()
        if isinstance(error, Cancelled):
            return
        with self._changed:
            if error is None:
                self.ledger.finish(group.place, routine.result, group.version, cost)
            elif isinstance(error, OverAge):
                self.ledger.drop(group.place, self.version + 1, cost)
            elif isinstance(error, Exception):
                self.ledger.fail(group.place, f"{type(error).__name__}: {error}", cost)
            else:
                raise error
            self._retire()
            self._changed.notify_all()


def _inside(gate: Gate, serve: Callable[[Sequence[Any]], None]) -> Callable[[Sequence[Any]], None]:
    def served(calls: Sequence[Any]) -> None:
        with gate.passing():
            serve(calls)

    return served
