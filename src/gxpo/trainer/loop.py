"""The loop: tasks, rollouts, rewards, credit, weights, update. `Trainer.step` is the whole of it."""

from __future__ import annotations

import json
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gxpo.config import Resolved
from gxpo.errors import CheckpointError, ModelError
from gxpo.forest import Forest
from gxpo.learners import parallel
from gxpo.memory import give_back, reuse_freed
from gxpo.protocols import Budget, Sampling, Task
from gxpo.records import dump
from gxpo.rewards import RewardSet
from gxpo.rollouts import Independent
from gxpo.signals import Signals, SignalTools
from gxpo.trainer import checkpoint, inputs, preflight, setup
from gxpo.trainer.bound import BoundLearner
from gxpo.trainer.directory import CONFIG, EVALUATIONS, METRICS, free, refuse_another, refuse_links
from gxpo.trainer.evaluate import EVALUATION, Evaluation, evaluate
from gxpo.trainer.figures import annotated, of_rollouts, of_sources, of_updates, peak_megabytes, with_texts
from gxpo.trainer.lock import Lock
from gxpo.trainer.measured import measured
from gxpo.trainer.metrics import MetricsFile
from gxpo.trainer.session import Session, decoder
from gxpo.trainer.shared_envs import SharedEnvs
from gxpo.trainer.start import config_sums, refuse_other_config, start_from
from gxpo.trainer.tensorboard import Board
from gxpo.trainer.verdict import PATIENCE, Tally

FAINT = 0.05  # share of low-precision weights that the first step changes, below which a warning is due
GAP_ALARM = {True: 0.1, False: 1.0}  # nats between sampler and learner at one token that call for a warning; by whether
# the model runs in float32 or better: in bfloat16 the two ways of computing one token differ by some tenths


