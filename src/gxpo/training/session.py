"""Sampling, scoring and tokenising for the rollout part of one step: `Session`.

Also the step's scores (`StepScores`): no trajectory is judged twice, and none loses its score where it is written down
again. Optimiser steps are in `bound_learner.py`.
"""

from __future__ import annotations

import json
import math
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from gxpo.algorithms.segments import Segmenter, SegmentTools
from gxpo.base import runtime
from gxpo.base.errors import ConfigError, GxpoError, ModelError, PictureError, TaskError
from gxpo.environments.rewards.batch import action_tokens, answer_tokens, with_pictures
from gxpo.environments.tasks.source import solution_of
from gxpo.forest.forest import Forest
from gxpo.models.chat import PlainChat
from gxpo.models.chat.messages import prompt_messages
from gxpo.models.chat.plain import Tokens, decoder
from gxpo.models.picture_tokens import Codebook, known_words
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
    Request,
    Sampling,
    Task,
    TaskSource,
    TokenOptions,
)
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.sampling.rollouts.wording import reword
from gxpo.training.completion_bytes import pack, unpack


class Session:
    """Services of one step for rollout parts: tasks, sampling, environments, scoring, tokenising.

    Implements `gxpo.parts.protocols.Session`.

    chat       None: prompts are encoded as they are
    players    engines of policies that other checkpoints play, by name
    learner    the policy, where the segmenter reads its entropies
    on_scored  called with each forest of trajectories that are scored for the first time
    """

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
        on_scored: Callable[[Forest], None] | None = None,
        players: Mapping[str, Engine] | None = None,
    ) -> None:
        self.source, self.engine, self.rewards, self.tokenizer = source, engine, rewards, tokenizer
        self.seed, self.step, self.system, self.envs = seed, step, system, envs
        self.chat: Chat = PlainChat(tokenizer) if chat is None else chat
        # The template's end of a turn stops sampling beside the ids of the configuration.
        self.sampling = replace(sampling, stop_ids=tuple(dict.fromkeys((*sampling.stop_ids, *self.chat.stop_ids))))
        self.episode = episode or EpisodeRules()
        self.budget = budget if budget is not None else Budget()  # not `or`: the run's own is to be counted in
        self.players = dict(players or {})
        self._segmenter, self.learner, self._on_scored = segmenter, learner, on_scored
        self._step_tasks: list[Task] = []  # in the order of the draws
        self._tasks: dict[str, Task] = {}
        self._scores = StepScores()
        if envs is not None and Codebook.of(tokenizer) is not None:
            raise ConfigError(
                "a generator of pictures reads a class and writes a picture: take task pictures, no episodes"
            )

    # ------------------------------------------------------------ tasks
    def draw(self, n: int) -> list[Task]:
        """Draw the next `n` tasks of this step; a further call goes on where the last one ended."""
        # A source is a function of the step: it gives the same first tasks again, and more.
        begin = len(self._step_tasks)
        self._step_tasks = self.source.draw(begin + n, self.step)
        new_tasks = self._step_tasks[begin:]
        self.know(new_tasks)
        return new_tasks

    @property
    def tasks_by_id(self) -> Mapping[str, Task]:
        """The tasks of this step by id: those drawn, and those added by `know`."""
        return self._tasks

    @property
    def weighted_names(self) -> tuple[str, ...]:
        """The components of the outcome that have a weight by their own name."""
        return getattr(self.rewards, "weighted_names", ())

    def know(self, tasks: Sequence[Task]) -> None:
        """Remember tasks, so that rollouts of them can be scored."""
        self._tasks |= {t.id: t for t in tasks}

    def solution(self, task: Task) -> str | None:
        """Worked solution: the task's own `info["solution"]`, or one that its source writes; None without."""
        return solution_of(self.source, task)

    def answers(self, forest: Forest) -> list[str | None]:
        """The reference answer to each trajectory's task as a text: the task's own, or its source's."""
        answer_of = getattr(self.source, "answer", lambda task: None)
        answer_by_task: dict[str, str | None] = {}
        for name in dict.fromkeys(forest.task):
            task = self._tasks.get(name)
            answer = None if task is None else answer_of(task) if task.answer is None else task.answer
            answer_by_task[name] = None if answer is None else str(answer)
        return [answer_by_task[name] for name in forest.task]

    @contextmanager
    def sampling_with(self, parameters: Mapping[str, Tensor]) -> Iterator[None]:
        """Context manager: `sample` has these parameters in the policy's place, as its learner's `snapshot` gave them.

        ConfigError where the engine has a copy of its own, outside of this process.
        """
        if not isinstance(self.engine, TorchEngine):
            raise ConfigError("earlier policies as opponents are sampled in this process: set sampling.engine=torch")
        present = self.learner.snapshot()
        try:
            self.learner.restore(parameters)
            self.learner.publish()
            yield
        finally:
            self.learner.restore(present)
            self.learner.publish()

    # ------------------------------------------------------------ texts and token ids
    def encode(self, task: Task) -> tuple[int, ...]:
        """The prompt's token ids: a text becomes one user message; ids are left as they are."""
        prompt = task.prompt
        if not isinstance(prompt, str) and (not prompt or isinstance(prompt[0], int)):
            return cast("tuple[int, ...]", prompt)
        original = self._tasks.get(task.id)
        if original is not None and original.prompt != prompt and getattr(self.chat, "is_rendered", False):
            raise ConfigError(
                "chat.template=rendered: this method's rollout rewrites prompts, and a rendered prompt is a whole "
                "conversation: give messages, or choose a rollout that leaves prompts as they are"
            )
        try:
            messages = prompt_messages(self.chat, self.system, cast("str | tuple[Message, ...]", prompt))
            return known_words(self.tokenizer, prompt, tuple(self.chat.start(messages).context))
        except (ModelError, PictureError) as error:
            raise TaskError(f"task {task.id!r}: {error}") from error

    def reword(self, task: str, template: str, fields: Mapping[str, str]) -> tuple[int, ...] | None:
        """Token ids of this step's task under another template (`wording.reword`); None where that can't be done: an
        episode, an unknown task, a prompt that is neither a text nor a chat with a text of the user's."""
        original = None if self.envs is not None else self._tasks.get(task)
        try:
            return None if original is None else self.encode(reword(original, template, **fields))
        except TaskError:
            return None

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, without special tokens that are no content (`gxpo.models.chat.plain.decoder`)."""
        return self._decode(tokens)

    @cached_property
    def _decode(self) -> Callable[[Sequence[int]], str]:
        return decoder(self.tokenizer, self.chat)

    @cached_property
    def _tokens(self) -> Tokens:
        return getattr(self.chat, "tokens", None) or Tokens(self.tokenizer)

    def tokenize(self, text: str, *, markup: bool = False) -> tuple[int, ...]:
        """Token ids of a text, without a template. The names of special tokens in it stay text, unless `markup`: for
        texts of the configuration, such as the end of a thinking block."""
        ids = self._tokens.encode(text if markup else self._tokens.typed(text))
        return known_words(self.tokenizer, text, ids)

    def texts(self, forest: Forest) -> list[str]:
        """The text of each trajectory's actions; of an episode with tools, of the reply that ended it."""
        tokens_R = (answer_tokens if getattr(self.envs, "of_tasks", False) else action_tokens)(forest)
        return [self.decode(tokens) for tokens in tokens_R]

    # ------------------------------------------------------------ sampling
    def sample(self, requests: Sequence[Request], sampling: Sampling | None = None) -> list[list[Completion]]:
        """Sample completions of each request, in order; under several processes each samples its share."""
        sampling = self.sampling if sampling is None else sampling
        rank, world = runtime.rank(), runtime.world()
        # An engine keeps an episode's cache between turns, which is of use only in the process of its next turn:
        # requests that keep one go by its name, the others in turn.
        rank_of = [zlib.crc32(r.keep[0].encode()) % world if r.keep else i % world for i, r in enumerate(requests)]
        share = self._sample_requests(
            [r for r, owner in zip(requests, rank_of, strict=True) if owner == rank], sampling
        )
        if world == 1:
            completions = share
        else:
            shares = [iter(unpack(blob)) for blob in runtime.gather(pack(share))]
            completions = [next(shares[owner]) for owner in rank_of]
        # Of all processes: the budget is the run's.
        self.budget.generated_tokens += sum(len(c.tokens) for group in completions for c in group)
        # A rollout counts with its first turn.
        self.budget.rollouts += sum(stream.turn == 0 for request in requests for stream in request.streams)
        return completions

    @property
    def takes_options(self) -> bool:
        """True if the policy's engine samples under the options of a request."""
        return bool(getattr(self.engine, "takes_options", False))

    def check_options(self, options: TokenOptions) -> None:
        """Raise ModelError for options that an engine which takes some can't sample the policy under."""
        cast("Any", self.engine).check_options(options, self.sampling)

    def release(self, names: Sequence[str]) -> None:
        """Release the engine's caches under these names."""
        for engine in (self.engine, *self.players.values()):
            engine.release(names)

    def _sample_requests(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        """Sample each request with the engine that has the weights of its policy."""
        if not any(request.policy in self.players for request in requests):
            return self.engine.sample(requests, sampling)
        completions: dict[int, list[Completion]] = {}
        for engine in dict.fromkeys((self.engine, *self.players.values())):
            places = [i for i, r in enumerate(requests) if self.players.get(r.policy, self.engine) is engine]
            if engine is not self.engine:  # what is sampled in this step is of one age
                engine.policy_version = getattr(self.engine, "policy_version", 0)  # type: ignore[attr-defined]
            completions |= zip(places, engine.sample([requests[i] for i in places], sampling), strict=True)
        return [completions[i] for i in range(len(requests))]

    def grow(self, rollout: Any, tasks: Sequence[Task]) -> Forest:
        """Run a rollout part on these tasks; GxpoError if it returns no forest."""
        with naming("rollout", rollout, name=show):
            forest = rollout.grow(tasks, self)
        if not isinstance(forest, Forest):
            label = f"rollout {show(rollout)}{place_of(rollout)}"
            raise GxpoError(f"{label} gave {type(forest).__name__}; grow and merge have to give a Forest")
        return forest

    def segment(self, forest: Forest) -> Forest:
        """Cut the forest into the method's segments, if it has a segmenter and the forest is not cut yet."""
        if self._segmenter is None or bool((forest.segment >= 0).any()):
            return forest
        return self._segmenter(forest, SegmentTools(self.decode, self.learner))

    # ------------------------------------------------------------ scoring
    def score(self, forest: Forest, texts: Sequence[str] | None = None) -> Forest:
        """Score trajectories: the forest with outcomes, components and success.

        A trajectory that brings a finite outcome keeps what it has. One that was scored before in this step, with the
        same actions, keeps that score, or stays unscored, whether or not it brings it. `texts`: the text to judge of
        each trajectory, instead of all its actions.
        """
        # A rollout may score its attempts one by one and the whole forest again at the end: earlier scores come back.
        forest = with_pictures(self._scores.restore(forest), self.tokenizer)
        is_new_R, needs_score_R = ~self._scores.is_met(forest), ~self._scores.is_judged(forest)
        scored_forest = self._with_judged_rows(forest, needs_score_R, texts)
        if MISREAD in scored_forest.step_finish:
            scored_forest = without_misread(scored_forest)
        self._scores.note(forest, scored_forest, needs_score_R)
        if self._on_scored is not None and bool(is_new_R.any()):
            self._on_scored(scored_forest.select(is_new_R))
        return scored_forest

    def recall(self, forest: Forest) -> Forest:
        """Give attempts, as they were played, the scores that `score` gave them in this step; nothing is scored."""
        return self._scores.restore(forest, as_played=True)

    def _with_judged_rows(self, forest: Forest, needs_score_R: Tensor, texts: Sequence[str] | None) -> Forest:
        """Score the rows of the mask; the others stay as they are."""
        if not bool(needs_score_R.any()):
            return forest
        rows = needs_score_R.nonzero().squeeze(1)
        subset = forest.select(rows)
        row_texts: list[str] = self.texts(subset) if texts is None else [texts[int(r)] for r in rows]
        scored_forest = self._judge(subset, row_texts)
        return scored_forest if len(rows) == forest.n_trajectories else with_scores(forest, rows, scored_forest)

    def _judge(self, forest: Forest, texts: Sequence[str]) -> Forest:
        """Score all trajectories, in the first process for all."""
        # Rewards run once: judges cost money, code is executed, and all processes have to learn from one number.
        payload: dict[str, Any] = {}
        if runtime.rank() == 0:
            if unknown := [name for name in forest.task if name not in self._tasks]:
                raise GxpoError(
                    f"a rollout of task {unknown[0]!r} can't be scored: this step has not drawn it; tell the session "
                    "of further tasks, session.know(tasks)"
                )
            scored_forest = self.rewards.score(forest, texts, [self._tasks[t] for t in forest.task])
            # An attempt that broke off for a reason that is not the policy's must not count as a failure of the policy.
            has_failed_R = torch.tensor(["failure" in info for info in forest.info], dtype=torch.bool)
            scored_forest = scored_forest.replace(outcome=scored_forest.outcome.masked_fill(has_failed_R, torch.nan))
            if runtime.world() == 1:
                return scored_forest
            payload = {
                "names": scored_forest.component_names,
                "outcome": scored_forest.outcome.tolist(),
                "components": scored_forest.components.tolist(),
                "success": scored_forest.success.tolist(),
            }
        # JSON writes floats exactly, so the other processes have the same bits.
        payload = json.loads(runtime.gather(json.dumps(payload).encode())[0])
        columns = torch.tensor(payload["components"], dtype=torch.float64).reshape(forest.n_trajectories, -1)
        return forest.with_rewards(
            torch.tensor(payload["outcome"], dtype=torch.float64),
            components={name: columns[:, i] for i, name in enumerate(payload["names"])},
            success=torch.tensor(payload["success"], dtype=torch.float64),
        )


# ---------------------------------------------------------------- actions sampled under another prompt
MISREAD_MESSAGE = "sampled under another prompt: the engine read its pictures as other ids than the learner"


def without_misread(forest: Forest) -> Forest:
    """Unscore every trajectory with an action of `Completion.finish` "misread", and those that share such an action.

    Their outcome and success are nan, and `info["failure"]` says why.
    """
    finishes = zip(forest.step_trajectory.tolist(), forest.step_finish, strict=True)
    rows = sorted({r for r, finish in finishes if finish == MISREAD})
    if not rows:
        return forest
    index = torch.tensor(rows)
    info = list(forest.info)
    # A reason that is there already is the first one, and stays.
    for r in rows:
        info[r] = {"failure": MISREAD_MESSAGE, **info[r]}
    return forest.replace(
        outcome=forest.outcome.index_fill(0, index, torch.nan),
        success=forest.success.index_fill(0, index, torch.nan),
        info=info,
    )


# ---------------------------------------------------------------- scores of one step
class Verdict(NamedTuple):
    """Success and named components of a trajectory; unknown ones are left out."""

    success: float | None
    components: Mapping[str, float]


class Score(NamedTuple):
    """A trajectory's score.

    content  hash of its actions when it was judged: an attempt that has gone on since has another
    before   verdict and components that it brought, such as an environment's
    after    verdict and components with its score
    """

    content: int
    outcome: float
    before: Verdict
    after: Verdict


class StepScores:
    """The scores of one step, by trajectory id."""

    def __init__(self) -> None:
        self._score_by_id: dict[str, Score | None] = {}  # None: it brought its outcome, and was not judged

    def is_met(self, forest: Forest) -> Tensor:
        """[R] bool: an attempt of that id was scored before."""
        return torch.tensor([name in self._score_by_id for name in forest.id], dtype=torch.bool)

    def is_judged(self, forest: Forest) -> Tensor:
        """[R] bool: the trajectory has an outcome, or was scored before with the same actions."""
        is_judged_R = forest.scored.clone()
        rows = [r for r in (~is_judged_R).nonzero().squeeze(1).tolist() if forest.id[r] in self._score_by_id]
        for r, content in zip(rows, _contents(forest, rows) if rows else (), strict=True):
            score = self._score_by_id[forest.id[r]]
            is_judged_R[r] = score is None or score.content == content
        return is_judged_R

    def restore(self, forest: Forest, *, as_played: bool = False) -> Forest:
        """Give trajectories without an outcome the scores that they got before.

        as_played  the forest comes from the attempts as they were played. Otherwise somebody may have taken an outcome
                   away on purpose, so a score returns only where all that came with it is missing; `info["failure"]`
                   keeps it away
        """
        if not self._score_by_id or bool(forest.scored.all()):
            return forest
        score_by_row: dict[int, Score] = {}
        ambiguous_ids: list[str] = []
        unscored_rows = (~forest.scored).nonzero().squeeze(1).tolist()
        rows = [
            r
            for r in unscored_rows
            if self._score_by_id.get(forest.id[r]) is not None and "failure" not in forest.info[r]
        ]
        verdicts = _verdicts(forest) if rows else []
        for r, content in zip(rows, _contents(forest, rows) if rows else (), strict=True):
            score = self._score_by_id[forest.id[r]]
            # Other actions or another verdict than before: this is not the trajectory that was scored.
            if score is None or score.content != content or verdicts[r] != score.before:
                continue
            # A reward that added the outcome alone leaves no trace by which a lost one and one taken away differ.
            if as_played or score.after != score.before:
                score_by_row[r] = score
            elif not math.isnan(score.outcome):
                ambiguous_ids.append(forest.id[r])
        if ambiguous_ids:
            warnings.warn(
                f"{len(ambiguous_ids)} rollouts were scored before in this step and come without an outcome, the first "
                f"{ambiguous_ids[0]!r}: they stay unscored; give back what session.score gave, or set info['failure']",
                stacklevel=4,
            )
        if not score_by_row:
            return forest
        index, scores = torch.tensor(list(score_by_row)), list(score_by_row.values())
        names = dict.fromkeys(name for score in scores for name in score.after.components)
        scored_forest = forest.select(index).with_rewards(
            _column([score.outcome for score in scores]),
            components={n: _column([score.after.components.get(n) for score in scores]) for n in names},
            success=_column([score.after.success for score in scores]),
        )
        return with_scores(forest, index, scored_forest)

    def note(self, before: Forest, after: Forest, is_judged_R: Tensor) -> None:
        """Remember all trajectories; `is_judged_R` [R] bool are those that have got their scores now."""
        for name in after.id:
            self._score_by_id.setdefault(name, None)
        if not bool(is_judged_R.any()):
            return
        rows, outcome = is_judged_R.nonzero().squeeze(1).tolist(), after.outcome.tolist()
        verdicts_before, verdicts_after = _verdicts(before), _verdicts(after)
        for r, content in zip(rows, _contents(before, rows), strict=True):
            self._score_by_id[after.id[r]] = Score(content, outcome[r], verdicts_before[r], verdicts_after[r])


def with_scores(forest: Forest, rows: Tensor, scored_forest: Forest) -> Forest:
    """Put the scores of `scored_forest` into these rows; a component that a row does not have is nan there."""
    columns = {}
    for name in dict.fromkeys((*forest.component_names, *scored_forest.component_names)):
        columns[name] = torch.full((forest.n_trajectories,), torch.nan, dtype=torch.float64)
        if name in forest.component_names:
            columns[name] = forest.components[:, forest.component_names.index(name)].clone()
        if name in scored_forest.component_names:
            columns[name][rows] = scored_forest.components[:, scored_forest.component_names.index(name)]
    return forest.with_rewards(
        forest.outcome.index_copy(0, rows, scored_forest.outcome),
        components=columns,
        success=forest.success.index_copy(0, rows, scored_forest.success),
    )


def _contents(forest: Forest, rows: Sequence[int]) -> list[int]:
    """Hash the actions and the number of turns of each of these trajectories."""
    tokens = forest.token[forest.path_token].numpy()
    entries, turns = forest._entry_begin.tolist(), forest._step_begin.tolist()
    return [hash((tokens[entries[r] : entries[r + 1]].tobytes(), turns[r + 1] - turns[r])) for r in rows]


def _verdicts(forest: Forest) -> list[Verdict]:
    """The verdict on each trajectory: everything it has beside its outcome."""
    rows = zip(forest.success.tolist(), forest.components.tolist(), strict=True)
    return [
        Verdict(
            None if math.isnan(success) else success,
            {n: x for n, x in zip(forest.component_names, values, strict=True) if not math.isnan(x)},
        )
        for success, values in rows
    ]


def _column(values: Sequence[float | None]) -> Tensor:
    return torch.tensor([math.nan if x is None else x for x in values], dtype=torch.float64)
