"""The loop: tasks, rollouts, rewards, credit, weights, update. `Trainer.step` is the whole of it."""

from __future__ import annotations

import json
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gxpo import models, tasks
from gxpo.config import Resolved
from gxpo.engines.torch import TorchEngine
from gxpo.errors import CheckpointError, ConfigError, GxpoError
from gxpo.forest import Forest
from gxpo.learners import parallel
from gxpo.learners.lora import LoraSettings
from gxpo.learners.torch import TorchLearner
from gxpo.protocols import Budget, Sampling
from gxpo.records import dump
from gxpo.rewards import RewardSet
from gxpo.signals import Signals
from gxpo.trainer import checkpoint
from gxpo.trainer.bound import BoundLearner
from gxpo.trainer.evaluate import evaluate
from gxpo.trainer.figures import annotated, of_rollouts, of_updates, peak_megabytes
from gxpo.trainer.metrics import MetricsFile
from gxpo.trainer.session import Session
from gxpo.trainer.tensorboard import Board

GAP_ALARM = 0.1  # nats between the sampler's and the learner's log-prob of one token, above which a warning is due


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
        self.resolved, self.settings = resolved, resolved.settings
        s = self.settings
        default = f"runs/{s.task.replace(':', '-').replace('/', '-')}-{resolved.method.name}-seed{s.seed}"
        self.out = Path(out or s.out or default)
        self.config_text = resolved.to_yaml()
        if not resume and any(self.out.glob("checkpoints/step-*")):
            raise ConfigError(
                f"{self.out} holds a run: `gxpo resume {self.out}` goes on with it, or give another --out"
            )
        self.source = tasks.make(s.task, seed=s.seed, options=s.tasks.options, per_step=s.tasks.per_step)
        self.sampling = Sampling(**{**s.sampling.model_dump(), "stop": tuple(s.sampling.stop)})
        longest = s.sampling.max_new_tokens
        self.method = resolved.method.fill(horizon=float(longest), max_length=longest)
        provided = {x for part in (self.method.rollout, self.source) for x in getattr(part, "provides", ())}
        for need in self.method.requires:
            if need not in provided:
                raise ConfigError(
                    f"{self.method.name} requires {need}, which neither the rollout nor task {s.task!r} "
                    "provides: choose a task that does"
                )
        self.rewards = RewardSet.make(
            reward if reward is not None else s.reward,
            source=self.source,
            timeout=s.scoring.timeout,
            workers=s.scoring.workers,
        )
        try:
            self._load(notify)
        except BaseException:
            self.rewards.close()
            raise
        self.step_number = 0
        self._begun = False
        self.empty_steps = 0
        self.budget = Budget()
        self.metrics_file = MetricsFile(self.out / "metrics.jsonl")
        self.evaluations = MetricsFile(self.out / "evaluations.jsonl")
        self.last: tuple[Forest, torch.Tensor, Callable[..., str]] | None = None  # the newest step, for `annotated`

    def _load(self, notify: Callable[[str], None]) -> None:
        """Model, learner and engine."""
        s = self.settings
        self.device = (
            ("cuda" if torch.cuda.is_available() else "cpu") if s.learner.device == "auto" else s.learner.device
        )

        def warming(check: models.Check) -> None:
            seen = "" if check.accuracy is None else f", greedy accuracy {check.accuracy:.2f}"
            notify(f"warm-up of the tiny model (once, then cached): step {check.step}, loss {check.loss:.2f}{seen}")

        loaded = models.load(s.model, task=s.task, device=self.device, dtype=s.learner.dtype, progress=warming)
        self.tokenizer = loaded.tokenizer
        lora = (
            LoraSettings(
                rank=s.learner.lora_rank,
                alpha=s.learner.lora_alpha,
                seed=s.seed,
                targets=_names(s.learner.lora_targets),
            )
            if s.learner.lora_rank
            else None
        )
        self.learner = TorchLearner(
            loaded.model,
            lr=s.update.lr,
            betas=(s.update.betas[0], s.update.betas[1]),
            weight_decay=s.update.weight_decay,
            max_grad_norm=s.update.max_grad_norm,
            schedule=s.update.schedule,
            warmup_steps=s.update.warmup_steps,
            total_steps=s.trainer.steps * self.method.update.optimiser_steps(s.tasks.per_step),
            tokens_per_microbatch=s.learner.tokens_per_microbatch,
            device=self.device,
            layout="packed" if s.learner.layout == "auto" else "flat",
            lora=lora,
            reference="reference_logprob" in self.method.needs,
        )
        self.engine = TorchEngine(self.learner.model, self.tokenizer, device=self.device)

    # ------------------------------------------------------------ one step
    def step(self) -> dict[str, Any]:
        """One step from tasks to parameters; gives its line of metrics.jsonl (without writing it)."""
        began = time.perf_counter()
        self.step_number += 1
        number, method = self.step_number, self.method
        self.engine.policy_version = number - 1
        tokens_before = self.budget.generated_tokens
        session = Session(
            source=self.source,
            engine=self.engine,
            rewards=self.rewards,
            tokenizer=self.tokenizer,
            sampling=self.sampling,
            seed=self.settings.seed,
            step=number,
            budget=self.budget,
        )
        forest = method.rollout.grow(session.draw(self.settings.tasks.per_step), session)
        sampled = time.perf_counter()
        forest = self.shape(session.score(forest))
        scored = time.perf_counter()
        signals = self.signals(forest)
        credit = method.advantages(forest, signals, number)
        weight = method.token_weights(forest, credit, signals, number)
        lr = self.learner.optimiser.current_lr
        proximal = signals["proximal_logprob"] if self._needs_proximal else None
        bound = BoundLearner(self.learner, method, forest, signals, number, proximal)
        method.update.run(forest, credit, weight, bound)
        updated = time.perf_counter()
        self.source.observe(forest)
        method.observe(forest)
        self.empty_steps += int(all(i.empty for i in bound.infos))
        if bound.sampler_gap > GAP_ALARM:
            warnings.warn(
                f"step {number}: the sampler's and the learner's log-probs of a token differ by "
                f"{bound.sampler_gap:.2g} nats",
                stacklevel=2,
            )
        self.last = (forest, credit, session.decode)
        generated = self.budget.generated_tokens - tokens_before
        forward = sum(i.tokens_forward for i in bound.infos)
        return {
            "step": number,
            **of_rollouts(forest, credit),
            **of_updates(bound),
            "lr": lr,
            "empty_steps": self.empty_steps,
            "generated_tokens": self.budget.generated_tokens,
            "discarded_rollouts": self.budget.discarded,
            "weights_crc": self.learner.weights_crc(),
            "time_sample_s": sampled - began,
            "time_score_s": scored - sampled,
            "time_update_s": updated - scored,
            "time_step_s": time.perf_counter() - began,
            "time_sample_tokens_per_s": generated / (sampled - began),
            "time_update_tokens_per_s": forward / (updated - scored),
            "memory_peak_mb": peak_megabytes(),
        }

    def shape(self, forest: Forest) -> Forest:
        """The method's own rewards added to the task's, after the rollout and its filters; `success` is untouched."""
        columns = {k: forest.components[:, i] for i, k in enumerate(forest.component_names)}
        outcome = forest.outcome.clone()
        for part in self.method.rewards.values():
            for name, value in part(forest).items():
                if value.shape != outcome.shape:
                    raise GxpoError(
                        f"reward {name!r} has shape {tuple(value.shape)}; shaping gives one value a trajectory"
                    )
                columns[name] = value
                outcome = outcome + value
        if self.settings.scoring.shuffle:
            order = torch.Generator().manual_seed(zlib.crc32(f"{self.settings.seed}/{self.step_number}".encode()))
            outcome = outcome[torch.randperm(outcome.numel(), generator=order)]
        return forest.with_rewards(outcome, components=columns)

    @property
    def _needs_proximal(self) -> bool:
        """Whether weights or rewards compare the policy at the start of the step with others."""
        return bool(self.method.weights) or self.method.kl_reward is not None

    def signals(self, forest: Forest) -> Signals:
        """What the method's parts read: computed once, with the policy at the start of the step."""
        values: dict[str, Any] = {}
        needs = set(self.method.needs)
        if self._needs_proximal:
            needs.add("proximal_logprob")
        if "reference_logprob" in needs:
            values["reference_logprob"] = self.learner.outputs(forest, ("logprob",), policy="reference")["logprob"]
        current = [n for n in ("proximal_logprob", "entropy") if n in needs]
        if current:
            names = tuple("logprob" if n == "proximal_logprob" else n for n in current)
            found = self.learner.outputs(forest, names)
            values |= {n: found[k] for n, k in zip(current, names, strict=True)}
        return Signals.of(forest, values)

    # ------------------------------------------------------------ evaluation
    def evaluate(self) -> tuple[dict[str, float], dict[str, float]]:
        """Figures on the held-out tasks, which are the same for every seed and step; each task's mean verdict."""
        e = self.settings.eval
        held_out = self.source.held_out(e.tasks)
        sampling = Sampling(
            temperature=e.temperature if e.samples == 1 else max(e.temperature, 0.0) or 1.0,
            max_new_tokens=self.sampling.max_new_tokens,
            stop=self.sampling.stop,
        )
        return evaluate(
            held_out,
            samples=e.samples,
            sampling=sampling,
            engine=self.engine,
            rewards=self.rewards,
            tokenizer=self.tokenizer,
            source=self.source,
            seed=0,
        )

    # ------------------------------------------------------------ the whole run
    def train(self, watch: Callable[[dict[str, Any]], bool | None] | None = None) -> None:
        """Steps until `trainer.steps`; `watch` sees every line and ends the run early by returning True."""
        t, e = self.settings.trainer, self.settings.eval
        main = parallel.rank() == 0
        if not self._begun:
            if main:
                self.out.mkdir(parents=True, exist_ok=True)
                checkpoint.write_atomic(self.out / "config.yaml", self.config_text)
            self._evaluated({"step": 0}, watch)
            self.save()
            self._begun = True
        board = Board(self.out, purge_after=self.step_number) if t.tensorboard and main else None
        while self.step_number < t.steps:
            row = self.step()
            last = row["step"] == t.steps
            if last or (e.every and row["step"] % e.every == 0):
                row |= self._evaluated({"step": row["step"]}, None)
            if main:
                self.metrics_file.append(row)
                if board is not None:
                    board(row)
                if self.last is not None and t.rollouts_every and (row["step"] % t.rollouts_every == 0 or last):
                    (self.out / "rollouts").mkdir(exist_ok=True)
                    shown = annotated(*self.last)
                    dump(shown, self.out / "rollouts" / f"step-{row['step']:06d}.jsonl")
            stop = bool(watch(row)) if watch else False
            if last or stop or (t.checkpoint_every and row["step"] % t.checkpoint_every == 0):
                self.save()
            if stop:
                break
        if board is not None:
            board.close()

    def _evaluated(self, row: dict[str, Any], watch: Callable[..., Any] | None) -> dict[str, Any]:
        began = time.perf_counter()
        found, verdicts = self.evaluate()
        figures: dict[str, Any] = {**found, "time_eval_s": time.perf_counter() - began}
        if parallel.rank() == 0:
            self.evaluations.append(row | figures)
            (self.out / "evaluations").mkdir(exist_ok=True)
            checkpoint.write_atomic(self.out / "evaluations" / f"step-{row['step']:06d}.json", json.dumps(verdicts))
        if watch:
            watch(row | figures)
        return figures

    # ------------------------------------------------------------ checkpoints
    def save(self) -> Path | None:
        """Everything a resumed run needs; written whole or not at all."""
        if parallel.rank() != 0:
            return None
        state = {
            "step": self.step_number,
            "config": zlib.crc32(self.config_text.encode()),
            "learner": self.learner.meta(),
            "source": self.source.state_dict(),
            "method": self.method.state_dict(),
            "empty_steps": self.empty_steps,
            "budget": vars(self.budget),
            "unscored": dict(self.rewards.counts),
        }
        return checkpoint.save(
            self.out, self.step_number, self.learner.tensors(), state, self.settings.trainer.keep_checkpoints
        )

    def resume(self, *, changed: bool = False) -> None:
        """Go back to the newest checkpoint: parameters, optimiser, sources, counters; later lines are cut off.

        A configuration other than the checkpoint's is refused, unless the change is known to be allowed (`changed`).
        """
        tensors, state = checkpoint.load(checkpoint.latest(self.out))
        if not changed and state["config"] != zlib.crc32(self.config_text.encode()):
            raise CheckpointError(
                f"{self.out}/config.yaml is not the configuration of its checkpoint: restore it, or "
                "start another run with `gxpo train`"
            )
        self.learner.load_tensors(tensors, state["learner"])
        self.source.load_state_dict(state["source"])
        self.method.load_state_dict(state["method"])
        self._begun, self.step_number, self.empty_steps = True, state["step"], state["empty_steps"]
        self.budget = Budget(**state["budget"])
        self.rewards.counts.update(state["unscored"])
        if parallel.rank() == 0:
            self.metrics_file.cut(self.step_number)
            self.evaluations.cut(self.step_number)
            for path in (*(self.out / "rollouts").glob("step-*"), *(self.out / "evaluations").glob("step-*")):
                if int(path.stem.split("-")[1]) > self.step_number:
                    path.unlink()

    def close(self) -> None:
        """End the reward workers."""
        self.rewards.close()


def _names(targets: str | list[str]) -> str | tuple[str, ...]:
    return targets if isinstance(targets, str) else tuple(targets)
