"""Advantages relative to peers: GRPO, RLOO, GiGPO, Dr. MAS, Tree-GRPO, OPO and every sum of such levels.

`group_relative` is the statistic, `Statistic` its options, `Relative` the part: what is compared, among whom.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from annotated_types import Interval
from torch import Tensor

from gxpo.algorithms.credit.base import CreditPart
from gxpo.algorithms.credit.columns import Columns, needed
from gxpo.algorithms.credit.recursion import next_in
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.forest import grouped
from gxpo.forest.reshape import pieces_of
from gxpo.parts.functions import Formula
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals

Center = Literal["mean", "leave_one_out", "median", "lower_median", "quantile", "none"]
Scale = Literal["std", "leave_one_out_std", "batch_std", "mean_absolute", "median_absolute", "mean", "none"]
Single = Literal["zero", "raw"]
Unit = Literal["own", "trajectory", "step", "segment", "token"]
_REQUIRES = {"state": "states", "info.tree": "forks"}
_OWN_UNIT = {"R": "trajectory", "S": "step", "P": "token"}


# ---------------------------------------------------------------- the statistic
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
    singleton: str = "zero",
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
    singleton what a compared trajectory without another is given: "zero", or its outcome "raw" (over 1 + eps, where
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
    if singleton == "raw":
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
    singleton: Single = "zero"

    follows: ClassVar[tuple[str, ...]] = ("center", "scale", "ddof", "eps")

    def __post_init__(self) -> None:
        if self.scale == "median_absolute" and not self.eps > 0:
            raise ConfigError("credit.scale=median_absolute divides by credit.eps where most outcomes agree: above 0")
        if self.learns_from_equal():
            object.__setattr__(self, "learns_from_equal_groups", True)

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


# ---------------------------------------------------------------- what is compared
def turn_rewards(forest: Forest) -> Tensor:
    """Sum of each trajectory's step rewards, [R]; its outcome where it has none."""
    total = torch.zeros(forest.n_trajectories, dtype=torch.float64)
    return total.index_add_(0, forest.step_trajectory, forest.returns(0.0))


def before_last(forest: Forest, discount: float) -> Tensor:
    """Discounted return of each turn, [S]; nan for the last one of a trajectory."""
    return torch.where(next_in(forest.step_trajectory) >= 0, forest.returns(discount), torch.nan)


VALUES: dict[str, tuple[str, Callable[[Forest, float], Tensor]]] = {  # name -> axis, (forest, discount) -> values
    "outcome": ("R", lambda forest, _: forest.outcome),
    "turn_rewards": ("R", lambda forest, _: turn_rewards(forest)),
    "return": ("S", lambda forest, discount: forest.returns(discount)),
    "return_before_last": ("S", before_last),
}


# ---------------------------------------------------------------- what counts once
class Rows(NamedTuple):
    """Units that are compared, a row each.

    own  [P] the row of every path token
    at   where each row is on the axes that it is no coarser than: indices [K], None where the row is the axis' own
    """

    own: Tensor
    at: dict[str, Tensor | None]

    def take(self, x: Tensor, axis: str) -> Tensor:
        """Values of the rows, [K], from a column on an axis."""
        index = self.at[axis]
        return x if index is None else x.index_select(0, index)

    @property
    def axis(self) -> str:
        """Finest axis on which the rows can be looked up."""
        return next(reversed(self.at))


def rows_of(forest: Forest, unit: str) -> Rows:
    """Rows of a unit; "segment": the segments of each turn, or the whole turn where it has none."""
    if unit == "trajectory":
        return Rows(forest.path_trajectory, {"R": None})
    if unit == "step":
        return Rows(forest.path_step, {"R": forest.step_trajectory, "S": None})
    if unit == "token":
        return Rows(torch.arange(forest.n_entries), {"R": forest.path_trajectory, "S": forest.path_step, "P": None})
    pieces = pieces_of(forest)
    return Rows(pieces.piece, {"R": pieces.trajectory, "S": forest.path_step[pieces.first], "P": pieces.first})


