"""Sessions of rollouts in another trainer: its sampler, tasks and rewards as `gxpo.parts.protocols.Session`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gxpo.algorithms.segments import Segmenter, SegmentTools
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Budget, Chat, Completion, EpisodeRules, Request, Sampling, StreamKey, Task


class Score(NamedTuple):
    """Outcome, verdict and named rewards of a rollout; nan where one is unknown."""

    outcome: float
    success: float
    components: Mapping[str, float]


class TrainerSession:
    """Base class of sessions in another trainer, for single turns; a subclass samples, judges and finds tasks.

    segmenter, learner  for rollouts that cut actions into segments
    judged              all rollouts that were judged in this step: their outcomes
    """

    envs = None
    system: str | None = None
    takes_options = False  # so that nobody asks for `check_options`

    def __init__(
        self,
        *,
        step: int,
        seed: int,
        sampling: Sampling,
        chat: Chat,
        segmenter: Segmenter | None = None,
        learner: Any = None,
    ) -> None:
        self.step, self.seed, self.sampling, self.chat = step, seed, sampling, chat
        self.budget, self.episode = Budget(), EpisodeRules()
        self.judged: list[float] = []
        self._segmenter, self._learner = segmenter, learner
        self._n_drawn = 0
        self._tasks: dict[str, Task] = {}
        self._scores: dict[tuple[str, tuple[int, ...]], Score] = {}

    # ------------------------------------------------------------ what a trainer gives
    def tasks_of(self, begin: int, n: int) -> list[Task]:
        """Return `n` tasks of this step, from number `begin` on."""
        raise NotImplementedError

    def complete(
        self, prompts: Sequence[Sequence[int]], keys: Sequence[StreamKey], sampling: Sampling
    ) -> list[Completion]:
        """Sample one completion of each prompt."""
        raise NotImplementedError

    def judge(self, forest: Forest, texts: Sequence[str] | None, tasks: Sequence[Task]) -> Forest:
        """Score all rollouts of a forest; `texts`: what to judge of each, None: its actions."""
        raise NotImplementedError

    def encode(self, task: Task) -> tuple[int, ...]:
        """Return the token ids of a task's prompt."""
        raise NotImplementedError

    def tokenize(self, text: str, *, markup: bool = False) -> tuple[int, ...]:
        """Return the token ids of a text, without a template."""
        raise NotImplementedError

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids."""
        raise NotImplementedError

    # ------------------------------------------------------------ tasks
    def draw(self, n: int) -> list[Task]:
        """Draw the next `n` tasks of this step."""
        tasks = self.tasks_of(self._n_drawn, n)
        self._n_drawn += n
        self.know(tasks)
        return tasks

    def know(self, tasks: Sequence[Task]) -> None:
        """Remember tasks, so that rollouts of them can be scored."""
        self._tasks |= {task.id: task for task in tasks}

    def solution(self, task: Task) -> str | None:
        """Return the task's worked solution, None without one."""
        return task.info.get("solution")

    # ------------------------------------------------------------ sampling
    def sample(self, requests: Sequence[Request], sampling: Sampling | None = None) -> list[list[Completion]]:
        """Sample the completions of each request, in order."""
        if foreign_policies := sorted({r.policy for r in requests} - {"main"}):
            raise ConfigError(
                f"policy {foreign_policies[0]}: this trainer samples from the policy that it trains alone"
            )
        prompt_streams = [(r.prompt, key) for r in requests for key in r.streams]
        completions = self.complete(
            [p for p, _ in prompt_streams], [k for _, k in prompt_streams], sampling or self.sampling
        )
        self.budget.generated_tokens += sum(len(c.tokens) for c in completions)
        self.budget.rollouts += sum(key.turn == 0 for _, key in prompt_streams)
        remaining = iter(completions)
        return [[next(remaining) for _ in r.streams] for r in requests]

    def release(self, names: Sequence[str]) -> None:
        """Do nothing: no context is kept between turns."""

    def segment(self, forest: Forest) -> Forest:
        """Cut the forest into the method's segments, if it has a segmenter and the forest is not cut yet."""
        if self._segmenter is None or bool((forest.segment >= 0).any()):
            return forest
        return self._segmenter(forest, SegmentTools(self.decode, self._learner))

    # ------------------------------------------------------------ scoring
    def score(self, forest: Forest, texts: Sequence[str] | None = None) -> Forest:
        """Score the rollouts without an outcome; one that was judged before in this step keeps its score."""
        forest = self.recall(forest)
        contents = _contents(forest)
        rows = [r for r in (~forest.scored).nonzero().squeeze(1).tolist() if contents[r] not in self._scores]
        if not rows:
            return forest
        subset = forest.select(rows)
        row_texts = None if texts is None else [texts[int(r)] for r in rows]
        judged = self.judge(subset, row_texts, [self._tasks[name] for name in subset.task])
        scores = scores_of(judged)
        self.judged += [x.outcome for x in scores if not math.isnan(x.outcome)]
        # an attempt that broke off for a reason that is not the policy's is no failure of the policy
        by_row = {
            r: x._replace(outcome=math.nan) if "failure" in forest.info[r] else x
            for r, x in zip(rows, scores, strict=True)
        }
        self._scores |= {contents[r]: x for r, x in by_row.items()}
        return with_scores(forest, by_row)

    def recall(self, forest: Forest) -> Forest:
        """Give rollouts the scores that `score` gave them in this step; nothing is judged."""
        if not self._scores or bool(forest.scored.all()):
            return forest
        contents = _contents(forest)
        rows = [r for r in (~forest.scored).nonzero().squeeze(1).tolist() if "failure" not in forest.info[r]]
        return with_scores(forest, {r: self._scores[contents[r]] for r in rows if contents[r] in self._scores})