class Trainer:
    """One run in its directory. `train()` is the loop; a loop of one's own calls `step()` and `save()`.

    resolved  from `gxpo.config.load` or `resolve`
    out       run directory; None: as the settings say
    reward    a Python function instead of the setting `reward`
    notify    called with a line where something takes long before the first step
    """

    def __init__(
        self,
        resolved: Resolved,
        *,
        out: str | Path | None = None,
        reward: Callable[..., Any] | None = None,
        resume: bool = False,
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        parallel.start()
        reuse_freed()
        s = resolved.settings
        default = f"runs/{s.task.replace(':', '-').replace('/', '-')}-{resolved.method.name}-seed{s.seed}"
        self.out = Path(parallel.first(str(out or s.out or default)))
        if not resume:
            refuse_another(self.out)
        self._lock = Lock(self.out)
        preflight.check_settings(s, resolved.method)
        self.sampling = setup.sampling_of(s)
        self.world = setup.world_of(s)
        self.source = self.world.source
        self._open = ExitStack()
        with ExitStack() as opened:
            opened.callback(self.world.close)
            preflight.check_world(resolved.method, self.world, s.task)
            preflight.check_model(s)
            self.rewards = RewardSet.make(
                reward if reward is not None else s.reward,
                source=self.source,
                timeout=s.scoring.timeout,
                workers=s.scoring.workers,
                options=s.scoring.options,
            )
            opened.callback(self.rewards.close)
            policy = setup.policy_of(s, resolved.method, notify)
            opened.callback(getattr(policy.engine, "close", lambda: None))
            if s.init_from is not None and not resume:
                start_from(policy.learner, s.init_from)
            self.tokenizer, self.learner, self.engine = policy.tokenizer, policy.learner, policy.engine
            self.chat, self.device = policy.chat, policy.device
            self.episode = setup.episode_of(s, self.world, policy)
            if not resume:
                resolved = measured(resolved, policy, self.source, notify)
            opened.callback(self._lock.release)
            self._open = opened.pop_all()
        self.resolved, self.settings, self.config_text = resolved, resolved.settings, resolved.to_yaml()
        self.inputs = inputs.hashes(resolved.keys, self.source)
        envs = self.world.envs
        self.envs = envs if envs is None or parallel.world() == 1 else SharedEnvs(envs)
        longest = s.sampling.max_new_tokens * max(
            self.episode.max_turns, getattr(resolved.method.rollout, "max_turns", 1)
        )
        self.method = resolved.method.fill(horizon=float(longest), max_length=longest, total_steps=s.trainer.steps)
        for part in self.method.signals.values():
            part.bind(self.tools(0))
        self.step_number = 0
        self._begun = False
        self.tally, self.warned = Tally(), False  # of the steps taken here
        self.empty_steps = self.nonfinite_steps = 0
        self._trouble: list[str] = []  # of the steps since the last one that moved anything: why none did
        self.budget = Budget()
        self.metrics_file = MetricsFile(self.out / METRICS)
        self.evaluations = MetricsFile(self.out / EVALUATIONS)
        self.last: tuple[Forest, torch.Tensor, Callable[..., str]] | None = None  # the newest step, for `annotated`

    def session(self, step: int, *, seed: int, sampling: Sampling, budget: Budget) -> Session:
        """The stages as one step sees them."""
        return Session(
            source=self.source,
            engine=self.engine,
            rewards=self.rewards,
            tokenizer=self.tokenizer,
            sampling=sampling,
            seed=seed,
            step=step,
            budget=budget,
            chat=self.chat,
            system=self.settings.chat.system,
            envs=self.envs,
            episode=self.episode,
            segmenter=self.method.segmenter,
            learner=self.learner,
        )

    # ------------------------------------------------------------ one step
    def step(self) -> dict[str, Any]:
        """One step from tasks to parameters; gives its line of metrics.jsonl (without writing it)."""
        began = time.perf_counter()
        self.step_number += 1
        number, method = self.step_number, self.method
        self.engine.policy_version = number - 1
        tokens_before = self.budget.generated_tokens
        prefilled, reused = self.engine.prefilled_tokens, self.engine.reused_tokens
        counted = dict(self.rewards.counts)
        session = self.session(number, seed=self.settings.seed, sampling=self.sampling, budget=self.budget)
        forest = session.segment(method.rollout.grow(session.draw(self.settings.tasks.per_step), session))
        give_back()
        sampled = time.perf_counter()
        forest = self.shape(session.score(forest))
        scored = time.perf_counter()
        tools = self.tools(number, session)
        read, signals, credit, weight = self.credited(forest, tools)
        lr = self.learner.optimiser.current_lr
        proximal = signals["proximal_logprob"] if self._needs_proximal else None
        bound = BoundLearner(self.learner, method, read, signals, number, proximal)
        method.update.run(read, credit, weight, bound)
        self.engine.policy_version = number  # an evaluation comes before the next step
        learnt = {k: v for part in method.signals.values() for k, v in part.learn(read, signals, tools).items()}
        give_back()
        updated = time.perf_counter()
        self.source.observe(forest)
        method.observe(forest)
        self.empty_steps += int(all(i.empty for i in bound.infos))
        self.nonfinite_steps += sum(bool(i.nonfinite) for i in bound.infos)
        if any(not (i.empty or i.nonfinite) for i in bound.infos):
            self._trouble = []
        elif bound.trouble:
            self._trouble = [*self._trouble, bound.trouble]
        self._alarms(bound, lr)
        self.last = (forest, credit, session.decode)
        generated = self.budget.generated_tokens - tokens_before
        forward = sum(i.tokens_forward for i in bound.infos)
        figures = {
            "step": number,
            **of_rollouts(forest, credit if method.reads_credit else method.active(read, credit, weight).double()),
            **of_sources(forest, number - 1),
            **{f"scoring_{kind}": n - counted[kind] for kind, n in self.rewards.counts.items()},
            **of_updates(bound),
            **learnt,
        }
        self.tally.add(figures)
        self._check_progress()
        return {
            **figures,
            **method.adjust(figures),
            "lr": lr,
            "empty_steps": self.empty_steps,
            "nonfinite_steps": self.nonfinite_steps,
            "generated_tokens": self.budget.generated_tokens,
            "discarded_rollouts": self.budget.discarded,
            "prefilled_tokens": self.engine.prefilled_tokens - prefilled,
            "reused_tokens": self.engine.reused_tokens - reused,
            "weights_crc": self.learner.weights_crc(),
            "time_sample_s": sampled - began,
            "time_score_s": scored - sampled,
            "time_update_s": updated - scored,
            "time_step_s": time.perf_counter() - began,
            "time_sample_tokens_per_s": generated / (sampled - began),
            "time_update_tokens_per_s": forward / (updated - scored),
            "memory_peak_mb": peak_megabytes(),
        }

    def credited(self, forest: Forest, tools: SignalTools) -> tuple[Forest, Signals, torch.Tensor, torch.Tensor]:
        """Scored rollouts as the policy reads them (S, P and R are the same), their signals, credit and weights [P]."""
        method, number = self.method, tools.step
        read = forest.in_context(method.context)
        signals = self.signals(read, tools)
        credit = method.advantages(read, signals, number)
        signals = Signals.of(read, {**signals, **method.targets(read, signals, number)}, signals.axes)
        return read, signals, credit, method.token_weights(read, credit, signals, number)

    def _alarms(self, bound: BoundLearner, lr: float) -> None:
        """Warnings about sampler and learner disagreeing, and about steps too small for the precision."""
        moved = [i.moved for i in bound.infos if i.moved is not None]
        if bound.sampler_gap > GAP_ALARM[self.settings.learner.dtype != "bfloat16"]:
            warnings.warn(
                f"step {self.step_number}: the sampler's and the learner's log-probs of a token differ by "
                f"{bound.sampler_gap:.2g} nats",
                stacklevel=2,
            )
        if moved and self.learner.optimiser.steps == len(moved) and max(moved) < FAINT:
            warnings.warn(
                f"update.lr={lr:.3g} changes {max(moved):.1%} of the {self.settings.learner.dtype} weights a step: the "
                "rest gathers in float32 copies until it shows, and the policy lags behind; raise update.lr, or set "
                "learner.dtype=float32",
                stacklevel=2,
            )

    @property
    def failures(self) -> dict[str, str]:
        """The first message of each way in which rollouts could not be scored, since this process began."""
        return {**self.rewards.messages, **(self.world.envs.messages if self.world.envs is not None else {})}

    def _check_progress(self) -> None:
        """One warning where the run has had nothing to learn from since its first step."""
        from_start = self.tally.steps == self.step_number
        due = self.tally.all_unscored or self.tally.steps == PATIENCE
        if not self.warned and from_start and due and (problem := self.tally.problem(self.method, self.failures)):
            self.warned = True
            warnings.warn(problem, stacklevel=3)

    def shape(self, forest: Forest) -> Forest:
        """The method's own rewards over the task's, after the rollout and its filters; `success` is untouched."""
        forest = self.method.shaped(forest)
        if self.settings.scoring.shuffle:
            order = torch.Generator().manual_seed(zlib.crc32(f"{self.settings.seed}/{self.step_number}".encode()))
            outcome = forest.outcome[torch.randperm(forest.n_trajectories, generator=order)]
            # rewards of single turns would tell what shuffled outcomes do not; without them returns are the outcome
            forest = forest.replace(outcome=outcome, step_reward=torch.full_like(forest.step_reward, torch.nan))
        return forest

    @property
    def _needs_proximal(self) -> bool:
        """Whether weights or rewards compare the policy at the start of the step with others."""
        named = "proximal_logprob" in self.method.needs
        return named or bool(self.method.weights) or self.method.kl_reward is not None

    def tools(self, step: int, session: Session | None = None) -> SignalTools:
        """What signal parts may use; texts and answers come with the session of a step."""
        lent: dict[str, Any] = {}
        if session is not None:
            lent = {"encode": session.tokenize, "answers": session.answers, "asked": session.asked}
        pad, seed = self.tokenizer.pad_token_id, self.settings.seed
        return SignalTools(self.learner, decoder(self.tokenizer), pad, step, seed, **lent)

    def signals(self, forest: Forest, tools: SignalTools) -> Signals:
        """What the method's parts read: computed once, with the policy at the start of the step."""
        values: dict[str, Any] = {}
        needs = set(self.method.needs)
        if self._needs_proximal:
            needs.add("proximal_logprob")
        if "reference_logprob" in needs:
            values["reference_logprob"] = self.learner.outputs(forest, ("logprob",), policy="reference")["logprob"]
        if "hidden" in needs:
            values["hidden"] = self.learner.hidden(forest)
        current = [n for n in ("proximal_logprob", "entropy", *self.method.value_heads) if n in needs]
        if current:
            names = tuple("logprob" if n == "proximal_logprob" else n for n in current)
            found = self.learner.outputs(forest, names)
            values |= {n: found[k] for n, k in zip(current, names, strict=True)}
        for part in self.method.signals.values():
            held = Signals.of(forest, values, self.method.axes)
            values |= {name: x.detach() for name, x in part.compute(forest, held, tools).items()}
        return Signals.of(forest, values, self.method.axes)

    # ------------------------------------------------------------ evaluation
    def evaluate(self) -> Evaluation:
        """Figures on the held-out tasks, which are the same for every seed and step, and on a pool of training ones."""
        e = self.settings.eval
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
        """Steps until `trainer.steps`; `watch` sees every line and ends the run early by returning True."""
        try:
            self._train(watch)
        finally:
            self._lock.release()

    def _train(self, watch: Callable[[dict[str, Any]], bool | None] | None) -> None:
        t, e = self.settings.trainer, self.settings.eval
        main = parallel.rank() == 0
        self._own()
        stop = False
        if not self._begun:
            stop = self._watched(watch, {"step": 0} | self._evaluated(0))
            self.save()
            self._begun = True
        board = Board(self.out, purge_after=self.step_number) if t.tensorboard and main else None
        while self.step_number < t.steps and not stop:
            row = self.step()
            with self._in_place():
                last = row["step"] == t.steps
                if last or (e.every and row["step"] % e.every == 0):
                    row |= self._evaluated(row["step"])
                if main:
                    self._write(row, board, last)
                stop = self._watched(watch, row)
                if len(self._trouble) >= t.max_nonfinite_steps:
                    self._give_up()
                if last or stop or (t.checkpoint_every and row["step"] % t.checkpoint_every == 0):
                    self.save()
        if board is not None:
            board.close()

    def _give_up(self) -> None:
        """Ends a run none of whose last steps could be taken. Resumed, it goes on behind them and counts anew."""
        skipped, self._trouble = self._trouble, []
        self.save()
        raise ModelError(
            f"{len(skipped)} steps in a row (up to step {self.step_number}) moved nothing: {skipped[-1]}. "
            f"`gxpo resume {self.out}` goes on behind them; trainer.max_nonfinite_steps says how many are allowed"
        )

    def _write(self, row: dict[str, Any], board: Board | None, last: bool) -> None:
        """The step's line and, where they are due, its rollouts."""
        every = self.settings.trainer.rollouts_every
        self.metrics_file.append(row)
        if board is not None:
            board(row)
        if self.last is not None and every and (row["step"] % every == 0 or last):
            (self.out / "rollouts").mkdir(exist_ok=True)
            dump(annotated(*self.last), self.out / "rollouts" / f"step-{row['step']:06d}.jsonl")

    @staticmethod
    def _watched(watch: Callable[[dict[str, Any]], bool | None] | None, row: dict[str, Any]) -> bool:
        """Whether to stop: if the watch of any process says so, all processes stop after the same step."""
        return parallel.any_of(watch is not None and bool(watch(row)))

    def _evaluated(self, step: int) -> dict[str, Any]:
        began = time.perf_counter()
        found = self.evaluate()
        figures: dict[str, Any] = {**found.figures, "time_eval_s": time.perf_counter() - began}
        if parallel.rank() == 0:
            self.evaluations.append({"step": step} | figures)
            path = self.out / "evaluations" / f"step-{step:06d}.json"
            path.parent.mkdir(exist_ok=True)
            checkpoint.write_atomic(path, json.dumps(found.verdicts))
            dump(with_texts(found.shown, decoder(self.tokenizer)), path.with_suffix(".jsonl"))
        return figures

    # ------------------------------------------------------------ the directory
    def _own(self) -> None:
        """Take the lock of the run directory, until `train` ends or `close`."""
        if parallel.rank() != 0 or self._lock.held:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        refuse_links(self.out)
        self._lock.acquire()
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
        lost, self.out = self.out, free(self.out)
        self._lock.release()
        self._lock.run = self.out
        self._own()
        checkpoint.write_atomic(self.out / CONFIG, self.config_text)
        self._save()
        raise CheckpointError(
            f"{lost} was deleted or replaced while its run went on, with the metrics and rollouts so far: step "
            f"{self.step_number} is saved, go on with gxpo resume {self.out}"
        )

    # ------------------------------------------------------------ checkpoints
    def save(self) -> Path | None:
        """Everything a resumed run needs; written whole or not at all."""
        if parallel.rank() != 0:
            return None
        self._own()
        self._check_place()
        return self._save()

    def reconfigure(self, text: str) -> None:
        """Replace config.yaml of a resumed run; after a kill at any instant it still matches the newest checkpoint."""
        before, self.config_text = self.config_text, text
        if parallel.rank() == 0:
            self._save(before)
            checkpoint.write_atomic(self.out / CONFIG, text)

    def _save(self, before: str | None = None) -> Path:
        state = {
            "step": self.step_number,
            "config": config_sums(self.config_text, before),
            "inputs": self.inputs,
            "products": {"update": self.settings.learner.products, "sampling": self.settings.sampling.products},
            "learner": self.learner.meta(),
            "source": self.source.state_dict(),
            "method": self.method.state_dict(),
            "empty_steps": self.empty_steps,
            "nonfinite_steps": self.nonfinite_steps,
            "trouble": self._trouble,
            "budget": vars(self.budget),
            "unscored": dict(self.rewards.counts),
        }
        return checkpoint.save(
            self.out,
            self.step_number,
            self.learner.tensors() | self.method.tensors(),
            state,
            self.settings.trainer.keep_checkpoints,
        )

    def load(self, path: Path) -> dict[str, Any]:
        """The parameters of a checkpoint, and what the method's parts remember; gives its state."""
        tensors, state = checkpoint.load(path)
        own = {name: x for name, x in tensors.items() if not name.startswith("signal/")}
        self.learner.load_tensors(own, state["learner"])
        self.method.load_tensors(tensors)
        self.method.load_state_dict(state["method"])
        return state

    def resume(self, config_text: str, *, allow_changed_data: bool = False) -> None:
        """Go back to the newest checkpoint: parameters, optimiser, sources, counters; later lines are cut off.

        config_text         what config.yaml says, as `start.verified` read it
        allow_changed_data  whether the task source may have other rows than the checkpoint's
        """
        self._begun, self.config_text = True, config_text
        self._own()
        newest = Path(parallel.first(str(checkpoint.latest(self.out)) if parallel.rank() == 0 else ""))
        state = self.load(newest)
        refuse_other_config(self.out, config_text, state)
        if not allow_changed_data:
            recorded = {k: v for k, v in state.get("inputs", {}).items() if k in self.inputs}
            inputs.refuse_changes(self.out, recorded, {k: self.inputs[k] for k in recorded})
        self.source.load_state_dict(state["source"])
        self.step_number, self.empty_steps = state["step"], state["empty_steps"]
        self.nonfinite_steps, self._trouble = state.get("nonfinite_steps", 0), list(state.get("trouble", []))
        self.budget = Budget(**state["budget"])
        self.rewards.counts.update(state["unscored"])
        if parallel.rank() == 0:
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
        """End the processes of rewards, environments and sampling."""
        self._open.close()
