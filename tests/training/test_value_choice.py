"""Best of n by a value head: chances, figures by hand, where a value is read, refusals."""

import math

import pytest
import torch

from gxpo.base.errors import ConfigError, RecordError
from gxpo.forest.forest import Forest
from gxpo.training.value_choice import Group, chances, figures_of, groups_of, head_of, last_values


def test_chances_of_the_highest_value():
    """Of pairs among three: (1, 2) -> 2, (1, 3) -> 3, (2, 3) -> 2. Of equals each wins as often."""
    assert chances([0.1, 0.9, 0.5], 2) == pytest.approx([0, 2 / 3, 1 / 3])
    assert chances([0.1, 0.9, 0.5], 3) == pytest.approx([0, 1, 0])
    assert chances([1.0, 0.0, 1.0], 2) == pytest.approx([0.5, 0, 0.5])
    assert chances([0.3, 0.2], 1) == pytest.approx([0.5, 0.5])


def test_figures_by_hand():
    """Two groups of two: the value finds the right answer of the first and misses that of the second."""
    groups = [Group([0.2, 0.9], [0.0, 1.0]), Group([0.2, 0.9], [1.0, 0.0])]
    figures = figures_of(groups)
    assert [(row["n"], row["by_lot"], row["by_value"], row["best"]) for row in figures["table"]] == [
        (1, 0.5, 0.5, 0.5),
        (2, 0.5, 0.5, 1.0),
    ]
    assert figures["gain"] == 0.0 and (figures["ordered_pairs"], figures["pairs"]) == (0.5, 2)


def test_groups_of_unequal_size_and_scores_that_are_no_verdicts():
    """Three answers .1, .5, .9 of values in that order: of 2 the pairs' better ones .5, .9, .9; of 3 the best."""
    figures = figures_of([Group([1, 2, 3], [0.1, 0.5, 0.9]), Group([1, 2], [0.0, 0.3])])
    sizes = {row["n"]: row for row in figures["table"]}
    assert sizes[2]["by_value"] == pytest.approx(((0.5 + 0.9 + 0.9) / 3 + 0.3) / 2) and sizes[2]["groups"] == 2
    assert sizes[3]["by_value"] == pytest.approx(0.9) and sizes[3]["groups"] == 1 and "best" not in sizes[3]


def test_a_single_answer_is_no_choice():
    with pytest.raises(RecordError, match="nothing to choose"):
        figures_of([Group([0.5], [1.0])])


def test_values_are_read_at_the_last_trained_token():
    forest = Forest.from_completions([[1]], [[[2, 3], [4]]], [[1.0, 0.0]])
    value_R = last_values(forest, torch.tensor([0.1, 0.7, 0.4]))
    assert value_R.tolist() == pytest.approx([0.7, 0.4])
    (group,) = groups_of(forest, value_R)
    assert (group.value, group.verdict) == (value_R.tolist(), [1.0, 0.0])


def test_the_samplers_likelihood_is_a_second_choice():
    """The likelier answer of the first group is wrong, that of the second right; unknown in one group: no column."""
    groups = [Group([0.2, 0.9], [0.0, 1.0], [-1.0, -2.0]), Group([0.2, 0.9], [1.0, 0.0], [-1.0, -2.0])]
    assert [row["by_likelihood"] for row in figures_of(groups)["table"]] == [0.5, 0.5]
    assert "by_likelihood" not in figures_of([*groups, Group([0.2, 0.9], [1.0, 0.0], [-1.0, math.nan])])["table"][0]


def test_which_head_is_read():
    assert head_of(["value"], None) == "value" and head_of(["value@a", "value@b"], "b") == "value@b"
    for heads, name, said in (
        ([], None, "no value head"),
        (["value@a", "value@b"], None, "a, b"),
        (["value"], "a", "one"),
    ):
        with pytest.raises(ConfigError, match=said):
            head_of(heads, name)