# ---------------------------------------------------------------- the part
@part("relative", stage="credit")
@dataclass(frozen=True)
class Relative(Statistic, Formula):
    """A = weight * (value - center - shift) / (scale + eps) among peers, the same for every token of a unit.

    value     what is compared
                "outcome"             of the trajectory
                "turn_rewards"        of the trajectory: the sum of its step rewards
                "return"              of the step: its reward and those that follow, by `discount`
                "return_before_last"  likewise, but the last turn of a trajectory has none
                "reward.NAME"         of the trajectory: one of the named rewards that the outcome is made of
                NAME                  a signal, on its own axis; nan: unknown, in no statistic and given 0
                a function            in `credit.values` by name, `file.py:function` or a function of columns (see
                                      `Columns`), which gives one value for each unit; its options are the part's
    among     levels of `Forest.ids` that peers have in common: ("group",), ("agent",), ("turn",), ("info.tree",)...,
              always inside a group; ("batch",): all rows of the batch
    unit      what counts once in the statistic: "trajectory", "step", "segment" (of a turn; a turn without any), or
              "token" (trainable ones); "own": what the value is of
    bound     the advantage is clipped to [-bound, bound]
    center    also "baseline": the signal of that name is taken off, and nothing is scaled

    Sums of levels are `+`, or `credit.add.NAME`. With these settings this is
      GRPO, RLOO, MaxRL ...  see `group_relative`
      GiGPO      Relative() + `StateRelative`()                                       arXiv 2505.10978
      Dr. MAS    among ("agent",), unit step                                          arXiv 2602.08847
      iStar      Relative() + Relative("process_reward")                              arXiv 2509.19199
      Tree-GRPO  Relative() + Relative(among=("info.tree",))                          arXiv 2509.21240
      MatchTIR   Relative("turn_rewards", weight=0.5)
                 + Relative("return", ("turn",), discount=0.9, weight=0.5)            arXiv 2601.10712
      OPO        unit token, scale none: the baseline is weighted by length           arXiv 2505.23585
      CAPO       value penalised_outcome, unit token, ddof 0                          arXiv 2508.02298
      REINFORCE with a baseline (ReMax, POISE, PVPO): center baseline, scale none
    """

    value: Any = "outcome"
    among: tuple[str, ...] = ("group",)
    unit: Unit = "own"
    discount: Annotated[float, Interval(ge=0, le=1)] = 1.0
    bound: Annotated[float, Interval(gt=0)] = field(default=math.inf, metadata={"unbounded": True})
    weight: float = 1.0
    center: Literal["mean", "leave_one_out", "median", "lower_median", "quantile", "none", "baseline"] = field(  # type: ignore[assignment]  # one more than its base's
        default="mean", kw_only=True
    )
    options: Mapping[str, Any] = field(default_factory=dict, kw_only=True, hash=False)

    functions: ClassVar[Mapping[str, tuple[str, bool | Collection[str]]]] = {
        "value": ("gxpo.algorithms.credit.values", VALUES)
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        Formula.__post_init__(self)
        if self.center == "baseline" and self.scale != "none":
            raise ConfigError(f"credit.scale is {self.scale!r}; with credit.center=baseline it is 'none'")
        if callable(self.value):
            read, carried = needed(self.value)
        else:
            read, carried = () if self.value in VALUES or self.value.startswith("reward.") else (self.value,), ()
        needs = (*self.needs, *read, *(["baseline"] if self.center == "baseline" else []))
        requires = (*self.requires, *carried, *(_REQUIRES[level] for level in self.among if level in _REQUIRES))
        object.__setattr__(self, "needs", tuple(dict.fromkeys(needs)))
        object.__setattr__(self, "requires", tuple(dict.fromkeys(requires)))

    def learns_from_equal(self) -> bool:
        plain = self.value == "outcome" and self.among != ("batch",) and self.center != "baseline"
        return super().learns_from_equal() or not plain

    def values(self, forest: Forest, signals: Signals) -> tuple[Tensor, str]:
        """Values to compare, and their axis."""
        if callable(self.value):
            axis = getattr(self.value, "axis", {"own": "R", "trajectory": "R", "step": "S"}.get(self.unit, "P"))
            return Columns(forest, signals, self, {**vars(self), **self.options}).call(self.value, axis), axis
        if self.value in VALUES:
            axis, compute = VALUES[self.value]
            return compute(forest, self.discount), axis
        kind, _, name = self.value.partition(".")
        if kind == "reward":
            if name not in forest.component_names:
                there = ", ".join(forest.component_names) or "none"
                raise ConfigError(f"credit.value={self.value}: the rollouts have no reward {name!r}; there is {there}")
            return forest.components[:, forest.component_names.index(name)], "R"
        found = signals[self.value]
        if axis_of := getattr(signals, "axis", None):
            return found, axis_of(self.value)
        sizes = {"R": forest.n_trajectories, "S": forest.n_steps, "P": forest.n_entries}  # of a plain mapping
        fits = [axis for axis, n in sizes.items() if len(found) == n]
        return found, next((axis for axis in fits if _OWN_UNIT[axis] == self.unit), fits[-1])

    def rows(self, forest: Forest, axis: str) -> Rows:
        """Rows that count once, for a value on an axis."""
        rows = rows_of(forest, _OWN_UNIT[axis] if self.unit == "own" else self.unit)
        if axis not in rows.at:
            raise ConfigError(
                f"credit.unit={self.unit} is coarser than {self.value}: choose a {_OWN_UNIT[axis]} or finer"
            )
        return rows

    def peers(self, forest: Forest, rows: Rows) -> Tensor:
        """Ids of the sets of rows that are compared, [K]; -1: not compared."""
        if self.among == ("batch",):
            return torch.zeros_like(rows.take(forest.ids("group", axis="R"), "R"))
        ids = rows.take(forest.ids(*self.among, axis=rows.axis), rows.axis)
        noted = [level for level in self.among if level.startswith("info.")]
        if noted and len(ids) and bool((ids < 0).all()):
            hint = ": use rollout=tree" if noted == ["info.tree"] else ""
            raise GxpoError(f"credit.among is {noted[0]}, which no trajectory has{hint}")
        return ids

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        value, axis = self.values(forest, signals)
        rows = self.rows(forest, axis)
        x = rows.take(value.to(torch.float64), axis)
        if self.center == "baseline":
            advantage = x - rows.take(signals["baseline"].to(torch.float64), "R")
        else:
            known = x.isfinite() if rows.axis != "P" or self.unit == "segment" else x.isfinite() & forest.path_trainable
            ids = torch.where(known, self.peers(forest, rows), -1)
            advantage = self.apply(torch.where(known, x, 0.0), ids, rows.take(forest.compared, "R"))
        return self.weight * advantage.clamp(-self.bound, self.bound)[rows.own]
