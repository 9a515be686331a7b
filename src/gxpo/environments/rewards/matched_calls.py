"""Turn rewards by matching tool calls with those of a reference solution (MatchTIR)."""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gxpo.base.errors import ConfigError, GxpoError, one_of
from gxpo.environments.rewards.base import RewardPart
from gxpo.forest.forest import Forest
from gxpo.parts.registry import part

Call = Mapping[str, Any]  # {"name": ..., "arguments": {...}}
Scores = Sequence[Sequence[float]]  # of each predicted call with each gold one
SPACED = str.maketrans(dict.fromkeys(string.punctuation, " "))


def call_similarity(predicted: Call, gold: Call) -> float:
    """Similarity of two calls: 0 for different names, case aside, else (1 + J + equal) / (2 + arguments of gold).

    J      Jaccard index of the argument names, 1 where neither has any
    equal  number of gold arguments that the predicted call has with the same value

    >>> call_similarity({"name": "f", "arguments": {"a": 1, "b": 2}}, {"name": "f", "arguments": {"a": 1, "c": 2}})
    0.5833333333333333
    """
    if predicted["name"].lower() != gold["name"].lower():
        return 0.0
    arguments, gold_arguments = predicted.get("arguments", {}), gold.get("arguments", {})
    all_names = arguments.keys() | gold_arguments.keys()
    name_overlap = len(arguments.keys() & gold_arguments.keys()) / len(all_names) if all_names else 1.0
    equal = sum(key in arguments and arguments[key] == value for key, value in gold_arguments.items())
    return (1 + name_overlap + equal) / (2 + len(gold_arguments))


def optimal(scores: Scores) -> list[int]:
    """Maximum-weight assignment: column of each row (-1: none), each column at most once.

    By shortest augmenting paths with potentials (Hungarian algorithm), O(n^3). Pairs of score 0 are no pairs.

    >>> optimal([[0.9, 0.8], [0.8, 0.0]])
    [1, 0]
    """
    n = max(len(scores), len(scores[0]) if scores else 0)
    cost = [[-(scores[i][j] if i < len(scores) and j < len(scores[0]) else 0.0) for j in range(n)] for i in range(n)]
    row_potential, column_potential = [0.0] * n, [0.0] * (n + 1)
    row_of = [-1] * (n + 1)  # by column; column n is a dummy that holds the row being assigned
    for row in range(n):
        # Grow a tree of alternating paths from the new row until it reaches a free column.
        row_of[n], column = row, n
        min_slack, previous_column, in_tree = [math.inf] * n, [n] * n, [False] * (n + 1)
        while row_of[column] >= 0:
            in_tree[column], i = True, row_of[column]
            for j in (j for j in range(n) if not in_tree[j]):
                slack = cost[i][j] - row_potential[i] - column_potential[j]
                if slack < min_slack[j]:
                    min_slack[j], previous_column[j] = slack, column
            next_column = min((j for j in range(n) if not in_tree[j]), key=min_slack.__getitem__)
            step = min_slack[next_column]
            # Shift the potentials so that one more edge is tight, and every reduced cost stays at least 0.
            for j in range(n + 1):
                if in_tree[j]:
                    row_potential[row_of[j]] += step
                    column_potential[j] -= step
                elif j < n:
                    min_slack[j] -= step
            column = next_column
        # Reassign the columns along the path back to the dummy.
        while column != n:
            row_of[column], column = row_of[previous_column[column]], previous_column[column]
    # Rows and columns beyond the table's are dummies of score 0.
    column_of = {row_of[j]: j for j in range(n)}
    return [_partner_of(scores, i, column_of[i]) for i in range(len(scores))]


def _partner_of(scores: Scores, i: int, j: int) -> int:
    """Column of an assignment, -1 for padding or a pair of score 0."""
    return j if j < len(scores[i]) and scores[i][j] > 0 else -1


def greedy(scores: Scores) -> list[int]:
    """Greedy assignment: the largest free score first, ties by the first row and column.

    >>> greedy([[0.9, 0.8], [0.8, 0.0]])
    [0, -1]
    """
    pairs = sorted((-s, i, j) for i, row in enumerate(scores) for j, s in enumerate(row) if s > 0)
    column_of_row, used_columns = [-1] * len(scores), set[int]()
    for _, i, j in pairs:
        if column_of_row[i] < 0 and j not in used_columns:
            column_of_row[i] = j
            used_columns.add(j)
    return column_of_row


def transported(scores: Scores, regulariser: float = 0.1, rounds: int = 200) -> list[float]:
    """Transport scores r_i = sum_j T_ij S_ij, T the entropic transport of 1/P a row to 1/G a column at cost -S.

    Sinkhorn's iterations in float64 logarithms. Rows of T add up to 1/P, so that r_i is at most 1/P.

    >>> [round(x, 6) for x in transported([[1.0, 0.0], [0.0, 1.0]])]
    [0.499977, 0.499977]
    """
    s = torch.tensor(scores, dtype=torch.float64)
    kernel, (p, g) = s / regulariser, s.shape
    rows, columns = torch.zeros(p, 1, dtype=torch.float64), torch.zeros(1, g, dtype=torch.float64)
    for _ in range(rounds):
        rows = -math.log(p) - torch.logsumexp(kernel + columns, 1, keepdim=True)
        columns = -math.log(g) - torch.logsumexp(kernel + rows, 0, keepdim=True)
    return ((kernel + rows + columns).exp() * s).sum(1).tolist()


