"""How an advantage came about: what was compared with whom, its centre and its spread, checked against the part itself.

The arithmetic is taken again from the part's settings with plain sums over one set of peers at a time, as a reader
does it with a calculator. A row is `shown` as arithmetic only where that gives the part's own value to 1e-9.
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
from gxpo.forest.forest import Forest
from gxpo.forest.grouped import DEGENERATE
from gxpo.parts.definition import show

Floats = NDArray[np.float64]
INPUTS, SHOWN, EQUAL, ALONE, NO_SET = range(
    5
)  # what is said of a row: its inputs alone, the arithmetic, or why it is 0
TOLERANCE = 1e-9


@dataclass
class Compared:
    """What rows were compared, and the arithmetic of each.

    axis     "R", "S" or "P": a row is a rollout, a turn or a token
    what     name of what is compared: "outcome", "return"...
    among    in words, who the peers are
    value    [n] what is compared
    peers    [n] sets of rows that are compared, -1: in none
    counted  [n] whether the row enters its set's statistics
    center   [n] what is taken off (`shift` included)
    spread   [n] what divides, eps included; 1: nothing is scaled
    result   [n] (value - center) / spread, times the part's weight
    status   [n] `INPUTS`, `SHOWN`, `EQUAL`, `ALONE`, `NO_SET`
    settings of the statistic, by name
    """

    axis: str
    what: str
    among: str
    value: Floats
    peers: NDArray[np.int64]
    counted: NDArray[np.bool_]
    center: Floats
    spread: Floats
    result: Floats
    status: NDArray[np.int8]
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class Summand:
    """One part of a credit: its factor in the sum, its contribution [P] before the factor, and its arithmetic.

    formula   what the part's documentation gives as its formula
    compared  None: only what went in and what came out are shown
    """

    name: str
    factor: float
    formula: str
    contribution: Tensor
    compared: Compared | None


class Watched:
    """A credit that keeps the summands of its last call: of the scored rollouts as the method gives them to it."""

    def __init__(self, credit: Any) -> None:
        self.credit = credit
        self.needs, self.requires = getattr(credit, "needs", ()), getattr(credit, "requires", ())
        self.found: list[Summand] = []

    def __call__(self, forest: Forest, signals: Any, step: int) -> Tensor:
        self.found = summands(self.credit, forest, signals, step)
        total = torch.zeros(forest.n_entries, dtype=torch.float64)
        for summand in self.found:
            total += summand.factor * summand.contribution
        return total


def summands(credit: Any, forest: Forest, signals: Any, step: int) -> list[Summand]:
    """The parts of a credit, in the order in which they are added."""
    parts, factors = (credit.parts, credit.factors) if isinstance(credit, CreditSum) else ((credit,), (1.0,))
    out: list[Summand] = []
    total = torch.zeros(forest.n_entries, dtype=torch.float64)
    for part, factor in zip(parts, factors, strict=True):
        if factor and isinstance(part, CreditPart):
            given = part.summand(total / factor, forest, signals, step)
        else:
            given = part(forest, signals, step)
        given = given.detach().to(torch.float64)
        total = total + factor * given
        compared = None
        if isinstance(part, Relative) and type(part).__call__ is Relative.__call__:
            compared = _compared(part, forest, signals, given)
        out.append(Summand(show(part), float(factor), formula_of(part), given, compared))
    return out


def formula_of(part: Any) -> str:
    """The formula in a part's documentation: its first line that states "A = ...", else its first line."""
    said = (getattr(part, "__doc__", None) or "").strip().splitlines()
    lines = [line.strip() for line in said]
    return next((line for line in lines if line.split(" = ")[0] in ("A", "A_i", "a")), lines[0] if lines else "")


def _compared(part: Relative, forest: Forest, signals: Any, given: Tensor) -> Compared:
    """The rows that `Relative` compares, as in its `__call__`, and their arithmetic."""
    values, axis = part.values(forest, signals)
    rows = part.rows(forest, axis)
    x = rows.take(values.to(torch.float64), axis)
    tokens = rows.axis == "P" and part.unit != "segment"
    known = x.isfinite() & forest.path_trainable if tokens else x.isfinite()
    if part.center == "baseline":
        ids = torch.where(known, torch.arange(len(x)), -1)
    else:
        ids = torch.where(known, part.peers(forest, rows), -1)
    own = torch.full((len(x),), -1, dtype=torch.int64)  # a token of each row, to read its value from
    own[rows.row_P.flip(0)] = torch.arange(forest.n_entries).flip(0)
    read = given if len(given) else torch.full((1,), torch.nan)  # of actions that are all empty there is none
    actual = torch.where(own >= 0, read[own.clamp_min(0)], torch.nan).numpy()
    counted = rows.take(forest.compared, "R").numpy() & (ids >= 0).numpy()
    value = torch.where(known, x, torch.nan).numpy()
    baseline = rows.take(signals["baseline"].to(torch.float64), "R").numpy() if part.center == "baseline" else None
    center, spread = _statistics(part, value, ids.numpy(), counted, baseline)
    with np.errstate(all="ignore"):
        result = part.weight * np.clip((value - center) / spread, -part.bound, part.bound)
    status = _status(value, ids.numpy(), counted, result, actual, centred=part.center != "none")
    out = Compared(
        axis=rows.axis,
        what=show(part.value),
        among=_among(part),
        value=value,
        peers=ids.numpy(),
        counted=counted,
        center=center,
        spread=spread,
        result=np.where(status == SHOWN, result, actual),
        status=status,
        settings=_settings(part),
    )
    if part.unit == "segment":  # a row for each of its tokens: pages look rows up by token
        at = rows.row_P.numpy()
        for name in ("value", "peers", "counted", "center", "spread", "result", "status"):
            setattr(out, name, getattr(out, name)[at])
    return out


