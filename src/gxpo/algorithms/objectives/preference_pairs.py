"""Preference losses (DPO, IPO, SimPO, ORPO, KTO...) on pairs of a better and a worse trajectory of one group.

First the forms, the loss of one pair as a pure function of its two scores, then the term that compares a group.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import torch
from annotated_types import Ge, Interval
from torch import Tensor
from torch.nn.functional import logsigmoid

from gxpo.algorithms.objectives.base import Evaluated
from gxpo.algorithms.objectives.score_over import Over, factors
from gxpo.algorithms.objectives.sequence_score import (
    LabelTerm,
    counted_trajectories,
    is_contrasted,
    n_groups,
    per_trajectory,
    weight_gradients,
)
from gxpo.algorithms.objectives.surrogate import Positive, Share, Width
from gxpo.base.errors import ConfigError, GxpoError, MissingSignal
from gxpo.forest import grouped
from gxpo.forest.grouped import begins_of, runs_of
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import PolicyTokens, Signals


# ---------------------------------------------------------------- forms: the loss of one pair, from its two scores
# Each takes `better` and `worse` [n], scores that carry the gradient, and `beta` [n], and gives [n]. Keyword-only
# parameters are its options; the margin is h = better - worse.
def sigmoid(
    better: Tensor,
    worse: Tensor,
    beta: float | Tensor = 0.1,
    *,
    margin: float | Tensor = 0.0,
    label_smoothing: float | Tensor = 0.0,
    bias: float = 1.0,
) -> Tensor:
    """-(1 - e) log sigmoid(z) - e log sigmoid(-z), z = beta (better - bias worse) - margin.

    margin           what z has to exceed; a number or [n]
    label_smoothing  e, the chance that a label is wrong; a number or [n]
    bias             below 1 the worse one counts for less (CPL; for scores below 0, log-probs)

    dL/dh = -beta [(1 - e) sigmoid(-z) - e sigmoid(z)] where bias is 1. Sources: DPO, arXiv 2305.18290, eq. 7; e > 0:
    cDPO; margin: SimPO, arXiv 2405.14734; bias: CPL, arXiv 2310.13639.

    >>> sigmoid(torch.tensor([-0.8]), torch.tensor([-1.1]), 2.0, margin=1.0).item()
    0.9130152463912964
    """
    z = beta * (better - bias * worse) - margin
    return -(1 - label_smoothing) * logsigmoid(z) - label_smoothing * logsigmoid(-z)


def ipo(better: Tensor, worse: Tensor, beta: float | Tensor = 0.1) -> Tensor:
    """(h - 1 / (2 beta))^2: margins are pulled to a finite value, not to infinity. IPO, arXiv 2310.12036, eq. 17."""
    return (better - worse - 1 / (2 * beta)).square()


def hinge(better: Tensor, worse: Tensor, beta: float | Tensor = 0.1, *, margin: float | Tensor = 0.0) -> Tensor:
    """max(0, 1 - z), z = beta h - margin. SLiC, arXiv 2305.10425."""
    return (1 - (beta * (better - worse) - margin)).clamp_min(0)


def odds(better: Tensor, worse: Tensor, beta: float | Tensor = 0.1) -> Tensor:
    """-log sigmoid(beta (log odds of the better - log odds of the worse)), odds p / (1 - p), p = e^score.

    Scores are mean log-probs, below 0. ORPO, arXiv 2403.07691, eq. 6.
    """
    top = max((float(x.detach().max()) for x in (better, worse) if x.numel()), default=-1.0)
    if top > 0:
        raise GxpoError(f"objective.form 'odds' reads mean log-probs, and a score is {top:.3g}, above 0")
    return -logsigmoid(beta * (_log_odds(better) - _log_odds(worse)))


def _log_odds(logprob: Tensor) -> Tensor:
    """log p - log(1 - p); certainty is held 1e-12 below 1."""
    bounded_logprob = logprob.clamp_max(-1e-12)
    return bounded_logprob - (-bounded_logprob.expm1()).log()


def prospect(better: Tensor, worse: Tensor, beta: float | Tensor = 0.1) -> Tensor:
    """1 - sigmoid(beta h), bounded on both sides: what is far off is given up. KTO's value, arXiv 2402.01306, eq. 8."""
    return torch.sigmoid(-beta * (better - worse))


