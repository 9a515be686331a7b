"""One training step, from tasks to moved parameters: `Stages.step` is the whole of it, in order.

Left out of this file:

    session.py          sampling and scoring for the rollout part: `Session`
    bound_learner.py    optimiser steps for the update part: `BoundLearner`
    step_figures.py     figures of rollouts and updates for metrics.jsonl
    resources.py        loading of model, tasks, rewards and engine; settings measured before the first step
    asynchronous/       rollouts sampled beside the updates (`async.max_staleness`)
    loop.py             the run around the steps: evaluations, checkpoints, resume
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gxpo.algorithms.signals import Signals, SignalTools
from gxpo.algorithms.signals.base import compute_signals
from gxpo.base.judges import meter
from gxpo.base.runtime import Clock, give_back, peak_megabytes
from gxpo.forest.forest import Forest
from gxpo.models.chat.plain import decoder
from gxpo.parts.definition import show
from gxpo.parts.functions import naming
from gxpo.parts.protocols import Budget, Sampling
from gxpo.training.asynchronous import Pipeline
from gxpo.training.bound_learner import BoundLearner
from gxpo.training.config import RunConfig
from gxpo.training.resources import Resources
from gxpo.training.session import Session
from gxpo.training.step_figures import (
    PATIENCE,
    Tally,
    agent_failures,
    rollout_figures,
    server_figures,
    source_figures,
    update_figures,
)

MIN_WEIGHTS_MOVED = 0.05  # share of low-precision weights that the first step must change, or a warning is due
# Largest difference of one token's log-prob between sampler and learner, in nats, before a warning. In bfloat16 the two
# ways of computing it differ by some tenths even where both are right.
MAX_SAMPLER_GAP, MAX_SAMPLER_GAP_BFLOAT16 = 0.1, 1.0


class Stages(Resources):
    """The stages of a run, wired together; `step` takes them from tasks to parameters.

    resolved  from `gxpo.training.config.load` or `resolve`
    reward    Python functions instead of the setting `reward`
    source    a task source, an object instead of what the setting `task` names
    notify    called with a line where something takes long before the first step
    """

    def __init__(self, resolved: RunConfig, *, reward: Any, source: Any = None, notify: Callable[[str], None]) -> None:
        super().__init__(resolved, reward, source, notify)
        self.step_number = 0
        self.pipeline: Pipeline | None = None  # samples beside the updates where `async.max_staleness` is set
        self.budget = Budget()
        self.last_step: tuple[Forest, Tensor, Session] | None = None  # rollouts, advantages [P] and session
        # For warnings about runs that learn nothing:
        self.progress_counts, self.has_warned = Tally(), False  # over the steps that this process took
        self.empty_steps = self.nonfinite_steps = 0
        self.skip_reasons: list[str] = []  # why steps were skipped, since the last one that moved a parameter
        self.lost_episodes: dict[str, str] = {}  # first message of each way in which an agent's episode failed

    def step(self) -> dict[str, Any]:
        """Take one training step, from tasks to moved parameters; return its line of metrics.jsonl, without writing it.

        After the last step of a phase, this is the first step of the next phase.
        """
        # In a run with phases, the next one begins here and not after the last step of the one before: from a
        # checkpoint, as in a run that is resumed there.
        if self.tracker is not None:
            self._begin_phase()
        self.step_number += 1
        step, method, learner = self.step_number, self.method, self.learner
        counts_before, clock = self._counts(), Clock()
        server_counts_before = self._server_counts()

        # Settings that follow a schedule take this step's values before any part reads them.
        coefficients = method.at(step)

        # 1. Tasks -> rollouts -> rewards. The rollout part draws tasks, samples and scores through a session; all
        #    rollouts of the step are one forest. The method's own rewards come on top of the task's.
        observer = self.prompt_search or self.sampled_tasks
        on_scored = None if observer is None else observer.see
        seed, sampling, budget = self.settings.seed, self.sampling, self.budget
        session = self.session(step, seed=seed, sampling=sampling, budget=budget, on_scored=on_scored)
        forest = self._rollouts(session, clock) if self.pipeline is None else self.pipeline.rollouts(session, clock)
        forest = self.shape(forest)
        clock.lap("score")

        # 2. Rewards -> one advantage and one weight for each action token (axis P), by the policy before the update.
        tools = self.tools(step, session)
        forest_in_context, signals, advantage_P, weight_P = self.assign_credit(forest, tools)

        # 3. Advantages -> parameters. The update part takes optimiser steps on the method's loss, one or several.
        lr = learner.optimiser.current_lr  # before the update moves the schedule on
        proximal_P = signals["proximal_logprob"] if self._needs_proximal else None
        bound = BoundLearner(learner, method, forest_in_context, signals, step, proximal_P)
        with naming("update", method.update, name=show):
            method.update.run(forest_in_context, advantage_P, weight_P, bound)
        if self.pipeline is None:
            self.engine.policy_version = step  # an evaluation may sample before the next step
        # Signal parts with a model of their own train it on the same rollouts.
        model_figures = self._train_signal_models(forest_in_context, signals, tools)
        give_back()
        clock.lap("update")

        # 4. Show the step to the parts that remember: samplers of tasks, replay, rewards that adapt.
        self._show_to_parts(forest, session)
        self.last_step = (forest, advantage_P, session)

        # 5. Count, and warn once of a run that can't learn.
        self._count_updates(bound, lr)
        counts = {name: count - counts_before[name] for name, count in self._counts().items()}
        self.budget.judge_tokens += counts["judged"]
        # A group has signal where its advantages are not 0; an objective that reads none has its active tokens instead.
        signal_P = advantage_P
        if not method.reads_credit:
            signal_P = method.active(forest_in_context, advantage_P, weight_P).double()
        figures = {"step": step, **self._figures(forest, signal_P, bound, counts, model_figures)}
        self.progress_counts.add(figures)
        self._check_progress()

        # 6. The line of metrics.jsonl. Controllers of the method (such as of a KL coefficient) adjust to its figures.
        row = {
            **figures,
            **method.adjust(figures),
            **coefficients,
            "lr": lr,
            **self._totals(counts),
            **learner.checksum(),
            **clock.figures(counts["generated"], figures["tokens_forward"]),
            **{name: x - server_counts_before[name] for name, x in self._server_counts().items()},
            "memory_peak_mb": peak_megabytes(),
        }
        if self.tracker is not None:
            self.tracker.add_row(row)
        return row

    # ------------------------------------------------------------ 1. tasks, rollouts, rewards
    def _begin_phase(self) -> None:
        """Begin the next phase if this one is over; nothing here, `Trainer` has the checkpoints for it."""

    def session(self, step: int, *, seed: int, sampling: Sampling, budget: Budget, **replacements: Any) -> Session:
        """Build the session of one step. `replacements`: stages of it, by name, that are not the run's own."""
        # A session with the run's engine samples the newest weights, so the engine needs them now.
        if "engine" not in replacements:
            self.learner.publish()
        stages: dict[str, Any] = {
            "source": self.source,
            "engine": self.engine,
            "rewards": self.rewards,
            "tokenizer": self.tokenizer,
            "chat": self.chat,
            "system": self.settings.chat.system,
            "envs": self.envs,
            "episode": self.episode,
            "segmenter": self.method.segmenter,
            "learner": self.learner,
            "players": self.players,
        }
        return Session(**{**stages, **replacements}, sampling=sampling, seed=seed, step=step, budget=budget)

    def _rollouts(self, session: Session, clock: Clock) -> Forest:
        """Sample and score the step's rollouts now, with the newest weights."""
        self.engine.policy_version = self.step_number - 1  # updates that the weights have seen
        tasks = session.draw(self.settings.tasks.per_step)
        forest = session.segment(session.grow(self.method.rollout, tasks))
        give_back()
        clock.lap("sample")
        self.rewards.at(self.step_number, self.settings.trainer.steps)
        return session.score(forest)

    def shape(self, forest: Forest) -> Forest:
        """Add the method's own rewards to the task's, after the rollout and its filters; `success` is untouched."""
        # Rewards that read texts need them on the forest; afterwards it has the texts it came with.
        original_text = forest.action_text
        if self.method.reads_texts:
            decode = decoder(self.tokenizer, self.chat)
            forest = forest.replace(action_text=[decode(forest.action(s)) for s in range(forest.n_steps)])
        forest = self.method.shaped(forest).replace(action_text=original_text)
        if self.settings.scoring.shuffle:
            # Seeded by run and step, so that a resumed run shuffles alike.
            order = torch.Generator().manual_seed(zlib.crc32(f"{self.settings.seed}/{self.step_number}".encode()))
            outcome = forest.outcome[torch.randperm(forest.n_trajectories, generator=order)]
            # Rewards of single turns would tell what shuffled outcomes hide; without them, returns are the outcome.
            forest = forest.replace(outcome=outcome, step_reward=torch.full_like(forest.step_reward, torch.nan))
        return forest

    # ------------------------------------------------------------ 2. advantages and weights
    def assign_credit(self, forest: Forest, tools: SignalTools) -> tuple[Forest, Signals, Tensor, Tensor]:
        """Turn scored rollouts into (forest in the objective's context, signals, advantage [P], weight [P]).

        The forest in context has the same axes S, P and R; its actions stand under the prompts that the loss reads.
        """
        method, step = self.method, tools.step
        forest = forest.in_context(method.context)
        signals = self.signals(forest, tools)
        advantage_P = method.advantages(forest, signals, step)
        # Credit parts may hand targets to the loss (of a value head, say) beside the advantage.
        signals = Signals.of(forest, {**signals, **method.targets(forest, signals, step)}, signals.axes)
        return forest, signals, advantage_P, method.token_weights(forest, advantage_P, signals, step)

    def tools(self, step: int, session: Session | None = None) -> SignalTools:
        """Build the services for signal parts; prompts in other words and answers need the session of a step."""
        tools = replace(self.signal_tools, step=step)
        if session is None:
            return tools
        return replace(tools, encode=session.tokenize, answers=session.answers, reword=session.reword)

    def signals(self, forest: Forest, tools: SignalTools) -> Signals:
        """Compute the quantities that the method's parts read, once, with the policy at the start of the step."""
        values: dict[str, Any] = {}
        needs = set(self.method.needs)
        if self._needs_proximal:
            needs.add("proximal_logprob")
        if "reference_logprob" in needs:
            values["reference_logprob"] = self.learner.outputs(forest, ("logprob",), policy="reference")["logprob"]
        if "hidden" in needs:
            values["hidden"] = self.learner.hidden(forest)
        # Everything that the current policy gives comes from one forward pass.
        signal_names = [n for n in ("proximal_logprob", "entropy", *self.method.value_heads) if n in needs]
        if signal_names:
            output_names = tuple("logprob" if n == "proximal_logprob" else n for n in signal_names)
            outputs = self.learner.outputs(forest, output_names)
            values |= {n: outputs[k] for n, k in zip(signal_names, output_names, strict=True)}
        # Signal parts run in their order: a later one may read what an earlier one provides.
        for part in self.method.signals.values():
            earlier = Signals.of(forest, values, self.method.axes)
            values |= {name: x.detach() for name, x in compute_signals(part, forest, earlier, tools).items()}
        return Signals.of(forest, values, self.method.axes)

    def _train_signal_models(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, float]:
        """Let signal parts train models of their own (a reward model, a critic); return their figures."""
        figures: dict[str, float] = {}
        for part in self.method.signals.values():
            figures |= part.learn(forest, signals, tools)
        return figures

    @property
    def _needs_proximal(self) -> bool:
        """True if weights or rewards compare the policy at the start of the step with others."""
        is_signal = "proximal_logprob" in self.method.needs
        return is_signal or bool(self.method.weights) or self.method.kl_reward is not None

    # ------------------------------------------------------------ 4. parts that remember
    def _show_to_parts(self, forest: Forest, session: Session) -> None:
        """Show the scored rollouts to task source, method and rewards; hand the new weights to a sampler beside."""
        sampler_messages = {} if self.pipeline is None else self.pipeline.messages
        failures = agent_failures(forest) if any("agent" in info for info in forest.info) else {}
        self.lost_episodes = {**failures, **sampler_messages, **self.lost_episodes}
        self.source.observe(forest)
        self.method.observe(forest)
        self.rewards.observe(self.step_number, forest, lambda: session.texts(forest), session.tasks_by_id)
        if self.pipeline is not None:
            self.pipeline.publish(self.step_number)

    # ------------------------------------------------------------ 5. and 6. counts, warnings, figures
    def _counts(self) -> dict[str, int]:
        """Return how much was sampled, read by the sampler, judged and left unscored since the run began."""
        sampler = self.engine if self.pipeline is None else self.pipeline.totals
        tokens = {"prefilled": sampler.prefilled_tokens, "reused": sampler.reused_tokens}
        n_judged = meter.tokens if self.pipeline is None else self.pipeline.totals.judge_tokens
        return {**self.unscored_counts, **tokens, "generated": self.budget.generated_tokens, "judged": n_judged}

    def _server_counts(self) -> dict[str, float]:
        """Return the counts of servers since they started: those that sample, and those of tools."""
        envs: Any = self.world.envs
        tool_seconds = {"time_tools_s": envs.seconds} if getattr(envs, "of_tasks", False) else {}
        return {**server_figures(self.engine), **tool_seconds}

    @property
    def unscored_counts(self) -> dict[str, int]:
        """Number of rollouts that could not be scored so far, by kind of failure."""
        counts = dict(self.rewards.counts)
        if self.pipeline is None:
            return counts
        return {kind: self.pipeline.totals.scoring.get(kind, 0) for kind in counts}

    def _count_updates(self, bound: BoundLearner, lr: float) -> None:
        """Count optimiser steps that moved nothing; warn where sampler and learner disagree or steps are too small."""
        infos = bound.infos
        self.empty_steps += int(all(i.empty for i in infos))
        self.nonfinite_steps += sum(bool(i.nonfinite) for i in infos)
        # One step that moves a parameter ends the row of skipped ones (`trainer.max_nonfinite_steps`).
        if any(not (i.empty or i.nonfinite) for i in infos):
            self.skip_reasons = []
        elif bound.skip_reason:
            self.skip_reasons = [*self.skip_reasons, bound.skip_reason]
        # Where the two disagree, rollouts are off policy and nothing corrects for it.
        is_bfloat16 = self.settings.learner.dtype == "bfloat16"
        if (bound.sampler_gap or 0.0) > (MAX_SAMPLER_GAP_BFLOAT16 if is_bfloat16 else MAX_SAMPLER_GAP):
            warnings.warn(
                f"step {self.step_number}: the sampler's and the learner's log-probs of a token differ by "
                f"{bound.sampler_gap:.2g} nats",
                stacklevel=3,
            )
        # Low-precision weights round small steps away, while the optimiser's float32 copies gather them: it shows in
        # the first optimiser steps of a run, which are the only ones looked at.
        moved_shares = (
            [i.moved_share for i in infos if i.moved_share is not None] if self.learner.optimiser.copies else []
        )
        if moved_shares and self.learner.optimiser.steps == len(moved_shares) and max(moved_shares) < MIN_WEIGHTS_MOVED:
            warnings.warn(
                f"optim.lr={lr:.3g} changes {max(moved_shares):.1%} of the {self.settings.learner.dtype} weights "
                "a step: the rest gathers in float32 copies until it shows, and the policy lags behind; raise "
                "optim.lr, or set learner.dtype=float32",
                stacklevel=3,
            )

    @property
    def failures(self) -> dict[str, str]:
        """First message of each way in which rollouts could not be scored, since this process began."""
        envs = {} if self.world.envs is None else self.world.envs.messages
        return {**self.rewards.messages, **envs, **self.lost_episodes}

    def _check_progress(self) -> None:
        """Warn once if the run has had nothing to learn from since its first step."""
        counts = self.progress_counts
        covers_run = counts.steps == self.step_number  # not after a resume, whose earlier steps are not counted here
        is_due = counts.all_unscored or counts.steps == PATIENCE
        if not self.has_warned and covers_run and is_due and (problem := counts.problem(self.method, self.failures)):
            self.has_warned = True
            warnings.warn(problem, stacklevel=3)

    def _figures(
        self,
        forest: Forest,
        signal_P: Tensor,
        bound: BoundLearner,
        counts: dict[str, int],
        model_figures: dict[str, float],
    ) -> dict[str, Any]:
        """Collect the figures of rollouts and updates. `signal_P`: not 0 where the objective can learn from a token."""
        sampled_tasks, pipeline = self.sampled_tasks, self.pipeline
        return {
            **({} if self.tracker is None else {"phase": self.tracker.number + 1}),
            **rollout_figures(forest, signal_P),
            **source_figures(forest, self.step_number - 1),
            **({} if sampled_tasks is None else sampled_tasks.figures()),
            **({} if self.prompt_search is None else self.prompt_search.figures()),
            **{f"scoring_{kind}": counts[kind] for kind in self.unscored_counts},
            **update_figures(bound.infos, bound.metrics, (bound.sampler_gap, bound.sampler_gap_mean)),
            **model_figures,
            **({} if pipeline is None else {**pipeline.figures, "mismatch_kl": bound.mismatch_kl}),
        }

    def _totals(self, counts: dict[str, int]) -> dict[str, Any]:
        """Return skipped steps, tokens and cost: since the run began, and (prefilled, reused) of this step."""
        prices = self.settings.logging.prices
        return {
            "empty_steps": self.empty_steps,
            "nonfinite_steps": self.nonfinite_steps,
            "generated_tokens": self.budget.generated_tokens,
            "judge_tokens": self.budget.judge_tokens,
            **({"cost": self.budget.cost(prices)} if prices else {}),
            "discarded_rollouts": self.budget.discarded,
            "prefilled_tokens": counts["prefilled"],
            "reused_tokens": counts["reused"],
        }
