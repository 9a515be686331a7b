"""A training run in its directory: steps, evaluations, checkpoints, resume. A single step is in `step.py`."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gxpo.base import runtime
from gxpo.base.errors import CheckpointError, ModelError, SamplersLost
from gxpo.base.runtime import reuse_freed
from gxpo.forest.forest import Forest
from gxpo.forest.records import dump
from gxpo.models.chat.plain import decoder
from gxpo.parts.protocols import Budget, Task, WritesFiles
from gxpo.sampling.engines.openai import OpenAIEngine
from gxpo.sampling.rollouts import Independent
from gxpo.training import checkpoint, inputs
from gxpo.training.asynchronous import overlap_of
from gxpo.training.best import rules_of
from gxpo.training.callbacks import Callback, Dispatcher, make, samples
from gxpo.training.checkup import Checkup
from gxpo.training.config import RunConfig
from gxpo.training.directory import CONFIG, EVALUATIONS, METRICS, Lock, default, free, refuse_another, refuse_links
from gxpo.training.display import no_loading_bars
from gxpo.training.evaluate import EVALUATION, Evaluation, evaluate
from gxpo.training.metrics import MetricsFile
from gxpo.training.phases import check_phases
from gxpo.training.python_inputs import Objects
from gxpo.training.run import Run
from gxpo.training.start import config_sums, load_learner, refuse_other_config, start_from
from gxpo.training.step import Stages
from gxpo.training.texts import annotate, with_texts


class Trainer(Stages):
    """One run in its directory. `train()` is the loop; a loop of one's own calls `step()` and `save()`.

    resolved  from `gxpo.training.config.load` or `resolve`
    out       run directory; None: as the settings say
    reward    Python functions instead of the setting `reward`
    objects   the Python objects that the settings stand for; their files are written first
    notify    called with a line where something takes long before the first step
    callbacks beside those of `trainer.callbacks`
    """

    def __init__(
        self,
        resolved: RunConfig,
        *,
        out: str | Path | None = None,
        reward: Any = None,
        resume: bool = False,
        callbacks: Sequence[Callback] = (),
        objects: Objects | None = None,
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        # One name of the directory in all processes; the first one may have found another free.
        s = resolved.settings
        runtime.start(group_of_one=s.cluster.by_processes)
        reuse_freed()
        self.out = Path(runtime.first(str(out or s.out or default(s.task, resolved.method.name, s.seed))))
        if not resume:
            refuse_another(self.out)
        self.best, self.early = rules_of(s.trainer)
        main = runtime.rank() == 0
        self.calls = Dispatcher(make(s.trainer.callbacks, s.logging.options), callbacks) if main else Dispatcher({})
        self._lock, self._is_new_directory = Lock(self.out), False
        self.objects = objects or Objects(reward=reward)
        with self._objects_written(write=not resume):
            check_phases(resolved)
            super().__init__(resolved, reward=self.objects.reward, source=self.objects.source, notify=notify)
            if resume:
                self.set_up_as(self.out)
            else:
                self.set_up(s.init_from, measure=True)
        # After loading: `auto` settings are measured now, and the file records them.
        self.config_text = self.resolved.to_yaml(self.out)
        self.inputs = inputs.hashes(self.resolved.keys, self.source, self.out)
        if self.settings.async_.max_staleness:
            self.pipeline = overlap_of(self, self.out, notify)
            self._exit_stack.callback(self.pipeline.close)
        self._has_begun = self.resumed = False
        self._saved_step: int | None = None  # step of the newest checkpoint that was written or read here
        self.stopped: str | None = None  # why the run ended before its last step
        self.seconds = 0.0  # of training so far, over resumes
        self.metrics_file, self.evaluations = MetricsFile(self.out / METRICS), MetricsFile(self.out / EVALUATIONS)

    # ------------------------------------------------------------ evaluation
    def evaluate(self) -> Evaluation:
        """Evaluate on the held-out tasks, the same for every seed and step, and on a pool of training ones."""
        with self.pipeline.pause_sampling(self.step_number) if self.pipeline is not None else nullcontext():
            return self._evaluate()

    def _evaluate(self) -> Evaluation:
        e = self.settings.eval
        self.rewards.at(self.step_number, self.settings.trainer.steps)
        temperature = e.temperature if e.samples == 1 else e.temperature or self.sampling.temperature
        sampling = replace(self.sampling, temperature=temperature, top_k=0, top_p=1.0)

        def attempt(tasks: Sequence[Task]) -> Evaluation:
            session = self.session(EVALUATION, seed=0, sampling=sampling, budget=Budget())
            return evaluate(tasks, e.samples, session, getattr(self.method.rollout, "evaluation", Independent), e.vote)

        evaluation = attempt(self.source.held_out(e.tasks))
        if pool := getattr(self.source, "pool_tasks", None):
            evaluation.figures["eval_pool_accuracy"] = attempt(pool[: e.tasks]).figures["eval_accuracy"]
        return evaluation

    # ------------------------------------------------------------ the whole run
    def train(self, watch: Callable[[dict[str, Any]], bool | None] | None = None) -> None:
        """Step until `trainer.steps` or a spent budget; `watch` sees every line, and may return True to stop."""
        try:
            self._train(watch)
        finally:
            self._lock.release()

    def _train(self, watch: Callable[[dict[str, Any]], bool | None] | None) -> None:
        self._take_lock()
        self.stopped = self.early.reason if self.early is not None and self.early.is_over else self.exhausted
        self.run = Run(self.out, self)
        self.calls.start(self.run)
        try:
            with checkpoint.pictures_kept(self.out):
                self._loop(watch)
        except BaseException as error:
            self.calls.end(self.run, error)
            raise
        self.calls.end(self.run, None)

    def _loop(self, watch: Callable[[dict[str, Any]], bool | None] | None) -> None:
        t, e = self.settings.trainer, self.settings.eval
        main = runtime.rank() == 0
        # All processes stop after the same step, so each decision to stop is shared.
        is_over = runtime.any_of(self.stopped is not None)
        # The evaluation before training is the row of step 0; a resumed run has it already.
        if not self._has_begun:
            row = {"step": 0} | self._run_evaluation(0)
            self._note_best(row)
            self.calls.step(row, self.run)
            is_over = self._should_stop(watch, row)
            self.save()
            self._has_begun = True
        doctor = self._checkup() if main and self.settings.doctor.every else None
        while not self.is_finished and not is_over:
            points_before, phase_before = int(self.budget_share * e.points), self.current
            row = self._step_or_save()
            # The doctor compares steps of one method: a new phase gets a new one.
            if doctor is not None and self.current is not phase_before:
                doctor = self._checkup()
            self.seconds += row["time_step_s"]
            self.stopped = self.stopped or self.exhausted
            # A directory that was deleted meanwhile is noticed before and after the writes, and loses no step.
            with self._watched_directory():
                best = self._note_best(row)
                is_due = (e.every and row["step"] % e.every == 0) or int(self.budget_share * e.points) > points_before
                if self.is_finished or is_due or self._phase_is_over:
                    row |= self._run_evaluation(row["step"])
                    best = self._note_best(row) or best
                # Lines and rollouts first, the checkpoint last: a resumed run cuts what is after its checkpoint.
                last = self.is_finished
                if main:
                    self._write(row, last)
                    self.calls.step(row, self.run)
                halt = doctor is not None and doctor(row, has_warned=self.has_warned)
                is_over = self._should_stop(
                    watch, row, "the doctor found a critical cause (doctor.stop)" if halt else None
                )
                if len(self.skip_reasons) >= t.max_nonfinite_steps:
                    self._stop_nonfinite()
                is_due = t.checkpoint_every and row["step"] % t.checkpoint_every == 0
                if last or is_over or best or self._phase_is_over or is_due:
                    self.save()

    def _note_best(self, row: dict[str, Any]) -> bool:
        """Add a line to `trainer.keep_best` and `trainer.stop_early`; return True if it is the best so far."""
        for best in (self.best, self.early and self.early.best):
            if best is not None and best.value is None:
                best.check_name(row)
        better = self.best is not None and self.best.add_row(row)
        if self.early is not None:
            self.early.best.add_row(row)
            if self.early.is_over:
                self.stopped = self.early.reason
        return better

    @property
    def budget_share(self) -> float:
        """Share of the budget that is spent: the largest over `trainer.max_tokens`, `max_updates` and `max_seconds`;
        0 without any. A step that had nothing to learn from counts as an update, so that a run of such steps ends."""
        t = self.settings.trainer
        shares = [0.0]
        if t.max_tokens is not None:
            shares.append(self.budget.generated_tokens / t.max_tokens)
        if t.max_updates is not None:
            updates = self.learner.optimiser.steps + (0 if self.tracker is None else self.tracker.updates)
            shares.append((updates + self.empty_steps) / t.max_updates)
        if t.max_seconds is not None:  # clocks differ: all processes go by the first's
            shares.append(float(runtime.first(str(self.seconds))) / t.max_seconds)
        return max(shares)

    @property
    def is_finished(self) -> bool:
        """Return True if all steps are taken, the budget is spent, the last phase is over, `trainer.stop_early` has
        seen enough, or the sampler has no task left."""
        is_over = self.tracker is not None and self.tracker.is_last and self._phase_is_over
        is_over = is_over or (self.early is not None and self.early.is_over) or self.exhausted is not None
        return is_over or self.step_number >= self.settings.trainer.steps or self.budget_share >= 1.0

    def _checkup(self) -> Checkup:
        """Build the doctor from the files of this phase: the evaluation before it and, after a resume, all lines."""
        first_step = 0 if self.tracker is None else self.tracker.start_step
        before = [row for row in self.evaluations.read() if row["step"] == first_step]
        rows = [row for row in self.metrics_file.read() if row["step"] > first_step]
        return Checkup(self.out, self.current, [*before, *rows])

    def _stop_nonfinite(self) -> None:
        """Save and end a run whose last steps were all skipped. Resumed, it goes on after them and counts anew."""
        reasons, self.skip_reasons = self.skip_reasons, []
        self.save()
        raise ModelError(
            f"{len(reasons)} steps in a row (up to step {self.step_number}) moved nothing: {reasons[-1]}. "
            f"`gxpo resume {self.out}` goes on after them; trainer.max_nonfinite_steps is how many are allowed"
        )

    def _step_or_save(self) -> dict[str, Any]:
        """Take the next step; if too few sampling servers are left for it, save the steps before it."""
        if self.pipeline is not None or not isinstance(self.engine, OpenAIEngine):
            return self.step()  # what is sampled ahead is in the ledger
        before = copy.deepcopy(self._state())
        try:
            return self.step()
        except SamplersLost as error:
            if self.engine.policy_version == self.step_number or runtime.rank() != 0:  # the step has moved the policy
                raise
            self.step_number -= 1
            with self._watched_directory():
                self._checkpoint(before)
            raise SamplersLost(f"{error} (step {self.step_number} is saved: gxpo resume {self.out})") from error

    def _write(self, row: dict[str, Any], last: bool) -> None:
        """Write the step's line of metrics and, where they are due, its rollouts."""
        every = self.settings.trainer.rollouts_every
        self.metrics_file.append(row)
        if self.last_step is not None and every and (row["step"] % every == 0 or last):
            (self.out / "rollouts").mkdir(exist_ok=True)
            forest = annotate(*self.last_step)
            dump(forest, self.out / "rollouts" / f"step-{row['step']:06d}.jsonl")
            self._show(forest, row["step"], "train")

    def _show(self, forest: Forest, step: int, name: str) -> None:
        """Pass some of the rollouts to the callbacks that read them."""
        if max_rows := self.settings.logging.samples:
            table = partial(samples.rows, step=step, set=name, max_rows=max_rows)
            self.calls.samples(lambda: table(forest.to_records()), self.run)

    def _should_stop(
        self, watch: Callable[[dict[str, Any]], bool | None] | None, row: dict[str, Any], halt: str | None = None
    ) -> bool:
        """Return True if all processes have to stop after this step: because of a watch, a callback, or `halt`."""
        if watch is not None and watch(row):
            halt = halt or "watch returned True"
        self.stopped = self.stopped or halt
        return runtime.any_of(self.stopped is not None)

    def _run_evaluation(self, step: int) -> dict[str, Any]:
        start = time.perf_counter()
        result = self.evaluate()
        figures: dict[str, Any] = {**result.figures, "time_eval_s": time.perf_counter() - start}
        if self.tracker is not None and step > self.tracker.start_step:
            self.tracker.add_reading(figures)
        if runtime.rank() == 0:
            self.evaluations.append({"step": step} | figures)
            path = self.out / "evaluations" / f"step-{step:06d}.json"
            path.parent.mkdir(exist_ok=True)
            checkpoint.write_atomic(path, json.dumps(result.verdicts))
            records = with_texts(result.samples, decoder(self.tokenizer, self.chat))
            dump(records, path.with_suffix(".jsonl"))
            self.calls.evaluation({"step": step} | figures, self.run)
            self._show(records, step, "eval")
        return figures

    # ------------------------------------------------------------ phases
    def _begin_phase(self) -> None:
        """Begin the next phase if this one is over, from a checkpoint, as a run that is resumed there does."""
        if self.tracker is None or self.tracker.is_last or not self._phase_is_over:
            return
        if self._saved_step != self.step_number:
            self.save()
        runtime.first("")  # until it is there
        self.last_step = None
        with no_loading_bars():
            path = checkpoint.at_step(self.out, self.step_number)
            self.next_phase(self.tracker, self.step_number, self.budget_share, path)

    @property
    def _phase_is_over(self) -> bool:
        return self.tracker is not None and self.tracker.is_over(self.step_number, self.budget_share)

    # ------------------------------------------------------------ the directory
    @contextmanager
    def _objects_written(self, *, write: bool) -> Iterator[None]:
        """Context of loading: files of Python objects are in the run directory, and removed if loading fails."""
        if not write or self.objects.empty:
            yield
            return
        try:
            if runtime.rank() == 0:
                self._enter_directory()
                refuse_another(self.out)
                self._is_new_directory = True
                self.objects.write(self.out)
            runtime.first("")  # until they are there
            yield
        except BaseException:
            if self._is_new_directory:
                self.objects.remove(self.out)
            self._lock.release()
            raise

    def _enter_directory(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        refuse_links(self.out)
        self._lock.acquire()

    def _take_lock(self) -> None:
        """Take the lock of the run directory, until `train` ends or `close`."""
        if runtime.rank() != 0 or (self._lock.is_held and not self._is_new_directory):
            return
        if not self._lock.is_held:
            self._enter_directory()
        self._is_new_directory = False
        if not self._has_begun:
            refuse_another(self.out)  # it may have been written since `__init__` looked
            checkpoint.write_atomic(self.out / CONFIG, self.config_text)

    @contextmanager
    def _watched_directory(self) -> Iterator[None]:
        """Context of writes: notice a deleted directory before and after them, and if it is why they failed."""
        self._check_directory()
        try:
            yield
        except (OSError, CheckpointError):
            self._check_directory()
            raise
        self._check_directory()

    def _check_directory(self) -> None:
        """`CheckpointError` if the run directory was deleted or replaced. The step is saved first, in its place or,
        if that is taken, beside it."""
        if not self._lock.is_held or (self._lock.is_in_place() and (self.out / CONFIG).is_file()):
            return
        if runtime.world() > 1 and isinstance(self.learner, WritesFiles):  # a checkpoint would need all processes
            raise CheckpointError(f"{self.out} was deleted or replaced while its run went on: start it again")
        old_path, self.out = self.out, free(self.out)
        self._lock.release()
        self._lock.run = self.out
        self._take_lock()
        checkpoint.write_atomic(self.out / CONFIG, self.config_text)
        self.objects.write(self.out)
        self._checkpoint(self._state())
        raise CheckpointError(
            f"{old_path} was deleted or replaced while its run went on, with the metrics and rollouts so far: step "
            f"{self.step_number} is saved, go on with gxpo resume {self.out}"
        )

    # ------------------------------------------------------------ checkpoints
    def save(self) -> Path | None:
        """Write a checkpoint with everything that a resumed run needs, whole or not at all."""
        if runtime.rank() == 0:
            self._take_lock()
            self._check_directory()
        if self.pipeline is not None:
            self.pipeline.drain()
        path = self._checkpoint(self._state()) if self._is_writer else None
        self._saved_step = self.step_number
        if self.pipeline is not None:
            self.pipeline.ledger.remove_consumed(min(checkpoint.steps(self.out)))
        return path

    @property
    def _is_writer(self) -> bool:
        """True if this process writes a part of a checkpoint."""
        return runtime.rank() == 0 or isinstance(self.learner, WritesFiles)

    def reconfigure(self, text: str) -> None:
        """Replace config.yaml of a resumed run; after a kill at any instant it still matches the newest checkpoint."""
        before, self.config_text = self.config_text, text
        if self._is_writer:
            self._checkpoint(self._state(before))
        if runtime.rank() == 0:
            checkpoint.write_atomic(self.out / CONFIG, text)

    def _state(self, before: str | None = None) -> dict[str, Any]:
        """State of a checkpoint beside its tensors, as JSON."""
        return {
            "step": self.step_number,
            "config": config_sums(self.config_text, before),
            "inputs": self.inputs,
            "choices": self.choices,
            "learner": self.learner.meta(),
            "source": self.source.state_dict(),
            "first_step": self.first_step,
            "method": self.method.state_dict(),
            "empty_steps": self.empty_steps,
            "nonfinite_steps": self.nonfinite_steps,
            "trouble": self.skip_reasons,
            "budget": vars(self.budget),
            "unscored": self.unscored_counts,
            **({"rewards": rewards} if (rewards := self.rewards.state_dict()) else {}),
            **({"seconds": self.seconds} if self.settings.trainer.max_seconds is not None else {}),
            **({"best": self.best.state_dict()} if self.best is not None else {}),
            **({"early": self.early.best.state_dict()} if self.early is not None else {}),
            **({"callbacks": states} if (states := self.calls.state()) else {}),
            **({"async": self.pipeline.state()} if self.pipeline is not None else {}),
            **({"phases": self.tracker.state_dict()} if self.tracker is not None else {}),
        }

    def _checkpoint(self, state: dict[str, Any]) -> Path:
        save_shards = self.learner.save if isinstance(self.learner, WritesFiles) else None
        also = [] if self.best is None or self.best.value is None else [self.best.step]
        if self.tracker is not None and self.tracker.phase.reference == "previous":
            also.append(self.tracker.start_step)
        return checkpoint.save(
            self.out,
            self.step_number,
            ({} if isinstance(self.learner, WritesFiles) else self.learner.tensors()) | self.method.tensors(),
            state,
            self.settings.trainer.keep_checkpoints,
            also,
            save_shards,
        )

    def load(self, path: Path) -> dict[str, Any]:
        """Load parameters, parts and task source from a checkpoint (of another phase parameters alone); its state."""
        if self.tracker is not None:
            state = checkpoint.state_of(path)
            self.keep_order(state)
            if len(state["phases"]["begins"]) != len(self.tracker.begins):
                start_from(self.learner, path)
                return state
        tensors, state = load_learner(self.learner, path)
        self.method.load_tensors(tensors)
        self.method.load_state_dict(state["method"])
        self.source.load_state_dict(state["source"])
        self.keep_order(state)
        return state

    def resume(self, config_text: str, *, allow_changed_data: bool = False) -> None:
        """Go back to the newest checkpoint: parameters, optimiser, sources, counters; later lines are cut off.

        config_text         what config.yaml says, as `start.verified` read it
        allow_changed_data  whether the task source may have other rows than the checkpoint's
        """
        # The checkpoint must be of this configuration and, unless allowed, of the same data and code.
        self._has_begun, self.resumed, self.config_text = True, True, config_text
        self._take_lock()
        newest = Path(runtime.first(str(checkpoint.latest(self.out)) if runtime.rank() == 0 else ""))
        state = self.load(newest)
        refuse_other_config(self.out, config_text, state)
        if not allow_changed_data:
            digests = {k: v for k, v in state.get("inputs", {}).items() if k in self.inputs}
            inputs.refuse_changes(self.out, digests, {k: self.inputs[k] for k in digests})
        # Some states have keys only where a setting asks for them; counters of an older run begin at 0.
        self.step_number = self._saved_step = state["step"]
        self.empty_steps = state["empty_steps"]
        self.nonfinite_steps, self.skip_reasons = state.get("nonfinite_steps", 0), list(state.get("trouble", []))
        self.budget = Budget(**state["budget"])
        self.seconds = state.get("seconds", 0.0)
        self.rewards.counts.update(state["unscored"])
        self.rewards.load_state_dict(state.get("rewards", {}))
        if self.best is not None and "best" in state:
            self.best.load_state_dict(state["best"])
        if self.early is not None and "early" in state:
            self.early.best.load_state_dict(state["early"])
        self.calls.load(state.get("callbacks", {}))
        if self.pipeline is not None:
            self.pipeline.resume(state["async"], self.step_number)
        if runtime.rank() == 0:
            self._cut_files()

    def _cut_files(self) -> None:
        """Truncate the run's files to the checkpoint."""
        self.metrics_file.truncate(self.step_number)
        self.evaluations.truncate(self.step_number)
        for path in (p for name in ("rollouts", "evaluations") for p in (self.out / name).glob("step-*")):
            number = path.stem.removeprefix("step-")
            if number.isdecimal() and int(number) > self.step_number:
                path.unlink()

    def close(self) -> None:
        """End the processes of the stages, and release the lock of the run directory."""
        super().close()
        self._lock.release()