def clamped(better: Tensor, worse: Tensor, beta: float | Tensor = 0.1, *, clip: float = 0.1) -> Tensor:
    """-log sigmoid(beta h) of scores held in [log(1 - clip), log(1 + clip)]: no gradient beyond, whatever the order.

    SPO of diffusion models, arXiv 2406.04314: scores are log policy / reference of one denoising step.

    >>> round(clamped(torch.tensor([0.05]), torch.tensor([-0.2]), 10.0, clip=0.1).item(), 6)
    0.191846
    """
    above, below = (x.clamp(math.log1p(-clip), math.log1p(clip)) for x in (better, worse))
    return -logsigmoid(beta * (above - below))


FORMS: Mapping[str, Callable[..., Tensor]] = {f.__name__: f for f in (sigmoid, ipo, hinge, odds, prospect, clamped)}


def options_of(form: str) -> frozenset[str]:
    """Names of a form's options, beside the scores and beta."""
    arguments = inspect.signature(FORMS[form]).parameters.values()
    return frozenset(p.name for p in arguments if p.kind is p.KEYWORD_ONLY)


# ---------------------------------------------------------------- pairs
def pairs(group: Tensor, better: Tensor, worse: Tensor) -> tuple[Tensor, Tensor]:
    """All pairs of a better and a worse member of the same group: their rows, [n] and [n].

    group [R] int64 dense ids; better, worse [R] bool

    >>> b, w = pairs(torch.tensor([0, 0, 1, 0]), torch.tensor([1, 0, 1, 0]) > 0, torch.tensor([0, 1, 0, 1]) > 0)
    >>> b.tolist(), w.tolist()
    ([0, 0], [1, 3])
    """
    left, right = better.nonzero().squeeze(1), worse.nonzero().squeeze(1)
    right = right[torch.argsort(group[right], stable=True)]
    begins = begins_of(group[right], int(group.max()) + 1 if group.numel() else 0)
    return torch.repeat_interleave(left, begins.diff()[group[left]]), right[runs_of(begins, group[left])]


class Comparisons(NamedTuple):
    """Comparisons of scores: pairs first, then trajectories without a pair; [n] each but the last two.

    better, worse   scores; of a trajectory without a pair one of them is what it is set against
    group           dense ids; factor, beta: of the loss; gap: difference of the outcomes, 0 without a pair
    nll             mean -log policy of the better one's tokens, 0 without a pair
    rows            [n_pairs, 2] the trajectories
    rounding        [n_pairs] what a pair's margin may differ by between two forward passes
    """

    better: Tensor
    worse: Tensor
    group: Tensor
    factor: Tensor
    beta: Tensor
    gap: Tensor
    nll: Tensor
    rows: Tensor
    rounding: Tensor


