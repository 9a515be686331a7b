"""Arithmetic of an advantage: which values were compared, with which peers, their centre and spread.

It is computed again from the part's settings, with plain sums over one set of peers at a time, as a reader would do it
with a calculator. A row is `SHOWN` as arithmetic only where that agrees with the part's own value to 1e-9.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gxpo.algorithms.credit.base import CreditPart, CreditSum
from gxpo.algorithms.credit.relative import VALUES, Relative
from gxpo.algorithms.credit.state_keys import StateKeyed
from gxpo.algorithms.credit.state_relative import StateRelative
from gxpo.explain.user_calls import Call, recorded_calls
from gxpo.forest.forest import Forest
from gxpo.forest.grouped import DEGENERATE
from gxpo.parts.definition import show

Floats = NDArray[np.float64]
# Status of a row: only its inputs are known, its arithmetic is shown, or the reason why its advantage is 0.
INPUTS, SHOWN, EQUAL, ALONE, NO_SET = range(5)
TOLERANCE = 1e-9


@dataclass
class Comparison:
    """Rows that were compared, and the arithmetic of each.

    axis     "R", "S" or "P": a row is a rollout, a turn or a token
    quantity name of the compared value: "outcome", "return"...
    among    the peers, in words
    value    [n] compared value
    peers    [n] id of the row's set of peers, -1: in none
    is_counted [n] True if the row enters its set's statistics
    center   [n] number that is subtracted (`shift` included)
    spread   [n] divisor, eps included; 1: nothing is scaled
    result   [n] (value - center) / spread, times the part's weight
    status   [n] `INPUTS`, `SHOWN`, `EQUAL`, `ALONE`, `NO_SET`
    settings of the statistic, by name
    """

    axis: str
    quantity: str
    among: str
    value: Floats
    peers: NDArray[np.int64]
    is_counted: NDArray[np.bool_]
    center: Floats
    spread: Floats
    result: Floats
    status: NDArray[np.int8]
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class Summand:
    """One part of a credit: its factor in the sum, its contribution [P] before the factor, and its arithmetic.

    formula   first formula of the part's documentation
    compared  None: only input and output are shown
    calls     of the user's functions that it was computed with
    """

    name: str
    factor: float
    formula: str
    contribution: Tensor
    compared: Comparison | None
    calls: list[Call] = field(default_factory=list)


class RecordedCredit:
    """A credit that records the summands of its last call, on the scored rollouts that the method passes to it."""

    def __init__(self, credit: Any) -> None:
        self.credit = credit
        self.needs, self.requires = getattr(credit, "needs", ()), getattr(credit, "requires", ())
        self.summands: list[Summand] = []

    def __call__(self, forest: Forest, signals: Any, step: int) -> Tensor:
        self.summands = summands(self.credit, forest, signals, step)
        total = torch.zeros(forest.n_entries, dtype=torch.float64)
        for summand in self.summands:
            total += summand.factor * summand.contribution
        return total


def summands(credit: Any, forest: Forest, signals: Any, step: int) -> list[Summand]:
    """Split a credit into its parts, in the order in which they are added."""
    parts, factors = (credit.parts, credit.factors) if isinstance(credit, CreditSum) else ((credit,), (1.0,))
    out: list[Summand] = []
    total_P = torch.zeros(forest.n_entries, dtype=torch.float64)
    for part, factor in zip(parts, factors, strict=True):
        # a part may read the sum so far, in units of its own factor, as in `CreditSum.__call__`
        with recorded_calls(forest, part) as calls:
            if factor and isinstance(part, CreditPart):
                advantage_P = part.summand(total_P / factor, forest, signals, step)
            else:
                advantage_P = part(forest, signals, step)
        advantage_P = advantage_P.detach().to(torch.float64)
        total_P = total_P + factor * advantage_P
        comparison = None
        # a subclass with a `__call__` of its own computes something else than `_comparison` restates
        if isinstance(part, Relative) and type(part).__call__ is Relative.__call__:
            comparison = _comparison(part, forest, signals, advantage_P)
        out.append(Summand(show(part), float(factor), formula_of(part), advantage_P, comparison, calls))
    return out


def formula_of(part: Any) -> str:
    """Return the formula in a part's documentation: its first line that states "A = ...", else its first line."""
    lines = [line.strip() for line in (getattr(part, "__doc__", None) or "").strip().splitlines()]
    return next((line for line in lines if line.split(" = ")[0] in ("A", "A_i", "a")), lines[0] if lines else "")


