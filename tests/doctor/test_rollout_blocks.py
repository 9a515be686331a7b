"""Blocks of TRL's tables: size of a group, first row of an evaluation."""

import numpy as np
import pytest

from gxpo.doctor.rollout_blocks import Table, block_size, held_out_from, runs


def table(step, prompts, advantage=None):
    return Table(step, list(prompts), np.zeros(len(prompts)) if advantage is None else np.array(advantage, dtype=float))


def test_runs_are_the_lengths_of_equal_neighbours():
    assert runs(list("aabccc")) == [2, 1, 3]
    assert runs(["a"]) == [1] and runs([]) == []


@pytest.mark.parametrize(
    ("tables", "configured", "size"),
    [
        ([], None, 1),
        ([table(1, "aabb"), table(2, "ccdd")], None, 2),
        ([table(1, "aaaabb"), table(2, "ccdd")], None, 2),  # two groups of a follow each other
        ([table(1, "aabb"), table(2, "cdef")], None, 2),  # half of the tables show it
        ([table(1, "abcd"), table(2, "efgh")], None, 1),
        ([table(1, "aaaa")], 2, 2),
        ([table(1, "aaa"), table(2, "bbb")], 2, 3),  # a configured size that divides no table
    ],
)
def test_the_size_of_a_group_divides_the_runs_of_equal_prompts(tables, configured, size):
    assert block_size(tables, configured) == size


def test_advantages_that_sum_to_zero_tell_smaller_blocks():
    pairs = table(1, "aaaaaa", [0.7, -0.7, -0.7, 0.7, 0.7, -0.7])
    assert block_size([pairs]) == 2
    thirds = table(1, "aaaaaa", [0.8, -0.4, -0.4, -0.4, 0.8, -0.4])
    assert block_size([thirds, thirds]) == 3  # two blocks of one table would be too few


def test_prompts_that_all_differ_leave_the_advantages():
    mixed = table(1, "abcdef", [0.7, -0.7, -0.7, 0.7, 0.7, -0.7])
    assert block_size([mixed]) == 2


def test_a_table_before_the_first_step_is_an_evaluation():
    tables = [table(0, "xxyy"), table(1, "aabb"), table(2, "ccdd")]
    assert held_out_from(tables, 2) == [0, 4, 4]


def test_known_evaluations_begin_where_their_ends_differ():
    tables = [table(1, "aaxxyy"), table(2, "bbccdd"), table(3, "eexxyy")]
    assert held_out_from(tables, 2, evaluated=[1, 3]) == [2, 6, 2]


def test_a_single_evaluation_begins_with_prompts_of_its_own():
    """Its last six prompts are in no other table, while training tables share theirs."""
    training = [table(i, ["aabbcc", "ccaabb"][i % 2]) for i in range(1, 6)]
    assert held_out_from([*training, table(6, "aauuvvwwxxyyzz")], 2) == [6] * 5 + [2]


def test_tables_that_all_look_alike_have_no_evaluation():
    assert held_out_from([table(1, "aab"), table(2, "ccd")], 2) == [3, 3]
