"""Best of n by a value head: which of a group's answers the head would take, and how often it is right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gxpo.base.errors import ConfigError, RecordError
from gxpo.forest.forest import Forest
from gxpo.models.chat.plain import decoder
from gxpo.parts.protocols import Budget
from gxpo.sampling.rollouts import Independent
from gxpo.sampling.rollouts.logged import File
from gxpo.training.evaluate import EVALUATION
from gxpo.training.statistics import mean_interval, pass_at_k


def chances(value: Sequence[float], k: int) -> list[float]:
    """Chance that each answer has the highest value among k drawn without replacement; equal values share theirs.

    >>> chances([0.1, 0.9, 0.5], 2)  # of the three pairs the second answer wins two, the third one
    [0.0, 0.6666666666666666, 0.3333333333333333]
    """
    n, order = len(value), sorted(range(len(value)), key=lambda i: value[i])
    by_rank = [math.comb(rank, k - 1) / math.comb(n, k) for rank in range(n)]
    out, begin = [0.0] * n, 0
    # an answer wins where all others that are drawn are below it; ties are broken by lot
    while begin < n:
        end = next((i for i in range(begin, n) if value[order[i]] > value[order[begin]]), n)
        for i in range(begin, end):
            out[order[i]] = sum(by_rank[begin:end]) / (end - begin)
        begin = end
    return out


def ordered_pairs(value: Sequence[float], verdict: Sequence[float]) -> tuple[float, int]:
    """Pairs of a better and a worse answer in which the better has the higher value (ties count half), and all pairs.

    >>> ordered_pairs([0.9, 0.5, 0.5], [1, 0, 1])
    (1.5, 2)
    """
    pairs = [(i, j) for i in range(len(value)) for j in range(len(value)) if verdict[i] > verdict[j]]
    return sum((value[i] > value[j]) + 0.5 * (value[i] == value[j]) for i, j in pairs), len(pairs)


@dataclass(frozen=True)
class Group:
    """Answers to one task: the head's values of them, and their verdicts (outcomes, where there are none).

    likelihood  log-probs of the whole answers under who sampled them, nan where it is unknown; a second choice to
                compare with, which needs no head
    """

    value: list[float]
    verdict: list[float]
    likelihood: list[float] = field(default_factory=list)


def figures_of(groups: Sequence[Group]) -> dict[str, Any]:
    """Figures of choosing by value: for n = 1, 2, 4... the mean verdict by lot, by value, by the sampler's likelihood
    (where all answers have it), and of the best there is.

    `gain` is by value less by lot at the largest n, paired by groups, with its 95% interval; groups of fewer answers
    than an n are left out at it. RecordError where no group has two.
    """
    largest = max((len(group.value) for group in groups), default=0)
    if largest < 2:
        raise RecordError("no group has two scored answers: there is nothing to choose among")
    is_binary = all(v in (0.0, 1.0) for group in groups for v in group.verdict)
    sizes = sorted({2**i for i in range(largest.bit_length()) if 2**i <= largest} | {largest})
    table = []
    for k in sizes:
        members = [group for group in groups if len(group.value) >= k]
        by_lot = [sum(g.verdict) / len(g.verdict) for g in members]
        by_value = [_mean_under(chances(g.value, k), g.verdict) for g in members]
        row = {"n": k, "groups": len(members), "by_lot": _mean(by_lot), "by_value": _mean(by_value)}
        if all(g.likelihood and not any(map(math.isnan, g.likelihood)) for g in members):
            row["by_likelihood"] = _mean([_mean_under(chances(g.likelihood, k), g.verdict) for g in members])
        if is_binary:
            row["best"] = _mean([pass_at_k(len(g.verdict), int(sum(g.verdict)), k) for g in members])
        table.append(row)
    gains = [b - a for a, b in zip(by_lot, by_value, strict=True)]
    pairs = [ordered_pairs(g.value, g.verdict) for g in groups]
    n_pairs = sum(n for _, n in pairs)
    return {
        "groups": len(groups),
        "answers": sum(len(g.value) for g in groups),
        "table": table,
        "gain": _mean(gains),
        "gain_low": (interval := mean_interval(gains))[0],
        "gain_high": interval[1],
        "ordered_pairs": sum(x for x, _ in pairs) / n_pairs if n_pairs else None,
        "pairs": n_pairs,
    }


def _mean_under(chance: Sequence[float], verdict: Sequence[float]) -> float:
    return math.fsum(p * v for p, v in zip(chance, verdict, strict=True))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


# ---------------------------------------------------------------- values of answers
def head_of(heads: Sequence[str], name: str | None) -> str:
    """Return the output of the head to choose by: the one there is, or the one that is named."""
    names = [head.partition("@")[2] for head in heads]
    if not heads:
        raise ConfigError("the run's method has no value head: train one (gxpo methods --family offline_values)")
    if name is None and len(heads) > 1:
        raise ConfigError(f"the run has the value heads {', '.join(names)}: name one by --head")
    if name is not None and name not in names:
        raise ConfigError(
            f"--head {name}: the run's value heads are {', '.join(filter(None, names)) or 'one, unnamed'}"
        )
    return heads[0] if name is None else heads[names.index(name)]


def last_values(forest: Forest, value_P: Tensor) -> Tensor:
    """Value of each trajectory at its last trained token, in the state that holds all of it but that token, [R]."""
    entries = forest.path_trainable.nonzero().squeeze(1)
    last = torch.full((forest.n_trajectories,), -1).scatter_reduce_(0, forest.path_trajectory[entries], entries, "amax")
    return torch.where(last >= 0, value_P[last.clamp_min(0)].to(torch.float64), torch.nan)


def groups_of(forest: Forest, value_R: Tensor) -> list[Group]:
    """Group the scored answers that have a value."""
    verdict_R = forest.success if bool(forest.success.isfinite().any()) else forest.outcome
    is_known = (verdict_R.isfinite() & value_R.isfinite()).tolist()
    members: dict[str, list[int]] = {}
    for row, name in enumerate(forest.group):
        if is_known[row]:
            members.setdefault(name, []).append(row)
    # of the tokens that were trained: those of other authors are no part of the choice
    is_trained_P = forest.path_trainable
    logprob_R = torch.zeros(forest.n_trajectories, dtype=torch.float64).index_add_(
        0, forest.path_trajectory[is_trained_P], forest.path_behaviour_logprob[is_trained_P].to(torch.float64)
    )
    columns = [column.tolist() for column in (value_R, verdict_R, logprob_R)]
    return [Group(*([column[r] for r in rows] for column in columns)) for rows in members.values()]


def logged_forests(trainer: Any, paths: Sequence[str]) -> list[Forest]:
    """Scored rollouts of files or folders of records, whose ids are those of the run's tokenizer."""
    forests = []
    for path in paths:
        file = File.read(path)
        file.check_tokens(decoder(trainer.tokenizer, trainer.chat))
        forests += [group.forest.select(torch.tensor(group.rows)) for group in file.groups]
    return forests


def sampled_forest(trainer: Any, tasks: int | None, samples: int) -> Forest:
    """Answers of a run's policy to its held-out tasks, scored; the draws are those of its evaluations."""
    sampling = replace(trainer.sampling, top_k=0, top_p=1.0)
    session = trainer.session(EVALUATION, seed=0, sampling=sampling, budget=Budget())
    held_out = trainer.source.held_out(tasks or trainer.settings.eval.tasks)
    session.know(held_out)
    rollout = getattr(trainer.method.rollout, "evaluation", Independent)(samples)
    return session.score(rollout.grow(held_out, session))


def values_of(trainer: Any, forests: Sequence[Forest], head: str) -> list[Group]:
    """Groups of answers with the values that the run's head gives them."""
    out = []
    for forest in forests:
        value_P = trainer.learner.outputs(forest, (head,))[head]
        out += groups_of(forest, last_values(forest, value_P))
    return out
