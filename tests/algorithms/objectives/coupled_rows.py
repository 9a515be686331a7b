"""Rows of tokens whose losses may depend on one another, and a loop over them to hold a policy term against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from tests.algorithms.objectives.conftest import grow_forest
from torch import Tensor

from gxpo.algorithms.objectives import PolicyGradient
from gxpo.parts.protocols import PolicyTokens

Token = dict[str, Any]
Loop = Callable[[list[Token]], tuple[list[float], list[list[float]]]]  # losses; slope [t][u] of loss t in log-prob u

TOKEN = st.fixed_dictionaries(
    {
        "gap": st.one_of(st.floats(-0.6, 0.6), st.floats(-14.0, 14.0)),  # the log-ratio: e^13.8 is 1e6
        "lp": st.floats(-3, -0.01),
        "credit": st.sampled_from([-1.5, -0.3, 0.0, 0.4, 1.0]),
        "weight": st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        "trainable": st.sampled_from([True, True, True, False]),
        "entropy": st.sampled_from([0.01, 0.3, 0.3, 1.0, 2.0]),
    }
)
ROWS = st.lists(st.lists(TOKEN, min_size=1, max_size=6), min_size=1, max_size=4)


def evaluate(term: PolicyGradient, rows: list[list[Token]], blind: bool = False) -> tuple[float, Tensor]:
    """Value and gradient of the term; `blind`: with nan in every entry that it says it does not read."""
    forest = grow_forest([("a", len(row), {"trainable": [t["trainable"] for t in row]}) for row in rows])
    c = {k: torch.tensor([float(t[k]) for row in rows for t in row], dtype=torch.float64) for k in rows[0][0]}
    lp, below, entropy = c["lp"].clone(), c["lp"] - c["gap"], c["entropy"]
    if blind:
        unread = ~term.active(forest, c["credit"], c["weight"])
        lp[unread], entropy = torch.nan, torch.where(unread, torch.nan, entropy)
    lp.requires_grad_()
    value = term(forest, PolicyTokens(lp, below, entropy=entropy), c["credit"], c["weight"], {}, 0)[0]
    (slope,) = torch.autograd.grad(value, lp, allow_unused=True)
    return float(value.detach()), torch.zeros_like(lp) if slope is None else slope


def by_hand(rows: list[list[Token]], loop: Loop, aggregate: str, whole_step: bool = False) -> tuple[float, list[float]]:
    """The same, from a loop over the trained tokens of one trajectory, or of the step."""
    trainable_by_row = [[t for t in row if t["trainable"]] for row in rows]
    tokens, sequences = sum(map(len, trainable_by_row)), sum(map(bool, trainable_by_row))
    share = {
        id(t): 1 / tokens if aggregate == "token_mean" else 1 / sequences / len(trainable_tokens)
        for trainable_tokens in trainable_by_row
        for t in trainable_tokens
    }
    # tokens whose losses may depend on one another: a trajectory's, or the whole step's
    units = [[{**t, "row": i, "id": id(t)} for t in tokens_of_row] for i, tokens_of_row in enumerate(trainable_by_row)]
    if whole_step:
        units = [[t for unit in units for t in unit]]
    value, slopes = 0.0, {}
    for unit in units:
        if not any(t["credit"] and t["weight"] for t in unit):
            continue
        losses, table = loop(unit)
        for t, loss, line in zip(unit, losses, table, strict=True):
            scale = share[t["id"]] * t["weight"]
            value += scale * loss
            for u, slope in zip(unit, line, strict=True):
                slopes[u["id"]] = slopes.get(u["id"], 0.0) + scale * slope
    return value, [slopes.get(id(t), 0.0) for row in rows for t in row]


def agrees(term: PolicyGradient, rows: list[list[Token]], loop: Loop) -> None:
    """Value and gradient of the term are the loop's, and what it does not read does not matter."""
    rows = [[dict(t) for t in row] for row in rows]  # no two tokens are one object
    value, slope = evaluate(term, rows)
    expected_loss, slopes = by_hand(rows, loop, term.aggregate, term.couples == "step")
    size = 1.0 + abs(expected_loss)
    assert abs(value - expected_loss) <= 1e-9 * size, (value, expected_loss)
    expected = torch.tensor(slopes, dtype=torch.float64)
    torch.testing.assert_close(slope, expected, rtol=1e-8, atol=1e-9)
    again, same = evaluate(term, rows, blind=True)
    assert again == value and torch.equal(same, slope)


def diagonal(values: list[float]) -> list[list[float]]:
    return [[v if i == j else 0.0 for j in range(len(values))] for i, v in enumerate(values)]
