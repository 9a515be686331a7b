"""The cost of uncertainty, and a fixed credit by origin: beside GRPO's."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gxpo
from gxpo.credit.entropy_cost import EntropyCost
from gxpo.credit.for_origin import ForOrigin
from gxpo.errors import ConfigError, MissingSignal
from gxpo.forest import Forest


def column(*x):
    return torch.tensor(x, dtype=torch.float64)


def forest_of(*rows):
    """(reward, tokens, fields of the record)"""
    records = []
    for i, (reward, n, fields) in enumerate((r[0], r[1], dict(r[2]) if len(r) > 2 else {}) for r in rows):
        turn = {"action": [5] * n, "logprob": [-1.0] * n, "trainable": fields.pop("trainable", True)}
        record = {"schema": "gxpo.rollouts/1", "group": "a", "id": f"t{i}", "prompt": [1], "reward": reward}
        records.append(record | {"turns": [turn]} | fields)
    return Forest.from_records(records)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.tuples(st.floats(0, 5), st.booleans()), min_size=1, max_size=4), min_size=1, max_size=5))
def test_equals_a_loop(rows):
    forest = forest_of(*((1.0, len(row), {"trainable": [t for _, t in row]}) for row in rows))
    entropy = column(*(h if t else math.nan for row in rows for h, t in row))
    found = EntropyCost(0.3)(forest, {"entropy": entropy}, 0)
    for i, row in enumerate(rows):
        own = [h for h, t in row if t]
        wanted = -0.3 * sum(own) / len(own) if own else 0.0
        assert found[forest.path_of(i)].tolist() == pytest.approx([wanted] * len(row))


def test_it_is_added_after_the_group_and_equal_groups_pay_too() -> None:
    m = gxpo.method("grpo", {"credit.add.entropy_cost": EntropyCost, "credit.scale": "none"})
    assert m.credit.on_equal == "signal" and "entropy" in m.needs
    mixed = m.advantages(forest_of((1.0, 1), (0.0, 1), (None, 1)), {"entropy": column(0.5, 2.0, 9.0)})
    assert mixed.tolist() == pytest.approx([0.45, -0.7, 0.0])  # one that is not scored has exactly 0
    assert m.advantages(forest_of((1.0, 1), (1.0, 1)), {"entropy": column(0.5, 2.0)}).tolist() == pytest.approx(
        [-0.05, -0.2]
    )


def test_a_credit_by_origin_stands_alone_in_a_group_of_its_own() -> None:
    m = gxpo.method("grpo", {"credit.add.for_origin": ForOrigin, "credit.scale": "none"})
    guest = {"origin": "tempered", "group": "t", "compared": False}
    assert m.advantages(forest_of((1.0, 2), (0.0, 1), (0.0, 1, guest))).tolist() == [0.5, 0.5, -0.5, 1.0]
    other = ForOrigin("replay", -2.0)(forest_of((1.0, 1), (1.0, 1, {"origin": "replay"})), {}, 0)
    assert other.tolist() == [0.0, -2.0]


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(MissingSignal, match="nan for 1 of 2"):
        EntropyCost()(forest_of((1.0, 2)), {"entropy": column(0.1, math.nan)}, 0)
    for bad in (lambda: EntropyCost(-1.0), lambda: ForOrigin(value=math.inf)):
        with pytest.raises(ConfigError, match=r"entropy_cost|for_origin"):
            bad()
