"""Reward-shaping functions for `Shape`: by verdict, progress, length or likelihood; [R] in, [R] float64 out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from gxpo.forest import grouped
from gxpo.parts.functions import checked_by

Read = Callable[..., Tensor]
Share = Annotated[float, Interval(ge=0, le=1)]


# ---------------------------------------------------------------- of the outcome or the verdict alone
def signed(correct: Tensor, *, right: float = 1.0, wrong: float = -1.0) -> Tensor:
    """Signed reward: `right` for a success, `wrong` for a failure, so that no baseline is needed.

    Source: PSR and NSR, arXiv 2506.01347.
    """
    return torch.where(correct, right, wrong)


def soft_threshold(
    outcome: Tensor,
    *,
    threshold: float = 0.8,
    above: Annotated[float, Gt(0)] = 0.01,
    below: Annotated[float, Gt(0)] = 1.0,
) -> Tensor:
    """Soft threshold: threshold + above ln(1 + d) where d = outcome - threshold >= 0, else
    threshold - (e^(-below d) - 1) / (e^below - 1); one excellent member no longer sets all others back.

    outcome  of about 0 to 1: far below 0 it falls exponentially
    above    how much of a difference between good scores is left;   below  how much steeper it gets the worse they are

    Continuous and increasing. Source: TempSamp-R1 (arXiv 2509.18056), soft advantage.

    >>> soft_threshold(torch.tensor([1.0, 0.8, 0.5, 0.0], dtype=torch.float64))
    tensor([0.8018, 0.8000, 0.5964, 0.0868], dtype=torch.float64)
    """
    d = outcome.to(torch.float64) - threshold
    fall = (-below * d.clamp_max(0.0)).expm1() / math.expm1(below)
    return threshold + torch.where(d >= 0, above * d.clamp_min(0.0).log1p(), -fall)


def noted(
    outcome: Tensor,
    info: Sequence[Mapping[str, Any]],
    *,
    weights: Mapping[str, float] = {"format": 0.1, "execution": 1.0},  # never written to
    outcome_weight: float = 1.0,
) -> Tensor:
    """Weighted notes: outcome_weight * outcome + sum_k weights[k] * info[k]; a missing note counts 0.

    >>> notes = {"format": 0.1, "done": 1.0}
    >>> noted(torch.tensor([1.0, 0.0]), [{"format": 1.0, "done": 0.5}, {}], weights=notes).tolist()
    [1.6, 0.0]
    """
    note_sums = [sum(w * float(row.get(name, 0.0)) for name, w in weights.items()) for row in info]
    return outcome_weight * outcome.to(torch.float64) + torch.tensor(note_sums, dtype=torch.float64)


def plan_success(success: Tensor, plan: Tensor, *, weight: float = 0.5) -> Tensor:
    """Plan success: `weight` times the mean verdict of the group's trajectories with one info["plan"] (`reward.add`).

    plan  ids, -1 none. 0 for a trajectory without a plan, or whose plan's executions have no verdict; its own counts as
          any other

    >>> plan_success(torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([0, 0, 1, 1]), weight=1.0).tolist()
    [0.5, 0.5, 1.0, 1.0]
    """
    return weight * grouped.mean(success.nan_to_num(nan=0.0), plan, success.isfinite())


def plan_softmax(
    success: Tensor,
    plan: Tensor,
    group: Tensor,
    *,
    weight: float = 0.5,
    temperature: Annotated[float, Gt(0)] = 1.0,
) -> Tensor:
    """Softmax over the group's plans of their mean verdict / `temperature`, times `weight` (`reward.add`).

    plan  as in `plan_success`; plans whose executions have no verdict are left out

    Source: PTA-GRPO, arXiv 2510.01833, equation 2 (weight 0.5, a temperature that it does not state).

    >>> verdicts, plans, one = torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([0, 0, 1, 1]), torch.zeros(4).long()
    >>> plan_softmax(verdicts, plans, one, weight=1.0, temperature=0.5).round(decimals=4).tolist()
    [0.2689, 0.2689, 0.7311, 0.7311]
    """
    has_verdict = success.isfinite()
    mean = grouped.mean(success.nan_to_num(nan=0.0), plan, has_verdict)
    n_verdicts = grouped.sum(has_verdict.to(mean), plan)
    has_scored_plan = (plan >= 0) & (n_verdicts > 0)
    # A plan counts once in the softmax, however many trajectories carry it: each contributes its share of the plan.
    exp_mean = torch.where(
        has_scored_plan, (mean / temperature - grouped.max(mean / temperature, group, has_scored_plan)).exp(), 0.0
    )
    plan_size = grouped.sum(has_scored_plan.to(mean), plan)
    total = grouped.sum(torch.where(has_scored_plan, exp_mean / plan_size.clamp_min(1), 0.0), group)
    return weight * torch.where(has_scored_plan, exp_mean / torch.where(has_scored_plan, total, 1.0), 0.0)


# ---------------------------------------------------------------- with a component
def added_component(
    outcome: Tensor,
    read: Read,
    success: Tensor,
    group: Tensor,
    counts: Tensor,
    *,
    component: str = "key_steps",
    weight: float = 0.1,
    groups: Literal["all", "mixed"] = "all",
) -> Tensor:
    """Added component: outcome + weight * component, for one of reward weight 0; unscored where it is unknown.

    groups  "mixed": only in groups with a success and a failure among their compared members. Elsewhere the component
            alone would tell members apart, and standardising makes its smallest differences as large as a verdict's

    R1-VL's StepRAR adds 0.1 of the share of key steps, its StepRVR 1 where the form is right: "key_steps" and "ordered"
    of the reward "key_steps". Source: R1-VL, arXiv 2503.12937, and its code.
    """
    added = weight * read(component)
    if groups == "mixed":
        counts_verdict = counts & success.isfinite()
        mixed = (grouped.max(success, group, counts_verdict) >= 1) & (grouped.min(success, group, counts_verdict) < 1)
        added = torch.where(mixed, added, 0.0)
    return outcome + added


def factored(
    outcome: Tensor,
    read: Read,
    *,
    factors: tuple[str, ...] = ("comfort",),
    fail: str = "",
    kept: Annotated[float, Interval(ge=0, le=1)] = 1.0,
    terminal: float = 0.0,
) -> Tensor:
    """Factored outcome: outcome * product of the factors; kept times that, plus terminal, where `fail` is 1 or more.

    factors   components of reward weight 0, each from 0 to 1: soft penalties that scale progress and never add to it
    fail      component of an infraction that ends the attempt; "": none
    kept      share of the reward earned before an infraction that stays: 1 all of it, 0 none
    terminal  reward of the infraction itself

    A component that is unknown leaves the outcome unknown. Source: CaRL (arXiv 2504.17838) and its code, where the
    product is of a step's progress, and an infraction ends the episode after what was paid.

    >>> share = {"speed": torch.tensor([0.5, 0.5]), "hit": torch.tensor([0.0, 1.0])}
    >>> kinds = {"factors": ("speed",), "fail": "hit"}
    >>> factored(torch.tensor([0.75, 0.25]), lambda name: share[name], **kinds).tolist()
    [0.375, 0.125]
    >>> factored(torch.tensor([0.75, 0.25]), lambda name: share[name], **kinds, kept=0.0, terminal=-0.5).tolist()
    [0.375, -0.5]
    """
    value = outcome.to(torch.float64)
    for name in factors:
        value = value * read(name)
    if not fail:
        return value
    failed = read(fail)
    # An infraction that is unknown makes the outcome unknown: nan compares as no infraction otherwise.
    return torch.where(failed.isnan(), failed, torch.where(failed >= 1, kept * value + terminal, value))


def process_bonus(outcome: Tensor, read: Read, *, component: str = "process") -> Tensor:
    """Process bonus: outcome (1 + component), which leaves an outcome of 0 at 0.

    Search-R2's R_proc is the share of retrieved chunks that a judge finds useful. A component that is unknown makes any
    outcome but 0 unknown. Source: Search-R2, arXiv 2602.03647, eq. 1.

    >>> process_bonus(torch.tensor([1.0, 0.0]), lambda name: torch.tensor([2 / 4, 3 / 4])).tolist()
    [1.5, 0.0]
    """
    right = outcome.to(torch.float64)
    return torch.where(right == 0, right, right * (1 + read(component).to(torch.float64)))


def critique_reward(
    outcome: Tensor,
    read: Read,
    *,
    bonus: float = 0.0,
    wrong: float = 0.0,
    weight: float = 1.0,
    pays: Literal["refined", "gain", "repair", "corrected"] = "refined",
) -> Tensor:
    """Critique reward (rollout `critique`): `wrong` where the verdict is wrong or unreadable, else bonus + weight * r.

    pays  r, of c the verdict on the attempt and m the mean verdict on the refinements:
          "refined": m;   "gain": m - c;   "repair": m where c = 0, else 0;   "corrected": m where c = 0, else 0.2 m

    Trajectories without a verdict of their own, such as a trained solver's, keep their outcome. Source: Critique-RL,
    arXiv 2510.24320, and its code (r_refine, r_delta, r_correct); RefCritic, arXiv 2507.15024.

    >>> columns = {"verdict": [1.0, 0.0], "attempt": [0.0, 1.0], "refined": [0.75, 1.0]}
    >>> read = lambda name: torch.tensor(columns[name], dtype=torch.float64)
    >>> critique_reward(torch.zeros(2), read, bonus=0.2, wrong=-1.0).round(decimals=6).tolist()
    [0.95, -1.0]
    """
    verdict, attempt, refined = (read(name).to(torch.float64) for name in ("verdict", "attempt", "refined"))
    paid = {
        "refined": refined,
        "gain": refined - attempt,
        "repair": refined * (attempt < 1),
        "corrected": torch.where(attempt < 1, refined, 0.2 * refined),
    }[pays]
    value = torch.where(verdict < 1, wrong, bonus + weight * paid)
    return torch.where(verdict.isnan(), outcome.to(torch.float64), value)


def priced_length(
    outcome: Tensor, length: Tensor, *, price: Share = 0.1, max_length: Annotated[float, Gt(0)] = 30.0
) -> Tensor:
    """Price of length: outcome (1 - price length / max_length), of at most max_length tokens.

    >>> priced_length(torch.tensor([1.0, 0.0]), torch.tensor([10, 10]), max_length=20.0).tolist()
    [0.95, 0.0]
    """
    return outcome.to(torch.float64) * (1.0 - price * (length.to(torch.float64) / max_length).clamp_max(1.0))


def directed(
    outcome: Tensor, info: Sequence[Mapping[str, Any]], read: Read, *, components: tuple[str, ...] = ("first", "second")
) -> Tensor:
    """Rewards along a direction: sum_k v_k component_k, v the rollout's info["direction"]; others keep their outcome.

    >>> v = {"direction": [0.965926, -0.258819]}  # -15 degrees
    >>> scores = {"first": torch.tensor([0.7, 0.7]), "second": torch.tensor([0.4, 0.4])}
    >>> directed(torch.zeros(2), [v, {}], lambda name, share: scores[name]).round(decimals=4).tolist()
    [0.5726, 0.0]
    """
    direction = torch.tensor([list(row.get("direction", ())) or [math.nan] * len(components) for row in info])
    value = torch.stack([read(name, share=False) for name in components], 1)
    along = (direction.to(torch.float64) * value).sum(1)
    return torch.where(direction.isnan().any(1), outcome.to(torch.float64), along)


def pareto_front(
    outcome: Tensor, read: Read, group: Tensor, counts: Tensor, *, components: tuple[str, ...] = ("safe", "useful")
) -> Tensor:
    """1 for attempts that no other of the group dominates in the components, else 0; unscored where one is unknown.

    a dominates b: it is at least as good in all components, and better in one. Source: FATE, arXiv 2605.11882.

    >>> scores = {"safe": torch.tensor([1.0, 0.6, 0.5, 1.0]), "useful": torch.tensor([0.2, 0.9, 0.5, 0.1])}
    >>> one = torch.zeros(4, dtype=torch.int64)
    >>> pareto_front(torch.zeros(4), lambda name: scores[name], one, one == 0).tolist()
    [1.0, 1.0, 0.0, 0.0]
    """
    value = torch.stack([read(name) for name in components], 1).to(torch.float64)
    difference = value[:, None] - value[None]  # [other, attempt, component]
    dominates = (difference >= -grouped.DEGENERATE).all(2) & (difference > grouped.DEGENERATE).any(2)
    dominates &= (group[:, None] == group[None]) & counts[:, None]
    return torch.where(value.isnan().any(1), torch.nan, 1.0 - dominates.any(0).to(torch.float64))


def exponential(
    outcome: Tensor, read: Read, *, component: str = "iou", steepness: Annotated[float, Gt(0)] = 3.0
) -> Tensor:
    """e^(steepness x) in the place of x, a component of the outcome of weight 1; outcomes without it stay.

    In a group only the shape of the differences is left once they are divided by their standard deviation: the best
    gain on those in the middle. Source: OmniVL-Guard, arXiv 2602.10687 (steepness 3).
    """
    value = read(component, share=False).to(torch.float64)
    return outcome + torch.where(value.isnan(), 0.0, (steepness * value).exp() - value)


def _low_to_high(low: float, high: float, **_: Any) -> str | None:
    """Describe bounds that are out of order; None for valid ones."""
    return None if low < high else f"low ({low:g}) must be below high ({high:g})"


@checked_by(_low_to_high)
def rescaled(outcome: Tensor, read: Read, *, component: str = "iou", low: float = 0.0, high: float = 1.0) -> Tensor:
    """Rescale a component of the outcome (of weight 1) to (value - low) / (high - low), clipped to [0, 1].

    low, high  values of it that become 0 and 1: hard tasks whose best attempts stay far below 1 then count as much
               as easy ones. 0 and 1 change nothing in a component from 0 to 1

    An outcome without the component (of another task of the mixture) stays.

    Source: VITAL (arXiv 2508.04416), the task-level half of its DGRPO, there for the overlap of time spans.

    >>> value = torch.tensor([0.2, 0.5, 0.9])
    >>> rescaled(value, lambda name, share: value, low=0.25, high=0.75).tolist()
    [0.0, 0.5, 1.0]
    """
    value = read(component, share=False).to(torch.float64)
    return outcome + torch.where(value.isnan(), 0.0, ((value - low) / (high - low)).clamp(0.0, 1.0) - value)


def _tiers(thresholds: Sequence[float], values: Sequence[float], **_: Any) -> str | None:
    """Describe thresholds and values that make no tiers; None for valid ones."""
    if len(thresholds) != len(values):
        return f"{len(thresholds)} thresholds need as many values, not {len(values)}"
    if not all(a < b for a, b in pairwise([0.0, *thresholds, 1.0 + 1e-9])):
        return f"thresholds {list(thresholds)} must rise, above 0 and up to 1"
    steps = [b - a for a, b in pairwise([0.0, *values, 1.0])]
    if not (all(s > 0 for s in steps) and all(a <= b + 1e-9 for a, b in pairwise(steps))):
        return f"values {list(values)} must rise from 0 to 1 by steps that do not shrink, the last to 1"
    return None


@checked_by(_tiers)
def tiered(
    correct: Tensor,
    read: Read,
    *,
    component: str = "progress",
    thresholds: tuple[float, ...] = (0.25, 0.5, 0.75),
    values: tuple[float, ...] = (0.1, 0.25, 0.5),
    alpha: Annotated[float, Interval(gt=0, le=1)] = 1.0,
    solved: Literal["tiers", "flat"] = "tiers",
) -> Tensor:
    """Tiered reward: [correct] + alpha S, S = values[k] of the last threshold k that the component reaches, else 0.

    thresholds  of progress from 0 to 1: where tiers begin, rising, above 0
    values      what they are worth: steps that never shrink, from 0 through `values` to 1
    alpha       above 0, up to 1: the best failure has less than the least success
    solved      what tells successes apart: their "tiers" too, or nothing ("flat": each is 1)

    More progress never earns less, and no progress earns what success does. Progress that is unknown leaves a failure
    unscored; a success has 1 then.

    Source: SSL (arXiv 2601.22491), whose tiers are reconstructed.
    """
    # nan would be searched as the largest score, so it is put back after the look-up.
    score = read(component).to(torch.float64)
    reached = torch.searchsorted(torch.tensor(thresholds, dtype=torch.float64), score.nan_to_num(0.0), right=True)
    value = alpha * torch.where(score.isnan(), score, torch.tensor([0.0, *values], dtype=torch.float64)[reached])
    return torch.where(correct, 1.0 + (value.nan_to_num(0.0) if solved == "tiers" else 0.0), value)


def correct_prefix(
    correct: Tensor,
    read: Read,
    group: Tensor,
    counts: Tensor,
    *,
    component: str = "correct_prefix",
    groups: Literal["all_wrong", "all"] = "all_wrong",
    steepness: Annotated[float, Gt(0)] = 5.0,
    midpoint: float = 0.5,
    max_reward: Annotated[float, Interval(gt=0, le=1)] = 1.0,
) -> Tensor:
    """Correct-prefix reward: 1 for a right answer, max_reward / (1 + exp(-steepness (share - midpoint))) for a wrong.

    component  the share of the answer before its first error, 0 to 1: `FirstError`, or a reward of one's own
    groups     "all_wrong": only in groups without a right answer (others: 0); "all": in every group
    max_reward  what it tends to, up to 1: no wrong answer earns what a right one does

    A share that is unknown, where it is read, leaves the attempt unscored. Whether a group is all wrong is seen from
    its compared members.

    Source: Spectral (later: Stepwise Guided) Policy Optimization, arXiv 2505.11595. A port of it has the sign of the
    exponent reversed, so that the worse of two wrong answers earns more.
    """
    earned = max_reward * torch.sigmoid(steepness * (read(component).to(torch.float64) - midpoint))
    # A group with a right answer has a contrast already, and no wrong attempt is paid there.
    if groups == "all_wrong":
        earned = torch.where(grouped.max(correct, group, counts) > 0, 0.0, earned)
    return torch.where(correct, 1.0, earned)


def entity_match(
    correct: Tensor,
    read: Read,
    truncated: Tensor,
    group: Tensor,
    counts: Tensor,
    *,
    component: str = "entities",
    max_reward: Annotated[float, Interval(ge=0, lt=1)] = 0.3,
) -> Tensor:
    """Entity match: 1 for a correct answer, max_reward * rate / (group's largest rate) for a wrong one, 0 if truncated.

    component  the share of entities that the attempt mentions, 0 to 1: the reward "entities", or one of your own

    A rate that is unknown leaves a wrong attempt unscored. The largest rate is that of the group's scored, compared
    attempts, right ones included; 0 where all are 0.

    Source: E-GRPO, arXiv 2510.24694.
    """
    rate = read(component)
    best = grouped.max(rate.nan_to_num(0.0), group, counts & rate.isfinite())
    share = torch.where(best > 0, (rate / torch.where(best > 0, best, 1.0)).clamp(max=1.0), 0.0 * rate)
    return torch.where(correct, 1.0, torch.where(truncated, 0.0, max_reward * share))


# ---------------------------------------------------------------- by length and likelihood
def _readable(parsed: str, repetitive: str, **_: Any) -> str | None:
    """Describe `repetitive` without `parsed`, which has no effect; None otherwise."""
    lacks_parsed = repetitive and not parsed
    return "repetitive counts where no answer could be read: name `parsed` as well" if lacks_parsed else None


@checked_by(_readable)
def length_relative(
    correct: Tensor,
    length: Tensor,
    group: Tensor,
    counts: Tensor,
    read: Read,
    *,
    alpha: float = 0.05,
    eps: float = 1e-6,
    ddof: Annotated[int, Interval(ge=0, le=1)] = 1,
    longer_than: Annotated[float, Ge(0)] = 0.0,
    parsed: str = "",
    repetitive: str = "",
) -> Tensor:
    """Relative length reward (GRPO-LEAD): exp(-alpha z) for a correct answer, -1 for a wrong one;
    z = (L - mean L) / (std L + eps) over the group's correct answers.

    length       tokens; counts  whose lengths enter the statistics
    ddof         degrees of freedom that the std leaves out
    longer_than  z is 0 in groups whose three shortest answers, right or wrong, have at most this many tokens on average
    parsed       component that is 1 where an answer could be read: a failure without one has 0, not -1
    repetitive   component that is 1 where the text repeats itself: such a failure has -2, if it has no answer

    A lone correct answer, and correct answers of equal length, have z = 0, so 1. A group of fewer than three answers is
    longer than any bound. `parsed` and `repetitive` count in groups with a success; unknown, they say nothing bad. The
    code drops the other groups, sets `longer_than` to 4,000, and calls a text repetitive that says up to 30 words ten
    times in a row or has a word of 120 characters. Source: GRPO-LEAD (arXiv 2504.09696) and its code.

    >>> correct, group = torch.tensor([True, True, True, False]), torch.zeros(4).long()
    >>> length_relative(correct, torch.tensor([100, 200, 300, 150]), group, group == 0, None)
    tensor([ 1.0513,  1.0000,  0.9512, -1.0000], dtype=torch.float64)
    """
    z = grouped.normalize(length, group, correct & counts, ddof=ddof, eps=eps)
    tie_free_length = length.to(torch.float64) * len(length) + torch.arange(
        len(length)
    )  # no two lengths are equal: exactly three rank below 3
    shortest = counts & (grouped.rank(tie_free_length, group, counts) < 3)
    is_long = (grouped.mean(length, group, shortest) > longer_than) | (grouped.count(group, counts) < 3)
    value = torch.where(correct, torch.exp(-alpha * torch.where(is_long, z, 0.0)), -1.0)
    # Without the component's name nothing tells which failures had an answer.
    if not parsed:
        return value
    # Failures without a readable answer earn 0 or -2 in place of -1, only in groups with a success.
    is_unread_failure = ~correct & (grouped.max(correct, group, counts) > 0) & (read(parsed).nan_to_num(1.0) < 1)
    failure_value = torch.where(read(repetitive).nan_to_num(0.0) >= 1, -2.0, 0.0) if repetitive else 0.0
    return torch.where(is_unread_failure, failure_value, value)


def likelihood_discount(
    outcome: Tensor,
    correct: Tensor,
    logprob: Tensor,
    length: Tensor,
    group: Tensor,
    counts: Tensor,
    *,
    beta: Share = 0.25,
    all_correct: bool = False,
) -> Tensor:
    """Likelihood discount: outcome (1 - beta rank / G) for a correct answer, the unchanged outcome for a wrong one.

    rank is that of the mean log-prob of the answer's tokens under their sampler, among the G compared answers of the
    group, wrong ones included; 0 is the least likely, and equal ones (to 1e-5 nats) share their mean rank.

    beta         the likeliest of many loses almost this share
    all_correct  also in groups in which all are correct, which then differ; False: those stay as they are

    Source: Rewarding the Unlikely, arXiv 2506.02355.
    """
    # Log-probs that two forward passes round differently must not decide a rank.
    has_tokens, where = length > 0, counts & (length > 0)
    rank = _rank_among(grouped.settled(logprob, group, absolute=grouped.FORWARD), group, where)
    is_discounted = (
        correct & has_tokens if all_correct else correct & has_tokens & (grouped.min(correct, group, where) < 1)
    )
    return torch.where(is_discounted, outcome * (1.0 - beta * rank / grouped.count(group, where).clamp_min(1)), outcome)


def _rank_among(x: Tensor, group: Tensor, where: Tensor) -> Tensor:
    """Rank [R] float64 among the counting members of the group: how many lie below, ties (itself aside) by half.

    Members that do not count are ranked among those that do.

    >>> where = torch.tensor([True, True, True, False])
    >>> _rank_among(torch.tensor([0.1, 0.3, 0.3, 0.2]), torch.zeros(4).long(), where).tolist()
    [0.0, 1.5, 1.5, 1.0]
    """
    rank_among_counting = grouped.rank(x, group) - grouped.rank(x, group, ~where)
    return torch.where(where, grouped.rank(x, group, where), rank_among_counting)
