"""Log-probs and entropies by blocks of ids, against autograd through whole logits."""

import pytest
import torch
from tests.learning.llamas import small_llama

from gxpo.learning import head
from gxpo.learning.head import Blocks, columns_of_block
from gxpo.learning.readout import Readout, read


def drawn(rows=5, width=6, vocabulary=11):
    draw = torch.Generator().manual_seed(3)
    states, weight = (torch.randn(n, width, generator=draw, dtype=torch.float64) for n in (rows, vocabulary))
    return states, weight, torch.tensor([0, 3, 4, 7, 10]), torch.rand(2, rows, generator=draw, dtype=torch.float64)


@pytest.mark.parametrize("columns", [4, 11])  # blocks of 4, 4 and 3, and one of all
@pytest.mark.parametrize(("scale", "temperature"), [(1.0, 1.0), (0.5, 0.6)])
@pytest.mark.parametrize("used", ["logprob", "entropy", "both"])
def test_blocks_have_values_and_gradients_of_the_definition(columns, scale, temperature, used):
    states, weight, target, slopes = drawn()
    hot = torch.full((5,), temperature, dtype=torch.float64)
    ours, theirs = ([x.clone().requires_grad_() for x in (states, weight)] for _ in range(2))
    results = Blocks.apply(*ours, torch.float64, scale, target, hot, True, columns)
    p = torch.distributions.Categorical(logits=theirs[0] @ theirs[1].t() * scale / temperature)
    expected = (p.log_prob(target), p.entropy())
    for a, b in zip(results, expected, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)
    for values in (results, expected):
        parts = [s * x for s, x in zip(slopes, values, strict=True)]
        {"logprob": parts[0], "entropy": parts[1], "both": parts[0] + parts[1]}[used].sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=0, atol=1e-12)


def test_a_frozen_head_gets_no_gradient():
    states, weight, target, _ = drawn()
    states.requires_grad_()
    Blocks.apply(states, weight, torch.float64, 1.0, target, torch.ones(5), False, 4)[0].sum().backward()
    assert states.grad is not None and weight.grad is None


def test_16_bits_are_multiplied_in_the_dtype_of_products():
    states, weight, target, _ = drawn()
    exact = (states.bfloat16().double() @ weight.bfloat16().double().t()).log_softmax(1)
    x = states.bfloat16().requires_grad_()
    logprob, entropy = Blocks.apply(x, weight.bfloat16(), torch.float32, 1.0, target, torch.ones(5), False, 4)
    assert logprob.dtype == torch.float32 and entropy is None
    assert torch.allclose(logprob.double(), exact.gather(1, target[:, None]).squeeze(1), atol=1e-5)
    logprob.sum().backward()
    assert x.grad.dtype == torch.bfloat16


def test_blocks_shrink_with_the_number_of_rows():
    # 2^23 logits at a time: 8,192 rows have blocks of 1,024 ids, 512 rows the most, 100,000 rows the least
    assert [columns_of_block(n, 50_000, 2**23) for n in (8192, 512, 100_000)] == [1024, 4096, 256]
    assert columns_of_block(512, 30, 2**23) == 30


@pytest.mark.parametrize("names", [("logprob",), ("entropy", "logprob")])
def test_a_readout_gives_the_same_by_blocks(monkeypatch, names):
    monkeypatch.setattr(head, "COLUMNS", (8, 8))
    model = small_llama()
    states = torch.randn(6, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    arguments = (states, torch.arange(6), torch.full((6,), 0.8), None, names)
    whole, blocks = (read(Readout(model, choices={"head": name}), *arguments) for name in ("whole", "blocks"))
    assert whole.keys() == blocks.keys()
    for name, x in whole.items():
        assert torch.allclose(x, blocks[name], atol=1e-5)
    assert Readout(model, choices={"head": "blocks"}).by_blocks() is not None
    assert Readout(model).by_blocks() is None
