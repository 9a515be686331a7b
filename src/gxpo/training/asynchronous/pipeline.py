"""Pipeline that samples beside training: a thread samples the groups that a `Schedule` dispatches, while the trainer
takes its steps.

With `async.order: dispatch` the groups of a step are sampled together, in batches whose content the clock does not
change. So the same configuration and seed give the same run, killed or not.
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
from gxpo.training.asynchronous.services import Environments, PublishedPolicy, Sampler, Scorer, SharedLock
from gxpo.training.session import Session

POLL = 0.05  # seconds after which a sampler looks for newly dispatched groups


@dataclass(frozen=True)
class GatheredRollouts:
    """Rollouts of a step in order of dispatch, and the failed and dropped groups since the step before.

    failures   message of each group whose rollout raised
    n_dropped  number of rollout groups that were over age
    """

    forest: Forest
    tasks: list[Task]
    cost: Cost
    n_dropped: int
    failures: list[str]


@dataclass(frozen=True)
class Stage:
    """The parts of a run's `Stages` that the pipeline samples with."""

    engine: Any
    learner: Any
    rewards: Any
    envs: Any
    source: TaskSource
    rollout: Any
    segmenter: Any
    session: Callable[..., Session]


class Pipeline:
    """Groups of an asynchronous run from draw to training step, sampled in a thread of the pipeline.

    The trainer calls `publish`, `gather` and `drain` between its updates.
    """

    def __init__(self, settings: RunSettings, stage: Stage, run: Path) -> None:
        self.stage, self.partial = stage, settings.async_.partial
        self.ledger, self.engine_lock, self.totals = Ledger(run), SharedLock(), Cost()
        self.schedule = Schedule(settings, stage.source, self.ledger)
        self.figures: dict[str, int] = {}  # of the newest step
        self.messages: dict[str, str] = {}  # why a group of it failed
        self._condition = threading.Condition()
        self._sampler: Sampler | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._is_closing = False

    # ------------------------------------------------------------ the trainer's side
    def publish(self, version: int) -> None:
        """Publish the learner's weights as those of `version`, and dispatch the groups that it makes room for."""
        self._start()
        with self._condition:
            self._raise_sampler_error()
            # Weights first: the groups that are dispatched next may be sampled under them at once.
            if self._sampler is not None and self._sampler.policy is not None:
                self._sampler.policy.publish(version)
                self.schedule.oldest_version = min(self._sampler.policy.tensors_by_version)
            self.schedule.version = version
            self.schedule.advance()
            self._retire_versions()
            self._condition.notify_all()

    def gather(self, step: int) -> GatheredRollouts:
        """Wait for the groups of a step and return their rollouts; GxpoError if all groups failed."""
        schedule = self.schedule
        # The first step of a run, and of a resumed one: nothing published its weights.
        if schedule.version < step - 1:
            self.publish(step - 1)
        cost, failure_messages, n_dropped, failed_places = Cost(), [], 0, []
        with self._condition:
            if step > schedule.steps:  # a user's own loop takes more steps than `trainer.steps`
                schedule.steps = step
                schedule.advance()
                self._condition.notify_all()
            while True:
                self._raise_sampler_error()
                # Groups that can't be trained are charged to this step and make room for others before each wait.
                failed_groups, over_age_groups = schedule.unusable_groups(step)
                failure_messages += [self.ledger.entries[g.place].reason for g in failed_groups]
                failed_places += [g.place for g in failed_groups]
                n_dropped += sum(g.draws for g in over_age_groups)
                for group in (*failed_groups, *over_age_groups):
                    cost.add(schedule.remove(group))
                    if group in over_age_groups:
                        cost.discarded += self.ledger.entries[group.place].cost.rollouts
                if failed_groups or over_age_groups:
                    schedule.advance()
                    self._condition.notify_all()
                if (step_groups := schedule.choose(step)) is not None:
                    break
                # With order=finish others replace failed groups: without this a run that only fails never ends.
                if len(failure_messages) >= schedule.per_step and not schedule.finished_groups:
                    n_failed, message = len(failure_messages), failure_messages[0]
                    raise GxpoError(f"all {n_failed} groups since step {step - 1} failed, the first: {message}")
                self._condition.wait()
            if not step_groups:
                raise GxpoError(
                    f"all {len(failure_messages)} groups of step {step} failed, the first: {failure_messages[0]}"
                )
            for group in step_groups:
                cost.add(schedule.remove(group))
            # Failed places are consumed by the step that is charged for them: a resumed run skips them too.
            self.ledger.consume(step, [*failed_places, *(g.place for g in step_groups)])
        self.totals.add(cost)
        # Read from the disk and checked, as after a resume: what is trained is what was recorded.
        forest = Forest.concat([self.ledger.rollouts(g.place) for g in step_groups])
        return GatheredRollouts(forest, [g.tasks[0] for g in step_groups], cost, n_dropped, failure_messages)

    def rollouts(self, session: Session, clock: Clock) -> Forest:
        """Return the scored rollouts of a step, and charge their cost to the step's session."""
        step_rollouts = self.gather(session.step)
        clock.lap("wait")
        clock.note("sample", step_rollouts.cost.time_sample_s)
        session.know(step_rollouts.tasks)
        for name in ("generated_tokens", "rollouts", "discarded"):
            setattr(session.budget, name, getattr(session.budget, name) + getattr(step_rollouts.cost, name))
        self.messages = {"rollout": step_rollouts.failures[0]} if step_rollouts.failures else {}
        self.figures = {"dropped_groups": step_rollouts.n_dropped, "failed_groups": len(step_rollouts.failures)}
        return session.segment(step_rollouts.forest)

    def drain(self) -> None:
        """Wait until all groups of older versions have finished: a checkpoint holds only the current weights."""
        schedule = self.schedule
        if not schedule.in_order or self._thread is None:
            return

        def is_drained() -> bool:
            return self._error is not None or all(g.version == schedule.version for g in schedule.unfinished_groups)

        with self._condition:
            self._condition.wait_for(is_drained)
            self._raise_sampler_error()

    @contextmanager
    def pause_sampling(self, version: int) -> Iterator[None]:
        """Pause sampling and give the trainer the engine, under `version`, with rewards and environments."""
        if self._sampler is None:
            yield
            return
        # An evaluation uses the sampler's copy: its weights are those of a version, whatever the learner does.
        with self.engine_lock.exclusive():
            policy = self._sampler.policy
            if policy is not None and version not in policy.tensors_by_version:
                policy.publish(version)
            self._sampler.use_version(version)
            yield

    def state(self) -> dict[str, Any]:
        """Return the pipeline's state for a checkpoint: source states, totals, digests of the ledger."""
        with self._condition:
            totals = asdict(self.totals)
            return {"sources": self.schedule.state(), "totals": totals, "ledger": self.ledger.state()}

    def resume(self, state: dict[str, Any], step: int) -> None:
        """Go back to the checkpoint of `step`: finished groups are read back, unfinished ones are sampled again."""
        self.totals = Cost(**state["totals"])
        self.schedule.resume(state["sources"], step, state.get("ledger"))

    def close(self) -> None:
        """End the sampling thread; unfinished groups are left for a resumed run."""
        with self._condition:
            self._is_closing = True
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join()

    # ------------------------------------------------------------ starting, retiring, errors
    def _start(self) -> None:
        """Start the sampling thread, with its own copy of the policy if the engine samples a model of this process."""
        if self._thread is not None:
            return
        engine, policy = self.stage.engine, None

        def newest_version() -> int:
            return self.schedule.version

        publishes_to_server = isinstance(engine, OpenAIEngine) and engine.publishes
        if isinstance(engine, TorchEngine | VllmEngine) or publishes_to_server:
            policy = PublishedPolicy(self.stage.learner)
            if not isinstance(engine, TorchEngine):
                engine.move_to(policy.model)
            else:
                engine.move_to(policy.model, policy.acting)
                # Asked between two tokens; vLLM and servers change versions between two actions.
                engine.should_interrupt = (lambda: newest_version() > engine.policy_version) if self.partial else None
        self._sampler = Sampler(engine, policy, newest_version if self.partial else None)
        self._thread = threading.Thread(target=self._run, name="sampling", daemon=True)
        self._thread.start()

    def _retire_versions(self) -> None:
        """Free the weights that no unfinished group will sample under."""
        if self._sampler is None or self._sampler.policy is None:
            return
        self._sampler.policy.retire({self.schedule.version, *(g.version for g in self.schedule.unfinished_groups)})
        self.schedule.oldest_version = min(self._sampler.policy.tensors_by_version)

    def _raise_sampler_error(self) -> None:
        if self._error is not None:
            raise self._error

    # ------------------------------------------------------------ the sampler's side
    def _run(self) -> None:
        try:
            if self.schedule.in_order:
                self._run_waves()
            else:
                self._run_unordered()
        except BaseException as error:
            with self._condition:
                self._error = error
                self._condition.notify_all()

    def _services(self) -> dict[str, Any]:
        assert self._sampler is not None
        services: dict[str, Any] = {ENGINE: self._sampler, REWARDS: Scorer(self.stage.rewards, self.schedule.steps)}
        if self.stage.envs is not None:
            services[ENVS] = Environments(self.stage.envs)
        return services

    def _run_waves(self) -> None:
        """Sample the groups of each step together, one step after the other (`async.order: dispatch`)."""
        assert self._sampler is not None
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self.schedule.queue or self._is_closing)
                if self._is_closing:
                    return
                wave, *_ = self.schedule.waves(self.schedule.queue)
                del self.schedule.queue[: len(wave)]
            with self.engine_lock.shared():
                self._sampler.use_version(wave[0].version)
                # No caches of an earlier wave and a barrier in each round: the batches depend on this wave alone.
                self._sampler.engine.release()
                rounds = Rounds(self._services(), barrier=True)
                try:
                    for group in wave:
                        rounds.add(self._routine(group))
                    while rounds.routines and not self._is_closing:
                        for routine in rounds.run_round():
                            self._record_outcome(routine)
                finally:
                    rounds.close()

    def _run_unordered(self) -> None:
        """Sample all dispatched groups concurrently, each at its own speed (`async.order: finish`)."""
        # The lock is held for one batch at a time, so that an evaluation waits for a batch and not for whole groups.
        services = {name: _with_lock(self.engine_lock, service) for name, service in self._services().items()}
        rounds, schedule = Rounds(services, barrier=False), self.schedule
        try:
            while not self._is_closing:
                with self._condition:
                    while schedule.queue and len(rounds.routines) < schedule.max_in_flight:
                        group = schedule.queue.pop(0)
                        # Begun under the newest weights, which may be newer than at its dispatch.
                        group.version, group.over_age = schedule.version, False
                        rounds.add(self._routine(group))
                    if not rounds.routines:  # the timeout covers a `close` between the loop's test and this wait
                        self._condition.wait(POLL)
                        continue
                for routine in rounds.run_round(POLL):
                    self._record_outcome(routine)
        finally:
            rounds.close()

    def _routine(self, group: Group) -> Routine:
        return Routine(group, lambda routine: self._grow(group, routine))

    def _grow(self, group: Group, routine: Routine) -> Forest:
        """Sample and score a group's rollouts, in the group's own thread."""
        stage = self.stage
        session = stage.session(
            group.step,
            budget=group.budget,
            engine=GroupEngine(routine, group),
            envs=None if stage.envs is None else GroupEnvs(routine, group, stage.envs),
            rewards=GroupRewards(routine, stage.rewards),
            learner=None,  # its weights are of a later version than the group's
        )
        session.know(group.tasks)
        forest = session.grow(stage.rollout, group.tasks)
        if not Segmenter.hook(stage.segmenter, "reads_entropy"):  # else cut by the learner in the step that trains it
            forest = session.segment(forest)
        if not forest.n_trajectories:
            raise GxpoError("its rollout gave no trajectories")
        return session.score(forest)

    def _record_outcome(self, routine: Routine) -> None:
        """Note in the ledger how a group's routine ended, and wake the trainer."""
        group: Group = routine.owner
        error, cost = routine.error, group.total_cost()
        if isinstance(error, Cancelled):  # the run ends: it stays dispatched, to be sampled again
            return
        with self._condition:
            if error is None:
                self.ledger.finish(group.place, routine.result, group.version, cost)
            elif isinstance(error, OverAge):
                self.ledger.drop(group.place, self.schedule.version + 1, cost)
            elif isinstance(error, Exception):
                self.ledger.fail(group.place, f"{type(error).__name__}: {error}", cost)
            else:
                raise error
            self._retire_versions()
            self._condition.notify_all()


def _with_lock(lock: SharedLock, service: Callable[[Sequence[Any]], None]) -> Callable[[Sequence[Any]], None]:
    """Wrap a service so that it holds the lock while it serves a batch."""

    def serve_locked(calls: Sequence[Any]) -> None:
        with lock.shared():
            service(calls)

    return serve_locked
