"""Preference losses (DPO, IPO, SimPO, ORPO, KTO...) on pairs of a better and a worse trajectory of one group."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gxpo.algorithms.objectives.base import Evaluated
from gxpo.algorithms.objectives.preference_forms import FORMS, options_of
from gxpo.algorithms.objectives.score_over import Over, factors
from gxpo.algorithms.objectives.sequence_score import LabelTerm, contrasted, counted, n_groups, per_trajectory, weighted
from gxpo.algorithms.objectives.surrogate import Positive, Width
from gxpo.base.errors import ConfigError, MissingSignal
from gxpo.forest import grouped
from gxpo.forest.grouped import begins_of, runs_of
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import PolicyTokens, Signals


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


class Compared(NamedTuple):
    """What is compared: pairs first, then trajectories that have none, [n] each but the last two.

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
    form             loss of a pair, see `objectives.preference_forms`; `beta`, `margin`, `label_smoothing`, `bias`
                     are of it
    reference        "start": the frozen policy; "none": scores are log-probs; "opponents": the mixture that
                     `signal.opponents` makes of it and earlier policies
    length_mean      score a trajectory by the mean over its tokens instead of the sum
    length_offset    added to the score, divided by the length: with 1 and `length_mean` (log policy + 1) / length
    over, gamma      which turns the score is over, see `gxpo.algorithms.objectives.score_over`
    success_at       None: the verifier's verdict is the label; otherwise: outcome >= success_at
    success_weight   multiplies the loss of pairs whose better one is a success by that label; without pairs of
                     successes, and `failure_weight` of failures
    success_slope    multiplies beta in those pairs
    by_gap           multiplies the loss of a pair by the difference of its two outcomes; not of pairs by verdict
    gap_margin       adds to `margin` this times that difference
    least_gap        leaves out pairs whose outcomes differ by less; of groups all of whose pairs do, nothing is learned
    verdict_first    of "ordered": a success is better than a failure whatever their outcomes, and `by_gap` is 1 there
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
      StepORLM  reference none, ordered, sum, beta 0.1, by_gap, verdict_first: W-DPO   arXiv 2509.22558
      TRPA  ordered, length_mean, beta 0.1, success_slope 2.5, unpaired with beta 1   arXiv 2504.04524
    """

    pairs: Literal["verdict", "outcome", "ordered", "none"] = "verdict"
    beta: Positive = 0.1
    form: Literal["sigmoid", "ipo", "hinge", "odds", "prospect"] = "sigmoid"
    label_smoothing: Annotated[float, Interval(ge=0, lt=0.5)] = 0.0
    length_mean: bool = False
    success_at: float | None = None
    success_weight: Positive = 1.0
    success_slope: Positive = 1.0
    by_gap: bool = False
    verdict_first: bool = field(default=False, kw_only=True)
    unpaired: bool = False
    unpaired_beta: Positive | None = None
    reference: Literal["start", "none", "opponents"] = field(default="start", kw_only=True)
    margin: float = field(default=0.0, kw_only=True)
    bias: Positive = field(default=1.0, kw_only=True)
    gap_margin: Width = field(default=0.0, kw_only=True)
    least_gap: Width = field(default=0.0, kw_only=True)
    length_offset: Annotated[float, Ge(0)] = field(default=0.0, kw_only=True)
    over: Over = field(default="answer", kw_only=True)
    gamma: Annotated[float, Interval(gt=0, le=1)] = field(default=1.0, kw_only=True)
    failure_weight: Positive = field(default=1.0, kw_only=True)
    unpaired_against: Literal["zero", "batch"] = field(default="zero", kw_only=True)
    pair_weight: Positive = field(default=1.0, kw_only=True)
    nll: Width = field(default=0.0, kw_only=True)

    ratio_over = "reference"
    needs = ("reference_logprob",)

    def __post_init__(self) -> None:
        usual = {f.name: f.default for f in fields(self)}
        changed = {name for name in usual if getattr(self, name) != usual[name]}
        for name in sorted(changed & {"label_smoothing", "margin", "bias", "gap_margin"}):
            option = "margin" if name == "gap_margin" else name
            if option not in options_of(self.form):
                its = ", ".join(repr(form) for form in FORMS if option in options_of(form))
                raise ConfigError(f"objective.{name} belongs to objective.form {its}: leave one of the two out")
        if self.by_gap and self.pairs == "verdict":
            raise ConfigError("objective.by_gap weighs pairs of outcomes: set objective.pairs=ordered, or outcome")
        if self.verdict_first and self.pairs != "ordered":
            raise ConfigError("objective.verdict_first orders pairs of outcomes: set objective.pairs=ordered")
        if self.form == "odds" and (self.reference != "none" or not self.length_mean):
            raise ConfigError(
                "objective.form 'odds' reads mean log-probs: set objective.reference=none, objective.length_mean=true"
            )
        for name, what, where in (
            ("gamma", "over", self.over == "turns"),
            ("failure_weight", "pairs=none", self.pairs == "none"),
            ("unpaired_against", "unpaired", self._sets_alone),
        ):
            if name in changed and not where:
                raise ConfigError(f"objective.{name} does nothing here: it belongs to objective.{what}")
        object.__setattr__(self, "learns_from_equal_groups", self._sets_alone)
        object.__setattr__(self, "how", "mean" if self.length_mean else "sum")
        if self.reference != "start":
            object.__setattr__(self, "ratio_over", "none" if self.reference == "none" else "reference")
            object.__setattr__(self, "needs", () if self.reference == "none" else ("opponents_logprob",))
        if self.unpaired_against == "batch":
            object.__setattr__(self, "couples", "step")

    @property
    def _sets_alone(self) -> bool:
        return self.unpaired or self.pairs == "none"

    def factors(self, forest: Forest) -> Tensor | None:
        return factors(forest, self.over, self.gamma)

    def _sides(self, forest: Forest) -> tuple[Tensor, Tensor]:
        """[R], [R] bool: better and worse members of the groups that have a compared one of each; "ordered": all
        members of such groups are both."""
        group = forest.ids("group", axis="R")
        if self.pairs == "none":
            nobody = torch.zeros(forest.n_trajectories, dtype=torch.bool)
            return nobody, nobody
        if self.pairs == "verdict":
            better, worse = self.sides(forest)
        else:
            own = counted(forest)
            stats, outcome = own & forest.compared, forest.outcome
            alike = grouped.degenerate(outcome, group, stats)
            if self.verdict_first:
                alike = alike & grouped.degenerate(forest.success.nan_to_num(nan=-1.0), group, stats)
            better = worse = own & ~alike
            if self.pairs == "outcome":
                better = better & (outcome >= grouped.max(outcome, group, stats))
                worse = worse & (outcome <= grouped.min(outcome, group, stats))
        both = contrasted(group, better, worse, forest.compared)
        return better & both, worse & both

    def _alone(self, forest: Forest, better: Tensor) -> Tensor:
        """[R] bool: counted trajectories of groups without a pair."""
        paired = grouped.max(better.to(torch.float64), forest.ids("group", axis="R")) > 0
        return counted(forest) & ~paired & self._sets_alone

    def _told(self, forest: Forest, left: Tensor, right: Tensor) -> Tensor:
        """[n] bool: pairs that the verdict decides."""
        won, lost = forest.success[left], forest.success[right]
        return self.verdict_first & won.isfinite() & lost.isfinite() & (won != lost)

    def reads(self, forest: Forest) -> Tensor:
        better, worse = self._sides(forest)
        return better | worse | self._alone(forest, better)

    def _compared(self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor) -> Compared:
        score, run, entries, *_ = self.scores(forest, policy, credit, weight)
        length = torch.bincount(forest.path_trajectory[entries], minlength=forest.n_trajectories).clamp_min(1)
        if self.length_offset:
            score = score + self.length_offset / length
        group, known, (better, worse) = forest.ids("group", axis="R"), forest.compared, self._sides(forest)
        left, right = pairs(group, better & run, worse & run)
        kept = known[left] | known[right]
        if self.least_gap:
            kept &= forest.outcome[left] - forest.outcome[right] >= self.least_gap - grouped.DEGENERATE
        if self.pairs == "ordered":
            high, low = forest.outcome[left], forest.outcome[right]
            ahead = high - low > grouped.DEGENERATE * torch.maximum(high.abs(), low.abs())
            kept &= torch.where(self._told(forest, left, right), forest.success[left] > forest.success[right], ahead)
        left, right = left[kept], right[kept]

        def moved(x: Tensor, beside: Tensor) -> Tensor:
            """The values of the one side; held where the other is not compared."""
            own = left if beside is right else right
            return torch.where(known[beside], x[own], x[own].detach())

        above, below = moved(score, right), moved(score, left)
        nll = torch.zeros_like(above)
        if self.nll:
            logprob = weighted(policy.logprob[entries].to(torch.float64), weight[entries])
            nll = moved(-per_trajectory(logprob, forest.path_trajectory[entries], forest.n_trajectories), right)
        gap = forest.outcome[left] - forest.outcome[right]
        factor = torch.ones_like(above.detach())
        if self.by_gap:
            factor = factor * torch.where(self._told(forest, left, right), torch.ones_like(gap), gap)
        alone = (self._alone(forest, better) & run).nonzero().squeeze(1)
        beta = torch.full_like(factor, self.beta)
        if self.success_weight != 1 or self.success_slope != 1 or alone.numel():
            good, _ = self.sides(forest)
            factor[good[left]] *= self.success_weight
            beta[good[left]] *= self.success_slope
            own, sign = score[alone], good[alone]
            anchor = torch.zeros_like(own).detach()
            if self.unpaired_against == "batch" and alone.numel():
                shown = alone[known[alone]] if bool(known[alone].any()) else alone
                anchor = anchor + score[shown].detach().mean().clamp_min(0)
            above = torch.cat([above, torch.where(sign, own, anchor)])
            below = torch.cat([below, torch.where(sign, anchor, own)])
            weighed = torch.where(sign, self.success_weight, self.failure_weight).to(factor)
            factor = torch.cat([factor, weighed if self.pairs == "none" else torch.ones_like(weighed)])
            slope = self.beta if self.unpaired_beta is None else self.unpaired_beta
            beta = torch.cat([beta, torch.full_like(weighed, slope)])
            nll, gap = (torch.cat([x, torch.zeros_like(weighed)]) for x in (nll, gap))
        rounding = grouped.FORWARD * (2 * torch.ones(len(left)) if self.length_mean else (length[left] + length[right]))
        rows = torch.stack([left, right], dim=1)
        return Compared(above, below, group[torch.cat([left, alone])], factor, beta, gap, nll, rows, rounding)

    def losses(self, found: Compared, label_smoothing: float | Tensor) -> Tensor:
        """Loss of each comparison, [n]."""
        given: dict[str, Any] = {
            "margin": self.margin + self.gap_margin * found.gap if self.gap_margin else self.margin,
            "label_smoothing": label_smoothing,
            "bias": self.bias,
        }
        known = {name: x for name, x in given.items() if name in options_of(self.form)}
        each = found.factor * FORMS[self.form](found.better, found.worse, found.beta, **known)
        each = each if self.pair_weight == 1 else self.pair_weight * each
        return each + self.nll * found.nll if self.nll else each

    def total(self, forest: Forest, found: Compared) -> tuple[Tensor, dict[str, float]]:
        """Mean over groups of the mean over their comparisons, and figures."""
        loss = self.losses(found, self.label_smoothing) / grouped.count(found.group)
        return loss.sum() / n_groups(forest.ids("group", axis="R"), counted(forest)), {}

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        if self.reference == "opponents":
            if "opponents_logprob" not in signals:
                raise MissingSignal("objective.reference=opponents reads opponents_logprob: add signal.opponents")
            policy = replace(policy, reference_logprob=signals["opponents_logprob"])
        found = self._compared(forest, policy, credit, weight)
        value, figures = self.total(forest, found)
        return value.to(policy.logprob.dtype), self._figures(found) | figures

    @torch.no_grad()
    def _figures(self, found: Compared) -> dict[str, float]:
        """pair_accuracy  share of pairs in which the policy, against the reference, prefers the better one (by more
                       than two forward passes may differ)
        pair_margin    mean over the pairs of beta h
        pairs          how many there are
        """
        n = len(found.rounding)
        margin = (found.better - found.worse)[:n]
        if not n:
            return {"pairs": 0.0}
        return {
            "pair_accuracy": float((margin > found.rounding).to(torch.float64).mean()),
            "pair_margin": float((found.beta[:n] * margin).mean()),
            "pairs": float(n),
        }
