"""Group-relative advantage (GRPO): a value against the mean and standard deviation of its group."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from gxpo import grouped
from gxpo.credit.base import CreditPart
from gxpo.errors import ConfigError

if TYPE_CHECKING:
    from gxpo.forest import Forest

Center = Literal["mean", "leave_one_out", "median", "lower_median", "quantile", "none"]
Scale = Literal["std", "leave_one_out_std", "batch_std", "mean_absolute", "median_absolute", "mean", "none"]
Single = Literal["zero", "raw"]


@torch.no_grad()
def group_relative(
    outcome: Tensor,
    group: Tensor,
    center: str = "mean",
    scale: str = "std",
    ddof: int = 1,
    eps: float = 1e-6,
    where: Tensor | None = None,
    *,
    quantile: float = 0.4,
    shift: float = 0.0,
    single: str = "zero",
) -> Tensor:
    """Group-relative advantage: A = (outcome - center - shift) / (scale + eps).

    outcome   [R] any float dtype; the arithmetic is in float64
    group     [R] int64 dense ids (`Forest.ids`), -1 = in no group
    center    "mean" | "leave_one_out" | "median" | "lower_median" | "quantile" | "none", over the compared members
    scale     "std" with `ddof` degrees of freedom taken off, `eps` added to it | "leave_one_out_std" | "mean_absolute"
              | "median_absolute" | "mean" | "none": see `grouped.normalize` | "batch_std": the std of all compared
              outcomes of the batch, before any centre is taken off
    where     [R] bool, compared: which enter the statistics (default: all); the others are measured against those
    quantile  of the center "quantile": the smallest outcome that at least this share of the group does not exceed
    shift     added to the center; below 0, more is reinforced than is held back
    single    what a compared trajectory without another is given: "zero", or its outcome "raw" (over 1 + eps, where
              something scales)

    Returns [R] float64. Exactly 0 where there is nothing to compare: a group of one, of equal outcomes (max - min at
    most 1e-12 of the largest, in float64), or without compared members; but a group of equal outcomes is given -shift
    where nothing scales. Some trainers give a group of one its raw reward, and a group of equal float32 rewards a
    residue over eps.

    With these settings this is
      GRPO      mean, std, ddof 1, eps 1e-6   DeepSeekMath, arXiv 2402.03300; eps as in verl (the paper has none)
      Dr. GRPO  mean, none                    arXiv 2503.20783
      RLOO      leave_one_out, none           arXiv 2402.14740; equals G / (G - 1) times Dr. GRPO
      MaxRL     mean, mean                    arXiv 2602.02710; (r - p) / p for outcomes 0 and 1
      DGPO      mean, mean_absolute, eps 1e-4               arXiv 2601.20614; sum |A| = G in every mixed group
      MC-GRPO   lower_median, median_absolute, eps 1e-3     arXiv 2601.22582
      AsymRE    mean, none, shift -0.1        arXiv 2506.20520
      Lite PPO  mean, batch_std               arXiv 2508.08221
      QAE       quantile 0.4, std             arXiv 2509.22611: for outcomes 0 and 1 the baseline is 0 up to a rate of
                                              1 - 0.4, so that only successes count there, and 1 above it
    and GRPO as computed by TRL (eps 1e-4), AReaL (1e-5), verl, SkyRL, slime (1e-6), OpenRLHF (1e-9), rLLM, ART
    (ddof 0, 1e-6), NeMo-RL (leave_one_out, leave_one_out_std).

    >>> import torch
    >>> group_relative(torch.tensor([1.0, 0, 0, 0]), torch.zeros(4, dtype=torch.int64), scale="none").tolist()
    [0.75, -0.25, -0.25, -0.25]
    """
    own = "none" if scale == "batch_std" else scale
    advantage = grouped.normalize(
        outcome, group, where, center=center, scale=own, ddof=ddof, eps=eps, q=quantile, shift=shift
    )
    if scale == "batch_std":
        spread = grouped.std(outcome, torch.where(group >= 0, 0, -1), where, ddof)
        advantage = torch.where(spread > 0, advantage / (spread + eps), torch.zeros_like(advantage))
    if single == "raw":
        raw = outcome.to(torch.float64) / (1.0 if scale == "none" else 1.0 + eps)
        return torch.where(alone(group, where), raw, advantage)
    return advantage


def alone(group: Tensor, where: Tensor | None = None) -> Tensor:
    """Compared trajectories without another compared member in their group, [R] bool."""
    enters = group >= 0 if where is None else (group >= 0) & where
    return enters & (grouped.count(group, where) == 1)


@dataclass(frozen=True, kw_only=True)
class Statistic(CreditPart):
    """Base class of advantages normalised among peers: the options of `group_relative`. The defaults are GRPO's.

    `apply` is `group_relative` with them. Parts of a sum whose `Statistic` options are not stated take those of the
    first part (`follows`), so that `credit.scale=none` drops the std at every level.
    """

    center: Center = "mean"
    scale: Scale = "std"
    ddof: Annotated[int, Interval(ge=0)] = 1
    eps: Annotated[float, Interval(ge=0)] = 1e-6
    quantile: Annotated[float, Interval(gt=0, le=1)] = 0.4
    shift: float = 0.0
    single: Single = "zero"

    follows: ClassVar[tuple[str, ...]] = ("center", "scale", "ddof", "eps")

    def __post_init__(self) -> None:
        if self.scale == "median_absolute" and not self.eps > 0:
            raise ConfigError("credit.scale=median_absolute divides by credit.eps where most outcomes agree: above 0")
        if self.learns_from_equal():
            object.__setattr__(self, "on_equal", "signal")

    def learns_from_equal(self) -> bool:
        """Whether groups of equal outcomes may have advantages other than 0."""
        return self.scale in ("mean", "none", "batch_std") and (self.center == "none" or bool(self.shift))

    def apply(self, value: Tensor, ids: Tensor, where: Tensor | None = None, **other: Any) -> Tensor:
        """`group_relative` of `value` [n] in the groups `ids` [n]; `other` options take the place of its own."""
        own = {f.name: getattr(self, f.name) for f in fields(Statistic)} | other
        return group_relative(value, ids, where=where, **own)

    def of_outcome(self, forest: Forest, **other: Any) -> Tensor:
        """`apply` to the outcomes of each group, [R]."""
        return self.apply(forest.outcome, forest.ids("group", axis="R"), forest.compared, **other)