@part("preference_pairs", stage="term")
@dataclass(frozen=True)
class PreferencePairs(LabelTerm):
    """Preference loss within groups: mean over groups of the mean over their pairs of a form of the two scores.

    A trajectory's score is log policy / reference.

    pairs            "verdict": every success with every failure; "outcome": every trajectory of the group's highest
                     outcome with every one of its lowest, where they differ; "ordered": every trajectory with every one
                     of lower outcome, so that outcomes are levels; "none": no pairs, all are unpaired
    form             loss of a pair, a function of this module; `beta`, `margin`, `label_smoothing`, `bias`,
                     `clip` are of it
    reference        "start": the frozen policy; "none": scores are log-probs; "opponents": the mixture that
                     `signal.opponents` makes of it and earlier policies
    length_mean      score a trajectory by the mean over its tokens instead of the sum
    length_offset    added to the score, divided by the length: with 1 and `length_mean` (log policy + 1) / length
    turns, gamma      which turns the score is over, see `gxpo.algorithms.objectives.score_over`
    success_at       None: the verifier's verdict is the label; otherwise: outcome >= success_at
    success_weight   multiplies the loss of pairs whose better one is a success by that label; without pairs of
                     successes, and `failure_weight` of failures
    success_slope    multiplies beta in those pairs
    weight_by_gap    multiplies the loss of a pair by the difference of its two outcomes; not of pairs by verdict
    gap_margin       adds to `margin` this times that difference
    min_gap          leaves out pairs whose outcomes differ by less; of groups all of whose pairs do, nothing is learned
    verdict_first    of "ordered": a success is better than a failure whatever their outcomes, and `weight_by_gap` is 1
                     there
    unpaired         trajectories of groups without a pair are set against score 0: h = s for a success, -s for others
    unpaired_beta    beta of these; None: `beta`
    unpaired_against  what they are set against: "zero", or "batch": the mean of their scores in the step, at least 0
    pair_weight, nll  the loss of a pair is `pair_weight` form + `nll` mean -log policy of the better one's tokens

    Groups without a pair are in the mean over groups with 0, unless `unpaired`. Pairs are of at least one compared
    trajectory; one that is not compared moves itself alone. Of G levels there are G (G - 1) / 2 pairs.

    With these settings this is
      DPO   verdict, sum, beta 0.1                                         arXiv 2305.18290
      SimPO  reference none, length_mean, beta 2, margin 0.5               arXiv 2405.14734
      ORPO  reference none, length_mean, form odds, beta 1, nll 1, pair_weight 0.1   arXiv 2403.07691
      KTO   pairs none, form prospect, unpaired against batch              arXiv 2402.01306
      StepORLM  reference none, ordered, sum, beta 0.1, weight_by_gap, verdict_first: W-DPO   arXiv 2509.22558
      TRPA  ordered, length_mean, beta 0.1, success_slope 2.5, unpaired with beta 1   arXiv 2504.04524
    """

    pairs: Literal["verdict", "outcome", "ordered", "none"] = "verdict"
    beta: Positive = 0.1
    form: Literal["sigmoid", "ipo", "hinge", "odds", "prospect", "clamped"] = "sigmoid"
    label_smoothing: Annotated[float, Interval(ge=0, lt=0.5)] = 0.0
    length_mean: bool = False
    success_at: float | None = None
    success_weight: Positive = 1.0
    success_slope: Positive = 1.0
    weight_by_gap: bool = False
    verdict_first: bool = field(default=False, kw_only=True)
    unpaired: bool = False
    unpaired_beta: Positive | None = None
    reference: Literal["start", "none", "opponents"] = field(default="start", kw_only=True)
    margin: float = field(default=0.0, kw_only=True)
    bias: Positive = field(default=1.0, kw_only=True)
    gap_margin: Width = field(default=0.0, kw_only=True)
    min_gap: Width = field(default=0.0, kw_only=True)
    length_offset: Annotated[float, Ge(0)] = field(default=0.0, kw_only=True)
    turns: Over = field(default="answer", kw_only=True)
    gamma: Annotated[float, Interval(gt=0, le=1)] = field(default=1.0, kw_only=True)
    failure_weight: Positive = field(default=1.0, kw_only=True)
    unpaired_against: Literal["zero", "batch"] = field(default="zero", kw_only=True)
    pair_weight: Positive = field(default=1.0, kw_only=True)
    nll: Width = field(default=0.0, kw_only=True)
    clip: Share = field(default=0.1, kw_only=True)

    ratio_over = "reference"
    needs = ("reference_logprob",)

    def __post_init__(self) -> None:
        # an option of another form, or of a mode that is off, would be ignored in silence
        defaults = {f.name: f.default for f in fields(self)}
        changed_options = {name for name in defaults if getattr(self, name) != defaults[name]}
        for name in sorted(changed_options & {"label_smoothing", "margin", "bias", "gap_margin", "clip"}):
            option = "margin" if name == "gap_margin" else name
            if option not in options_of(self.form):
                forms = ", ".join(repr(form) for form in FORMS if option in options_of(form))
                raise ConfigError(f"objective.{name} belongs to objective.form {forms}: leave one of the two out")
        if self.weight_by_gap and self.pairs == "verdict":
            raise ConfigError(
                "objective.weight_by_gap weighs pairs of outcomes: set objective.pairs=ordered, or outcome"
            )
        if self.verdict_first and self.pairs != "ordered":
            raise ConfigError("objective.verdict_first orders pairs of outcomes: set objective.pairs=ordered")
        if self.form == "odds" and (self.reference != "none" or not self.length_mean):
            raise ConfigError(
                "objective.form 'odds' reads mean log-probs: set objective.reference=none, objective.length_mean=true"
            )
        for name, owner, has_owner in (
            ("gamma", "turns", self.turns == "turns"),
            ("failure_weight", "pairs=none", self.pairs == "none"),
            ("unpaired_against", "unpaired", self._scores_unpaired),
        ):
            if name in changed_options and not has_owner:
                raise ConfigError(f"objective.{name} does nothing here: it belongs to objective.{owner}")
        # facts that follow from the settings: what the loss reads, and how wide its statistics are
        object.__setattr__(self, "learns_from_equal_groups", self._scores_unpaired)
        object.__setattr__(self, "how", "mean" if self.length_mean else "sum")
        if self.reference != "start":
            object.__setattr__(self, "ratio_over", "none" if self.reference == "none" else "reference")
            object.__setattr__(self, "needs", () if self.reference == "none" else ("opponents_logprob",))
        if self.unpaired_against == "batch":
            object.__setattr__(self, "couples", "step")

    @property
    def _scores_unpaired(self) -> bool:
        return self.unpaired or self.pairs == "none"

    def factors(self, forest: Forest) -> Tensor | None:
        return factors(forest, self.turns, self.gamma)

    def _sides(self, forest: Forest) -> tuple[Tensor, Tensor]:
        """Better and worse members of the groups that have a compared one of each, [R] and [R] bool.

        Of "ordered" pairs all members of such groups are both.
        """
        group = forest.ids("group", axis="R")
        if self.pairs == "none":
            nobody = torch.zeros(forest.n_trajectories, dtype=torch.bool)
            return nobody, nobody
        if self.pairs == "verdict":
            better, worse = self.sides(forest)
        else:
            counted_R = counted_trajectories(forest)
            in_statistics, outcome = counted_R & forest.compared, forest.outcome
            # groups without a difference to learn have no pair, whatever rounding makes of their outcomes
            is_equal = grouped.degenerate(outcome, group, in_statistics)
            if self.verdict_first:
                is_equal = is_equal & grouped.degenerate(forest.success.nan_to_num(nan=-1.0), group, in_statistics)
            better = worse = counted_R & ~is_equal
            if self.pairs == "outcome":
                better = better & (outcome >= grouped.max(outcome, group, in_statistics))
                worse = worse & (outcome <= grouped.min(outcome, group, in_statistics))
        has_both = is_contrasted(group, better, worse, forest.compared)
        return better & has_both, worse & has_both

    def _is_unpaired(self, forest: Forest, better: Tensor) -> Tensor:
        """Counted trajectories of groups without a pair, [R] bool; none if the settings leave them out."""
        has_pair = grouped.max(better.to(torch.float64), forest.ids("group", axis="R")) > 0
        return counted_trajectories(forest) & ~has_pair & self._scores_unpaired

    def _decided_by_verdict(self, forest: Forest, left: Tensor, right: Tensor) -> Tensor:
        """Pairs whose order is decided by the verdict, [n] bool."""
        left_success, right_success = forest.success[left], forest.success[right]
        return self.verdict_first & left_success.isfinite() & right_success.isfinite() & (left_success != right_success)

    def reads(self, forest: Forest) -> Tensor:
        better, worse = self._sides(forest)
        return better | worse | self._is_unpaired(forest, better)

    def _pairs(self, forest: Forest, better: Tensor, worse: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of the better and of the worse trajectory of each pair, [n] and [n]."""
        left, right = pairs(forest.ids("group", axis="R"), better, worse)
        is_pair = forest.compared[left] | forest.compared[right]
        if self.min_gap:
            is_pair &= forest.outcome[left] - forest.outcome[right] >= self.min_gap - grouped.DEGENERATE
        if self.pairs == "ordered":
            # all members are on both sides: kept are pairs whose left outcome is higher by more than rounding
            high, low = forest.outcome[left], forest.outcome[right]
            is_ahead = high - low > grouped.DEGENERATE * torch.maximum(high.abs(), low.abs())
            has_won = forest.success[left] > forest.success[right]
            is_pair &= torch.where(self._decided_by_verdict(forest, left, right), has_won, is_ahead)
        return left[is_pair], right[is_pair]

    def _comparisons(self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor) -> Comparisons:
        """Compare the scores of every pair, and those of trajectories without a pair with an anchor."""
        score, in_loss_R, entries, *_ = self.scores(forest, policy, credit, weight)
        length_R = torch.bincount(forest.path_trajectory[entries], minlength=forest.n_trajectories).clamp_min(1)
        if self.length_offset:
            score = score + self.length_offset / length_R
        group, compared_R, (better, worse) = forest.ids("group", axis="R"), forest.compared, self._sides(forest)
        left, right = self._pairs(forest, better & in_loss_R, worse & in_loss_R)

        def one_side(x: Tensor, rows: Tensor, other_rows: Tensor) -> Tensor:
            """Values of one side; constant where the other is not compared, which moves itself alone."""
            return torch.where(compared_R[other_rows], x[rows], x[rows].detach())

        # pairs: scores of both sides, the likelihood term of the better one, and the factors by outcome and verdict
        above, below = one_side(score, left, right), one_side(score, right, left)
        nll = torch.zeros_like(above)
        if self.nll:
            logprob = weight_gradients(policy.logprob[entries].to(torch.float64), weight[entries])
            mean_nll = -per_trajectory(logprob, forest.path_trajectory[entries], forest.n_trajectories)
            nll = one_side(mean_nll, left, right)
        gap = forest.outcome[left] - forest.outcome[right]
        factor = torch.ones_like(above.detach())
        if self.weight_by_gap:
            # outcomes of a success and a failure need not be in the verdict's order: no factor there
            factor = factor * torch.where(self._decided_by_verdict(forest, left, right), torch.ones_like(gap), gap)
        beta = torch.full_like(factor, self.beta)
        unpaired_rows = (self._is_unpaired(forest, better) & in_loss_R).nonzero().squeeze(1)
        # verdicts are read only where a setting needs them: pairs by outcome do without
        if self.success_weight != 1 or self.success_slope != 1 or unpaired_rows.numel():
            success_R, _ = self.sides(forest)
            factor[success_R[left]] *= self.success_weight
            beta[success_R[left]] *= self.success_slope
            # a success without a pair is the better one against the anchor, a failure the worse one
            unpaired_score, is_success = score[unpaired_rows], success_R[unpaired_rows]
            anchor = torch.zeros_like(unpaired_score).detach()
            if self.unpaired_against == "batch" and unpaired_rows.numel():
                is_compared = compared_R[unpaired_rows]
                anchor_rows = unpaired_rows[is_compared] if bool(is_compared.any()) else unpaired_rows
                anchor = anchor + score[anchor_rows].detach().mean().clamp_min(0)
            above = torch.cat([above, torch.where(is_success, unpaired_score, anchor)])
            below = torch.cat([below, torch.where(is_success, anchor, unpaired_score)])
            unpaired_factor = torch.where(is_success, self.success_weight, self.failure_weight).to(factor)
            factor = torch.cat([factor, unpaired_factor if self.pairs == "none" else torch.ones_like(unpaired_factor)])
            slope = self.beta if self.unpaired_beta is None else self.unpaired_beta
            beta = torch.cat([beta, torch.full_like(unpaired_factor, slope)])
            nll, gap = (torch.cat([x, torch.zeros_like(unpaired_factor)]) for x in (nll, gap))
        # two forward passes differ by so much a token, and a sum over tokens by the sum of that
        tokens = 2 * torch.ones(len(left)) if self.length_mean else length_R[left] + length_R[right]
        rows, groups = torch.stack([left, right], dim=1), group[torch.cat([left, unpaired_rows])]
        return Comparisons(above, below, groups, factor, beta, gap, nll, rows, grouped.FORWARD * tokens)

    def losses(self, comparisons: Comparisons, label_smoothing: float | Tensor) -> Tensor:
        """Loss of each comparison, [n]."""
        form_options: dict[str, Any] = {
            "margin": self.margin + self.gap_margin * comparisons.gap if self.gap_margin else self.margin,
            "label_smoothing": label_smoothing,
            "bias": self.bias,
            "clip": self.clip,
        }
        accepted_options = {name: x for name, x in form_options.items() if name in options_of(self.form)}
        loss = comparisons.factor * FORMS[self.form](
            comparisons.better, comparisons.worse, comparisons.beta, **accepted_options
        )
        loss = loss if self.pair_weight == 1 else self.pair_weight * loss
        return loss + self.nll * comparisons.nll if self.nll else loss

    def total(self, forest: Forest, comparisons: Comparisons) -> tuple[Tensor, dict[str, float]]:
        """Mean over groups of the mean over their comparisons, and metrics."""
        loss = self.losses(comparisons, self.label_smoothing) / grouped.count(comparisons.group)
        return loss.sum() / n_groups(forest.ids("group", axis="R"), counted_trajectories(forest)), {}

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        if self.reference == "opponents":
            if "opponents_logprob" not in signals:
                raise MissingSignal("objective.reference=opponents reads opponents_logprob: add signal.opponents")
            policy = replace(policy, reference_logprob=signals["opponents_logprob"])
        comparisons = self._comparisons(forest, policy, credit, weight)
        value, figures = self.total(forest, comparisons)
        return value.to(policy.logprob.dtype), self._figures(comparisons) | figures

    @torch.no_grad()
    def _figures(self, comparisons: Comparisons) -> dict[str, float]:
        """Metrics of the pairs.

        pair_accuracy  share of pairs in which the policy, against the reference, prefers the better one (by more
                       than two forward passes may differ)
        pair_margin    mean over the pairs of beta h
        pairs          how many there are
        """
        n = len(comparisons.rounding)
        margin = (comparisons.better - comparisons.worse)[:n]
        if not n:
            return {"pairs": 0.0}
        return {
            "pair_accuracy": float((margin > comparisons.rounding).to(torch.float64).mean()),
            "pair_margin": float((comparisons.beta[:n] * margin).mean()),
            "pairs": float(n),
        }
