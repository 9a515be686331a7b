"""Majority-vote reward without labels (TTRL): agreement with the group's most frequent answer."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.answers import ANSWER, compiled, extract
from gxpo.errors import ConfigError

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Task

Verify = Callable[["Forest", Sequence[str], Sequence["Task"]], Tensor]


def vote(answers: Sequence[str | None], groups: Sequence[Hashable], votes: Sequence[bool]) -> dict[Hashable, str]:
    """Most frequent answer of each group, by exact string; ties go to the first one seen.

    answers  None: none could be found, so it does not vote;   votes  whether the attempt may vote
    A group without votes is left out.

    >>> vote(["b", "a", None, "a", "b"], [0] * 5, [True] * 5)
    {0: 'b'}
    """
    ballots: dict[Hashable, Counter[str]] = {}
    for answer, group, may in zip(answers, groups, votes, strict=True):
        if answer is not None and may:
            ballots.setdefault(group, Counter())[answer] += 1
    return {group: ballot.most_common(1)[0][0] for group, ballot in ballots.items()}


@dataclass(eq=False)
class MajorityVote:
    """TTRL's pseudo-label reward: 1 where an attempt is correct by the group's most frequent answer.

    pattern  a regular expression whose groups catch an answer; the last catch of a text is its answer

    majority_vote  the task's own verifier on the task with the pseudo-label as answer and nothing else that it could
                   read the truth from (`info` is empty), so that training depends on no label. 0 throughout a group
                   where no answer could be found: there is no agreement, and no reward has failed
    vote_accuracy  whether the pseudo-label is right, by the true answer, the same for the whole group: recorded, never
                   counted. nan where the task has no answer, 0 where the group has no pseudo-label

    Voting is by exact string, the reward by the verifier's equivalence: 1/2 and 0.5 split the vote, and both are paid.
    Attempts that are not `compared`, or that the policy did not make, do not vote. A verifier that fails on an attempt
    leaves it unscored.

    Source: TTRL (arXiv 2504.16084) and its code, which raises where no answer can be found.
    """

    pattern: str = ANSWER
    _verify: Verify | None = field(default=None, init=False, repr=False)

    name = "majority_vote"
    gives = ("majority_vote", "vote_accuracy")
    reports = ("vote_accuracy",)

    def __post_init__(self) -> None:
        self._compiled = compiled(self.pattern, "scoring.options.majority_vote.pattern")

    def bind(self, verify: Verify) -> None:
        """`verify(forest, texts, tasks)` is the verdict [R] of the tasks' own verifier."""
        self._verify = verify

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        if self._verify is None:
            raise ConfigError("majority_vote needs the verifier of the tasks: use it as a named reward")
        answers = [extract(text, self._compiled) for text in texts]
        own = [c and o == "policy" for c, o in zip(forest.compared.tolist(), forest.origin, strict=True)]
        labels = vote(answers, forest.group, own)
        label = [labels.get(group) for group in forest.group]
        agrees = self._ask(forest, texts, tasks, label)
        known = torch.tensor([task.answer is not None for task in tasks], dtype=torch.bool)
        return {"majority_vote": agrees, "vote_accuracy": self._accuracy(forest, texts, tasks, answers, label, known)}

    def _ask(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task], label: Sequence[str | None]) -> Tensor:
        """Verdicts [R] with the label as answer; 0 without one."""
        assert self._verify is not None
        out = torch.zeros(len(texts), dtype=torch.float64)
        rows = [r for r, found in enumerate(label) if found is not None]
        if rows:
            asked = [dataclasses.replace(tasks[r], answer=label[r], info={}) for r in rows]
            verdict = self._verify(forest.select(rows), [str(texts[r]) for r in rows], asked)
            out[torch.tensor(rows)] = torch.where(verdict.isnan(), verdict, (verdict >= 1).to(torch.float64))
        return out

    def _accuracy(
        self,
        forest: Forest,
        texts: Sequence[str],
        tasks: Sequence[Task],
        answers: Sequence[str | None],
        label: Sequence[str | None],
        known: Tensor,
    ) -> Tensor:
        """[R] whether any attempt that gave the label is right in truth."""
        assert self._verify is not None
        gave = [r for r in known.nonzero().squeeze(1).tolist() if label[r] is not None and answers[r] == label[r]]
        right = set()
        if gave:
            truth = self._verify(forest.select(gave), [str(texts[r]) for r in gave], [tasks[r] for r in gave])
            right = {forest.group[r] for r, verdict in zip(gave, truth.tolist(), strict=True) if verdict >= 1}
        value = torch.tensor([float(group in right) for group in forest.group], dtype=torch.float64)
        return torch.where(known, value, torch.nan)
