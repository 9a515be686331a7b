"""Linear parts of a layer: values and gradients against autograd through the definitions, in float64."""

import pytest
import torch
from torch.nn.functional import gelu, silu

from gxpo.models.decoder.architecture import ACTIVATIONS
from gxpo.models.decoder.layer import AddLinear, GatedMLP, NormLinears

EPS = 1e-5


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def norm(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def compare(function, definition, *inputs, close):
    """Values and gradients of every input."""
    ours = [x.clone().to(torch.float32).requires_grad_() for x in inputs]
    theirs = [x.clone().requires_grad_() for x in inputs]
    actual, expected = function(*ours), definition(*theirs)
    slope = numbers(*expected.shape, seed=9)
    assert torch.allclose(actual.double(), expected, rtol=0, atol=close)
    (actual * slope.float()).sum().backward()
    (expected * slope).sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a.grad.double(), b.grad, rtol=0, atol=close * float(b.grad.abs().max().clamp_min(1)))


@pytest.mark.parametrize("joined", [False, True])
def test_maps_of_a_norm(joined):
    x, w, a, b = numbers(7, 8), 1 + 0.1 * numbers(8, seed=1), numbers(5, 8, seed=2), numbers(3, 8, seed=3)
    compare(
        lambda x, w, a, b: NormLinears.apply(x, w, EPS, torch.float32, joined, a, b),
        lambda x, w, a, b: torch.cat([norm(x, w) @ a.t(), norm(x, w) @ b.t()], 1),
        x, w, a, b, close=1e-5,
    )  # fmt: skip


def test_a_map_added():
    compare(
        lambda x, a, w: AddLinear.apply(x, a, w, torch.float32),
        lambda x, a, w: x + a @ w.t(),
        numbers(7, 8), numbers(7, 5, seed=1), numbers(8, 5, seed=2), close=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize(("residual", "joined"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_the_gated_perceptron(act, residual, joined):
    x, w = numbers(7, 8), 1 + 0.1 * numbers(8, seed=1)
    raised = {"silu": silu, "gelu_pytorch_tanh": lambda y: gelu(y, approximate="tanh")}[act]
    compare(
        lambda x, w, g, u, d: GatedMLP.apply(x, w, EPS, torch.float32, ACTIVATIONS[act], residual, joined, d, g, u),
        lambda x, w, g, u, d: residual * x + (raised(norm(x, w) @ g.t()) * (norm(x, w) @ u.t())) @ d.t(),
        x, w, numbers(6, 8, seed=2), numbers(6, 8, seed=3), numbers(8, 6, seed=4), close=2e-5,
    )  # fmt: skip


def test_gate_and_up_in_one_map():
    x, w, both, down = numbers(7, 8), torch.ones(8), numbers(12, 8, seed=2), numbers(8, 6, seed=3)
    inputs = [t.float() for t in (x, w, down, both)]
    settings = EPS, torch.float32, ACTIVATIONS["silu"], True, False
    one = GatedMLP.apply(*inputs[:2], *settings, *inputs[2:])
    two = GatedMLP.apply(*inputs[:2], *settings, inputs[2], *inputs[3].chunk(2))
    assert torch.allclose(one, two, rtol=1e-5, atol=1e-5)  # of values up to 66


@pytest.mark.parametrize("joined", [False, True])
def test_weights_that_are_not_trained_get_no_gradient(joined):
    x, w = numbers(4, 8).float().requires_grad_(), torch.ones(8)
    a, b = numbers(5, 8).float(), numbers(3, 8).float().requires_grad_()
    NormLinears.apply(x, w, EPS, torch.float32, joined, a, b).sum().backward()
    assert a.grad is None and b.grad is not None and x.grad is not None


def test_bfloat16_products_in_float32_are_the_better_ones():
    """Against float64 on the same bfloat16 numbers: products in float32 are rounded once, at the end."""
    x, w = numbers(64, 256).bfloat16(), torch.ones(256).bfloat16()
    weights = [(numbers(128, 256, seed=i) / 16).bfloat16() for i in (1, 2)]
    exact = torch.cat([norm(x.double(), w.double()) @ m.double().t() for m in weights], 1)
    error = {}
    for product in (torch.float32, torch.bfloat16):
        actual = NormLinears.apply(x, w, EPS, product, False, *weights)
        assert actual.dtype == torch.bfloat16
        error[product] = float((actual.double() - exact).norm() / exact.norm())
    assert error[torch.float32] < error[torch.bfloat16] < 0.01
