"""What a step lends its parts: a `Session` to the rollout (draw, sample, score), a `BoundLearner` to the update."""

from __future__ import annotations

import json
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from gxpo.algorithms.segments import Segmenter, SegmentTools
from gxpo.algorithms.signals import Signals
from gxpo.base import runtime
from gxpo.base.errors import ConfigError, GxpoError, ModelError, PictureError, TaskError
from gxpo.environments.tasks.source import solution_of
from gxpo.forest.forest import Forest
from gxpo.learning.accumulate import gradient_of
from gxpo.methods.method import Loss, Method
from gxpo.models.chat import PlainChat
from gxpo.models.chat.plain import Tokens, decoder
from gxpo.parts.definition import show
from gxpo.parts.functions import naming, place_of
from gxpo.parts.protocols import (
    MISREAD,
    Budget,
    Chat,
    Completion,
    Engine,
    Envs,
    EpisodeRules,
    Message,
    PolicyTokens,
    Request,
    Sampling,
    StepInfo,
    Task,
    TaskSource,
)
from gxpo.sampling.rollouts.context import prompt_messages
from gxpo.sampling.rollouts.logged import LOGGED
from gxpo.sampling.rollouts.wording import reworded
from gxpo.training.culprit import largest_slope
from gxpo.training.misread import without_misread
from gxpo.training.packed_completions import pack, unpack
from gxpo.training.step_scores import StepScores, with_scores


