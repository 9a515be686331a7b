"""Scores for weights: success rate, entropy, length, perplexity and others, per group, trajectory or token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from gxpo.forest import grouped

F = TypeVar("F", bound=Callable[..., Any])
TINY = 1e-300  # the least probability of a cluster, where likelihoods give it none


def _on(axis: str) -> Callable[[F], F]:
    """Decorator: state the axis (R or P) of a score's columns and value."""

    def mark(function: F) -> F:
        function.axis = axis  # type: ignore[attr-defined]
        return function

    return mark


# ---------------------------------------------------------------- of groups
@_on("R")
def success_rate(correct: Tensor, group: Tensor, compared: Tensor) -> Tensor:
    """Share of the group's compared trajectories that are correct; 0 where none is compared."""
    return grouped.mean(correct, group, compared)


@_on("R")
def mean_outcome(outcome: Tensor, group: Tensor, compared: Tensor) -> Tensor:
    """Mean outcome of the group's compared trajectories; 0 where none is compared."""
    return grouped.mean(outcome, group, compared)


@_on("R")
def size(group: Tensor, compared: Tensor) -> Tensor:
    """Number of the group's compared trajectories."""
    return grouped.count(group, compared)


@_on("R")
def acting(group: Tensor, acts: Tensor) -> Tensor:
    """Number of the group's compared trajectories that have trained tokens."""
    return grouped.count(group, acts)


@_on("R")
def differ(outcome: Tensor, group: Tensor, compared: Tensor) -> Tensor:
    """Groups whose compared outcomes are not all equal, [R] bool."""
    return ~grouped.degenerate(outcome, group, compared)


@_on("R")
def credited(moved: Tensor, group: Tensor, acts: Tensor) -> Tensor:
    """Groups in which a compared trajectory has a non-zero advantage, [R] bool."""
    return grouped.max(moved, group, acts) > 0


@_on("R")
def tokens(length: Tensor, group: Tensor) -> Tensor:
    """Number of trained tokens of the group."""
    return grouped.sum(length, group)


@_on("R")
def long_pays(length: Tensor, correct: Tensor, complete: Tensor, group: Tensor, compared: Tensor) -> Tensor:
    """Groups whose longest correct answer exceeds the mean length of their complete wrong ones, [R] bool (ADORA).

    length    [R] tokens
    complete  [R] bool: not cut off by a limit; wrong answers that were do not enter the average
    compared  [R] bool: whose lengths enter

    True without (complete) wrong answers to be longer than, False without correct ones.
    Source: ADORA, arXiv 2602.10019, and its code for texts.
    """
    right, wrong = compared & correct, compared & complete & ~correct
    longer = grouped.max(length, group, right) > grouped.mean(length, group, wrong)
    return (grouped.count(group, right) > 0) & ((grouped.count(group, wrong) == 0) | longer)


def _cluster_entropy(
    cluster: Tensor,
    group: Tensor,
    where: Tensor | None = None,
    likelihood: Tensor | None = None,
    estimator: str = "mean_log",
) -> Tensor:
    """Uncertainty of each group about its answer, in nats: [R] float64, the same for all of a group; 0 where all agree.

    cluster     [R] int64 ids, equal inside a group where the answers are, -1 none;   group  [R] int64 ids, -1 none
    where       [R] bool, compared (default: all): whose answers count
    likelihood  [R] log-probability of each attempt: p_k is then its cluster's share of their total (default: of heads)
    estimator   "mean_log": -(1/K) sum_k log p_k over the group's K clusters; "shannon": -sum_k p_k log p_k

    Mean_log is not an entropy: a split of 3 against 1 has 0.837, one of 2 against 2 has 0.693 (Shannon: 0.562, 0.693).
    """
    # p_k: the share of each answer's cluster, of answers or of their likelihood
    counts = (group >= 0) & (cluster >= 0)
    counts = counts if where is None else counts & where
    score = torch.zeros(group.shape, dtype=torch.float64) if likelihood is None else likelihood
    cluster_prob = grouped.sum(grouped.softmax(score, group, counts), cluster, counts)
    surprise = -cluster_prob.clamp(TINY, 1.0).log()
    # members share their cluster's weight: every cluster counts once, however many answers are in it
    per_cluster = 1.0 / grouped.count(cluster, counts).clamp_min(1)
    if estimator == "mean_log":
        return grouped.mean(surprise, group, counts, weight=per_cluster)
    return grouped.sum(per_cluster * cluster_prob * surprise, group, counts)


@_on("R")
def answer_entropy(
    answer_cluster: Tensor,
    group: Tensor,
    compared: Tensor,
    columns: Any,
    *,
    estimator: Literal["mean_log", "shannon"] = "mean_log",
    mass: Literal["count", "likelihood"] = "count",
) -> Tensor:
    """Semantic entropy of the group's answers divided by log G; 0 where all agree (SEED-GRPO).

    estimator  "mean_log": -(1/K) sum_k log p_k over the group's K clusters of answers; "shannon": -sum_k p_k log p_k
    mass       what p_k is made of: "count", or "likelihood": e to the mean log-probability of an attempt's tokens by
               the policy at the start of the step, by which mean_log may exceed log G
    """
    log_likelihood = columns.of("mean_proximal_logprob", "R") if mass == "likelihood" else None
    entropy = _cluster_entropy(answer_cluster, group, compared, log_likelihood, estimator)
    largest = grouped.count(group, compared).clamp_min(1).log()
    return torch.where(largest > 0, entropy / torch.where(largest > 0, largest, 1.0), 0.0)


