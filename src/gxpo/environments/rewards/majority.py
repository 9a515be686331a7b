"""Rewards without labels: agreement with the group's answers, by majority vote (TTRL) or by frequency (EMPO, TTRV)."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo.base.answers import ANSWER, compiled, extract
from gxpo.base.errors import ConfigError, one_of

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Task

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


def entropy(sizes: Sequence[int]) -> float:
    """Entropy of a group's answers over ln G, from the sizes of its clusters: 0 all agree, 1 all differ (G = 1: 0).

    >>> round(entropy([4, 2, 1, 1]), 6), entropy([3]), round(entropy([1, 1]), 6)
    (0.583333, 0.0, 1.0)
    """
    g = sum(sizes)
    return -sum(n / g * math.log(n / g) for n in sizes if n) / math.log(g) if g > 1 and len(sizes) > 1 else 0.0


@dataclass(frozen=True)
class Tally:
    """How a group's attempts voted. shares: of each cluster;   entropy: see `entropy`;   voters: G."""

    shares: Mapping[Hashable, float]
    entropy: float
    voters: int


def tally(
    clusters: Sequence[Hashable | None], groups: Sequence[Hashable], votes: Sequence[bool]
) -> dict[Hashable, Tally]:
    """Count each group's votes; an attempt of no cluster (None) is one by itself, of which no share is told.

    >>> tally("aaab", [0] * 4, [True] * 4)[0].shares
    {'a': 0.75, 'b': 0.25}
    """
    counts: dict[Hashable, Counter[Hashable]] = {group: Counter() for group in groups}
    alone: Counter[Hashable] = Counter()
    for cluster, group, may in zip(clusters, groups, votes, strict=True):
        if may and cluster is None:
            alone[group] += 1
        elif may:
            counts[group][cluster] += 1
    found = {}
    for group, count in counts.items():
        sizes = [*count.values(), *[1] * alone[group]]
        total = sum(sizes)
        found[group] = Tally({c: n / total for c, n in count.items()}, entropy(sizes), total)
    return found


