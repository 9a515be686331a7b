"""GPG: the card's numbers, what counts as a group to learn from, and the loss that comes out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from tests.algorithms.weighting.verdict_rows import forest_of, group_of, part_of, peers_of, rows_of_verdicts, weighted

import gxpo
from gxpo.algorithms.credit import GroupRelative


def valid_share_weight(**options):
    return part_of("gpg", "valid_share", **options)


def test_card() -> None:
    rows = group_of(1, 0, 0, 0, name="a") + group_of(1, 1, 1, 1, name="b") + group_of(0, 0, 0, 0, name="c")
    assert weighted("gpg", forest_of(rows)) == pytest.approx([2.25, -0.75, -0.75, -0.75] + [0.0] * 8)  # 12 / (12 - 8)


@settings(max_examples=40, deadline=None)
@given(rows_of_verdicts)
def test_it_equals_a_loop(rows) -> None:
    forest = forest_of(rows)
    credit = GroupRelative(scale="none")(forest, {}, 0)
    total = valid = 0
    for g, _, _, fields in rows:
        if fields["compared"]:
            total += 1
            valid += len(set(peers_of(rows, g))) > 1
    expected = total / valid if valid else 1.0
    assert valid_share_weight()(forest, credit, {}, 0).tolist() == pytest.approx([expected] * forest.n_entries)


def test_whoever_has_no_credit_in_a_group_that_has_is_valid() -> None:
    rows = [("a", r, 1) for r in (0.0, 0.5, 1.0)] + [("b", 1.0, 1), ("b", 1.0, 1), ("c", 1.0, 1)]
    forest = forest_of(rows)  # the middle one of a is at the mean; c is alone
    assert valid_share_weight()(forest, GroupRelative(scale="none")(forest, {}, 0), {}, 0).tolist() == [2.0] * 6


def test_trajectories_that_are_not_trained_do_not_count() -> None:
    records = forest_of(group_of(1, 0) + group_of(1, 1, name="b")).to_records()
    records[2]["turns"][0]["trainable"] = False
    forest = gxpo.Forest.from_records(records)
    credit = torch.tensor([0.5, -0.5, 7.0, 0.0], dtype=torch.float64)  # 7 is nobody's
    assert valid_share_weight()(forest, credit, {}, 0).tolist() == pytest.approx([1.5] * 4)  # 3 trained, 2 of them in a


def test_the_loss_is_that_of_the_groups_with_credit_alone() -> None:
    mixed = group_of(1, 0, 0, 0, n=2)
    whole_forest, part = forest_of(mixed + group_of(1, 1, 1, 1, name="b", n=3)), forest_of(mixed)
    m = gxpo.method("gpg")
    values, gradients = [], []
    for forest in (whole_forest, part):
        x = torch.full((forest.n_entries,), -0.5, dtype=torch.float64)
        x[:8] = torch.linspace(-2, -1, 8, dtype=torch.float64)
        x.requires_grad_()
        old = torch.full((forest.n_entries,), -3.0, dtype=torch.float64)  # far off policy: no ratio, no clip
        loss = m.loss(forest, gxpo.PolicyTokens(x, old)).value
        gradients.append(torch.autograd.grad(loss, x)[0][:8].tolist())
        values.append(float(loss.detach()))
    assert values[0] == pytest.approx(values[1])
    assert gradients[0] == pytest.approx(gradients[1])
    # -A / (rows * length): 4 rows of 2 tokens
    assert gradients[1] == pytest.approx([-0.75 / 8] * 2 + [0.25 / 8] * 6)


def test_without_any_credit_it_is_one() -> None:
    forest = forest_of(group_of(1, 1))
    assert valid_share_weight()(forest, torch.zeros(2), {}, 0).tolist() == [1.0, 1.0]