def _comparison(part: Relative, forest: Forest, signals: Any, advantage_P: Tensor) -> Comparison:
    """Restate the arithmetic of `Relative.__call__` row by row, and hold it against the advantages that it gave."""
    values, axis = part.values(forest, signals)
    rows = part.rows(forest, axis)
    x = rows.take(values.to(torch.float64), axis)
    tokens = rows.axis == "P" and part.unit != "segment"
    # tokens as the unit: those that are not trained belong to no set, as in the part itself
    is_comparable = x.isfinite() & forest.path_trainable if tokens else x.isfinite()
    if part.center == "baseline":
        set_ids = torch.where(is_comparable, torch.arange(len(x)), -1)
    else:
        set_ids = torch.where(is_comparable, part.peers(forest, rows), -1)
    # All entries of a row have one advantage, so the first is read. Flipped: of several writes the last one stays.
    first_entry = torch.full((len(x),), -1, dtype=torch.int64)
    first_entry[rows.row_P.flip(0)] = torch.arange(forest.n_entries).flip(0)
    # where all actions are empty there is no entry to index
    readable_P = advantage_P if len(advantage_P) else torch.full((1,), torch.nan)
    actual_advantage = torch.where(first_entry >= 0, readable_P[first_entry.clamp_min(0)], torch.nan).numpy()
    # a rollout that is not `compared` is measured against the others and enters none of their statistics
    is_counted = rows.take(forest.compared, "R").numpy() & (set_ids >= 0).numpy()
    value = torch.where(is_comparable, x, torch.nan).numpy()
    baseline = rows.take(signals["baseline"].to(torch.float64), "R").numpy() if part.center == "baseline" else None
    center, spread = _statistics(part, value, set_ids.numpy(), is_counted, baseline)
    with np.errstate(all="ignore"):
        result = part.weight * np.clip((value - center) / spread, -part.bound, part.bound)
    status = _status(value, set_ids.numpy(), is_counted, result, actual_advantage, centred=part.center != "none")
    comparison = Comparison(
        axis=rows.axis,
        quantity=show(part.value),
        among=_among(part),
        value=value,
        peers=set_ids.numpy(),
        is_counted=is_counted,
        center=center,
        spread=spread,
        result=np.where(status == SHOWN, result, actual_advantage),
        status=status,
        settings=_settings(part),
    )
    if part.unit == "segment":  # a row for each of its tokens: pages look rows up by token
        row_of_entry = rows.row_P.numpy()
        for name in ("value", "peers", "is_counted", "center", "spread", "result", "status"):
            setattr(comparison, name, getattr(comparison, name)[row_of_entry])
    return comparison


def _settings(part: Relative) -> dict[str, Any]:
    """Return the settings of the statistic that a reader needs to repeat it."""
    settings = {k: getattr(part, k) for k in ("center", "scale", "ddof", "eps", "shift", "weight", "singleton", "unit")}
    settings |= {"quantile": part.quantile} if part.center == "quantile" else {}
    settings |= {"bound": part.bound} if part.bound < math.inf else {}
    if part.value in VALUES and VALUES[part.value][0] == "S":
        settings["discount"] = part.discount
    return settings


def _among(part: Relative) -> str:
    """Describe a row's peers in words."""
    if part.center == "baseline":
        return "its own baseline"
    levels = [level.removeprefix("info.").removeprefix("step_info.") for level in part.group_by if level != "group"]
    if part.group_by == ("batch",):
        return "the whole batch"
    if isinstance(part, StateRelative):
        history_text = f" and the {part.history} states before it" if part.history else ""
        levels = [
            f"state{'' if part.min_similarity == 1 else f' (likeness {part.min_similarity:g} or more)'}{history_text}",
            *levels,
        ]
    elif isinstance(part, StateKeyed):
        levels = ["state", *levels]
    return "the group" if not levels else f"those of the group with the same {' and '.join(levels)}"


