"""Fingerprint of parameters: independent of order and of memory layout, different for any changed element or name."""

import pytest
import torch

from gxpo.learning import parameter_checks
from gxpo.learning.parameter_checks import COLUMNS, FACTOR, fingerprint, shard_of


def tensors() -> dict[str, torch.Tensor]:
    return {"w": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1.0, -2.0])}


def test_it_does_not_depend_on_order_or_memory_layout():
    full_fingerprint = fingerprint(tensors())
    assert 0 <= full_fingerprint < 2**53
    assert fingerprint(dict(reversed(tensors().items()))) == full_fingerprint
    transposed = tensors()["w"].t().contiguous().t()
    assert not transposed.is_contiguous() and fingerprint({**tensors(), "w": transposed}) == full_fingerprint


@pytest.mark.parametrize("change", ["value", "name", "swap", "sign of zero", "shape", "dtype", "tensors"])
def test_any_change_gives_another_number(change):
    changed = tensors()
    if change == "value":
        changed["w"][1, 2] = torch.nextafter(changed["w"][1, 2], torch.tensor(9.0))
    elif change == "name":
        changed["v"] = changed.pop("w")
    elif change == "swap":
        changed["b"] = changed["b"].flip(0)
    elif change == "shape":
        changed["w"] = changed["w"].reshape(3, 2)
    elif change == "dtype":
        changed["b"] = changed["b"].view(torch.int32)
    elif change == "tensors":
        changed |= {"b": changed["w"], "w": changed["b"]}
    else:
        changed["w"][0, 0] = -0.0
    assert fingerprint(changed) != fingerprint(tensors())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_all_dtypes_are_read_as_bits(dtype):
    ones, twos = torch.ones(5, dtype=dtype), torch.full((5,), 2, dtype=dtype)
    assert fingerprint({"w": ones}) != fingerprint({"w": twos})


def weighted_sum(x, begin=0):
    """The sum of a shard's words by their factors, as a whole number modulo 2^64."""
    return int(parameter_checks._weighted_sum(x, begin, x[0].numel() * x.element_size())) % 2**64


def test_each_bit_of_each_place_counts_differently():
    sums = []
    for place in range(6):
        for bit in range(32):
            x = torch.zeros(3, 2, dtype=torch.int32)
            x.view(-1)[place] = 1 << bit if bit < 31 else -(1 << 31)
            sums.append(weighted_sum(x))
    assert len(set(sums)) == 6 * 32 and 0 not in sums
    assert all(x % 2 == 1 for x in sums[::32])  # odd factors


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [COLUMNS // 64, COLUMNS // 64 + 2, 7])
def test_shards_add_up_to_the_whole_tensor(dtype, columns):
    x = torch.randn(200, columns, generator=torch.Generator().manual_seed(0)).to(dtype)
    for cut in (1, 64, 65, 130, 199):
        parts = weighted_sum(x[:cut].clone()) + weighted_sum(x[cut:].clone(), cut * columns)
        assert parts % 2**64 == weighted_sum(x)


def test_words_of_later_rows_have_the_factor_of_their_row():
    x = torch.zeros(3 * COLUMNS + 5, dtype=torch.int32)
    in_row = []
    for row in range(4):
        x.zero_()[row * COLUMNS + 2] = 1
        in_row.append(weighted_sum(x))
    assert all(in_row[row] == in_row[0] * FACTOR**row % 2**64 for row in range(4))


def test_many_rows_at_once_give_the_same_sum(monkeypatch):
    x = torch.randn(5 * COLUMNS + 7, generator=torch.Generator().manual_seed(0))
    by_row = [weighted_sum(x), weighted_sum(x[3:].clone(), 3)]
    monkeypatch.setattr(parameter_checks, "rows_at_once", lambda device: 3)
    assert [weighted_sum(x), weighted_sum(x[3:].clone(), 3)] == by_row


def test_an_odd_place_in_memory_changes_nothing():
    x = torch.randn(9, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    assert fingerprint({"w": x[1:].view(2, 4)}) == fingerprint({"w": x[1:].view(2, 4).clone()})


def test_a_whole_tensor_is_the_first_process_part():
    x = torch.ones(2)
    assert shard_of(x) == (x, 0)