def _settings(part: Relative) -> dict[str, Any]:
    named = {k: getattr(part, k) for k in ("center", "scale", "ddof", "eps", "shift", "weight", "singleton", "unit")}
    named |= {"quantile": part.quantile} if part.center == "quantile" else {}
    named |= {"bound": part.bound} if part.bound < math.inf else {}
    if part.value in VALUES and VALUES[part.value][0] == "S":
        named["discount"] = part.discount
    return named


def _among(part: Relative) -> str:
    if part.center == "baseline":
        return "its own baseline"
    levels = [level.removeprefix("info.").removeprefix("step_info.") for level in part.among if level != "group"]
    if part.among == ("batch",):
        return "the whole batch"
    if isinstance(part, StateRelative):
        likewise = f" and the {part.history} states before it" if part.history else ""
        levels = [f"state{'' if part.similar == 1 else f' (likeness {part.similar:g} or more)'}{likewise}", *levels]
    elif isinstance(part, StateKeyed):
        levels = ["state", *levels]
    return "the group" if not levels else f"those of the group with the same {' and '.join(levels)}"


def _sets(ids: NDArray[np.int64]) -> list[NDArray[np.intp]]:
    """Rows of each set, by ascending id; -1 is no set."""
    order = np.argsort(ids, kind="stable")
    order = order[ids[order] >= 0]
    return np.split(order, np.flatnonzero(np.diff(ids[order])) + 1) if len(order) else []


def _statistics(
    part: Relative,
    value: Floats,
    ids: NDArray[np.int64],
    counted: NDArray[np.bool_],
    baseline: Floats | None,
) -> tuple[Floats, Floats]:
    """(centre, divisor) of each row."""
    center, spread = np.full(len(value), np.nan), np.full(len(value), np.nan)
    if baseline is not None:
        return baseline.astype(float), np.ones(len(value))
    every = value[counted]
    whole = _std(every, part.ddof) + part.eps if part.scale == "batch_std" else 1.0
    for rows in _sets(ids):
        members = value[rows[counted[rows]]]
        if not len(members):
            continue
        own_center = _center(part, members)
        for at in rows if part.center == "leave_one_out" or part.scale == "leave_one_out_std" else rows[:1]:
            others = _others(value, rows, counted, at)
            middle = (_mean(others) if len(others) else 0.0) if part.center == "leave_one_out" else own_center
            target = at if part.center == "leave_one_out" or part.scale == "leave_one_out_std" else rows
            center[target] = middle + part.shift
            spread[target] = whole if part.scale == "batch_std" else _divisor(part, members, others, middle)
    return center, spread


def _others(value: Floats, rows: NDArray[np.intp], counted: NDArray[np.bool_], at: int) -> Floats:
    return value[rows[counted[rows] & (rows != at)]]


def _mean(x: Sequence[float] | Floats) -> float:
    return math.fsum(x) / len(x)


def _std(x: Floats, ddof: int) -> float:
    if len(x) <= ddof:
        return 0.0
    middle = _mean(x)
    return math.sqrt(math.fsum((x - middle) ** 2) / (len(x) - ddof))


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


def _divisor(part: Relative, members: Floats, others: Floats, middle: float) -> float:
    if part.scale == "std":
        return _std(members, part.ddof) + part.eps
    if part.scale == "leave_one_out_std":
        found = _std(others, part.ddof)
        return found + part.eps if found > 0 else 1.0
    if part.scale == "mean_absolute":
        return (math.fsum(abs(members - middle)) + part.eps) / len(members)
    if part.scale == "median_absolute":
        far, n = np.sort(abs(members - middle)), len(members)
        low = float(far[(n - 1) // 2])
        return (low if part.center == "lower_median" else (low + float(far[n // 2])) / 2) + part.eps
    if part.scale == "mean":
        return _mean(members) + part.eps
    return 1.0


def _status(
    value: Floats,
    ids: NDArray[np.int64],
    counted: NDArray[np.bool_],
    result: Floats,
    actual: Floats,
    *,
    centred: bool,
) -> NDArray[np.int8]:
    with np.errstate(invalid="ignore"):
        same = np.abs(result - actual) <= TOLERANCE * (1 + np.abs(actual))
    status = np.where(same, SHOWN, INPUTS).astype(np.int8)
    for rows in _sets(ids):
        members = value[rows[counted[rows]]]
        zero = rows[actual[rows] == 0]
        if not len(members) or not len(zero):
            continue
        high, low = float(members.max()), float(members.min())
        if len(members) == 1 and len(rows) == 1:
            status[zero] = ALONE
        elif centred and high - low <= DEGENERATE * max(abs(high), abs(low)):
            status[zero] = EQUAL
    status[(ids < 0) & (actual == 0)] = NO_SET
    return status
