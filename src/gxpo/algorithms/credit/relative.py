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
from gxpo.algorithms.credit.columns import Columns, needs_and_requires
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
    where     [R] bool, compared: members that enter the statistics (default: all); the others are measured by them
    quantile  of the center "quantile": the smallest outcome that at least this share of the group does not exceed
    shift     added to the center; below 0, more is reinforced than is held back
    singleton advantage of the only compared trajectory of a group: "zero", or its outcome "raw" (over 1 + eps, where
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
    # The batch's spread is no statistic of a group: the groups are centred alone and divided below.
    group_scale = "none" if scale == "batch_std" else scale
    advantage = grouped.normalize(
        outcome, group, where, center=center, scale=group_scale, ddof=ddof, eps=eps, q=quantile, shift=shift
    )
    # Lite PPO: one std for the batch, of the outcomes before any centre is taken off.
    if scale == "batch_std":
        batch_std = grouped.std(outcome, torch.where(group >= 0, 0, -1), where, ddof)
        advantage = torch.where(batch_std > 0, advantage / (batch_std + eps), torch.zeros_like(advantage))
    # verl and others train on the raw reward of a group of one, where there is no peer to compare with.
    if singleton == "raw":
        raw = outcome.to(torch.float64) / (1.0 if scale == "none" else 1.0 + eps)
        return torch.where(is_singleton(group, where), raw, advantage)
    return advantage


def is_singleton(group: Tensor, where: Tensor | None = None) -> Tensor:
    """Return [R] bool: the only compared member of its group."""
    is_compared = group >= 0 if where is None else (group >= 0) & where
    return is_compared & (grouped.count(group, where) == 1)


@dataclass(frozen=True, kw_only=True)
class Statistic(CreditPart):
    """Base class of advantages normalised among peers: the options of `group_relative`, with GRPO's defaults.

    `apply` calls `group_relative` with these options. In a sum, parts that leave these options out take those of the
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
        """Return True if groups of equal outcomes may have advantages other than 0."""
        return self.scale in ("mean", "none", "batch_std") and (self.center == "none" or bool(self.shift))

    def apply(self, value: Tensor, ids: Tensor, where: Tensor | None = None, **overrides: Any) -> Tensor:
        """`group_relative` of `value` [n] in the groups `ids` [n]; `overrides` replace this part's options."""
        options = {f.name: getattr(self, f.name) for f in fields(Statistic)} | overrides
        return group_relative(value, ids, where=where, **options)

    def of_outcome(self, forest: Forest, **overrides: Any) -> Tensor:
        """`apply` to the outcomes of each group, [R]."""
        return self.apply(forest.outcome, forest.ids("group", axis="R"), forest.compared, **overrides)


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
    """Rows of a comparison: one for each of the K units that count once in the statistics.

    row_P          [P] the row of every path token
    index_by_axis  each row's index [K] on every axis at least as coarse as the unit; None: rows are that axis' own
    """

    row_P: Tensor
    index_by_axis: dict[str, Tensor | None]

    def take(self, x: Tensor, axis: str) -> Tensor:
        """Return the rows' values [K] from a column on an axis."""
        index = self.index_by_axis[axis]
        return x if index is None else x.index_select(0, index)

    @property
    def axis(self) -> str:
        """Finest axis on which the rows can be looked up."""
        return next(reversed(self.index_by_axis))


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
    """Group-relative advantage of any value among peers: A = weight * (value - center - shift) / (scale + eps).

    A is the same for every token of a unit.

    value     the number that is compared
                "outcome"             of the trajectory
                "turn_rewards"        of the trajectory: the sum of its step rewards
                "return"              of the step: its reward and those that follow, by `discount`
                "return_before_last"  "return" without a value for the last turn of a trajectory
                "reward.NAME"         of the trajectory: one of the named rewards that the outcome is made of
                NAME                  a signal, on its own axis; nan: unknown, in no statistic and given 0
                a function            in `credit.values` by name, `file.py:function` or a function of columns (see
                                      `Columns`), which gives one value for each unit; its options are the part's
    group_by  levels of `Forest.ids` that peers have in common: ("group",), ("agent",), ("turn",), ("info.tree",)...,
              always inside a group; ("batch",): all rows of the batch
    unit      rows of the statistic, each counted once: "trajectory", "step", "segment" (of a turn; a turn without any),
              or "token" (trainable ones); "own": the unit that the value belongs to
    bound     the advantage is clipped to [-bound, bound]
    center    also "baseline": the signal of that name is taken off, and nothing is scaled

    Sums of levels are `+`, or `credit.add.NAME`. With these settings this is
      GRPO, RLOO, MaxRL ...  see `group_relative`
      GiGPO      Relative() + `StateRelative`()                                       arXiv 2505.10978
      Dr. MAS    group_by ("agent",), unit step                                       arXiv 2602.08847
      iStar      Relative() + Relative("process_reward")                              arXiv 2509.19199
      Tree-GRPO  Relative() + Relative(group_by=("info.tree",))                       arXiv 2509.21240
      MatchTIR   Relative("turn_rewards", weight=0.5)
                 + Relative("return", ("turn",), discount=0.9, weight=0.5)            arXiv 2601.10712
      OPO        unit token, scale none: the baseline is weighted by length           arXiv 2505.23585
      CAPO       value penalised_outcome, unit token, ddof 0                          arXiv 2508.02298
      REINFORCE with a baseline (ReMax, POISE, PVPO): center baseline, scale none
    """

    value: Any = "outcome"
    group_by: tuple[str, ...] = ("group",)
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
        # A signal is read by its name; a function's parameters name the signals and columns that it reads.
        if callable(self.value):
            signal_names, record_fields = needs_and_requires(self.value)
        else:
            signal_names, record_fields = (
                () if self.value in VALUES or self.value.startswith("reward.") else (self.value,),
                (),
            )
        needs = (*self.needs, *signal_names, *(["baseline"] if self.center == "baseline" else []))
        requires = (
            *self.requires,
            *record_fields,
            *(_REQUIRES[level] for level in self.group_by if level in _REQUIRES),
        )
        # A name that several sources ask for is listed once, in the order of asking.
        object.__setattr__(self, "needs", tuple(dict.fromkeys(needs)))
        object.__setattr__(self, "requires", tuple(dict.fromkeys(requires)))
        object.__setattr__(self, "centres_outcomes", self.is_centred())

    def is_centred(self) -> bool:
        """Return True if A is the outcome less the group's mean, times a number above 0 (`centres_outcomes`)."""
        # A mean over steps or tokens weighs long trajectories more, and a bound cuts the large ones off.
        is_of_groups = self.value == "outcome" and self.group_by == ("group",)
        is_of_trajectories = is_of_groups and self.unit in ("own", "trajectory")
        has_mean = self.center in ("mean", "leave_one_out") and self.shift == 0
        # The std of the others differs from member to member.
        has_one_scale = self.scale != "leave_one_out_std"
        return is_of_trajectories and has_mean and has_one_scale and self.bound == math.inf and self.weight > 0

    def learns_from_equal(self) -> bool:
        # Equal outcomes leave differences in any other value, across groups, and against a baseline.
        is_plain_outcome = self.value == "outcome" and "batch" not in self.group_by and self.center != "baseline"
        return super().learns_from_equal() or not is_plain_outcome

    def values(self, forest: Forest, signals: Signals) -> tuple[Tensor, str]:
        """Values to compare, and their axis."""
        if callable(self.value):
            axis = getattr(self.value, "axis", {"own": "R", "trajectory": "R", "step": "S"}.get(self.unit, "P"))
            return Columns(forest, signals, self, {**vars(self), **self.options}).call(self.value, axis), axis
        if self.value in VALUES:
            axis, compute = VALUES[self.value]
            return compute(forest, self.discount), axis
        # A component of the outcome, by its name in the records.
        kind, _, name = self.value.partition(".")
        if kind == "reward":
            if name not in forest.component_names:
                available = ", ".join(forest.component_names) or "none"
                raise ConfigError(
                    f"credit.value={self.value}: the rollouts have no reward {name!r}; there is {available}"
                )
            return forest.components[:, forest.component_names.index(name)], "R"
        signal = signals[self.value]
        if axis_of := getattr(signals, "axis", None):
            return signal, axis_of(self.value)
        # A plain mapping knows no axes: the length decides, and where several axes have it, the part's unit.
        sizes = {"R": forest.n_trajectories, "S": forest.n_steps, "P": forest.n_entries}  # of a plain mapping
        fitting_axes = [axis for axis, n in sizes.items() if len(signal) == n]
        return signal, next((axis for axis in fitting_axes if _OWN_UNIT[axis] == self.unit), fitting_axes[-1])

    def rows(self, forest: Forest, axis: str) -> Rows:
        """Rows that count once, for a value on an axis."""
        rows = rows_of(forest, _OWN_UNIT[axis] if self.unit == "own" else self.unit)
        if axis not in rows.index_by_axis:
            raise ConfigError(
                f"credit.unit={self.unit} is coarser than {self.value}: choose a {_OWN_UNIT[axis]} or finer"
            )
        return rows

    def peers(self, forest: Forest, rows: Rows) -> Tensor:
        """Ids of the sets of rows that are compared, [K]; -1: not compared."""
        if self.group_by == ("batch",):
            return torch.zeros_like(rows.take(forest.ids("group", axis="R"), "R"))
        if self.group_by == ("batch", "agent"):
            return rows.take(forest.step_agent, "S")
        # Levels are looked up on the finest axis of the rows, so that a turn's level tells turns apart.
        ids = rows.take(forest.ids(*self.group_by, axis=rows.axis), rows.axis)
        info_levels = [level for level in self.group_by if level.startswith("info.")]
        # Without this every advantage would be 0 in silence: the rollouts lack what `group_by` compares by.
        if info_levels and len(ids) and bool((ids < 0).all()):
            hint = ": use rollout=tree" if info_levels == ["info.tree"] else ""
            raise GxpoError(f"credit.group_by is {info_levels[0]}, which no trajectory has{hint}")
        return ids

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        value, axis = self.values(forest, signals)
        rows = self.rows(forest, axis)
        value_K = rows.take(value.to(torch.float64), axis)
        if self.center == "baseline":
            advantage_K = value_K - rows.take(signals["baseline"].to(torch.float64), "R")
        else:
            # Unknown values and tokens of other authors enter no statistic and have advantage 0.
            has_value_K = (
                value_K.isfinite()
                if rows.axis != "P" or self.unit == "segment"
                else value_K.isfinite() & forest.path_trainable
            )
            peer_ids_K = torch.where(has_value_K, self.peers(forest, rows), -1)
            advantage_K = self.apply(
                torch.where(has_value_K, value_K, 0.0), peer_ids_K, rows.take(forest.compared, "R")
            )
        return self.weight * advantage_K.clamp(-self.bound, self.bound)[rows.row_P]
