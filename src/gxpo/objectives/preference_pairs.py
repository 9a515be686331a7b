"""Preference losses (DPO, IPO, cDPO) on pairs of a better and a worse trajectory of one group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import torch
from annotated_types import Interval
from torch import Tensor
from torch.nn.functional import logsigmoid

from gxpo import grouped
from gxpo.errors import ConfigError
from gxpo.grouped import begins_of, runs_of
from gxpo.objectives.base import Evaluated
from gxpo.objectives.sequence_score import LabelTerm, contrasted, counted, n_groups
from gxpo.objectives.surrogate import Positive
from gxpo.registry import part

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import PolicyTokens, Signals


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


def preference_loss(
    margin: Tensor, beta: float | Tensor = 0.1, form: str = "sigmoid", label_smoothing: float = 0.0
) -> Tensor:
    """DPO, cDPO or IPO loss of pairs, [n], from their margins h = score of the better - score of the worse.

    beta  one number, or [n]

    form  "sigmoid"  -(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h), e = label_smoothing: the chance that a label
                     is wrong. dL/dh = -beta [(1 - e) sigmoid(-beta h) - e sigmoid(beta h)]   (DPO; e > 0: cDPO)
          "ipo"      (h - 1 / (2 beta))^2: margins are pulled to a finite value, not to infinity

    Source: DPO, arXiv 2305.18290, eq. 7; IPO, arXiv 2310.12036, eq. 17.
    """
    if form == "ipo":
        return (margin - 1 / (2 * beta)).square()
    scaled = beta * margin
    return -(1 - label_smoothing) * logsigmoid(scaled) - label_smoothing * logsigmoid(-scaled)


class _Margins(NamedTuple):
    """Margin, group, weight and beta of each pair, then of each trajectory that has none and is set against 0.

    rounding  [n_pairs] what a pair's margin may differ by between two forward passes
    """

    margin: Tensor
    group: Tensor
    factor: Tensor
    beta: Tensor
    rounding: Tensor


@part("preference_pairs", stage="term")
@dataclass(frozen=True)
class PreferencePairs(LabelTerm):
    """Preference loss (DPO, IPO) within groups: mean over groups of the mean of `preference_loss` over their pairs.

    A trajectory's score is log policy / reference.

    pairs            "verdict": every success with every failure; "outcome": every trajectory of the group's highest
                     outcome with every one of its lowest, where they differ; "ordered": every trajectory with every one
                     of lower outcome, so that outcomes are levels
    beta, form, label_smoothing   see `preference_loss`
    length_mean      score a trajectory by the mean over its tokens instead of the sum
    success_at       None: the verifier's verdict is the label; otherwise: outcome >= success_at
    success_weight   multiplies the loss of pairs whose better one is a success by that label
    success_slope    multiplies beta in those pairs
    by_gap           multiplies the loss of a pair by the difference of its two outcomes; not of pairs by verdict
    verdict_first    of "ordered": a success is better than a failure whatever their outcomes, and `by_gap` is 1 there
    unpaired         trajectories of groups without a pair are set against score 0: h = s for a success, -s for others
    unpaired_beta    beta of these; None: `beta`

    Groups without a pair are in the mean over groups with 0, unless `unpaired`. Pairs are of at least one compared
    trajectory; one that is not compared moves itself alone. Of G levels there are G (G - 1) / 2 pairs.

    With these settings this is
      DPO   verdict, sum, beta 0.1                                         arXiv 2305.18290
      StepORLM  ordered, sum, beta 0.1, by_gap, verdict_first: W-DPO       arXiv 2509.22558
      TRPA  ordered, length_mean, beta 0.1, success_slope 2.5, unpaired with beta 1   arXiv 2504.04524
    """

    pairs: Literal["verdict", "outcome", "ordered"] = "verdict"
    beta: Positive = 0.1
    form: Literal["sigmoid", "ipo"] = "sigmoid"
    label_smoothing: Annotated[float, Interval(ge=0, lt=0.5)] = 0.0
    length_mean: bool = False
    success_at: float | None = None
    success_weight: Positive = 1.0
    success_slope: Positive = 1.0
    by_gap: bool = False
    verdict_first: bool = field(default=False, kw_only=True)
    unpaired: bool = False
    unpaired_beta: Positive | None = None

    ratio_over = "reference"
    needs = ("reference_logprob",)

    def __post_init__(self) -> None:
        if self.label_smoothing and self.form == "ipo":
            raise ConfigError("objective.label_smoothing belongs to objective.form 'sigmoid': leave one of the two out")
        if self.by_gap and self.pairs == "verdict":
            raise ConfigError("objective.by_gap weighs pairs of outcomes: set objective.pairs=ordered, or outcome")
        if self.verdict_first and self.pairs != "ordered":
            raise ConfigError("objective.verdict_first orders pairs of outcomes: set objective.pairs=ordered")
        object.__setattr__(self, "learns_from_equal_groups", bool(self.unpaired))
        object.__setattr__(self, "how", "mean" if self.length_mean else "sum")

    def _sides(self, forest: Forest) -> tuple[Tensor, Tensor]:
        """[R], [R] bool: better and worse members of the groups that have a compared one of each; "ordered": all
        members of such groups are both."""
        group = forest.ids("group", axis="R")
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
        return counted(forest) & ~paired & self.unpaired

    def _told(self, forest: Forest, left: Tensor, right: Tensor) -> Tensor:
        """[n] bool: pairs that the verdict decides."""
        won, lost = forest.success[left], forest.success[right]
        return self.verdict_first & won.isfinite() & lost.isfinite() & (won != lost)

    def reads(self, forest: Forest) -> Tensor:
        better, worse = self._sides(forest)
        return better | worse | self._alone(forest, better)

    def _margins(self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor) -> _Margins:
        score, run, *_ = self.scores(forest, policy, credit, weight)
        group, known, (better, worse) = forest.ids("group", axis="R"), forest.compared, self._sides(forest)
        left, right = pairs(group, better & run, worse & run)
        kept = known[left] | known[right]
        if self.pairs == "ordered":
            high, low = forest.outcome[left], forest.outcome[right]
            ahead = high - low > grouped.DEGENERATE * torch.maximum(high.abs(), low.abs())
            kept &= torch.where(self._told(forest, left, right), forest.success[left] > forest.success[right], ahead)
        left, right = left[kept], right[kept]
        margin = torch.where(known[right], score[left], score[left].detach())
        margin = margin - torch.where(known[left], score[right], score[right].detach())
        factor = torch.ones_like(margin.detach())
        if self.by_gap:
            gap = forest.outcome[left] - forest.outcome[right]
            factor = factor * torch.where(self._told(forest, left, right), torch.ones_like(gap), gap)
        alone = (self._alone(forest, better) & run).nonzero().squeeze(1)
        beta = torch.full_like(factor, self.beta)
        if self.success_weight != 1 or self.success_slope != 1 or alone.numel():
            good, _ = self.sides(forest)
            factor[good[left]] *= self.success_weight
            beta[good[left]] *= self.success_slope
            sign = good[alone].to(torch.float64) * 2 - 1
            margin, factor = torch.cat([margin, sign * score[alone]]), torch.cat([factor, torch.ones_like(sign)])
            own = self.beta if self.unpaired_beta is None else self.unpaired_beta
            beta = torch.cat([beta, torch.full_like(sign, own)])
        length = torch.ones(len(score)) if self.length_mean else forest.lengths()
        rounding = grouped.FORWARD * (length[left] + length[right])
        return _Margins(margin, group[torch.cat([left, alone])], factor, beta, rounding)

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        found = self._margins(forest, policy, credit, weight)
        margin, group, factor, beta, _ = found
        loss = factor * preference_loss(margin, beta, self.form, self.label_smoothing) / grouped.count(group)
        value = loss.sum() / n_groups(forest.ids("group", axis="R"), counted(forest))
        return value.to(policy.logprob.dtype), self._figures(found)

    @torch.no_grad()
    def _figures(self, found: _Margins) -> dict[str, float]:
        """pair_accuracy  share of pairs in which the policy, against the reference, prefers the better one (by more
                       than two forward passes may differ)
        pair_margin    mean over the pairs of beta h
        pairs          how many there are
        """
        margin = found.margin[: len(found.rounding)]
        if not margin.numel():
            return {"pairs": 0.0}
        return {
            "pair_accuracy": float((margin > found.rounding).to(torch.float64).mean()),
            "pair_margin": float((found.beta[: len(margin)] * margin).mean()),
            "pairs": float(margin.numel()),
        }