@_on("R")
def dissimilarity(embedding: Tensor, group: Tensor, compared: Tensor, shown: Tensor, success: Tensor) -> Tensor:
    """Dissimilarity of the group's attempts and its demonstrations, 1 - mean cosine, in [0, 2]; nan without either.

    embedding  [R, H];   shown  [R] bool: the demonstrations, which are no attempts

    Models are the demonstrations, or, in a group without one, its correct attempts (success 1).
    """
    attempt = compared & ~shown
    model = torch.where(grouped.count(group, shown) > 0, shown, attempt & (success >= 1))
    # the mean cosine to all models is the product with the sum of their unit vectors
    unit = torch.nn.functional.normalize(embedding.to(torch.float64), dim=1)
    model_rows = model.nonzero().squeeze(1)
    n = int(group.max()) + 1 if len(group) else 1
    total = torch.zeros(n, unit.shape[1], dtype=torch.float64).index_add_(0, group[model_rows], unit[model_rows])
    models = grouped.count(group, model)
    cosine = (unit * total[group]).sum(1) / models.clamp_min(1)
    has_both = (models > 0) & (grouped.count(group, attempt) > 0)
    return torch.where(has_both, 1.0 - grouped.mean(cosine, group, attempt), torch.nan)


@_on("R")
def of_attempts(outcome: Tensor, group: Tensor, compared: Tensor, shown: Tensor) -> Tensor:
    """Mean outcome of the group's compared trajectories other than demonstrations; nan without one."""
    return _mean_or_nan(outcome, group, compared & ~shown)


@_on("R")
def of_demonstrations(outcome: Tensor, group: Tensor, shown: Tensor) -> Tensor:
    """Mean outcome of the group's demonstrations; nan without one."""
    return _mean_or_nan(outcome, group, shown)


def _mean_or_nan(x: Tensor, ids: Tensor, where: Tensor) -> Tensor:
    return torch.where(grouped.count(ids, where) > 0, grouped.mean(x, ids, where), torch.nan)


# ---------------------------------------------------------------- of trajectories
@_on("R")
def perplexity(mean_reference_logprob: Tensor) -> Tensor:
    """exp(-mean log-prob) of the trajectory's tokens under the reference model."""
    return (-mean_reference_logprob).exp()


@_on("R")
def rarity(mean_proximal_logprob: Tensor, group: Tensor, acts: Tensor, correct: Tensor) -> Tensor:
    """Rarity 1 - exp(s - mean s) of correct answers rarer than their group, else 0; s the mean log-prob (XRPO)."""
    s = mean_proximal_logprob
    # s of an answer against its group's mean: below 1 where it is rarer
    eta = torch.where(grouped.count(group, acts) > 0, (s - grouped.mean(s, group, acts)).exp(), 1.0)
    return torch.where(correct, (1.0 - eta).clamp_min(0.0), 0.0)


@_on("R")
def lateness(first_use: Tensor, length: Tensor, group: Tensor, correct: Tensor, compared: Tensor) -> Tensor:
    """Lateness of the first tool use, (p - mean p) / mean L, of correct answers with one, else 0 (ASPO); p its place.

    first_use  [R] place in tokens, nan where there is none;   length  [R] L, tokens

    Means are over the group's compared correct answers with a use.
    """
    uses = correct & first_use.isfinite()
    first_place = torch.where(uses, first_use.to(torch.float64), 0.0)
    mean_place, mean_length = (
        grouped.mean(first_place, group, uses & compared),
        grouped.mean(length, group, uses & compared),
    )
    return torch.where(
        uses & (mean_length > 0), (first_place - mean_place) / torch.where(mean_length > 0, mean_length, 1.0), 0.0
    )


# ---------------------------------------------------------------- of tokens
@_on("P")
def taught(teacher_entropy: Tensor, trajectory: Tensor) -> Tensor:
    """1 where any token of the trajectory has teacher log-probs, else 0."""
    return grouped.max(teacher_entropy.isfinite(), trajectory)


@_on("P")
def dependency(proximal_logprob: Tensor, masked_logprob: Tensor) -> Tensor:
    """Dependency of a token on what was masked: k3 = e^d - d - 1 in [0, 10], d = masked - logprob in [-20, 20].

    Exactly 0 where the two are one but for rounding (1e-5 nats).
    """
    d = (masked_logprob.to(torch.float64) - proximal_logprob.to(torch.float64)).clamp(-20.0, 20.0)
    d = torch.where(d.abs() <= grouped.FORWARD, 0.0, d)
    return (d.expm1() - d).clamp(0.0, 10.0)


@_on("P")
def hint_strangeness(entropy: Tensor, credit: Tensor, trajectory: Tensor, columns: Any) -> Tensor:
    """Distance of a hint token's entropy from the sampled tokens' mean, negated (nats); -inf where A < 0, 0 elsewhere.

    Under `exponential` a weight from 0 to 1: a hint's token counts as far as it is as sure as the policy's own, and a
    failure does not push its hint down. Source: ADHint, arXiv 2512.13095; its form is reconstructed.
    """
    is_hint = columns.forest.path_behaviour_logprob[columns.entries].isnan()
    entropy = entropy.to(torch.float64)
    distance = (entropy - grouped.mean(entropy, trajectory, ~is_hint)).abs()
    distance = torch.where(credit < 0, torch.inf, distance)
    return torch.where(is_hint, -distance, 0.0)


@_on("P")
def position(place: Tensor, trajectory: Tensor) -> Tensor:
    """Relative position: 0 at the first trained token of a trajectory, 1 at the last; 0 for a single token."""
    return place.to(torch.float64) / (grouped.count(trajectory) - 1).clamp_min(1)


@_on("P")
def turn(columns: Any) -> Tensor:
    """Number of the token's turn in its trajectory."""
    return columns.forest.to_path(columns.forest.step_turn, "S")[columns.entries]
