"""Synthetic batches, and each property on a formula that has it and on one that lacks it."""

from __future__ import annotations

import pytest

from gxpo.conformance import golden, names
from gxpo.conformance.properties import PROPERTIES, Batch, synthetic_batch


@pytest.mark.parametrize("method", names())
def test_made_up_batches_have_what_the_method_reads(method: str) -> None:
    batch = synthetic_batch(golden(method), "seed")
    assert set(batch.fields) >= set(golden(method).fields)
    assert sorted(batch.groups.count(g) for g in set(batch.groups)) == [2, 3, 4, 5]
    for group in set(batch.groups):
        assert len({r for r, g in zip(batch.rewards, batch.groups, strict=True) if g == group}) > 1
    assert batch == synthetic_batch(golden(method), "seed") != synthetic_batch(golden(method), "another")


def centred(rewards, groups, constants, fields):
    """Dr. GRPO in plain loops: unscored rows are 0 and in no mean."""
    out = []
    for reward, group in zip(rewards, groups, strict=True):
        scored = [r for r, g in zip(rewards, groups, strict=True) if g == group and r is not None]
        out.append(0.0 if reward is None else reward - sum(scored) / len(scored))
    return out


def batch_centred(rewards, groups, constants, fields):
    scored = [r for r in rewards if r is not None]
    return [0.0 if r is None else r - sum(scored) / len(scored) for r in rewards]


def raw(rewards, groups, constants, fields):
    return [r or 0.0 for r in rewards]


def by_row(rewards, groups, constants, fields):
    return [float(i) for i, _ in enumerate(rewards)]


def by_group_id(rewards, groups, constants, fields):
    return [float(g) for g in groups]


def unscored_as_zero(rewards, groups, constants, fields):
    return centred([r or 0.0 for r in rewards], groups, constants, fields)


def normalised(rewards, groups, constants, fields):
    """Divided by the largest distance from the group's mean."""
    advantages = centred(rewards, groups, constants, fields)
    largest = {g: max(abs(a) for a, h in zip(advantages, groups, strict=True) if h == g) for g in groups}
    return [a / largest[g] if largest[g] > 1e-12 else 0.0 for a, g in zip(advantages, groups, strict=True)]


@pytest.mark.parametrize("name", sorted(set(PROPERTIES) - {"scale"}))
def test_centred_rewards_have_all_but_scale(name):
    PROPERTIES[name](centred, golden("dr_grpo"), 1e-9)


def test_normalised_rewards_have_scale():
    PROPERTIES["scale"](normalised, golden("dr_grpo"), 1e-9)


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("order", by_row),
        ("relabel", by_group_id),
        ("separate", batch_centred),
        ("unscored", unscored_as_zero),
        ("equal", raw),
        ("one", raw),
        ("zero_sum", batch_centred),
        ("shift", raw),
        ("scale", centred),
        ("homogeneous", normalised),
    ],
)
def test_each_property_fails_a_formula_without_it(name, formula):
    with pytest.raises(AssertionError):
        PROPERTIES[name](formula, golden("dr_grpo"), 1e-9)


def test_rows_are_taken_with_their_fields():
    batch = Batch(
        (1.0, 0.0, 0.5), (3, 3, 8), {}, {"lengths": [4, 5, 6], "components": [[1, 2, 3], [7, 8, 9]], "weights": [1, 2]}
    )
    taken = batch.take([2, 0])
    assert (taken.rewards, taken.groups) == ((0.5, 1.0), (8, 3))
    assert taken.fields == {"lengths": [6, 4], "components": [[3, 1], [9, 7]], "weights": [1, 2]}
