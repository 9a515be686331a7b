"""One training step: tasks, rollouts, rewards, advantages, weights, update. `Stages.step` is the whole of it."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gxpo import runtime
from gxpo.config import Resolved
from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.learners.packing import gradient_of
from gxpo.pipeline import Loss, Method
from gxpo.protocols import Budget, PolicyTokens, Sampling, StepInfo
from gxpo.rewards import RewardSet
from gxpo.runtime import give_back
from gxpo.signals import Signals, SignalTools
from gxpo.trainer import preflight, setup
from gxpo.trainer.culprit import largest_slope
from gxpo.trainer.figures import PATIENCE, Clock, Tally, of_rollouts, of_sources, of_updates, peak_megabytes
from gxpo.trainer.measured import measured
from gxpo.trainer.session import Session, decoder
from gxpo.trainer.shared_envs import SharedEnvs
from gxpo.trainer.start import start_from

FAINT = 0.05  # share of low-precision weights that the first step changes, below which a warning is due
GAP_ALARM = {True: 0.1, False: 1.0}  # nats between sampler and learner at one token that call for a warning; by whether
# the model runs in float32 or better: in bfloat16 the two ways of computing one token differ by some tenths


class Stages:
    """The stages of a run, wired together; `step` takes them from tasks to parameters.

    resolved  from `gxpo.config.load` or `resolve`
    reward    a Python function instead of the setting `reward`
    resume    the parameters come from a checkpoint, and what `auto` means is settled
    notify    called with a line where something takes long before the first step
    """

    def __init__(
        self, resolved: Resolved, *, reward: Callable[..., Any] | None, resume: bool, notify: Callable[[str], None]
    ) -> None:
        s = resolved.settings
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
                reward if reward is not None else s.rewards,
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
            self._open = opened.pop_all()
        self.resolved, self.settings = resolved, resolved.settings
        envs = self.world.envs
        self.envs = envs if envs is None or runtime.world() == 1 else SharedEnvs(envs)
        longest = s.sampling.max_new_tokens * max(
            self.episode.max_turns, getattr(resolved.method.rollout, "max_turns", 1)
        )
        self.method = resolved.method.fill(horizon=float(longest), max_length=longest, total_steps=s.trainer.steps)
        for part in self.method.signals.values():
            part.bind(self.tools(0))
        self.step_number = 0
        self.tally, self.warned = Tally(), False  # of the steps taken here
        self.empty_steps = self.nonfinite_steps = 0
        self._trouble: list[str] = []  # of the steps since the last one that moved anything: why none did
        self.budget = Budget()
        self.last: tuple[Forest, Tensor, Callable[..., str]] | None = None  # the newest step, for `annotated`

    def step(self) -> dict[str, Any]:
        """One step from tasks to parameters; gives its line of metrics.jsonl (without writing it)."""
        self.step_number += 1
        number, method, learner, engine = self.step_number, self.method, self.learner, self.engine
        engine.policy_version = number - 1
        counted, clock = self._counts(), Clock()

        # tasks -> rollouts
        session = self.session(number, seed=self.settings.seed, sampling=self.sampling, budget=self.budget)
        tasks = session.draw(self.settings.tasks.per_step)
        forest = session.segment(method.rollout.grow(tasks, session))
        give_back()
        clock.lap("sample")

        # rollouts -> rewards
        forest = self.shape(session.score(forest))
        clock.lap("score")

        # rewards -> advantage and weight of every action token
        tools = self.tools(number, session)
        read, signals, credit, weight = self.credited(forest, tools)

        # advantages -> parameters
        lr = learner.optimiser.current_lr
        proximal = signals["proximal_logprob"] if self._needs_proximal else None
        bound = BoundLearner(learner, method, read, signals, number, proximal)
        method.update.run(read, credit, weight, bound)
        engine.policy_version = number  # an evaluation comes before the next step
        learnt = {k: v for part in method.signals.values() for k, v in part.learn(read, signals, tools).items()}
        give_back()
        clock.lap("update")

        # what the step was, for its parts, for people and for the next steps
        self.source.observe(forest)
        method.observe(forest)
        self._count(bound, lr)
        self.last = (forest, credit, session.decode)
        figures = {
            "step": number,
            **of_rollouts(forest, credit if method.reads_credit else method.active(read, credit, weight).double()),
            **of_sources(forest, number - 1),
            **{f"scoring_{kind}": n - counted[kind] for kind, n in self.rewards.counts.items()},
            **of_updates(bound.infos, bound.metrics, bound.sampler_gap),
            **learnt,
        }
        self.tally.add(figures)
        self._check_progress()
        now = self._counts()
        generated, forward = now["generated"] - counted["generated"], figures["tokens_forward"]
        return {
            **figures,
            **method.adjust(figures),
            "lr": lr,
            "empty_steps": self.empty_steps,
            "nonfinite_steps": self.nonfinite_steps,
            "generated_tokens": self.budget.generated_tokens,
            "discarded_rollouts": self.budget.discarded,
            "prefilled_tokens": now["prefilled"] - counted["prefilled"],
            "reused_tokens": now["reused"] - counted["reused"],
            "weights_crc": learner.weights_crc(),
            **clock.figures(generated, forward),
            "memory_peak_mb": peak_megabytes(),
        }

    # ------------------------------------------------------------ what a step is made of
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

    def credited(self, forest: Forest, tools: SignalTools) -> tuple[Forest, Signals, torch.Tensor, torch.Tensor]:
        """Scored rollouts as the policy reads them (S, P and R are the same), their signals, credit and weights [P]."""
        method, number = self.method, tools.step
        read = forest.in_context(method.context)
        signals = self.signals(read, tools)
        credit = method.advantages(read, signals, number)
        signals = Signals.of(read, {**signals, **method.targets(read, signals, number)}, signals.axes)
        return read, signals, credit, method.token_weights(read, credit, signals, number)

    def shape(self, forest: Forest) -> Forest:
        """The method's own rewards over the task's, after the rollout and its filters; `success` is untouched."""
        forest = self.method.shaped(forest)
        if self.settings.scoring.shuffle:
            order = torch.Generator().manual_seed(zlib.crc32(f"{self.settings.seed}/{self.step_number}".encode()))
            outcome = forest.outcome[torch.randperm(forest.n_trajectories, generator=order)]
            # rewards of single turns would tell what shuffled outcomes do not; without them returns are the outcome
            forest = forest.replace(outcome=outcome, step_reward=torch.full_like(forest.step_reward, torch.nan))
        return forest

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

    @property
    def _needs_proximal(self) -> bool:
        """Whether weights or rewards compare the policy at the start of the step with others."""
        named = "proximal_logprob" in self.method.needs
        return named or bool(self.method.weights) or self.method.kl_reward is not None

    # ------------------------------------------------------------ counts and warnings
    def _counts(self) -> dict[str, int]:
        """What has been generated, read and scored so far."""
        engine = self.engine
        tokens = {"prefilled": engine.prefilled_tokens, "reused": engine.reused_tokens}
        return {**self.rewards.counts, **tokens, "generated": self.budget.generated_tokens}

    def _count(self, bound: BoundLearner, lr: float) -> None:
        """Optimiser steps that moved nothing; warns where sampler and learner disagree, or steps are too small."""
        infos = bound.infos
        self.empty_steps += int(all(i.empty for i in infos))
        self.nonfinite_steps += sum(bool(i.nonfinite) for i in infos)
        if any(not (i.empty or i.nonfinite) for i in infos):
            self._trouble = []
        elif bound.trouble:
            self._trouble = [*self._trouble, bound.trouble]
        moved = [i.moved for i in infos if i.moved is not None]
        if bound.sampler_gap > GAP_ALARM[self.settings.learner.dtype != "bfloat16"]:
            warnings.warn(
                f"step {self.step_number}: the sampler's and the learner's log-probs of a token differ by "
                f"{bound.sampler_gap:.2g} nats",
                stacklevel=3,
            )
        if moved and self.learner.optimiser.steps == len(moved) and max(moved) < FAINT:
            warnings.warn(
                f"optim.lr={lr:.3g} changes {max(moved):.1%} of the {self.settings.learner.dtype} weights a step: the "
                "rest gathers in float32 copies until it shows, and the policy lags behind; raise optim.lr, or set "
                "learner.dtype=float32",
                stacklevel=3,
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


# ---------------------------------------------------------------- optimiser steps of one method
@dataclass(frozen=True)
class Batch:
    """The trajectories of one optimiser step, and everything that the method's loss reads of them.

    proximal  [P] log-probs of the proximal policy; None: stop_gradient(current)
    """

    method: Method
    forest: Forest
    credit: Tensor
    weight: Tensor
    signals: Signals
    proximal: Tensor | None
    step: int

    def policy(self, x: Mapping[str, Tensor]) -> PolicyTokens:
        """The outputs, and what is known of the other policies."""
        return PolicyTokens(
            x["logprob"],
            self.forest.path_behaviour_logprob,
            self.signals.get("reference_logprob"),
            x.get("entropy"),
            proximal_logprob=x["logprob"].detach() if self.proximal is None else self.proximal,
            value=x.get("value"),
            outputs=x,
        )

    def evaluate(self, x: Mapping[str, Tensor], method: Method | None = None) -> Loss:
        """L(x), of this method or of another one, and what its terms report."""
        read = self.credit, self.weight, self.signals, self.step
        return (method or self.method).evaluate(self.forest, self.policy(x), *read)

    def loss(self, x: Mapping[str, Tensor], method: Method | None = None) -> Tensor:
        """L(x) alone."""
        return self.evaluate(x, method).value

    @cached_property
    def active(self) -> Tensor:
        """[P] bool: entries whose outputs the loss reads."""
        return self.method.active(self.forest, self.credit, self.weight, self.signals)

    def figures(self, x: Mapping[str, Tensor]) -> dict[str, float]:
        """What the terms report, and the mean entropy (nats) of the trained tokens that went through the model."""
        # rows without credit were not run; whatever stands for them is multiplied by zero
        filled = {name: torch.nan_to_num(v, nan=0.0) for name, v in x.items()}
        found = self.evaluate(filled).metrics
        entropy = x["entropy"][self.forest.path_trainable]
        entropy = entropy[entropy.isfinite()]
        return found | ({"entropy": float(entropy.mean())} if entropy.numel() else {})


class BoundLearner:
    """The learner with the step's method and signals bound to it: what an `Update` moves parameters with.

    Implements `protocols.StepRunner`. The proximal policy is the learner's at the start of the step. On the first
    optimiser step it is stop_gradient(current): the ratio is exactly 1 and costs no forward pass. Afterwards it is what
    that first step saw, or, where the first step saw a part of the rollouts only, a forward pass made before anything
    moved (`proximal`, where the step's signals have needed it already).
    """

    def __init__(
        self,
        learner: Any,
        method: Method,
        forest: Forest,
        signals: Signals,
        step: int,
        proximal: Tensor | None = None,
    ) -> None:
        self.learner, self.method, self.forest, self.signals, self.step_number = learner, method, forest, signals, step
        self.proximal = proximal
        self.infos: list[StepInfo] = []
        self.metrics: list[dict[str, float]] = []
        self.trouble = ""  # why the last of the optimiser steps that were skipped was
        self.sampler_gap = 0.0  # largest |proximal - behaviour| log-prob among the tokens of the first optimiser step
        # an output whose own signal is nan throughout is one that nobody reads in this step
        unread = {n for n in method.outputs if n.at and n in signals and bool(signals[n].isnan().all())}
        self._names = tuple(n for n in dict.fromkeys((*method.outputs, "entropy")) if n not in unread)

    def step(self, forest: Forest, credit: Tensor, weight: Tensor, trajectories: Tensor | None = None) -> StepInfo:
        """One optimiser step on these trajectories (all of the forest by default)."""
        first, whole = self._unmoved, trajectories is None
        if first and not whole and self.proximal is None:
            self.proximal = self.learner.outputs(forest, ("logprob",))["logprob"]
        batch = self._batch(forest, credit, weight, None if first else self.proximal, trajectories)
        info = self.learner.step(batch.forest, batch.loss, active=batch.active, **self._reads(batch))
        if first and whole and self.proximal is None and not (info.empty or info.nonfinite):
            self.proximal = info.outputs["logprob"].nan_to_num(nan=0.0)
        return self._counted(batch, info, info.outputs.get("logprob"))

    def logprob(self) -> Tensor:
        """[P] detached log-probs of all the step's rollouts by the policy as it is now; one more forward pass.

        Asked for before the first optimiser step, it is the proximal policy.
        """
        return self._now(self.forest, ("logprob",))["logprob"]

    def renew(self) -> None:
        """From here on the proximal policy of a step is the policy before it: its ratio is exactly 1."""
        self.proximal = None

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of the parameters."""
        return self.learner.snapshot()

    def restore(self, snapshot: Mapping[str, Tensor]) -> None:
        """Set the parameters to a snapshot's."""
        self.learner.restore(snapshot)

    # ------------------------------------------------------------ for updates that take their own steps
    def evaluate(self, forest: Forest, credit: Tensor, weight: Tensor) -> StepInfo:
        """The objective (`loss`) and the outputs of the policy as it is now: a forward pass, no step.

        Asked for before the first step, it is the proximal policy.
        """
        x = self._now(forest, self._names, **self.given(self.signals))
        return StepInfo(empty=False, loss=float(self._batch(forest, credit, weight, self.proximal).loss(x)), outputs=x)

    def gradient(
        self, forest: Forest, credit: Tensor, weight: Tensor, slope: Tensor | None = None
    ) -> dict[str, Tensor]:
        """By parameter name, for the policy as it is now, without a step: of the objective, or, with `slope` [P], of
        sum_p slope_p logprob_p."""
        short = [p.dtype for p in self.learner.optimiser.named.values() if torch.finfo(p.dtype).bits < 32]
        if short:
            raise ConfigError(
                f"this update moves parameters by less than {short[0]} can tell: set learner.dtype=float32, or train "
                "with another update"
            )
        if slope is not None:
            return self.learner.gradient(forest, lambda x: (slope * x["logprob"]).sum(), active=slope != 0)
        batch = self._batch(forest, credit, weight, self.proximal)
        return self.learner.gradient(forest, batch.loss, active=batch.active, **self._reads(batch))

    def slopes(self, forest: Forest, credit: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """dL/dx of each output [P] for the policy as it is now: the objective's gradient is the sum of slope times
        gradient of the output."""
        x = self.learner.outputs(forest, self._names, **self.given(self.signals))
        return gradient_of(self._batch(forest, credit, weight, self.proximal).loss, x)

    def record(self, forest: Forest, credit: Tensor, weight: Tensor, info: StepInfo) -> StepInfo:
        """Counts a step that the update has taken by itself; its figures are of `info.outputs`."""
        return self._counted(self._batch(forest, credit, weight, self.proximal), info, self.proximal)

    # ------------------------------------------------------------ what a step is made of
    @property
    def _unmoved(self) -> bool:
        """Whether no optimiser step has been taken: one that was skipped has moved nothing."""
        return all(i.nonfinite for i in self.infos)

    def _batch(
        self,
        forest: Forest,
        credit: Tensor,
        weight: Tensor,
        proximal: Tensor | None,
        trajectories: Tensor | None = None,
    ) -> Batch:
        if trajectories is None:
            return Batch(self.method, forest, credit, weight, self.signals, proximal, self.step_number)
        entries = forest.entries_of(trajectories)
        return Batch(
            self.method,
            forest.select(trajectories),
            credit[entries],
            weight[entries],
            self.signals.select(forest, trajectories),
            None if proximal is None else proximal[entries],
            self.step_number,
        )

    def _reads(self, batch: Batch) -> dict[str, Any]:
        """What the learner is to compute for the loss."""
        return {"names": self._names, "couples": self.method.couples, **self.given(batch.signals)}

    def given(self, held: Signals) -> dict[str, dict[str, Tensor]]:
        """The signals that outputs of the loss are made with, where a term names any (`TermPart.given`)."""
        names = dict.fromkeys(n for term in self.method.terms.values() for n in getattr(term, "given", ()))
        return {"given": {name: held[name] for name in names}} if names else {}

    def _now(self, forest: Forest, names: Iterable[str], **given: Any) -> dict[str, Tensor]:
        """Outputs of the policy as it is now; before the first optimiser step it is the proximal one."""
        found = self.learner.outputs(forest, tuple(names), **given)
        if not self.infos and self.proximal is None:
            self.proximal = found["logprob"]
        return found

    def _counted(self, batch: Batch, info: StepInfo, before: Tensor | None) -> StepInfo:
        """Notes an optimiser step, its figures and, of the first one, how far the sampler is from `before` [P]."""
        first = self._unmoved
        self.infos.append(info)
        if info.nonfinite:
            steepest = largest_slope(batch.method, batch.loss, info.outputs, batch.active, batch.forest)
            self.trouble = (
                f"the gradient is not finite (first in {info.nonfinite}); the largest slope is {steepest}: look at "
                "that reward and log-prob, or lower optim.lr"
            )
            warnings.warn(f"step {self.step_number}: no optimiser step was taken: {self.trouble}", stacklevel=4)
        elif not info.empty:
            self.metrics.append(batch.figures(info.outputs))
            if first and before is not None:
                self.sampler_gap = self._gap(before, batch.forest)
        return info

    def _gap(self, logprob: Tensor, forest: Forest) -> float:
        """Largest difference to the sampler among trained tokens that it sampled in this step, in this context."""
        node = forest.token_node[forest.path_token]
        same = (forest.policy_version[node] == self.step_number - 1) & forest.path_trainable
        if self.method.context == "trained":
            same &= forest.sampled_under[node] < 0
        gap = (logprob - forest.path_behaviour_logprob)[same].abs()
        gap = gap[gap.isfinite()]
        return float(gap.max()) if gap.numel() else 0.0