def word_f1(answer: str, expected: str) -> float:
    """F1 of the words of two texts as sets, case and punctuation aside; 0 where they share none, or both are empty.

    Punctuation separates words: "3.5" is "3" and "5".

    >>> word_f1("the Grey Sea.", "Grey Sea"), word_f1("1143.", "1143")
    (0.8, 1.0)
    """
    a, b = _words(answer), _words(expected)
    return 2 * len(a & b) / max(1, len(a) + len(b))


def _words(text: str) -> set[str]:
    return set(text.lower().translate(SPACED).split())


@part("matched_calls", stage="reward")
@dataclass(frozen=True)
class MatchedCalls(RewardPart):
    """Matched tool calls (`reward.step`): the mean score of a turn's calls; for a turn that answers, the `word_f1` of
    its answer with the expected one; 0 for a turn without either.

    matching   how the calls of all turns but answering ones are matched with the reference's, by `call_similarity`:
               "optimal" and "greedy" give each at most one partner, whose similarity is the call's score; "sinkhorn":
               `transported`
    unmatched  score of a call without a partner (at most 0); not of "sinkhorn"
    regulariser  of "sinkhorn"

    Reads `info["gold_calls"]` and `info["expected"]` of trajectories, `info["calls"]` and `info["answer"]` of turns: an
    environment gives them in the info of its first and of each later TimeStep, as "toolqa" does. A trajectory without
    gold calls has no such rewards (nan); GxpoError where no scored one has any.

    These are the turns' whole rewards: the environment's step reward is subtracted, so that the sum in the forest is
    this reward alone. Outcomes stay.

    Source: MatchTIR, arXiv 2601.10712, and its code, where the function called Hungarian is "greedy".
    """

    matching: Literal["optimal", "greedy", "sinkhorn"] = "optimal"
    unmatched: float = 0.0
    regulariser: float = 0.1

    def __post_init__(self) -> None:
        one_of("reward.step.matched_calls.matching", self.matching, ("optimal", "greedy", "sinkhorn"))
        if self.unmatched > 0 or not self.regulariser > 0:
            raise ConfigError(
                f"matched_calls: unmatched {self.unmatched:g} is at most 0, regulariser {self.regulariser:g} above 0"
            )

    def call_scores(self, predicted: Sequence[Call], gold: Sequence[Call]) -> list[float]:
        """Score of each predicted call against the reference's calls."""
        if not predicted or not gold:
            return [0.0 if self.matching == "sinkhorn" else self.unmatched] * len(predicted)
        scores = [[call_similarity(p, g) for g in gold] for p in predicted]
        if self.matching == "sinkhorn":
            return transported(scores, self.regulariser)
        partner = optimal(scores) if self.matching == "optimal" else greedy(scores)
        return [scores[i][j] if j >= 0 else self.unmatched for i, j in enumerate(partner)]

    def __call__(self, forest: Forest) -> Tensor:
        steps: list[list[int]] = [[] for _ in range(forest.n_trajectories)]
        for step, r in enumerate(forest.step_trajectory.tolist()):
            steps[r].append(step)
        has_gold_R = torch.tensor(["gold_calls" in info for info in forest.info], dtype=torch.bool)
        if bool(forest.scored.any()) and not bool((has_gold_R & forest.scored).any()):
            raise GxpoError(
                "reward.step.matched_calls: no rollout has gold_calls in its info: choose a task whose environment "
                "gives them, as toolqa"
            )
        value = [math.nan] * forest.n_steps
        for r in has_gold_R.nonzero().squeeze(1).tolist():
            for step, x in zip(steps[r], self._turn_rewards(forest, r, steps[r]), strict=True):
                value[step] = x
        # `own.apply` adds the environment's step reward, which is not part of this reward.
        return torch.tensor(value, dtype=torch.float64) - forest.step_reward.nan_to_num(0.0)

    def _turn_rewards(self, forest: Forest, r: int, steps: Sequence[int]) -> list[float]:
        """Rewards of the turns of trajectory r, whose rows are `steps`."""
        # Calls of all turns are matched at once, so that no two turns are paid for the same reference call.
        turn_infos = [forest.step_info[step] for step in steps]
        calls = [[] if "answer" in info else info.get("calls", []) for info in turn_infos]
        scores = iter(
            self.call_scores([call for turn_calls in calls for call in turn_calls], forest.info[r]["gold_calls"])
        )
        rewards = []
        for info, turn_calls in zip(turn_infos, calls, strict=True):
            turn_scores = [next(scores) for _ in turn_calls]
            if "answer" in info:
                rewards.append(word_f1(str(info["answer"]), str(forest.info[r].get("expected", ""))))
            else:
                rewards.append(sum(turn_scores) / len(turn_scores) if turn_scores else 0.0)
        return rewards
