"""One training step: tasks, rollouts, rewards, advantages, weights, update. `Stages.step` is the whole of it."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gxpo.algorithms.segments.base import LABEL
from gxpo.algorithms.signals import Signals, SignalTools
from gxpo.algorithms.signals.base import compute_signals
from gxpo.base.judges import meter
from gxpo.base.runtime import Clock, give_back, peak_megabytes
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.methods.method import Method, zero_signal_groups
from gxpo.models.chat.plain import decoder
from gxpo.models.decoder.vision import picture_grid_of
from gxpo.parts.definition import show
from gxpo.parts.functions import naming
from gxpo.parts.learning import learns_from_equal_groups
from gxpo.parts.protocols import Budget, Sampling, StepInfo
from gxpo.sampling.engines.openai import OpenAIEngine
from gxpo.sampling.engines.vllm import VllmEngine
from gxpo.sampling.rollouts.logged import LOGGED
from gxpo.training.asynchronous import Pipeline
from gxpo.training.config import Resolved
from gxpo.training.episodes import at_turn_limit, failures_of_agents, of_agents, of_episodes
from gxpo.training.resources import Resources
from gxpo.training.session import BoundLearner, Session

FAINT = 0.05  # share of low-precision weights that the first step changes, below which a warning is due
GAP_ALARM = {True: 0.1, False: 1.0}  # nats between sampler and learner at one token that call for a warning; by whether
# the model runs in float32 or better: in bfloat16 the two ways of computing one token differ by some tenths


class Stages(Resources):
    """The stages of a run, wired together; `step` takes them from tasks to parameters.

    resolved  from `gxpo.training.config.load` or `resolve`
    reward    Python functions instead of the setting `reward`
    source    a task source, an object instead of what the setting `task` names
    notify    called with a line where something takes long before the first step
    """

    def __init__(self, resolved: Resolved, *, reward: Any, source: Any = None, notify: Callable[[str], None]) -> None:
        super().__init__(resolved, reward, source, notify)
        self.step_number = 0
        self.tally, self.warned = Tally(), False  # of the steps taken here
        self.empty_steps = self.nonfinite_steps = 0
        self._trouble: list[str] = []  # of the steps since the last one that moved anything: why none did
        self.budget = Budget()
        self.lost: dict[str, str] = {}  # of each way in which an agent's episode broke, the first message
        self.last: tuple[Forest, Tensor, Session] | None = None  # the newest step, for `annotated`
        self.overlap: Pipeline | None = None  # samples beside the updates (`async.max_staleness`)

    def _begin_phase(self) -> None:
        """Begin the next phase if this one is over."""

    def step(self) -> dict[str, Any]:
        """One step from tasks to parameters; gives its line of metrics.jsonl (without writing it). After the last step
        of a phase, the first one of the next."""
        if self.tracker is not None:
            self._begin_phase()
        self.step_number += 1
        number, method, learner = self.step_number, self.method, self.learner
        counted, clock = self._counts(), Clock()
        served = of_servers(self.engine)

        scheduled = method.at(number)

        # tasks -> rollouts -> rewards
        seen = None if self.sampled is None else self.sampled.see
        session = self.session(number, seed=self.settings.seed, sampling=self.sampling, budget=self.budget, seen=seen)
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
        with naming("update", method.update, name=show):
            method.update.run(read, credit, weight, bound)
        if self.overlap is None:
            self.engine.policy_version = number  # an evaluation comes before the next step
        learnt = {k: v for part in method.signals.values() for k, v in part.learn(read, signals, tools).items()}
        give_back()
        clock.lap("update")

        # what the step was, for its parts, for people and for the next steps
        raised = {} if self.overlap is None else self.overlap.messages
        broken = failures_of_agents(forest) if any("agent" in info for info in forest.info) else {}
        self.lost = {**broken, **raised, **self.lost}
        self.source.observe(forest)
        method.observe(forest)
        self.rewards.observe(number, forest, lambda: session.texts(forest), session.known)
        if self.overlap is not None:
            self.overlap.publish(number)
        self._count(bound, lr)
        self.last = (forest, credit, session)
        figures = {
            "step": number,
            **({} if self.tracker is None else {"phase": self.tracker.number + 1}),
            **of_rollouts(forest, credit if method.reads_credit else method.active(read, credit, weight).double()),
            **of_sources(forest, number - 1),
            **({} if self.sampled is None else self.sampled.figures()),
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
        row = {
            **figures,
            **method.adjust(figures),
            **scheduled,
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
        if self.tracker is not None:
            self.tracker.take(row)
        return row

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
        forest = session.segment(session.grown(self.method.rollout, tasks))
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
        said = forest.action_text
        if self.method.reads_texts:
            decode = decoder(self.tokenizer, self.chat)
            forest = forest.replace(action_text=[decode(forest.action(s)) for s in range(forest.n_steps)])
        forest = self.method.shaped(forest).replace(action_text=said)
        if self.settings.scoring.shuffle:
            order = torch.Generator().manual_seed(zlib.crc32(f"{self.settings.seed}/{self.step_number}".encode()))
            outcome = forest.outcome[torch.randperm(forest.n_trajectories, generator=order)]
            # rewards of single turns would tell what shuffled outcomes do not; without them returns are the outcome
            forest = forest.replace(outcome=outcome, step_reward=torch.full_like(forest.step_reward, torch.nan))
        return forest

    def tools(self, step: int, session: Session | None = None) -> SignalTools:
        """What signal parts may use; texts and answers come with the session of a step."""
        lent: dict[str, Any] = {"picture_grid": picture_grid_of(getattr(self.learner, "model", None))}
        if session is not None:
            lent |= {"encode": session.tokenize, "answers": session.answers, "asked": session.asked}
        pad, seed = self.tokenizer.pad_token_id, self.settings.seed
        return SignalTools(self.learner, decoder(self.tokenizer, self.chat), pad, step, seed, **lent)

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
            values |= {name: x.detach() for name, x in compute_signals(part, forest, held, tools).items()}
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


# ---------------------------------------------------------------- figures
def _mean(x: Tensor) -> float | None:
    """Mean of the known values."""
    known = x[x.isfinite()]
    return float(known.mean()) if known.numel() else None


BORROWED = ("replay", "demonstration", "baseline", LOGGED)  # origins that the policy is not to be judged by


def of_rollouts(forest: Forest, credit: Tensor) -> dict[str, Any]:
    """What the step's rollouts earned, and how many groups were told anything by their credit [P] (where the objective
    reads none: 1 at the entries that it reads). Borrowed rollouts are counted, but earn nothing here."""
    zero_signal = zero_signal_groups(forest, credit)
    lengths = torch.bincount(forest.path_trajectory, minlength=forest.n_trajectories).to(torch.float64)
    own = torch.tensor([origin not in BORROWED for origin in forest.origin], dtype=torch.bool)
    played = any("end" in info for info in forest.info)
    cut = forest.truncated & ~at_turn_limit(forest) if played else forest.truncated
    return {
        "reward_mean": _mean(forest.outcome[own]),
        **of_spread(forest, own),
        "success_rate": _mean(forest.success[own]),
        "zero_signal_groups": _mean(zero_signal.to(torch.float64)),
        **of_verdicts(forest, zero_signal),
        "groups": zero_signal.numel(),
        "trajectories": forest.n_trajectories,
        "unscored": int((~forest.scored).sum()),
        "length_mean": _mean(lengths[own]),
        "truncated_rate": _mean(cut[own].to(torch.float64)),
        **{f"reward_{name}": _mean(forest.components[own, i]) for i, name in enumerate(forest.component_names)},
        **of_labels(forest),
        **of_answers(forest, own),
        **(of_episodes(forest) if played else {}),
        **(of_agents(forest) if any("agent" in info for info in forest.info) else {}),
    }


def of_answers(forest: Forest, own: Tensor) -> dict[str, Any]:
    """How many of the trajectories `own` [R] have an answer that a reward could not read; of episodes, turns count."""
    read = [i for i, name in enumerate(forest.component_names) if name.startswith("malformed_")]
    return {"malformed_rate": _mean(forest.components[own][:, read].amax(1))} if read else {}


def of_spread(forest: Forest, own: Tensor) -> dict[str, Any]:
    """How far outcomes of the trajectories `own` [R] lie apart: within their groups, and at most."""
    known = own & forest.scored
    group, outcome = forest.ids("group", axis="R"), torch.where(known, forest.outcome, 0.0)
    compared = known & (grouped.count(group, known) > 1)
    _, first = torch.unique(group[compared], return_inverse=True)
    spread = grouped.std(outcome, group, known)[compared]
    of_groups = torch.zeros(int(first.max()) + 1 if first.numel() else 0, dtype=torch.float64)
    of_groups[first] = spread
    every = forest.outcome[known]
    return {
        "reward_std": _mean(of_groups),
        "reward_min": float(every.min()) if every.numel() else None,
        "reward_max": float(every.max()) if every.numel() else None,
    }


def of_verdicts(forest: Forest, zero_signal: Tensor) -> dict[str, Any]:
    """The shares of groups with zero signal [groups] because all of their verdicts are right, or all wrong; nothing
    where there is no verdict."""
    known = forest.success.isfinite()
    if not bool(known.any()):
        return {}
    group = forest.ids("group", axis="R")
    verdict = torch.where(known, forest.success, 0.0)
    worst, best = grouped.min(verdict, group, known), grouped.max(verdict, group, known)
    right, wrong = (torch.zeros(len(zero_signal), dtype=torch.bool) for _ in range(2))
    right[group[known]], wrong[group[known]] = (worst >= 1.0)[known], (best <= 0.0)[known]
    return {
        "zero_signal_all_right": _mean((zero_signal & right).to(torch.float64)),
        "zero_signal_all_wrong": _mean((zero_signal & wrong).to(torch.float64)),
    }


def of_labels(forest: Forest) -> dict[str, Any]:
    """The share of turns in which the segmenter has labelled nothing; nothing where it gives no labels."""
    if LABEL not in forest.extras:
        return {}
    tagged = torch.zeros(forest.n_steps, dtype=torch.float64)
    tagged[forest.path_step[forest.extras[LABEL][forest.path_token] > 0]] = 1.0
    return {"untagged_turns": _mean(1.0 - tagged)}


def sampled_here(forest: Forest) -> Tensor:
    """[R] bool: trajectories whose policy versions are this run's; those of logged ones count another's updates."""
    return torch.tensor([origin != LOGGED for origin in forest.origin], dtype=torch.bool)


def of_sources(forest: Forest, version: int) -> dict[str, Any]:
    """Where the step's rollouts come from: how many updates old they are, the shares of origins but the policy's, and
    how sure the sampler was of what it drew in this step.

    version   the policy's own at the start of the step. Tokens without a sampler (demonstrations) have no age.
    """
    known = forest.path_trainable & forest.path_behaviour_logprob.isfinite()
    known &= forest.to_path(sampled_here(forest), "R")
    node = forest.token_node[forest.path_token[known]]
    age = (version - forest.policy_version[node]).to(torch.float64)
    shares = {f"origin_{name}": forest.origin.count(name) / len(forest.origin) for name in sorted(set(forest.origin))}
    stale = {"staleness_mean": _mean(age), "staleness_max": float(age.max()) if age.numel() else None}
    fresh = forest.trainable & (forest.policy_version[forest.token_node] == version)
    if LOGGED in forest.origin:
        fresh &= torch.zeros_like(fresh).index_fill(0, forest.path_token[known], True)
    return {
        **stale,
        "entropy_sampled": _mean(-forest.behaviour_logprob[fresh]),
        **({} if set(forest.origin) <= {"policy"} else shares),
    }


def of_updates(
    infos: Sequence[StepInfo], metrics: Sequence[Mapping[str, float]], gap: tuple[float | None, float | None]
) -> dict[str, Any]:
    """What the optimiser steps that were taken did, averaged over them; `gap`: the sampler's largest and mean."""
    run = [i for i in infos if not i.empty]
    taken = [i for i in run if not i.nonfinite]
    forward, flat = sum(i.tokens_forward for i in run), sum(i.tokens_flat for i in run)
    names = dict.fromkeys(k for m in metrics for k in m)
    return {
        **{name: _average([m[name] for m in metrics if name in m]) for name in names},
        "sampler_gap": gap[0],
        "sampler_gap_mean": gap[1],
        "loss": _average([i.loss for i in taken]),
        "grad_norm": _average([i.grad_norm for i in taken]),
        "optimiser_steps": len(taken),
        **({"weights_moved": _average(moved)} if (moved := [i.moved for i in taken if i.moved is not None]) else {}),
        "tokens_forward": forward,
        "unique_token_ratio": flat / forward if forward else None,
    }