@dataclass(eq=False)
class MajorityVote:
    """Label-free reward of an attempt by how many of its group agree with it.

    pattern  a regular expression whose groups catch an answer; the last catch of a text is its answer
    reward   "vote": 1 where the attempt is correct by the group's most frequent answer (TTRL);   "frequency": the share
             f of the group that gives its answer (EMPO, TTRV);   "entropy": ln f, whose mean over a group is -H
    gate     (low, high) of the group's `answer_entropy`: a group outside earns 0 throughout. None: all learn
    alike    of "frequency" and "entropy", which answers are one: "verified": equal strings, and those of which the
             verifier takes one for the answer of the other, the first seen;   "equal": equal strings alone (TTRV)
    missing  of the same, attempts without an answer: "apart": each is a cluster by itself and earns 0 (in "entropy" ln
             1/G);   "together": they are a cluster like any other (TTRV)

    majority_vote   "vote": the task's own verifier on the task with the pseudo-label as answer and nothing else that it
                    could read the truth from (`info` is empty), so that training depends on no label. Otherwise by
                    clusters. 0 throughout a group where no answer could be found, and for an attempt without one
                    (see `missing`): there is no agreement, and no reward has failed
    vote_accuracy   whether the pseudo-label is right, by the true answer, the same for the whole group: recorded, never
                    counted. nan where the task has no answer, 0 where the group has no pseudo-label
    agreement       share of the group that gives its most frequent answer: all that a run without labels sees of how
                    well it does. It rises where the policy settles, on right answers or on wrong ones: recorded
    answer_entropy  entropy of the group's answers over ln G, 0 to 1: recorded

    Voting is by exact string, the reward by the verifier's equivalence: 1/2 and 0.5 split the vote, and both are paid.
    The G attempts are those of the group that are `compared` and that the policy made; others neither vote nor count. A
    verifier that fails on an attempt leaves it unscored in "vote", and apart from other strings in a cluster.

    A term that is the same for a whole group, as TTRV's entropy, cancels under any baseline of the group: it is not
    here. Source: TTRL (arXiv 2504.16084) and its code, which raises where no answer can be found; EMPO (2504.05812).
    """

    pattern: str = ANSWER
    reward: Literal["vote", "frequency", "entropy"] = "vote"
    gate: tuple[float, float] | None = None
    alike: Literal["verified", "equal"] = "verified"
    missing: Literal["apart", "together"] = "apart"
    _verify: Verify | None = field(default=None, init=False, repr=False)

    name = "majority_vote"
    gives = ("majority_vote", "vote_accuracy", "agreement", "answer_entropy")
    reports = ("vote_accuracy", "agreement", "answer_entropy")

    def __post_init__(self) -> None:
        key = "scoring.options.majority_vote"
        self._compiled = compiled(self.pattern, f"{key}.pattern")
        one_of(f"{key}.reward", self.reward, ("vote", "frequency", "entropy"))
        one_of(f"{key}.alike", self.alike, ("verified", "equal"))
        one_of(f"{key}.missing", self.missing, ("apart", "together"))
        if self.reward == "vote" and (self.alike, self.missing) != ("verified", "apart"):
            raise ConfigError(f"{key}.alike and .missing are of clusters: set {key}.reward=frequency, or entropy")
        if self.gate is not None and not (len(self.gate) == 2 and 0 <= self.gate[0] <= self.gate[1] <= 1):
            raise ConfigError(f"{key}.gate is [low, high] of an entropy from 0 to 1, not {self.gate!r}")

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
        known = torch.tensor([task.answer is not None for task in tasks], dtype=torch.bool)
        clusters: Sequence[str | None] = answers
        if self.reward != "vote" and self.alike == "verified":
            clusters = self._clusters(forest, texts, tasks, answers, own)
        if self.missing == "together":
            clusters = ["" if cluster is None else cluster for cluster in clusters]
        counted = tally(clusters, forest.group, own)
        told = [counted[group] for group in forest.group]
        if self.reward == "vote":
            paid = self._ask(forest, texts, tasks, label)
        else:
            paid = _of([self._worth(t, c) for t, c in zip(told, clusters, strict=True)])
        spread = _of([t.entropy for t in told])
        if self.gate is not None:
            paid = torch.where((spread >= self.gate[0]) & (spread <= self.gate[1]), paid, 0.0)
        accuracy = self._accuracy(forest, texts, tasks, answers, label, known)
        columns = (paid, accuracy, _of([max(t.shares.values(), default=0.0) for t in told]), spread)
        return dict(zip(self.gives, columns, strict=True))

    def _worth(self, counted: Tally, cluster: str | None) -> float:
        share = counted.shares.get(cluster, 0.0)
        return share if self.reward == "frequency" else math.log(share or 1 / max(1, counted.voters))

    def _clusters(
        self,
        forest: Forest,
        texts: Sequence[str],
        tasks: Sequence[Task],
        answers: Sequence[str | None],
        own: Sequence[bool],
    ) -> list[str | None]:
        """[R] the first answer of the group that the verifier takes an attempt's answer for; its own, if there is none.

        A round asks of every group's undecided strings whether they equal the first of them.
        """
        assert self._verify is not None
        order = sorted(range(len(answers)), key=lambda r: not own[r])  # who votes is seen first
        undecided: dict[str, dict[str, int]] = {}  # group -> answer -> an attempt that gave it
        for r in order:
            if (answer := answers[r]) is not None:
                undecided.setdefault(forest.group[r], {}).setdefault(answer, r)
        first: dict[tuple[str, str], str] = {}
        while undecided := {group: left for group, left in undecided.items() if left}:
            asked, rows = [], []
            for group, left in undecided.items():
                answer = next(iter(left))
                first[group, answer] = answer
                del left[answer]
                for r in left.values():
                    asked.append((group, answer, answers[r]))
                    rows.append(r)
            if rows:
                pairs = zip(rows, asked, strict=True)
                blind = [dataclasses.replace(tasks[r], answer=answer, info={}) for r, (_, answer, _) in pairs]
                verdict = self._verify(forest.select(rows), [str(texts[r]) for r in rows], blind)
                for (group, answer, other), right in zip(asked, (verdict >= 1).tolist(), strict=True):
                    if right and other is not None:
                        first[group, other] = answer
                        del undecided[group][other]
        return [None if a is None else first[group, a] for group, a in zip(forest.group, answers, strict=True)]

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


def _of(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