def _sets(ids: NDArray[np.int64]) -> list[NDArray[np.intp]]:
    """List the rows of each set, by ascending id; -1 is no set."""
    order = np.argsort(ids, kind="stable")
    order = order[ids[order] >= 0]
    return np.split(order, np.flatnonzero(np.diff(ids[order])) + 1) if len(order) else []


def _statistics(
    part: Relative,
    value: Floats,
    ids: NDArray[np.int64],
    is_counted: NDArray[np.bool_],
    baseline: Floats | None,
) -> tuple[Floats, Floats]:
    """Return (centre, divisor) of each row."""
    center, spread = np.full(len(value), np.nan), np.full(len(value), np.nan)
    if baseline is not None:
        return baseline.astype(float), np.ones(len(value))
    batch_values = value[is_counted]
    batch_spread = _std(batch_values, part.ddof) + part.eps if part.scale == "batch_std" else 1.0
    for rows in _sets(ids):
        members = value[rows[is_counted[rows]]]
        if not len(members):
            continue
        set_center = _center(part, members)
        # leave-one-out statistics differ from row to row; the others are computed once, on the set's first row
        for row in rows if part.center == "leave_one_out" or part.scale == "leave_one_out_std" else rows[:1]:
            other_values = _other_values(value, rows, is_counted, row)
            center_value = (
                (_mean(other_values) if len(other_values) else 0.0) if part.center == "leave_one_out" else set_center
            )
            target = row if part.center == "leave_one_out" or part.scale == "leave_one_out_std" else rows
            center[target] = center_value + part.shift
            spread[target] = (
                batch_spread if part.scale == "batch_std" else _divisor(part, members, other_values, center_value)
            )
    return center, spread


def _other_values(value: Floats, rows: NDArray[np.intp], is_counted: NDArray[np.bool_], row: int) -> Floats:
    return value[rows[is_counted[rows] & (rows != row)]]


def _mean(x: Sequence[float] | Floats) -> float:
    return math.fsum(x) / len(x)


def _std(x: Floats, ddof: int) -> float:
    if len(x) <= ddof:
        return 0.0
    mean = _mean(x)
    return math.sqrt(math.fsum((x - mean) ** 2) / (len(x) - ddof))


def _center(part: Relative, members: Floats) -> float:
    n, ordered = len(members), np.sort(members)
    if part.center == "mean":
        return _mean(members)
    if part.center == "median":
        return float(ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    if part.center == "lower_median":
        return float(ordered[(n - 1) // 2])
    if part.center == "quantile":
        return float(ordered[max(math.ceil(part.quantile * n - 1e-9) - 1, 0)])
    return 0.0


def _divisor(part: Relative, members: Floats, other_values: Floats, middle: float) -> float:
    if part.scale == "std":
        return _std(members, part.ddof) + part.eps
    if part.scale == "leave_one_out_std":
        others_std = _std(other_values, part.ddof)
        return others_std + part.eps if others_std > 0 else 1.0
    if part.scale == "mean_absolute":
        return (math.fsum(abs(members - middle)) + part.eps) / len(members)
    if part.scale == "median_absolute":
        distances, n = np.sort(abs(members - middle)), len(members)
        low = float(distances[(n - 1) // 2])
        return (low if part.center == "lower_median" else (low + float(distances[n // 2])) / 2) + part.eps
    if part.scale == "mean":
        return _mean(members) + part.eps
    return 1.0


def _status(
    value: Floats,
    ids: NDArray[np.int64],
    is_counted: NDArray[np.bool_],
    result: Floats,
    actual: Floats,
    *,
    centred: bool,
) -> NDArray[np.int8]:
    with np.errstate(invalid="ignore"):
        is_reproduced = np.abs(result - actual) <= TOLERANCE * (1 + np.abs(actual))
    status = np.where(is_reproduced, SHOWN, INPUTS).astype(np.int8)
    for rows in _sets(ids):
        members = value[rows[is_counted[rows]]]
        zero_rows = rows[actual[rows] == 0]
        if not len(members) or not len(zero_rows):
            continue
        highest, lowest = float(members.max()), float(members.min())
        if len(members) == 1 and len(rows) == 1:
            status[zero_rows] = ALONE
        elif centred and highest - lowest <= DEGENERATE * max(abs(highest), abs(lowest)):
            status[zero_rows] = EQUAL
    status[(ids < 0) & (actual == 0)] = NO_SET
    return status
