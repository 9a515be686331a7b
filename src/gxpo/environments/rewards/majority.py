"""Label-free rewards: agreement with the group's answers, by majority vote (TTRL) or frequency (EMPO, TTRV)."""

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

    answers  None: the attempt has no answer and does not vote;   votes  True for attempts that may vote
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
    """Normalised entropy of a group's answers, over ln G, from cluster sizes: 0 all agree, 1 all differ (G = 1: 0).

    >>> round(entropy([4, 2, 1, 1]), 6), entropy([3]), round(entropy([1, 1]), 6)
    (0.583333, 0.0, 1.0)
    """
    g = sum(sizes)
    return -sum(n / g * math.log(n / g) for n in sizes if n) / math.log(g) if g > 1 and len(sizes) > 1 else 0.0


@dataclass(frozen=True)
class Tally:
    """Vote counts of a group. shares: by cluster;   entropy: see `entropy`;   voters: G."""

    shares: Mapping[Hashable, float]
    entropy: float
    voters: int


def tally(
    clusters: Sequence[Hashable | None], groups: Sequence[Hashable], votes: Sequence[bool]
) -> dict[Hashable, Tally]:
    """Count each group's votes; an attempt without a cluster (None) is one by itself and has no share.

    >>> tally("aaab", [0] * 4, [True] * 4)[0].shares
    {'a': 0.75, 'b': 0.25}
    """
    counts: dict[Hashable, Counter[Hashable]] = {group: Counter() for group in groups}
    unclustered: Counter[Hashable] = Counter()
    # Attempts that may not vote are in no count.
    for cluster, group, may in zip(clusters, groups, votes, strict=True):
        if may and cluster is None:
            unclustered[group] += 1
        elif may:
            counts[group][cluster] += 1
    tallies = {}
    for group, count in counts.items():
        sizes = [*count.values(), *[1] * unclustered[group]]
        total = sum(sizes)
        tallies[group] = Tally({c: n / total for c, n in count.items()}, entropy(sizes), total)
    return tallies


