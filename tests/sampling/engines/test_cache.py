"""Key-value caches of transformers: rows are selected, spread and laid out without touching the original."""

from types import SimpleNamespace

import pytest
import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from gxpo.base.errors import ModelError
from gxpo.sampling.engines.cache import Layout, check_rows, columns_of, rows_of, spread


def numbered(rows, columns, start=0):
    """Keys [rows, 1 head, columns, size 1] that count from `start`; values are 100 more."""
    keys = torch.arange(start, start + rows * columns, dtype=torch.float32).view(rows, 1, columns, 1)
    return keys, keys + 100


def filled(rows=2, columns=3):
    cache = DynamicCache()
    cache.update(*numbered(rows, columns), 0)
    return cache


def flat(x):
    return x.flatten().tolist()


def test_rows_are_copied_in_order_with_repeats():
    cache = filled()
    copy = rows_of(cache, torch.tensor([1, 0, 1]))
    assert flat(copy.layers[0].keys) == [3, 4, 5, 0, 1, 2, 3, 4, 5]
    copy.layers[0].values.zero_()
    assert flat(cache.layers[0].values) == [100, 101, 102, 103, 104, 105]


def test_a_spread_cache_grows_in_its_spare_room():
    cache = filled()
    grown = spread(cache, torch.tensor([0, 0]), 2)
    buffer = grown.layers[0].buffers[0]
    keys, values = grown.update(*numbered(2, 1, start=50), 0)
    assert flat(keys) == [0, 1, 2, 50, 0, 1, 2, 51] and flat(values)[3::4] == [150, 151]
    assert buffer.shape == (2, 1, 5, 1) and keys.data_ptr() == buffer.data_ptr()  # nothing was copied
    assert cache.layers[0].keys.shape[2] == 3


def test_rows_of_a_spread_cache_can_be_dropped():
    grown = spread(filled(), torch.tensor([0, 1]), 1)
    last = rows_of(grown, torch.tensor([1]))
    keys, _ = last.update(*numbered(1, 1, start=50), 0)
    assert flat(keys) == [3, 4, 5, 50]


def test_a_layout_builds_an_empty_cache_of_the_same_shapes():
    layout = Layout.of(filled())
    ((keys, values),) = layout.buffers(4, 6)
    assert keys.shape == values.shape == (4, 1, 6, 1) and keys.abs().sum() == 0
    cache = layout.cache([(keys, values)], 2)
    assert type(cache) is DynamicCache and cache.layers[0].keys.shape == (4, 1, 2, 1)


def test_a_write_mask_protects_cached_positions():
    """Row 0 has one new token, right-aligned among two columns, of which the first is cached."""
    layout = Layout.of(filled())
    buffers = numbered(2, 3)
    cache = layout.cache([buffers], 1, torch.tensor([[False, True], [True, True]]))
    keys, _ = cache.update(*numbered(2, 2, start=50), 0)
    assert flat(keys) == [0, 1, 51, 3, 52, 53]


def test_layers_that_are_not_full_attention_have_no_layout():
    class Window(DynamicLayer):
        """Stands for a layer with a sliding window."""

    cache = filled()
    cache.layers[0].__class__ = Window
    assert Layout.of(cache) is None


def test_columns_are_copies_of_one_row():
    cache = filled()
    ((keys, values),) = columns_of(cache, 1, 1, 3)
    assert keys.shape == (1, 2, 1) and (flat(keys), flat(values)) == ([4, 5], [104, 105])
    keys.zero_()
    assert flat(cache.layers[0].keys)[4:] == [4, 5]


def test_states_of_linear_layers_are_copied_apart():
    class Linear:
        """Stands for a layer of linear attention, whose states are in a dictionary."""

        def __init__(self):
            self.conv_states, self.recurrent_states = {0: torch.tensor([[1.0], [2.0]])}, {}

        def reorder_cache(self, rows):
            self.conv_states[0] = self.conv_states[0][rows]

    cache = SimpleNamespace(layers=[Linear()])
    check_rows(cache, "Linear")
    copy = rows_of(cache, torch.tensor([1, 1]))
    assert flat(copy.layers[0].conv_states[0]) == [2, 2] and flat(cache.layers[0].conv_states[0]) == [1, 2]


def test_caches_whose_rows_cannot_be_selected_are_refused():
    check_rows(SimpleNamespace(layers=[DynamicLayer()]), "Plain")
    layer = DynamicLayer()
    layer.conv_states = None  # as a layer with attention and a recurrent state has, which selects rows of the former
    for cache in (SimpleNamespace(layers=[layer]), SimpleNamespace(layers=[object()]), None):
        with pytest.raises(ModelError, match="Mixed keeps no cache whose rows"):
            check_rows(cache, "Mixed")
