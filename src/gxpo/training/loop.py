"""A training run in its directory: steps, evaluations, checkpoints, resume. One step is in `gxpo.training.step`."""

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
from gxpo.training.config import Resolved
from gxpo.training.directory import CONFIG, EVALUATIONS, METRICS, default, free, refuse_another, refuse_links
from gxpo.training.display import no_loading_bars
from gxpo.training.evaluate import EVALUATION, Evaluation, evaluate
from gxpo.training.lock import Lock
from gxpo.training.metrics import MetricsFile
from gxpo.training.phases import check_phases
from gxpo.training.python_inputs import Given
from gxpo.training.run import Run
from gxpo.training.start import config_sums, load_learner, refuse_other_config, start_from
from gxpo.training.step import Stages
from gxpo.training.texts import annotated, with_texts


class Trainer(Stages):
    """One run in its directory. `train()` is the loop; a loop of one's own calls `step()` and `save()`.

    resolved  from `gxpo.training.config.load` or `resolve`
    out       run directory; None: as the settings say
    reward    Python functions instead of the setting `reward`
    given     the Python objects that the settings stand for; their files are written first
    notify    called with a line where something takes long before the first step
    callbacks beside those of `trainer.callbacks`
    """

    def __init__(
        self,
        resolved: Resolved,
        *,
        out: str | Path | None = None,
        reward: Any = None,
        resume: bool = False,
        callbacks: Sequence[Callback] = (),
        given: Given | None = None,
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        s = resolved.settings
        runtime.start(group_of_one=s.cluster.by_processes)
        reuse_freed()
        self.out = Path(runtime.first(str(out or s.out or default(s.task, resolved.method.name, s.seed))))
        if not resume:
            refuse_another(self.out)
        self.best, self.early = rules_of(s.trainer)
        main = runtime.rank() == 0
        self.calls = Dispatcher(make(s.trainer.callbacks, s.logging.options), callbacks) if main else Dispatcher({})
        self._lock, self._fresh = Lock(self.out), False
        self.given = given or Given(reward=reward)
        with self._given_files(write=not resume):
            check_phases(resolved)
            super().__init__(resolved, reward=self.given.reward, source=self.given.source, notify=notify)
            if resume:
                self.set_up_as(self.out)
            else:
                self.set_up(s.init_from, measure=True)
        self.config_text = self.resolved.to_yaml(self.out)
        self.inputs = inputs.hashes(self.resolved.keys, self.source, self.out)
        if self.settings.async_.max_staleness:
            self.overlap = overlap_of(self, self.out, notify)
            self._open.callback(self.overlap.close)
        self._begun = self.resumed = False
        self._saved: int | None = None  # step of the newest checkpoint that was written or read here
        self.stopped: str | None = None  # why the run ended before its last step
        self.seconds = 0.0  # of training so far, over resumes
        self.metrics_file = MetricsFile(self.out / METRICS)
        self.evaluations = MetricsFile(self.out / EVALUATIONS)

    # ------------------------------------------------------------ evaluation
    def evaluate(self) -> Evaluation:
        """Figures on the held-out tasks, which are the same for every seed and step, and on a pool of training ones."""
        with self.overlap.pause_sampling(self.step_number) if self.overlap is not None else nullcontext():
            return self._evaluate()

    def _evaluate(self) -> Evaluation:
        e = self.settings.eval
        self.rewards.at(self.step_number, self.settings.trainer.steps)
        temperature = e.temperature if e.samples == 1 else e.temperature or self.sampling.temperature
        sampling = replace(self.sampling, temperature=temperature, top_k=0, top_p=1.0)

        def attempt(tasks: Sequence[Task]) -> Evaluation:
            session = self.session(EVALUATION, seed=0, sampling=sampling, budget=Budget())
            return evaluate(tasks, e.samples, session, getattr(self.method.rollout, "evaluation", Independent))

        found = attempt(self.source.held_out(e.tasks))
        if pool := getattr(self.source, "pool_tasks", None):
            found.figures["eval_pool_accuracy"] = attempt(pool[: e.tasks]).figures["eval_accuracy"]
        return found

    # ------------------------------------------------------------ the whole run
    def train(self, watch: Callable[[dict[str, Any]], bool | None] | None = None) -> None:
        """Steps until `trainer.steps` or a budget is spent; `watch` sees every line and ends the run early by returning
        True."""
        try:
            self._train(watch)
        finally:
            self._lock.release()

    def _train(self, watch: Callable[[dict[str, Any]], bool | None] | None) -> None:
        self._own()
        self.stopped = self.early.reason if self.early is not None and self.early.over else self.exhausted
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
        stop = runtime.any_of(self.stopped is not None)
        if not self._begun:
            row = {"step": 0} | self._evaluated(0)
            self._judged(row)
            self.calls.step(row, self.run)
            stop = self._ends(watch, row)
            self.save()
            self._begun = True
        doctor = self._checkup() if main and self.settings.doctor.every else None
        while not self.finished and not stop:
            shares, held = self.spent * e.points, self.now
            row = self._stepped()
            if doctor is not None and self.now is not held:
                doctor = self._checkup()
            self.seconds += row["time_step_s"]
            self.stopped = self.stopped or self.exhausted
            with self._in_place():
                best = self._judged(row)
                due = (e.every and row["step"] % e.every == 0) or int(self.spent * e.points) > int(shares)
                if self.finished or due or self._phase_over:
                    row |= self._evaluated(row["step"])
                    best = self._judged(row) or best
                last = self.finished
                if main:
                    self._write(row, last)
                    self.calls.step(row, self.run)
                halt = doctor is not None and doctor(row, warned=self.warned)
                stop = self._ends(watch, row, "the doctor found a critical cause (doctor.stop)" if halt else None)
                if len(self._trouble) >= t.max_nonfinite_steps:
                    self._give_up()
                if (
                    last
                    or stop
                    or best
                    or self._phase_over
                    or (t.checkpoint_every and row["step"] % t.checkpoint_every == 0)
                ):
                    self.save()

    def _judged(self, row: dict[str, Any]) -> bool:
        """Whether the line is the best so far by `trainer.keep_best`; `trainer.stop_early` takes it, too."""
        for best in (self.best, self.early and self.early.best):
            if best is not None and best.value is None:
                best.missing(row)
        better = self.best is not None and self.best.see(row)
        if self.early is not None:
            self.early.best.see(row)
            if self.early.over:
                self.stopped = self.early.reason
        return better

    @property
    def spent(self) -> float:
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
    def finished(self) -> bool:
        """Return True if all steps are taken, the budget is spent, the last phase is over, `trainer.stop_early` has
        seen enough, or the sampler has no task left."""
        ended = self.tracker is not None and self.tracker.last and self._phase_over
        ended = ended or (self.early is not None and self.early.over) or self.exhausted is not None
        return ended or self.step_number >= self.settings.trainer.steps or self.spent >= 1.0

    def _checkup(self) -> Checkup:
        """The doctor, told what is written of this phase: the evaluation before it and, after a resume, all lines."""
        began = 0 if self.tracker is None else self.tracker.began
        before = [row for row in self.evaluations.read() if row["step"] == began]
        rows = [row for row in self.metrics_file.read() if row["step"] > began]
        return Checkup(self.out, self.now, [*before, *rows])

    def _give_up(self) -> None:
        """Ends a run none of whose last steps could be taken. Resumed, it goes on behind them and counts anew."""
        skipped, self._trouble = self._trouble, []
        self.save()
        raise ModelError(
            f"{len(skipped)} steps in a row (up to step {self.step_number}) moved nothing: {skipped[-1]}. "
            f"`gxpo resume {self.out}` goes on behind them; trainer.max_nonfinite_steps says how many are allowed"
        )

    def _stepped(self) -> dict[str, Any]:
        """The next step. Where servers sample and too few of them are left, the steps before it are saved."""
        if self.overlap is not None or not isinstance(self.engine, OpenAIEngine):
            return self.step()  # what is sampled ahead is in the ledger
        before = copy.deepcopy(self._state())
        try:
            return self.step()
        except SamplersLost as error:
            if self.engine.policy_version == self.step_number or runtime.rank() != 0:  # the step has moved the policy
                raise
            self.step_number -= 1
            with self._in_place():
                self._checkpoint(before)
            raise SamplersLost(f"{error} (step {self.step_number} is saved: gxpo resume {self.out})") from error

    def _write(self, row: dict[str, Any], last: bool) -> None:
        """The step's line and, where they are due, its rollouts."""
        every = self.settings.trainer.rollouts_every
        self.metrics_file.append(row)
        if self.last is not None and every and (row["step"] % every == 0 or last):
            (self.out / "rollouts").mkdir(exist_ok=True)
            forest = annotated(*self.last)
            dump(forest, self.out / "rollouts" / f"step-{row['step']:06d}.jsonl")
            self._show(forest, row["step"], "train")

    def _show(self, forest: Forest, step: int, name: str) -> None:
        """Some of the rollouts to the callbacks that read them."""
        if most := self.settings.logging.samples:
            table = partial(samples.rows, step=step, set=name, most=most)
            self.calls.samples(lambda: table(forest.to_records()), self.run)

    def _ends(
        self, watch: Callable[[dict[str, Any]], bool | None] | None, row: dict[str, Any], halt: str | None = None
    ) -> bool:
        """Whether to stop: if the watch of any process says so, or a callback, or `halt` says why, all processes stop
        after the same step."""
        if watch is not None and watch(row):
            halt = halt or "watch returned True"
        self.stopped = self.stopped or halt
        return runtime.any_of(self.stopped is not None)

    def _evaluated(self, step: int) -> dict[str, Any]:
        began = time.perf_counter()
        found = self.evaluate()
        figures: dict[str, Any] = {**found.figures, "time_eval_s": time.perf_counter() - began}
        if self.tracker is not None and step > self.tracker.began:
            self.tracker.see(figures)
        if runtime.rank() == 0:
            self.evaluations.append({"step": step} | figures)
            path = self.out / "evaluations" / f"step-{step:06d}.json"
            path.parent.mkdir(exist_ok=True)
            checkpoint.write_atomic(path, json.dumps(found.verdicts))
            records = with_texts(found.shown, decoder(self.tokenizer, self.chat))
            dump(records, path.with_suffix(".jsonl"))
            self.calls.evaluation({"step": step} | figures, self.run)
            self._show(records, step, "eval")
        return figures

    # ------------------------------------------------------------ phases
    def _begin_phase(self) -> None:
        """Begin the next phase if this one is over, from a checkpoint, as a run that is resumed there does."""
        if self.tracker is None or self.tracker.last or not self._phase_over:
            return
        if self._saved != self.step_number:
            self.save()
        runtime.first("")  # until it is there
        self.last = None
        with no_loading_bars():
            path = checkpoint.at_step(self.out, self.step_number)
            self.next_phase(self.tracker, self.step_number, self.spent, path)

    @property
    def _phase_over(self) -> bool:
        return self.tracker is not None and self.tracker.over(self.step_number, self.spent)

    # ------------------------------------------------------------ the directory
    @contextmanager
    def _given_files(self, *, write: bool) -> Iterator[None]:
        """Around loading: the files of what was given as objects are in the run directory, and gone if it fails."""
        if not write or self.given.empty:
            yield
            return
        try:
            if runtime.rank() == 0:
                self._take()
                refuse_another(self.out)
                self._fresh = True
                self.given.write(self.out)
            runtime.first("")  # until they are there
            yield
        except BaseException:
            if self._fresh:
                self.given.remove(self.out)
            self._lock.release()
            raise

    def _take(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        refuse_links(self.out)
        self._lock.acquire()

    def _own(self) -> None:
        """Take the lock of the run directory, until `train` ends or `close`."""
        if runtime.rank() != 0 or (self._lock.held and not self._fresh):
            return
        if not self._lock.held:
            self._take()
        self._fresh = False
        if not self._begun:
            refuse_another(self.out)  # it may have been written since `__init__` looked
            checkpoint.write_atomic(self.out / CONFIG, self.config_text)

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        """Around writes: notices a deleted directory before and after them, and if it is why they failed."""
        self._check_place()
        try:
            yield
        except (OSError, CheckpointError):
            self._check_place()
            raise
        self._check_place()

    def _check_place(self) -> None:
        """`CheckpointError` if the run directory was deleted or replaced. The step is saved first, in its place or,
        if that is taken, beside it."""
        if not self._lock.held or (self._lock.in_place() and (self.out / CONFIG).is_file()):
            return
        if runtime.world() > 1 and isinstance(
            self.learner, WritesFiles
        ):  # a checkpoint would need the other processes, too
            raise CheckpointError(f"{self.out} was deleted or replaced while its run went on: start it again")
        lost, self.out = self.out, free(self.out)
        self._lock.release()
        self._lock.run = self.out
        self._own()
        checkpoint.write_atomic(self.out / CONFIG, self.config_text)
        self.given.write(self.out)
        self._checkpoint(self._state())
        raise CheckpointError(
            f"{lost} was deleted or replaced while its run went on, with the metrics and rollouts so far: step "
            f"{self.step_number} is saved, go on with gxpo resume {self.out}"
        )

    # ------------------------------------------------------------ checkpoints
    def save(self) -> Path | None:
        """Everything a resumed run needs; written whole or not at all."""
        if runtime.rank() == 0:
            self._own()
            self._check_place()
        if self.overlap is not None:
            self.overlap.drain()
        saved = self._checkpoint(self._state()) if self._saves else None
        self._saved = self.step_number
        if self.overlap is not None:
            self.overlap.ledger.remove_consumed(min(checkpoint.steps(self.out)))
        return saved

    @property
    def _saves(self) -> bool:
        """Whether this process writes a part of a checkpoint."""
        return runtime.rank() == 0 or isinstance(self.learner, WritesFiles)

    def reconfigure(self, text: str) -> None:
        """Replace config.yaml of a resumed run; after a kill at any instant it still matches the newest checkpoint."""
        before, self.config_text = self.config_text, text
        if self._saves:
            self._checkpoint(self._state(before))
        if runtime.rank() == 0:
            checkpoint.write_atomic(self.out / CONFIG, text)

    def _state(self, before: str | None = None) -> dict[str, Any]:
        """What a checkpoint holds beside tensors."""
        return {
            "step": self.step_number,
            "config": config_sums(self.config_text, before),
            "inputs": self.inputs,
            "products": {"update": self.settings.learner.products, "sampling": self.settings.sampling.products},
            "learner": self.learner.meta(),
            "source": self.source.state_dict(),
            "first_step": self.first_step,
            "method": self.method.state_dict(),
            "empty_steps": self.empty_steps,
            "nonfinite_steps": self.nonfinite_steps,
            "trouble": self._trouble,
            "budget": vars(self.budget),
            "unscored": self.unscored,
            **({"rewards": rewards} if (rewards := self.rewards.state_dict()) else {}),
            **({"seconds": self.seconds} if self.settings.trainer.max_seconds is not None else {}),
            **({"best": self.best.state_dict()} if self.best is not None else {}),
            **({"early": self.early.best.state_dict()} if self.early is not None else {}),
            **({"callbacks": states} if (states := self.calls.state()) else {}),
            **({"async": self.overlap.state()} if self.overlap is not None else {}),
            **({"phases": self.tracker.state_dict()} if self.tracker is not None else {}),
        }

    def _checkpoint(self, state: dict[str, Any]) -> Path:
        shared = self.learner.save if isinstance(self.learner, WritesFiles) else None
        also = [] if self.best is None or self.best.value is None else [self.best.step]
        if self.tracker is not None and self.tracker.phase.reference == "previous":
            also.append(self.tracker.began)
        return checkpoint.save(
            self.out,
            self.step_number,
            ({} if isinstance(self.learner, WritesFiles) else self.learner.tensors()) | self.method.tensors(),
            state,
            self.settings.trainer.keep_checkpoints,
            also,
            shared,
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
        self._begun, self.resumed, self.config_text = True, True, config_text
        self._own()
        newest = Path(runtime.first(str(checkpoint.latest(self.out)) if runtime.rank() == 0 else ""))
        state = self.load(newest)
        refuse_other_config(self.out, config_text, state)
        if not allow_changed_data:
            recorded = {k: v for k, v in state.get("inputs", {}).items() if k in self.inputs}
            inputs.refuse_changes(self.out, recorded, {k: self.inputs[k] for k in recorded})
        self.step_number = self._saved = state["step"]
        self.empty_steps = state["empty_steps"]
        self.nonfinite_steps, self._trouble = state.get("nonfinite_steps", 0), list(state.get("trouble", []))
        self.budget = Budget(**state["budget"])
        self.seconds = state.get("seconds", 0.0)
        self.rewards.counts.update(state["unscored"])
        self.rewards.load_state_dict(state.get("rewards", {}))
        if self.best is not None and "best" in state:
            self.best.load_state_dict(state["best"])
        if self.early is not None and "early" in state:
            self.early.best.load_state_dict(state["early"])
        self.calls.load(state.get("callbacks", {}))
        if self.overlap is not None:
            self.overlap.resume(state["async"], self.step_number)
        if runtime.rank() == 0:
            self._cut()

    def _cut(self) -> None:
        """Drop what was written after the checkpoint."""
        self.metrics_file.cut(self.step_number)
        self.evaluations.cut(self.step_number)
        for path in (p for name in ("rollouts", "evaluations") for p in (self.out / name).glob("step-*")):
            number = path.stem.removeprefix("step-")
            if number.isdecimal() and int(number) > self.step_number:
                path.unlink()

    def close(self) -> None:
        """End what the stages began, and give the run's directory free."""
        super().close()
        self._lock.release()