class Session:
    """The stages as one step of the trainer sees them."""

    def __init__(
        self,
        *,
        source: TaskSource,
        engine: Engine,
        rewards: Any,
        tokenizer: Any,
        sampling: Sampling,
        seed: int,
        step: int,
        budget: Budget | None = None,
        chat: Chat | None = None,
        system: str | None = None,
        envs: Envs | None = None,
        episode: EpisodeRules | None = None,
        segmenter: Segmenter | None = None,
        learner: Any = None,
        seen: Callable[[Forest], None] | None = None,
    ) -> None:
        """See `protocols.Session`. Without `chat` prompts are encoded as they are. `learner`: the policy, where the
        segmenter asks for its entropies. `seen` is called with all that is scored."""
        self.source, self.engine, self.rewards, self.tokenizer = source, engine, rewards, tokenizer
        self.seed, self.step, self.system, self.envs = seed, step, system, envs
        self.chat: Chat = PlainChat(tokenizer) if chat is None else chat
        self.sampling = replace(sampling, stop_ids=tuple(dict.fromkeys((*sampling.stop_ids, *self.chat.stop_ids))))
        self.episode = episode or EpisodeRules()
        self.budget = budget if budget is not None else Budget()
        self._segmenter, self.learner, self._seen = segmenter, learner, seen
        self._drawn: list[Task] = []
        self._tasks: dict[str, Task] = {}
        self._scores = StepScores()

    def draw(self, n: int) -> list[Task]:
        """The next `n` tasks of this step; asking again goes on where the last call ended."""
        begin = len(self._drawn)
        self._drawn = self.source.draw(begin + n, self.step)
        fresh = self._drawn[begin:]
        self.know(fresh)
        return fresh

    @property
    def known(self) -> Mapping[str, Task]:
        """The tasks of this step by id: what was drawn, and what `know` was told."""
        return self._tasks

    @property
    def weighed(self) -> tuple[str, ...]:
        """The components of the outcome that have a weight by their own name."""
        return getattr(self.rewards, "weighed", ())

    def know(self, tasks: Sequence[Task]) -> None:
        """Remember tasks, so that rollouts of them can be scored."""
        self._tasks |= {t.id: t for t in tasks}

    def encode(self, task: Task) -> tuple[int, ...]:
        """The prompt's token ids: a text is a message of the user's; ids are left as they are."""
        prompt = task.prompt
        if not isinstance(prompt, str) and (not prompt or isinstance(prompt[0], int)):
            return cast("tuple[int, ...]", prompt)
        previous = self._tasks.get(task.id)
        if previous is not None and previous.prompt != prompt and getattr(self.chat, "is_rendered", False):
            raise ConfigError(
                "chat.template=rendered: this method's rollout puts prompts in other words, and a rendered prompt is a "
                "whole conversation: give messages, or take a rollout that does not"
            )
        try:
            messages = prompt_messages(self.chat, self.system, cast("str | tuple[Message, ...]", prompt))
            return tuple(self.chat.start(messages).context)
        except (ModelError, PictureError) as error:
            raise TaskError(f"task {task.id!r}: {error}") from error

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens left out that are no content (`gxpo.models.chat.plain.decoder`)."""
        return self._decode(tokens)

    @cached_property
    def _decode(self) -> Callable[[Sequence[int]], str]:
        return decoder(self.tokenizer, self.chat)

    @cached_property
    def _tokens(self) -> Tokens:
        return getattr(self.chat, "tokens", None) or Tokens(self.tokenizer)

    def tokenize(self, text: str, *, markup: bool = False) -> tuple[int, ...]:
        """Ids of a text as it stands, without a template. The names of special tokens in it stay text, unless `markup`:
        for texts of the configuration, such as what ends a thinking."""
        return self._tokens.encode(text if markup else self._tokens.typed(text))

    def solution(self, task: Task) -> str | None:
        """A worked solution: the task's own `info["solution"]`, or what its source can write."""
        return solution_of(self.source, task)

    def answers(self, forest: Forest) -> list[str | None]:
        """The right answer to each trajectory's task as a text: the task's own, or what its source knows of it."""
        known = getattr(self.source, "answer", lambda task: None)
        found: dict[str, str | None] = {}
        for name in dict.fromkeys(forest.task):
            task = self._tasks.get(name)
            answer = None if task is None else known(task) if task.answer is None else task.answer
            found[name] = None if answer is None else str(answer)
        return [found[name] for name in forest.task]

    def asked(self, task: str, template: str, said: Mapping[str, str]) -> tuple[int, ...] | None:
        """Token ids of this step's task, asked in other words (`again.reworded`); None where that can't be done: an
        episode, a task that is not known, a prompt that is neither a text nor a chat with a text of the user's."""
        found = None if self.envs is not None else self._tasks.get(task)
        try:
            return None if found is None else self.encode(reworded(found, template, **said))
        except TaskError:
            return None

    def sample(self, requests: Sequence[Request], sampling: Sampling | None = None) -> list[list[Completion]]:
        """Completions of each request, in order; under several processes each samples its share."""
        sampling = self.sampling if sampling is None else sampling
        rank, world = runtime.rank(), runtime.world()
        # what an engine keeps for an episode is of use only where its next turn is sampled, too
        place = [zlib.crc32(r.keep[0].encode()) % world if r.keep else i % world for i, r in enumerate(requests)]
        mine = self.engine.sample([r for r, p in zip(requests, place, strict=True) if p == rank], sampling)
        if world == 1:
            out = mine
        else:
            shares = [iter(unpack(blob)) for blob in runtime.gather(pack(mine))]
            out = [next(shares[p]) for p in place]
        self.budget.generated_tokens += sum(len(c.tokens) for group in out for c in group)
        self.budget.rollouts += sum(stream.turn == 0 for request in requests for stream in request.streams)
        return out

    def release(self, names: Sequence[str]) -> None:
        """The engine may forget what it kept under these names."""
        self.engine.release(names)

    def texts(self, forest: Forest) -> list[str]:
        """What each trajectory's actions say."""
        entries = forest.path_trajectory.tolist()
        tokens: list[list[int]] = [[] for _ in range(forest.n_trajectories)]
        for r, token in zip(entries, forest.token[forest.path_token].tolist(), strict=True):
            tokens[r].append(token)
        return [self.decode(t) for t in tokens]

    def segment(self, forest: Forest) -> Forest:
        """The forest cut into the method's segments; as it is where there is no segmenter, or where it has segments."""
        if self._segmenter is None or bool((forest.segment >= 0).any()):
            return forest
        return self._segmenter(forest, SegmentTools(self.decode, self.learner))

    def grown(self, rollout: Any, tasks: Sequence[Task]) -> Forest:
        """A rollout's forest of these tasks; GxpoError where it gives no forest."""
        with naming("rollout", rollout, name=show):
            forest = rollout.grow(tasks, self)
        if not isinstance(forest, Forest):
            what = f"rollout {show(rollout)}{place_of(rollout)}"
            raise GxpoError(f"{what} gave {type(forest).__name__}; grow and merge have to give a Forest")
        return forest

    def score(self, forest: Forest, texts: Sequence[str] | None = None) -> Forest:
        """The forest with outcomes, components and success.

        A trajectory that brings a finite outcome keeps what it has. One that was scored before in this step, with the
        same actions, keeps that score, or stays unscored, whether or not it brings it. `texts` are judged in the place
        of all that was said.
        """
        forest = self._scores.recalled(forest)
        new, judged = ~self._scores.is_met(forest), ~self._scores.is_judged(forest)
        scored_forest = self._judged(forest, judged, texts)
        if MISREAD in scored_forest.step_finish:
            scored_forest = without_misread(scored_forest)
        self._scores.note(forest, scored_forest, judged)
        if self._seen is not None and bool(new.any()):
            self._seen(scored_forest.select(new))
        return scored_forest

    def recall(self, forest: Forest) -> Forest:
        """The forest of attempts as they were played, with the scores that some got before in this step."""
        return self._scores.recalled(forest, written=True)

    def _judged(self, forest: Forest, fresh: torch.Tensor, texts: Sequence[str] | None) -> Forest:
        """The forest with these rows ([R] bool) scored."""
        if not bool(fresh.any()):
            return forest
        rows = fresh.nonzero().squeeze(1)
        new = forest.select(rows)
        said: list[str] = self.texts(new) if texts is None else [texts[int(r)] for r in rows]
        scored = self._score(new, said)
        return scored if len(rows) == forest.n_trajectories else with_scores(forest, rows, scored)

    def _score(self, forest: Forest, texts: Sequence[str]) -> Forest:
        """All trajectories scored, by the first process for all of them."""
        blob: dict[str, Any] = {}
        if runtime.rank() == 0:
            if unknown := [name for name in forest.task if name not in self._tasks]:
                raise GxpoError(
                    f"a rollout of task {unknown[0]!r} can't be scored: this step has not drawn it; tell the session "
                    "of further tasks, session.know(tasks)"
                )
            scored = self.rewards.score(forest, texts, [self._tasks[t] for t in forest.task])
            broken = torch.tensor(["failure" in info for info in forest.info], dtype=torch.bool)
            scored = scored.replace(outcome=scored.outcome.masked_fill(broken, torch.nan))
            if runtime.world() == 1:
                return scored
            blob = {
                "names": scored.component_names,
                "outcome": scored.outcome.tolist(),
                "components": scored.components.tolist(),
                "success": scored.success.tolist(),
            }
        blob = json.loads(runtime.gather(json.dumps(blob).encode())[0])
        block = torch.tensor(blob["components"], dtype=torch.float64).reshape(forest.n_trajectories, -1)
        return forest.with_rewards(
            torch.tensor(blob["outcome"], dtype=torch.float64),
            components={k: block[:, i] for i, k in enumerate(blob["names"])},
            success=torch.tensor(blob["success"], dtype=torch.float64),
        )


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
        if "entropy" not in x:  # a training engine may give none
            return found
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
        # |proximal - behaviour| log-prob among the tokens of the first optimiser step; None: nothing was compared
        self.sampler_gap: float | None = None  # the largest
        self.sampler_gap_mean: float | None = None
        self.mismatch_kl: float | None = None  # of all of them that a sampler is known of, in nats a token
        # an output whose own signal is nan throughout is one that nobody reads in this step
        unread = {n for n in method.outputs if n.at and n in signals and bool(signals[n].isnan().all())}
        shown = () if "entropy" not in getattr(learner, "gives", ("entropy",)) else ("entropy",)
        self._names = tuple(n for n in dict.fromkeys((*method.outputs, *shown)) if n not in unread)

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
        short = [p.dtype for p in self.learner.optimiser.parameter_by_name.values() if torch.finfo(p.dtype).bits < 32]
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
        return {"given": {name: held[name] for name in self.method.given}} if self.method.given else {}

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
                self._compare(before, batch.forest)
        return info

    def _compare(self, logprob: Tensor, forest: Forest) -> None:
        """Notes the largest and the mean difference to the sampler among trained tokens that it sampled in this step,
        in this context, and the divergence from it among those of any age: the mean of r - 1 - log r, r = proximal /
        behaviour, an estimate of KL(behaviour || proximal)."""
        node = forest.token_node[forest.path_token]
        alike = forest.path_trainable
        if self.method.context == "trained":
            alike = alike & (forest.sampled_under[node] < 0)
        if LOGGED in forest.origin:  # their versions count another run's updates
            own = torch.tensor([origin != LOGGED for origin in forest.origin], dtype=torch.bool)
            alike = alike & forest.to_path(own, "R")
        apart = logprob - forest.path_behaviour_logprob
        gap = apart[alike & (forest.policy_version[node] == self.step_number - 1)].abs()
        gap = gap[gap.isfinite()]
        if gap.numel():
            self.sampler_gap, self.sampler_gap_mean = float(gap.max()), float(gap.mean())
        apart = apart[alike & apart.isfinite()]
        if apart.numel():
            self.mismatch_kl = float((apart.expm1() - apart).mean())
