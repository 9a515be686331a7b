"""One training step: tasks, rollouts, rewards, advantages, weights, update. `Stages.step` is the whole of it."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gxpo import runtime
from gxpo.config import Resolved
from gxpo.forest import Forest
from gxpo.judges import meter
from gxpo.learners.remote import RemoteLearner
from gxpo.protocols import Budget, Sampling
from gxpo.rewards import RewardSet
from gxpo.runtime import Clock, give_back, peak_megabytes
from gxpo.signals import Signals, SignalTools
from gxpo.trainer import checkpoint, preflight, setup
from gxpo.trainer.asynchronous import Pipeline
from gxpo.trainer.episodes import failures_of_agents
from gxpo.trainer.measured import measured
from gxpo.trainer.phases import Course
from gxpo.trainer.session import BoundLearner, Session, decoder
from gxpo.trainer.shared_envs import SharedEnvs
from gxpo.trainer.start import load_learner, parameters_of, start_from
from gxpo.trainer.step_figures import of_rollouts, of_servers, of_sources, of_updates
from gxpo.trainer.tally import PATIENCE, Tally

FAINT = 0.05  # share of low-precision weights that the first step changes, below which a warning is due
GAP_ALARM = {True: 0.1, False: 1.0}  # nats between sampler and learner at one token that call for a warning; by whether
# the model runs in float32 or better: in bfloat16 the two ways of computing one token differ by some tenths


class Stages:
    """The stages of a run, wired together; `step` takes them from tasks to parameters.

    resolved  from `gxpo.config.load` or `resolve`
    reward    Python functions instead of the setting `reward`
    source    a task source, an object instead of what the setting `task` names
    notify    called with a line where something takes long before the first step
    """

    def __init__(self, resolved: Resolved, *, reward: Any, source: Any = None, notify: Callable[[str], None]) -> None:
        self.resolved, self._given, self._notify = resolved, (reward, source), notify
        self.course = Course(resolved)
        self._open = ExitStack()
        self.step_number = 0
        self.tally, self.warned = Tally(), False  # of the steps taken here
        self.empty_steps = self.nonfinite_steps = 0
        self._trouble: list[str] = []  # of the steps since the last one that moved anything: why none did
        self.budget = Budget()
        self.lost: dict[str, str] = {}  # of each way in which an agent's episode broke, the first message
        self.last: tuple[Forest, Tensor, Session] | None = None  # the newest step, for `annotated`
        self.overlap: Pipeline | None = None  # samples beside the updates (`async.max_staleness`)

    def _set_up(
        self,
        start: str | Path | None,
        *,
        measure: bool,
        keep: bool = False,
        reference: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Make what this phase needs; `_open` closes it.

        start      a run or checkpoint whose parameters it begins with; `keep`: and whose optimiser's state
        measure    whether what `auto` means has to be found out
        reference  parameters of its reference policy where that is `previous`; None: those that it begins with
        """
        now = self.course.now
        s, method, given = now.settings, now.method, self._given
        own = () if now.phase is None else now.phase.keys
        reward, source = None if "reward" in own else given[0], None if "task" in own else given[1]
        preflight.check_settings(s, method)
        self.sampling = setup.sampling_of(s)
        self.world = setup.world_of(s, source)
        self.source = self.world.source
        with ExitStack() as opened:
            opened.callback(self.world.close)
            preflight.check_world(method, self.world, s.task)
            preflight.check_model(s)
            self.rewards = RewardSet.make(
                reward if reward is not None else s.rewards,
                source=self.source,
                timeout=s.scoring.timeout,
                workers=s.scoring.workers,
                options=s.scoring.options,
                given=getattr(method.rollout, "components", ()),
            )
            opened.callback(self.rewards.close)
            policy = setup.policy_of(now, self._notify)
            opened.callback(getattr(policy.engine, "close", lambda: None))
            if keep:
                load_learner(policy.learner, Path(str(start)))
            elif start is not None:
                start_from(policy.learner, start)
            if (
                now.phase is not None
                and now.phase.reference == "previous"
                and not isinstance(policy.learner, RemoteLearner)
            ):
                policy.learner.refer(policy.learner.snapshot() if reference is None else reference)
            self.tokenizer, self.learner, self.engine = policy.tokenizer, policy.learner, policy.engine
            self.chat, self.device = policy.chat, policy.device
            self.episode = setup.episode_of(s, self.world, policy)
            if measure:
                self.resolved = measured(self.resolved, policy, self.source, self._notify)
                self.course.phases = self.resolved.phases or (self.resolved,)
                now = self.course.now
            self._open = opened.pop_all()
        self.settings = s = now.settings
        envs = self.world.envs
        self.envs = envs if envs is None or runtime.world() == 1 else SharedEnvs(envs)
        longest = s.sampling.max_new_tokens * max(self.episode.max_turns, getattr(method.rollout, "max_turns", 1))
        self.method = method.fill(horizon=float(longest), max_length=longest, total_steps=now.steps)
        for part in self.method.signals.values():
            part.bind(self.tools(0))

    def _set_up_as(self, path: Path) -> None:
        """Make what the phase of a checkpoint needs, for its parameters to be loaded; of a run without phases all."""
        reference = None
        if self.course.phase is not None:
            self.course.load_state_dict(checkpoint.state_of(path)["phases"])
            if self.course.phase.reference == "previous":
                reference = parameters_of(path.parents[1], self.course.began)
        self._set_up(None, measure=False, reference=reference)

    def step(self) -> dict[str, Any]:
        """One step from tasks to parameters; gives its line of metrics.jsonl (without writing it)."""
        self.step_number += 1
        number, method, learner = self.step_number, self.method, self.learner
        counted, clock = self._counts(), Clock()
        served = of_servers(self.engine)

        # tasks -> rollouts -> rewards
        session = self.session(number, seed=self.settings.seed, sampling=self.sampling, budget=self.budget)
        forest = self._sampled(session, clock) if self.overlap is None else self.overlap.rollouts(session, clock)
        forest = self.shape(forest)
        clock.lap("score")

        # rewards -> advantage and weight of every action token
        tools = self.tools(number, session)
        read, signals, credit, weight = self.credited(forest, tools)

        # advantages -> parameters
        lr = learner.optimiser.current_lr
        proximal = signals["proximal_logprob"] if self._needs_proximal else None
        bound = BoundLearner(learner, method, read, signals, number, proximal)
        method.update.run(read, credit, weight, bound)
        if self.overlap is None:
            self.engine.policy_version = number  # an evaluation comes before the next step
        learnt = {k: v for part in method.signals.values() for k, v in part.learn(read, signals, tools).items()}
        give_back()
        clock.lap("update")

        # what the step was, for its parts, for people and for the next steps
        raised = {} if self.overlap is None else self.overlap.messages
        self.lost = {**failures_of_agents(forest), **raised, **self.lost}
        self.source.observe(forest)
        method.observe(forest)
        if self.overlap is not None:
            self.overlap.publish(number)
        self._count(bound, lr)
        self.last = (forest, credit, session)
        figures = {
            "step": number,
            **({} if self.course.phase is None else {"phase": self.course.number + 1}),
            **of_rollouts(forest, credit if method.reads_credit else method.active(read, credit, weight).double()),
            **of_sources(forest, number - 1),
            **{f"scoring_{kind}": n - counted[kind] for kind, n in self.unscored.items()},
            **of_updates(bound.infos, bound.metrics, (bound.sampler_gap, bound.sampler_gap_mean)),
            **learnt,
            **({} if self.overlap is None else {**self.overlap.figures, "mismatch_kl": bound.mismatch_kl}),
        }
        self.tally.add(figures)
        self._check_progress()
        now = self._counts()
        self.budget.judge_tokens += now["judged"] - counted["judged"]
        generated, forward = now["generated"] - counted["generated"], figures["tokens_forward"]
        return {
            **figures,
            **method.adjust(figures),
            "lr": lr,
            "empty_steps": self.empty_steps,
            "nonfinite_steps": self.nonfinite_steps,
            "generated_tokens": self.budget.generated_tokens,
            "judge_tokens": self.budget.judge_tokens,
            **({"cost": self.budget.cost(prices)} if (prices := self.settings.logging.prices) else {}),
            "discarded_rollouts": self.budget.discarded,
            "prefilled_tokens": now["prefilled"] - counted["prefilled"],
            "reused_tokens": now["reused"] - counted["reused"],
            **learner.checksum(),
            **clock.figures(generated, forward),
            **{name: x - served[name] for name, x in of_servers(self.engine).items()},
            "memory_peak_mb": peak_megabytes(),
        }

    # ------------------------------------------------------------ what a step is made of
    def session(self, step: int, *, seed: int, sampling: Sampling, budget: Budget, **others: Any) -> Session:
        """The stages as one step sees them; samplers get the newest weights. `others`: what of them is another one."""
        if "engine" not in others:
            self.learner.publish()
        own: dict[str, Any] = {
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
        }
        return Session(**{**own, **others}, sampling=sampling, seed=seed, step=step, budget=budget)

    def _sampled(self, session: Session, clock: Clock) -> Forest:
        """The step's rollouts, sampled and scored now."""
        self.engine.policy_version = self.step_number - 1
        tasks = session.draw(self.settings.tasks.per_step)
        forest = session.segment(self.method.rollout.grow(tasks, session))
        give_back()
        clock.lap("sample")
        self.rewards.at(self.step_number, self.settings.trainer.steps)
        return session.score(forest)

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
        own = self.engine if self.overlap is None else self.overlap.totals
        tokens = {"prefilled": own.prefilled_tokens, "reused": own.reused_tokens}
        judged = meter.tokens if self.overlap is None else self.overlap.totals.judge_tokens
        return {**self.unscored, **tokens, "generated": self.budget.generated_tokens, "judged": judged}

    @property
    def unscored(self) -> dict[str, int]:
        """How many scores of rollouts are missing so far, by kind."""
        counts = dict(self.rewards.counts)
        return counts if self.overlap is None else {kind: self.overlap.totals.scoring.get(kind, 0) for kind in counts}

    def _count(self, bound: BoundLearner, lr: float) -> None:
        """Optimiser steps that moved nothing; warns where sampler and learner disagree, or steps are too small."""
        infos = bound.infos
        self.empty_steps += int(all(i.empty for i in infos))
        self.nonfinite_steps += sum(bool(i.nonfinite) for i in infos)
        if any(not (i.empty or i.nonfinite) for i in infos):
            self._trouble = []
        elif bound.trouble:
            self._trouble = [*self._trouble, bound.trouble]
        if (bound.sampler_gap or 0.0) > GAP_ALARM[self.settings.learner.dtype != "bfloat16"]:
            warnings.warn(
                f"step {self.step_number}: the sampler's and the learner's log-probs of a token differ by "
                f"{bound.sampler_gap:.2g} nats",
                stacklevel=3,
            )
        moved = [i.moved for i in infos if i.moved is not None] if self.learner.optimiser.copies else []
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
        envs = {} if self.world.envs is None else self.world.envs.messages
        return {**self.rewards.messages, **envs, **self.lost}

    def _check_progress(self) -> None:
        """One warning where the run has had nothing to learn from since its first step."""
        from_start = self.tally.steps == self.step_number
        due = self.tally.all_unscored or self.tally.steps == PATIENCE
        if not self.warned and from_start and due and (problem := self.tally.problem(self.method, self.failures)):
            self.warned = True
            warnings.warn(problem, stacklevel=3)
