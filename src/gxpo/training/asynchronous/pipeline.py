"""Sampling beside training: a thread grows the groups that a `Schedule` dispatches, while the trainer takes its steps.

With `async.order: dispatch` the groups of a step are sampled together, in batches that depend on themselves alone. So
the same configuration and seed give the same run, killed or not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gxpo.algorithms.segments.base import Segmenter
from gxpo.base.errors import GxpoError
from gxpo.base.runtime import Clock
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Task, TaskSource
from gxpo.parts.settings import RunSettings
from gxpo.sampling.engines.openai import OpenAIEngine
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.sampling.engines.vllm import VllmEngine
from gxpo.training.asynchronous.group import ENGINE, ENVS, REWARDS, Group, GroupEngine, GroupEnvs, GroupRewards, OverAge
from gxpo.training.asynchronous.ledger import Cost, Ledger
from gxpo.training.asynchronous.routines import Cancelled, Rounds, Routine
from gxpo.training.asynchronous.schedule import Schedule
from gxpo.training.asynchronous.services import Environments, Gate, Sampler, Scorer
from gxpo.training.asynchronous.weights import PublishedPolicy
from gxpo.training.session import Session

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
        self.stage, self.partial = stage, settings.async_.partial
        self.ledger, self.gate, self.totals = Ledger(run), Gate(), Cost()
        self.schedule = Schedule(settings, stage.source, self.ledger)
        self.figures: dict[str, int] = {}  # of the newest step
        self.messages: dict[str, str] = {}  # why a group of it failed
        self._changed = threading.Condition()
        self._sampler: Sampler | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._closing = False

    # ------------------------------------------------------------ the trainer's side
    def publish(self, version: int) -> None:
        """The learner's weights are those of `version` now: they may be sampled under, and further groups may be."""
        self._start()
        with self._changed:
            self._raise()
            if self._sampler is not None and self._sampler.policy is not None:
                self._sampler.policy.publish(version)
                self.schedule.oldest = min(self._sampler.policy.published)
            self.schedule.version = version
            self.schedule.advance()
            self._retire()
            self._changed.notify_all()

    def gather(self, step: int) -> Gathered:
        """The groups of a step; waits until there are enough. GxpoError where all of them failed."""
        schedule = self.schedule
        if schedule.version < step - 1:
            self.publish(step - 1)
        cost, failed, dropped, places = Cost(), [], 0, []
        with self._changed:
            if step > schedule.steps:  # a loop of one's own goes on
                schedule.steps = step
                schedule.advance()
                self._changed.notify_all()
            while True:
                self._raise()
                lost, old = schedule.useless(step)
                failed += [self.ledger.entries[g.place].why for g in lost]
                places += [g.place for g in lost]
                dropped += sum(g.draws for g in old)
                for group in (*lost, *old):
                    cost.add(schedule.take(group))
                    if group in old:
                        cost.discarded += self.ledger.entries[group.place].cost.rollouts
                if lost or old:
                    schedule.advance()
                    self._changed.notify_all()
                if (chosen := schedule.chosen(step)) is not None:
                    break
                if len(failed) >= schedule.per_step and not schedule.finished:
                    raise GxpoError(f"all {len(failed)} groups since step {step - 1} failed, the first: {failed[0]}")
                self._changed.wait()
            if not chosen:
                raise GxpoError(f"all {len(failed)} groups of step {step} failed, the first: {failed[0]}")
            for group in chosen:
                cost.add(schedule.take(group))
            self.ledger.consume(step, [*places, *(g.place for g in chosen)])
        self.totals.add(cost)
        forest = Forest.concat([self.ledger.rollouts(g.place) for g in chosen])
        return Gathered(forest, [g.tasks[0] for g in chosen], cost, dropped, failed)

    def rollouts(self, session: Session, clock: Clock) -> Forest:
        """The scored rollouts of a step, in its session, which is charged for them."""
        found = self.gather(session.step)
        clock.lap("wait")
        clock.note("sample", found.cost.time_sample_s)
        session.know(found.tasks)
        for name in ("generated_tokens", "rollouts", "discarded"):
            setattr(session.budget, name, getattr(session.budget, name) + getattr(found.cost, name))
        self.messages = {"rollout": found.failed[0]} if found.failed else {}
        self.figures = {"dropped_groups": found.dropped, "failed_groups": len(found.failed)}
        return session.segment(found.forest)

    def drain(self) -> None:
        """Wait until nothing is sampled any more under weights that a checkpoint of now does not hold."""
        schedule = self.schedule
        if not schedule.in_order or self._thread is None:
            return

        def done() -> bool:
            return self._error is not None or all(g.version == schedule.version for g in schedule.unfinished)

        with self._changed:
            self._changed.wait_for(done)
            self._raise()

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
        with self._changed:
            totals = asdict(self.totals)
            return {"sources": self.schedule.state(), "totals": totals, "ledger": self.ledger.state()}

    def resume(self, state: dict[str, Any], step: int) -> None:
        """Go back to a checkpoint of `step`: what finished is read back, what was under way is sampled again."""
        self.totals = Cost(**state["totals"])
        self.schedule.resume(state["sources"], step, state.get("ledger"))

    def close(self) -> None:
        """End the sampling; what is under way is left for a resumed run."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    # ------------------------------------------------------------ between the two
    def _start(self) -> None:
        if self._thread is not None:
            return
        engine, policy = self.stage.engine, None

        def newest() -> int:
            return self.schedule.version

        served = isinstance(engine, OpenAIEngine) and engine.publishes
        if isinstance(engine, TorchEngine | VllmEngine) or served:
            policy = PublishedPolicy(self.stage.learner)
            if not isinstance(engine, TorchEngine):
                engine.move_to(policy.model)
            else:
                engine.move_to(policy.model, policy.acting)
                engine.interrupted = (lambda: newest() > engine.policy_version) if self.partial else None
        self._sampler = Sampler(engine, policy, newest if self.partial else None)
        self._thread = threading.Thread(target=self._run, name="sampling", daemon=True)
        self._thread.start()

    def _retire(self) -> None:
        """Forget weights that nobody will sample under."""
        if self._sampler is None or self._sampler.policy is None:
            return
        self._sampler.policy.retire({self.schedule.version, *(g.version for g in self.schedule.unfinished)})
        self.schedule.oldest = min(self._sampler.policy.published)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    # ------------------------------------------------------------ the sampler's side
    def _run(self) -> None:
        try:
            if self.schedule.in_order:
                self._run_waves()
            else:
                self._run_freely()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _services(self) -> dict[str, Any]:
        assert self._sampler is not None
        found: dict[str, Any] = {ENGINE: self._sampler, REWARDS: Scorer(self.stage.rewards, self.schedule.steps)}
        if self.stage.envs is not None:
            found[ENVS] = Environments(self.stage.envs)
        return found

    def _run_waves(self) -> None:
        """The groups of each step together, one step after the other."""
        assert self._sampler is not None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.schedule.queue or self._closing)
                if self._closing:
                    return
                wave, *_ = self.schedule.waves(self.schedule.queue)
                del self.schedule.queue[: len(wave)]
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
        rounds, schedule = Rounds(services, barrier=False), self.schedule
        try:
            while not self._closing:
                with self._changed:
                    while schedule.queue and len(rounds.routines) < schedule.most:
                        group = schedule.queue.pop(0)
                        group.version, group.over_age = schedule.version, False
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
        forest = session.grow(stage.rollout, group.tasks)
        if not Segmenter.hook(stage.segmenter, "reads_entropy"):  # else by the learner, in the step that trains it
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
                self.ledger.drop(group.place, self.schedule.version + 1, cost)
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
