"""Attention over chains against softmax over an explicit mask, values and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gxpo.models.decoder.attention import Chain, Heads, Plan, Rectangle, TreeAttention, kernel_works

HEADS, KV, SIZE = 4, 2, 6


def test_this_build_has_the_kernel():
    assert kernel_works()


@st.composite
def trees(draw):
    """Chains in depth-first order, and for every token the tokens that it may see."""
    chains, seen_records = [], []

    def grow(above, depth):
        start = len(seen_records)
        for _ in range(draw(st.integers(1, 5))):
            seen_records.append([*above, *range(start, len(seen_records) + 1)])
        end, place = len(seen_records), len(chains)
        chains.append(None)
        below = list(range(start, end))
        for _ in range(draw(st.integers(0, 3)) if depth < 3 else 0):
            grow([*above, *below], depth + 1)
        chains[place] = Chain(start, end, len(seen_records))

    for _ in range(draw(st.integers(1, 2))):
        grow([], 0)
    return chains, seen_records


def by_mask(qkv, cos, sin, seen, scale, cap=None):
    """The same by one softmax a token, in loops over heads."""
    n, turning = qkv.shape[0], cos.shape[1]
    x = qkv.view(n, HEADS + 2 * KV, SIZE)

    def turn(v):
        half, rest = turning // 2, v[..., turning:]
        v = v[..., :turning]
        v = v * cos[:, None] + torch.cat([-v[..., half:], v[..., :half]], -1) * sin[:, None]
        return torch.cat([v, rest], -1)

    q, k, v = turn(x[:, :HEADS]), turn(x[:, HEADS : HEADS + KV]), x[:, HEADS + KV :]
    rows = []
    for i in range(n):
        heads = []
        for h in range(HEADS):
            own_heads = h // (HEADS // KV)
            scores = torch.stack([q[i, h] @ k[j, own_heads] for j in seen[i]]) * scale
            scores = scores if cap is None else cap * (scores / cap).tanh()
            heads.append(scores.softmax(0) @ torch.stack([v[j, own_heads] for j in seen[i]]))
        rows.append(torch.cat(heads))
    return torch.stack(rows)


@settings(max_examples=25, deadline=None)
@given(trees(), st.integers(0, 1000))
def test_blocks_equal_a_softmax_over_what_each_token_sees(tree, seed):
    chains, seen_value = tree
    generator = torch.Generator().manual_seed(seed)
    qkv = torch.randn(len(seen_value), (HEADS + 2 * KV) * SIZE, generator=generator, dtype=torch.float64)
    angle = torch.randn(len(seen_value), SIZE // 2, generator=generator, dtype=torch.float64).repeat(1, 2)
    slope = torch.randn(len(seen_value), HEADS * SIZE, generator=generator, dtype=torch.float64)
    a, b = qkv.clone().requires_grad_(), qkv.clone().requires_grad_()
    actual = TreeAttention.apply(a, angle.cos(), angle.sin(), Plan.of(chains), Heads(HEADS, SIZE, 0.7))
    expected = by_mask(b, angle.cos(), angle.sin(), seen_value, 0.7)
    assert torch.allclose(actual, expected, rtol=0, atol=1e-12)
    (actual * slope).sum().backward()
    (expected * slope).sum().backward()
    assert torch.allclose(a.grad, b.grad, rtol=0, atol=1e-11)


@settings(max_examples=40, deadline=None)
@given(trees(), st.integers(1, 9), st.sampled_from([0, 2, 4, SIZE]), st.sampled_from([None, 1.5]))
def test_windows_partial_rotation_and_capped_scores(tree, window, turning, cap):
    """A token sees the last `window` of what leads to it; positions turn the first numbers of a head alone."""
    chains, seen_value = tree
    position, generator = torch.tensor([len(each) - 1 for each in seen_value]), torch.Generator().manual_seed(window)
    qkv = torch.randn(len(seen_value), (HEADS + 2 * KV) * SIZE, generator=generator, dtype=torch.float64)
    angle = torch.randn(len(seen_value), turning // 2, generator=generator, dtype=torch.float64).repeat(1, 2)
    slope = torch.randn(len(seen_value), HEADS * SIZE, generator=generator, dtype=torch.float64)
    a, b = qkv.clone().requires_grad_(), qkv.clone().requires_grad_()
    plan = Plan.in_window(chains, window, position, torch.float64)
    actual = TreeAttention.apply(a, angle.cos(), angle.sin(), plan, Heads(HEADS, SIZE, 0.7, cap))
    expected = by_mask(b, angle.cos(), angle.sin(), [each[-window:] for each in seen_value], 0.7, cap)
    assert torch.allclose(actual, expected, rtol=0, atol=1e-12)
    (actual * slope).sum().backward()
    (expected * slope).sum().backward()
    assert torch.allclose(a.grad, b.grad, rtol=0, atol=1e-11)


def test_blocks_within_a_window():
    # a prompt of 5 with answers of 2 and 3, window 3: pieces 0..2 and 3..4; the second answer's last token (depth 7)
    # sees 5 6 7 alone, so it is left out; what the window's edge runs through has a mask
    chains, position = [Chain(0, 5, 10), Chain(5, 7, 7), Chain(7, 10, 10)], [0, 1, 2, 3, 4, 5, 6, 5, 6, 7]
    plan = Plan.in_window(chains, 3, torch.tensor(position), torch.float64)
    near, far = sorted(plan.rectangles, key=lambda r: -r.keys.start)
    assert (near.rows, near.keys) == (slice(5, 9), slice(3, 5)) and (far.rows, far.keys) == (slice(3, 5), slice(0, 3))
    assert (near.mask[0, 0] == 0).tolist() == [[True, True], [False, True], [True, True], [False, True]]
    assert (far.mask[0, 0] == 0).tolist() == [[False, True, True], [False, False, True]]
    assert Plan.in_window(chains, 8, torch.tensor(position), torch.float64).rectangles == Plan.of(chains).rectangles


@pytest.mark.parametrize("kernels", [("native", "float32"), ("native", "native"), ("float32", "native")])
def test_in_bfloat16_values_and_gradients_differ_by_rounding(kernels):
    chains, seen_values = [Chain(0, 3, 8), Chain(3, 5, 5), Chain(5, 8, 8)], [[0], [0, 1], [0, 1, 2]]
    seen_values += [[0, 1, 2, *range(start, i + 1)] for start, end in ((3, 5), (5, 8)) for i in range(start, end)]
    draw = torch.Generator().manual_seed(0)
    qkv = torch.randn(8, (HEADS + 2 * KV) * SIZE, generator=draw).to(torch.bfloat16)
    angle = torch.randn(8, SIZE // 2, generator=draw, dtype=torch.float64).repeat(1, 2)
    slope = torch.randn(8, HEADS * SIZE, generator=draw, dtype=torch.float64)
    a, b = qkv.clone().requires_grad_(), qkv.double().requires_grad_()
    actual = TreeAttention.apply(
        a, angle.cos().float(), angle.sin().float(), Plan.of(chains), Heads(HEADS, SIZE, 0.7), kernels
    )
    expected = by_mask(b, angle.cos(), angle.sin(), seen_values, 0.7)
    (actual * slope).sum().backward()
    (expected * slope).sum().backward()
    assert actual.dtype == a.grad.dtype == torch.bfloat16
    for x, y in ((actual, expected), (a.grad, b.grad)):
        assert float((x.detach().double() - y).norm() / y.norm()) < 0.02


def test_blocks_of_a_prompt_with_two_answers():
    # prompt 0 1 2, answers 3 4 and 5 6 7: squares of 3, 3 and 2 go together (2 is padded), one rectangle 3..7 x 0..2
    plan = Plan.of([Chain(0, 3, 8), Chain(3, 5, 5), Chain(5, 8, 8)])
    (wide, narrow) = plan.squares
    assert (wide.index.tolist(), wide.is_token) == ([[0, 1, 2], [5, 6, 7]], None)
    assert narrow.index.tolist() == [[3, 4]]  # a third of padding would be too much
    assert plan.rectangles == (Rectangle(slice(3, 8), slice(0, 3)),)
    padded = Plan.of([Chain(0, 9, 9), Chain(9, 17, 17)]).squares[0]  # 9 and 8: one in nine is padding
    assert padded.is_token is not None and padded.is_token.sum(1).tolist() == [9, 8]