def scores_of(forest: Forest) -> list[Score]:
    """Return the scores of all rollouts of a forest."""
    names, rows = forest.component_names, zip(forest.outcome.tolist(), forest.success.tolist(), strict=True)
    return [
        Score(outcome, success, dict(zip(names, values, strict=True)))
        for (outcome, success), values in zip(rows, forest.components.tolist(), strict=True)
    ]


def with_scores(forest: Forest, scores: Mapping[int, Score]) -> Forest:
    """Put scores into some rows of a forest; a named reward that a row does not have is nan there."""
    if not scores:
        return forest
    rows = torch.tensor(list(scores))
    names = dict.fromkeys((*forest.component_names, *(n for x in scores.values() for n in x.components)))
    columns: dict[str, Tensor] = {}
    for name in names:
        has_name = name in forest.component_names
        before = forest.components[:, forest.component_names.index(name)] if has_name else torch.full(
            (forest.n_trajectories,), torch.nan, dtype=torch.float64
        )  # fmt: skip
        columns[name] = before.index_copy(0, rows, _column([x.components.get(name, math.nan) for x in scores.values()]))
    return forest.with_rewards(
        forest.outcome.index_copy(0, rows, _column([x.outcome for x in scores.values()])),
        components=columns,
        success=forest.success.index_copy(0, rows, _column([x.success for x in scores.values()])),
    )


def action_tokens(forest: Forest) -> list[tuple[int, ...]]:
    """Return the tokens of each rollout's actions."""
    tokens = forest.token[forest.path_token]
    return [tuple(tokens[forest.path_of(r)].tolist()) for r in range(forest.n_trajectories)]


def rows_of(forest: Forest) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Lay each rollout out as a prompt and a completion; return token ids of both, and masks of the actions.

    ConfigError for a rollout whose actions do not stand in one context.
    """
    before, token = forest.pack().predecessor.tolist(), forest.token.tolist()
    prompts, completions, masks = [], [], []
    for r in range(forest.n_trajectories):
        actions = forest.path_token[forest.path_of(r)].tolist()
        # from the last action back to the beginning of the context
        chain = [actions[-1]]
        while before[chain[-1]] >= 0:
            chain.append(before[chain[-1]])
        chain.reverse()
        is_action = set(actions)
        mask = [int(t in is_action) for t in chain]
        if sum(mask) < len(actions):
            raise ConfigError(f"rollout {forest.id[r]} acts in several contexts, and a row of this trainer has one")
        first = mask.index(1)
        prompts.append([token[t] for t in chain[:first]])
        completions.append([token[t] for t in chain[first:]])
        masks.append(mask[first:])
    return prompts, completions, masks


def _contents(forest: Forest) -> list[tuple[str, tuple[int, ...]]]:
    """Return the id and the action of each rollout, by which a score is found again."""
    return list(zip(forest.id, action_tokens(forest), strict=True))


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