def _average(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def of_servers(engine: Any) -> dict[str, float]:
    """What an engine outside of this process has counted so far; nothing of others."""
    return engine.figures() if isinstance(engine, OpenAIEngine | VllmEngine) else {}


# ---------------------------------------------------------------- whether there is anything to learn from
PATIENCE = 10  # steps of zero-signal groups before a warning: at first a weak policy may get all of them wrong


@dataclass
class Tally:
    """What the lines of metrics.jsonl say of steps 1 to `steps`."""

    steps: int = 0
    rollouts: int = 0
    unscored: int = 0
    groups: int = 0
    zero_signal: float = 0.0
    updates: int = 0
    labelled: int = 0  # steps whose turns could have tags
    tagged: float = 0.0  # the sum of their shares of turns that have some

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Tally:
        tally = cls()
        for row in rows:
            tally.add(row)
        return tally

    def add(self, row: Mapping[str, Any]) -> None:
        self.steps += 1
        self.rollouts += row["trajectories"]
        self.unscored += row["unscored"]
        self.groups += row["groups"]
        self.zero_signal += (row["zero_signal_groups"] or 0.0) * row["groups"]  # None where there are no groups
        self.updates += row["optimiser_steps"]
        if (untagged := row.get("untagged_turns")) is not None:
            self.labelled += 1
            self.tagged += 1.0 - untagged

    @property
    def all_unscored(self) -> bool:
        return self.unscored == self.rollouts > 0

    def problem(self, method: Method, why: Mapping[str, str] | None = None) -> str | None:
        """Why nothing, or not what the method says, can have been learned in these steps, in a line; None where it can.

        why  messages of what could not be scored, by kind

        Groups of zero advantage are no problem where a term of the objective teaches without it.
        """
        steps = "step 1" if self.steps == 1 else f"the first {self.steps} steps"
        if self.all_unscored:
            said = "; ".join(why.values()) if why else "see the run's warnings"
            return f"nothing is learned: all {self.rollouts} rollouts of {steps} were unscored ({said})"
        if self.labelled and not self.tagged:
            return (
                f"no turn of {steps} has anything that segment.patterns look for, so what the method does with it is "
                "left out: ask for that form of replies in the prompt or chat.system, or change the patterns"
            )
        if any(map(learns_from_equal_groups, method.terms.values())):
            return None
        if self.groups and self.zero_signal > self.groups - 0.5:
            return (
                f"nothing is learned: all {self.groups} groups of {steps} had zero signal, all advantages 0 "
                "(equal rewards within a group?): see `gxpo check-reward` and `gxpo methods --for 'all-wrong groups'`"
            )
        if self.steps and not self.updates:
            return f"nothing is learned: no parameter has moved in {steps}, no rollout had advantage and weight"
        return None