@dataclass(eq=False)
class MajorityVote:
    """Label-free reward of an attempt by how many of its group agree with it.

    pattern  a regular expression whose groups catch an answer; the last catch of a text is its answer
    reward   "vote": 1 where the attempt is correct by the group's most frequent answer (TTRL);   "frequency": the share
             f of the group that gives its answer (EMPO, TTRV);   "entropy": ln f, whose mean over a group is -H
    gate     (low, high) of the group's `answer_entropy`: a group outside earns 0 throughout. None: all learn
    equality  of "frequency" and "entropy", which answers are one: "verified": equal strings, and those of which the
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
    equality: Literal["verified", "equal"] = "verified"
    missing: Literal["apart", "together"] = "apart"
    _verify: Verify | None = field(default=None, init=False, repr=False)

    name = "majority_vote"
    gives = ("majority_vote", "vote_accuracy", "agreement", "answer_entropy")
    reports = ("vote_accuracy", "agreement", "answer_entropy")

    def __post_init__(self) -> None:
        key = "scoring.options.majority_vote"
        self._compiled = compiled(self.pattern, f"{key}.pattern")
        one_of(f"{key}.reward", self.reward, ("vote", "frequency", "entropy"))
        one_of(f"{key}.equality", self.equality, ("verified", "equal"))
        one_of(f"{key}.missing", self.missing, ("apart", "together"))
        if self.reward == "vote" and (self.equality, self.missing) != ("verified", "apart"):
            raise ConfigError(f"{key}.equality and .missing are of clusters: set {key}.reward=frequency, or entropy")
        if self.gate is not None and not (len(self.gate) == 2 and 0 <= self.gate[0] <= self.gate[1] <= 1):
            raise ConfigError(f"{key}.gate is [low, high] of an entropy from 0 to 1, not {self.gate!r}")

    def bind(self, verify: Verify) -> None:
        """Set `verify(forest, texts, tasks)`, which gives the verdicts [R] of the tasks' own verifier."""
        self._verify = verify

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        if self._verify is None:
            raise ConfigError("majority_vote needs the verifier of the tasks: use it as a named reward")
        answers = [extract(text, self._compiled) for text in texts]
        # Only attempts of the policy that are compared vote: hints or replayed rollouts would tilt the pseudo-label.
        votes_R = [c and o == "policy" for c, o in zip(forest.compared.tolist(), forest.origin, strict=True)]
        label_by_group = vote(answers, forest.group, votes_R)
        label_R = [label_by_group.get(group) for group in forest.group]
        has_answer_R = torch.tensor([task.answer is not None for task in tasks], dtype=torch.bool)
        cluster_R: Sequence[str | None] = answers
        # Clusters are of strings, or of answers that the verifier takes for one, which costs further verdicts.
        if self.reward != "vote" and self.equality == "verified":
            cluster_R = self._clusters(forest, texts, tasks, answers, votes_R)
        # Attempts without an answer are one cluster together where `missing` says so.
        if self.missing == "together":
            cluster_R = ["" if cluster is None else cluster for cluster in cluster_R]
        tally_by_group = tally(cluster_R, forest.group, votes_R)
        tally_R = [tally_by_group[group] for group in forest.group]
        if self.reward == "vote":
            reward_R = self._verify_by_label(forest, texts, tasks, label_R)
        else:
            reward_R = _float64([self._agreement_reward(t, c) for t, c in zip(tally_R, cluster_R, strict=True)])
        entropy_R = _float64([t.entropy for t in tally_R])
        # A gated group earns 0 throughout, so that it has no contrast and teaches nothing.
        if self.gate is not None:
            reward_R = torch.where((entropy_R >= self.gate[0]) & (entropy_R <= self.gate[1]), reward_R, 0.0)
        accuracy = self._accuracy(forest, texts, tasks, answers, label_R, has_answer_R)
        columns = (reward_R, accuracy, _float64([max(t.shares.values(), default=0.0) for t in tally_R]), entropy_R)
        return dict(zip(self.gives, columns, strict=True))

    def _agreement_reward(self, group_tally: Tally, cluster: str | None) -> float:
        """Share of the group in an attempt's cluster, or its logarithm."""
        share = group_tally.shares.get(cluster, 0.0)
        return share if self.reward == "frequency" else math.log(share or 1 / max(1, group_tally.voters))

    def _clusters(
        self,
        forest: Forest,
        texts: Sequence[str],
        tasks: Sequence[Task],
        answers: Sequence[str | None],
        votes_R: Sequence[bool],
    ) -> list[str | None]:
        """Cluster of each attempt, [R]: the first answer of its group that the verifier takes its answer for.

        Each round verifies the undecided strings of all groups against the first of their group.
        """
        assert self._verify is not None
        voters_first = sorted(
            range(len(answers)), key=lambda r: not votes_R[r]
        )  # so that clusters are named for voters
        undecided: dict[str, dict[str, int]] = {}  # group -> answer -> an attempt that gave it
        for r in voters_first:
            if (answer := answers[r]) is not None:
                undecided.setdefault(forest.group[r], {}).setdefault(answer, r)
        cluster_of: dict[tuple[str, str], str] = {}
        while undecided := {
            group: undecided_answers for group, undecided_answers in undecided.items() if undecided_answers
        }:
            questions, rows = [], []
            for group, undecided_answers in undecided.items():
                # The first undecided answer of each group becomes a cluster.
                answer = next(iter(undecided_answers))
                cluster_of[group, answer] = answer
                del undecided_answers[answer]
                for r in undecided_answers.values():
                    questions.append((group, answer, answers[r]))
                    rows.append(r)
            # The tasks carry the answer to compare with and no `info`, so that a verifier can't read the true label.
            if rows:
                pairs = zip(rows, questions, strict=True)
                blind_tasks = [dataclasses.replace(tasks[r], answer=answer, info={}) for r, (_, answer, _) in pairs]
                verdict = self._verify(forest.select(rows), [str(texts[r]) for r in rows], blind_tasks)
                for (group, answer, own_answer), right in zip(questions, (verdict >= 1).tolist(), strict=True):
                    if right and own_answer is not None:
                        cluster_of[group, own_answer] = answer
                        del undecided[group][own_answer]
        return [None if a is None else cluster_of[group, a] for group, a in zip(forest.group, answers, strict=True)]

    def _verify_by_label(
        self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task], label_R: Sequence[str | None]
    ) -> Tensor:
        """Verdicts [R] against the pseudo-labels; 0 without one."""
        assert self._verify is not None
        verdict_R = torch.zeros(len(texts), dtype=torch.float64)
        rows = [r for r, pseudo_label in enumerate(label_R) if pseudo_label is not None]
        if rows:
            labelled_tasks = [dataclasses.replace(tasks[r], answer=label_R[r], info={}) for r in rows]
            verdict = self._verify(forest.select(rows), [str(texts[r]) for r in rows], labelled_tasks)
            verdict_R[torch.tensor(rows)] = torch.where(verdict.isnan(), verdict, (verdict >= 1).to(torch.float64))
        return verdict_R

    def _accuracy(
        self,
        forest: Forest,
        texts: Sequence[str],
        tasks: Sequence[Task],
        answers: Sequence[str | None],
        label_R: Sequence[str | None],
        has_answer_R: Tensor,
    ) -> Tensor:
        """Accuracy of the pseudo-labels, [R]: 1 where an attempt that gave the label is right by the true answer."""
        assert self._verify is not None
        label_rows = [
            r for r in has_answer_R.nonzero().squeeze(1).tolist() if label_R[r] is not None and answers[r] == label_R[r]
        ]
        # One attempt that gave the label decides for its group.
        right_groups = set()
        if label_rows:
            truth = self._verify(
                forest.select(label_rows), [str(texts[r]) for r in label_rows], [tasks[r] for r in label_rows]
            )
            right_groups = {
                forest.group[r] for r, verdict in zip(label_rows, truth.tolist(), strict=True) if verdict >= 1
            }
        accuracy_R = torch.tensor([float(group in right_groups) for group in forest.group], dtype=torch.float64)
        return torch.where(has_answer_R, accuracy_R, torch.nan)


def _float64(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
