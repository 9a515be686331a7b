"""Columns of numbers as a page's script reads them: on the coarsest axis that holds them, in base64 typed arrays."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gxpo.forest.forest import Forest

INTEGERS = (("u1", np.uint8), ("i1", np.int8), ("u2", np.uint16), ("i2", np.int16), ("i4", np.int32))


def packed(values: NDArray[Any] | Tensor, axis: str = "", digits: str = "f8") -> dict[str, Any]:
    """{"k": kind, "d": base64}, or {"c": number} where all are equal; the axis under "a". Numbers of which there are
    few are given once under "v", and "d" holds their places.

    digits  "f8" where the numbers are read as arithmetic, "f4" where seven digits are more than is shown
    """
    column = values.detach().numpy() if isinstance(values, Tensor) else np.asarray(values)
    mark = {"a": axis} if axis else {}
    if len(column) and np.isfinite(column[0]) and (column[0] == column).all():
        return {**mark, "c": column[0].item()}
    if column.dtype == bool:
        column = column.astype(np.uint8)
    if np.issubdtype(column.dtype, np.integer):
        low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
        kind, dtype = next((k, t) for k, t in INTEGERS if np.iinfo(t).min <= low and high <= np.iinfo(t).max)
        return {**mark, "k": kind, "d": _coded(column, dtype)}
    kind, dtype = ("f4", np.float32) if digits == "f4" else ("f8", np.float64)
    if digits != "f4" and len(column):
        distinct, places = np.unique(column, return_inverse=True)
        if 3 * len(distinct) < len(column):
            return {**mark, **packed(places.astype(np.int64)), "v": _coded(distinct, np.float64)}
    return {**mark, "k": kind, "d": _coded(column, dtype)}


def _coded(column: NDArray[Any], dtype: Any) -> str:
    little = np.ascontiguousarray(column.astype(np.dtype(dtype).newbyteorder("<")))
    return base64.b64encode(little.tobytes()).decode()


def of_tokens(forest: Forest, x: Tensor, digits: str = "f4") -> dict[str, Any]:
    """A column [P] on the coarsest axis of rollouts, turns and tokens on which it is constant."""
    column = x.detach().numpy()
    for axis, owner, n in (
        ("R", forest.path_trajectory.numpy(), forest.n_trajectories),
        ("S", forest.path_step.numpy(), forest.n_steps),
    ):
        coarse = np.zeros(n, dtype=column.dtype)
        coarse[owner[::-1]] = column[::-1]
        if np.array_equal(coarse[owner], column, equal_nan=True):
            return packed(coarse, axis, digits)
    return packed(column, "P", digits)
