"""The strict device: which mixes of devices are errors, what works as on a GPU, and what is counted."""

import pytest
import torch
from tests.strict_device import NAME, counting, strict
from torch.utils.checkpoint import checkpoint


@pytest.fixture(autouse=True)
def strict_device():
    with strict():
        yield


def there(*shape):
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape).to(NAME)


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x + torch.ones(3),
        lambda x: torch.ones(3) * x,
        lambda x: torch.ones(3)[torch.tensor([0], device=NAME)],
        lambda x: x.index_put((torch.tensor([0]),), torch.ones(1)),
        lambda x: torch.where(x > 0, x, torch.zeros(3)),
        lambda x: torch.rand(3, device=NAME, generator=torch.Generator()),
        lambda x: x.numpy(),
    ],
)
def test_mixes_of_devices_are_errors(mix):
    with pytest.raises(RuntimeError):
        mix(there(3))


def test_numbers_and_indices_of_the_cpu_are_taken():
    x = there(3)
    assert (x + torch.tensor(1.0)).tolist() == [2.0, 3.0, 4.0]
    assert x[torch.tensor([2, 0])].tolist() == [3.0, 1.0]


def test_tensors_are_made_read_and_viewed_there():
    assert torch.tensor([1, 2], device=NAME).device.type == torch.zeros(2, device=NAME).device.type == NAME
    assert there(2).view(torch.int32).tolist() == [0x3F800000, 0x40000000]
    assert there(2).new_tensor([3]).device.type == NAME and there(2).pin_memory().tolist() == [1.0, 2.0]
    weight = torch.nn.Parameter(there(2))
    weight.data = weight.data.to(torch.bfloat16)
    assert (weight.view(torch.int16).tolist(), weight.dtype) == ([0x3F80, 0x4000], torch.bfloat16)
    drawn = [torch.rand(2, device=NAME, generator=torch.Generator(NAME).manual_seed(5)).tolist() for _ in range(2)]
    assert drawn[0] == drawn[1]
    with torch.autocast(NAME, dtype=torch.bfloat16):
        assert (there(2, 2) @ there(2, 2)).tolist() == [[7.0, 10.0], [15.0, 22.0]]
    torch.get_device_module(NAME).synchronize()


def test_gradients_flow_through_recomputation():
    weight = torch.nn.Parameter(there(2))
    y = checkpoint(lambda x: (weight * x + torch.zeros(2, device=NAME)).square(), there(2), use_reentrant=False)
    y.sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [2.0, 16.0]  # 2 w x^2
    assert weight.grad.device.type == NAME


def test_waits_and_copies_are_counted():
    x = there(2, 3)
    with counting() as counts:
        float(x.sum())
        x[x > 2], x.nonzero()
        x.cpu(), x.tolist()
        torch.ones(4).to(NAME), torch.tensor([1], device=NAME)
    assert (counts.of("item"), counts.of("shape"), counts.of("to host"), counts.of("to device")) == (1, 2, 2, 2)
    assert counts.waits == 5 and counts.bytes("to host") == 2 * 24 and counts.bytes("to device") == 16 + 8
    assert counts.largest == {"to host": (2, 3), "to device": (4,)}
    float(x.sum())
    assert counts.of("item") == 1


def test_the_cpu_is_as_it_was_afterwards():
    with strict():
        assert torch.tensor([1.0]).device.type == "cpu"
    assert (torch.ones(2) + torch.tensor([1.0, 2.0])).tolist() == [2.0, 3.0]
