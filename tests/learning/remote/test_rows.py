"""Token rows for training engines: each stored token read once, at its own place; chunks; refusals."""

import pytest
import torch

from gxpo.base.errors import ModelError
from gxpo.forest.forest import Forest
from gxpo.learning.remote.rows import Rows


def forest() -> Forest:
    """Prompt 5 6 with the answers 7 8 and 9."""
    return Forest.from_completions([[5, 6]], [[[7, 8], [9]]], [[1.0, 0.0]])


def every_row(forest: Forest) -> Rows:
    return Rows.of(forest, torch.arange(forest.n_entries))


def test_a_leaf_has_a_row_and_reads_its_own_tokens():
    rows = every_row(forest())
    assert sorted((row.tokens.tolist(), row.read.tolist()) for row in rows.rows) == [
        ([5, 6, 7, 8], [2, 3]),
        ([5, 6, 9], [2]),
    ]
    assert sorted(rows.sizes) == [1, 2] and rows.tokens == 7


def test_values_come_back_in_the_order_of_the_entries():
    rows = every_row(forest())
    by_token = {7: -1.0, 8: -2.0, 9: -3.0}
    values = [torch.tensor([by_token[int(row.tokens[i])] for i in row.read]) for row in rows.rows]
    assert rows.gather(values).tolist() == [-1.0, -2.0, -3.0]


def test_slopes_go_to_the_rows_that_read_the_entries():
    rows = every_row(forest())
    slopes = rows.scatter(torch.tensor([0.5, 1.5, 2.5], dtype=torch.float64))
    actual = {
        tuple(row.tokens[row.read].tolist()): slope.tolist() for row, slope in zip(rows.rows, slopes, strict=True)
    }
    assert actual == {(7, 8): [0.5, 1.5], (9,): [2.5]}


def test_chunks_keep_to_their_limit_but_for_a_longer_row():
    rows = every_row(forest())
    assert rows.chunks(7) == [[0, 1]]
    assert rows.chunks(6) == rows.chunks(1) == [[0], [1]]


def test_only_the_wanted_entries_are_read():
    rows = Rows.of(forest(), torch.tensor([2]))
    assert [(row.tokens.tolist(), row.read.tolist()) for row in rows.rows] == [([5, 6, 9], [2])]


def test_tokens_outside_the_vocabulary_are_refused():
    latents = Forest.from_completions([[5, 6]], [[[-1]]], [[1.0]])
    with pytest.raises(ModelError, match="not vocabulary ids"):
        every_row(latents)
