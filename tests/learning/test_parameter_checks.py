"""Fingerprint of parameters: independent of order and of memory layout, different for any changed element or name."""

import pytest
import torch

from gxpo.learning.parameter_checks import AT_ONCE, fingerprint, shard_of


def tensors() -> dict[str, torch.Tensor]:
    return {"w": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1.0, -2.0])}


def test_it_does_not_depend_on_order_or_memory_layout():
    full_fingerprint = fingerprint(tensors())
    assert 0 <= full_fingerprint < 2**53
    assert fingerprint(dict(reversed(tensors().items()))) == full_fingerprint
    transposed = tensors()["w"].t().contiguous().t()
    assert not transposed.is_contiguous() and fingerprint({**tensors(), "w": transposed}) == full_fingerprint


def test_it_adds_up_over_parameters():
    parts = [fingerprint({name: x}) for name, x in tensors().items()]
    assert fingerprint(tensors()) == sum(parts) % 2**53


@pytest.mark.parametrize("change", ["value", "name", "swap", "sign of zero"])
def test_any_change_gives_another_number(change):
    changed = tensors()
    if change == "value":
        changed["w"][1, 2] = torch.nextafter(changed["w"][1, 2], torch.tensor(9.0))
    elif change == "name":
        changed["v"] = changed.pop("w")
    elif change == "swap":
        changed["b"] = changed["b"].flip(0)
    else:
        changed["w"][0, 0] = -0.0
    assert fingerprint(changed) != fingerprint(tensors())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_all_dtypes_are_read_as_bits(dtype):
    ones, twos = torch.ones(5, dtype=dtype), torch.full((5,), 2, dtype=dtype)
    assert fingerprint({"w": ones}) != fingerprint({"w": twos})


def test_long_tensors_are_mixed_in_pieces():
    x = torch.zeros(AT_ONCE + 3, dtype=torch.uint8)
    y = x.clone()
    y[-1] = 1
    assert fingerprint({"w": x}) != fingerprint({"w": y})


def test_a_whole_tensor_is_the_first_process_part():
    x = torch.ones(2)
    assert shard_of(x) == (x, 0)
