"""Time the kernels of updates and of sampling (`models.decoder.choices`) on synthetic layers of a model's sizes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from gxpo.models.decoder.architecture import are_plain_linears
from gxpo.models.decoder.attention import HALF, Chain, Plan, attend, attend_backward
from gxpo.models.decoder.choices import LEAST_CLASS, Runs, Sizes, Trial, class_of, time_kernels
from gxpo.models.decoder.forward import Decoder
from gxpo.models.decoder.layer import times, times_backward
from gxpo.models.decoder.sampling import Branches, Prompts, Stepper, copies_fit, map_of, packing_works, prompt_kernels

ROWS = 256  # tokens that go through a matrix together, at most
WORK = 1e9  # floating point operations of a piece, at most: wider matrices are cut to fit
LONGEST = 1024  # tokens of a prompt or an action, at most
WIDEST_CLASS = 512  # of prompts: longer ones are never copied
Clock = Callable[[], float]


@torch.no_grad()
def update_trials(
    decoder: Decoder,
    head: Any,
    rows: int,
    sizes: Sizes,
    choices: Mapping[str, str],
    clock: Clock = time.perf_counter,
) -> Iterator[tuple[str, Trial]]:
    """Time what an update chooses between and `choices` does not say yet.

    Dtypes are not chosen for parameters of 32 bits or more. `head` stands in for the layers' matrices where these have
    adapters and it has none.
    """
    product = choices.get("products")
    if decoder.dtype in HALF and product is None and (shapes := _shapes(decoder, head)):
        pieces = {
            name: [_update_piece(shape, needs, rows, decoder.dtype, dtype) for shape, needs in shapes]
            for name, dtype in _dtypes(decoder)
        }
        trial = time_kernels("products", pieces, clock=clock)
        product = trial.choice
        yield "products", trial
    dtype = torch.float32 if product == "float32" and decoder.dtype in HALF else decoder.dtype
    if "update weights" not in choices and (pairs := _maps_of_one_input(decoder, rows)):
        runs = {
            name: [_joined_piece(shapes, rows, decoder.dtype, dtype, name == "joined") for shapes in pairs]
            for name in ("apart", "joined")
        }
        yield "update weights", time_kernels("update weights", runs, clock=clock)
    if decoder.dtype not in HALF:
        return
    for gradient in (False, True):
        purpose = "attention gradient" if gradient else "attention"
        if purpose not in choices:
            yield purpose, time_kernels(purpose, _attention(decoder, sizes, gradient), clock=clock)


@torch.no_grad()
def sampling_trials(
    decoder: Decoder, head: Any, rows: int, sizes: Sizes, choices: Mapping[str, str], clock: Clock = time.perf_counter
) -> Iterator[tuple[str, Trial]]:
    """Time what sampling `rows` tokens at a time chooses between and `choices` does not say yet."""
    product = choices.get("sampling products")
    shapes = _shapes(decoder, head)
    if product is None and decoder.dtype in HALF and shapes:
        trial = time_kernels("sampling products", _sampling_products(decoder, shapes, rows), clock=clock)
        product = trial.choice
        yield "sampling products", trial
    dtype = torch.float32 if product == "float32" and decoder.dtype in HALF else decoder.dtype
    if "sampling weights" not in choices and shapes and copies_fit(decoder, dtype) and packing_works(dtype):
        weights = [_random(shape, dtype) for shape, _ in shapes]
        pieces = {
            name: [_sampled_piece(w, rows, decoder.dtype, name == "laid out") for w in weights]
            for name in ("plain", "laid out")
        }
        yield "sampling weights", time_kernels("sampling weights", pieces, clock=clock)
    size = LEAST_CLASS
    while size <= min(class_of(sizes.prompt), WIDEST_CLASS):
        if (purpose := f"sampling prompts {size}") not in choices:
            columns = max(1, min(size, sizes.prompt))
            yield purpose, time_kernels(purpose, _prompts(decoder, columns, rows, sizes), clock=clock)
        size *= 2


# ---------------------------------------------------------------- products
def _dtypes(decoder: Decoder) -> tuple[tuple[str, torch.dtype], ...]:
    return (("float32", torch.float32), ("native", decoder.dtype))


def _random(shape: Iterable[int], dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def _shapes(decoder: Decoder, head: Any) -> list[tuple[tuple[int, int], bool]]:
    """Shapes of a layer's matrices that are multiplied in the dtype of products, else of the head, and whether they are
    trained."""
    weights = [m.weight for m in decoder.layers[0].matrices if are_plain_linears(m)]
    weights = weights or [m.weight for m in (head,) if are_plain_linears(m)]
    # wider matrices are cut: time is proportional to their rows
    share = min(1.0, WORK / (6 * ROWS * max(1, sum(w.numel() for w in weights))))
    return [((max(1, round(share * w.shape[0])), w.shape[1]), w.requires_grad) for w in weights]


def _update_piece(
    shape: tuple[int, int], needs_grad: bool, rows: int, dtype: torch.dtype, product: torch.dtype
) -> Callable[[], object]:
    """Products of a weight, forward and backward, with what is converted on the way in `gxpo.models.decoder.layer`."""
    w = _random(shape, dtype)
    x, g = _random((min(rows, ROWS), shape[1]), dtype), _random((min(rows, ROWS), shape[0]), dtype)

    def run() -> None:
        times(x.to(product), (w,)).to(dtype)
        times_backward(g.to(product), x.to(product), (w,), (needs_grad,))[0].to(dtype)

    return run


def _maps_of_one_input(decoder: Decoder, rows: int) -> list[list[tuple[int, int]]]:
    """Shapes of a layer's trained maps that read the same input: queries, keys and values; gate and up."""
    layer = decoder.layers[0]
    groups = [maps for maps in (layer.maps, layer.inner) if len(maps) > 1 and are_plain_linears(*maps)]
    groups = [[m.weight for m in maps] for maps in groups if all(m.weight.requires_grad for m in maps)]
    # wider matrices are cut, as in `_shapes`
    share = min(1.0, WORK / (6 * min(rows, LONGEST) * max(1, sum(w.numel() for each in groups for w in each))))
    return [[(max(1, round(share * w.shape[0])), w.shape[1]) for w in each] for each in groups]


def _joined_piece(
    shapes: list[tuple[int, int]], rows: int, dtype: torch.dtype, product: torch.dtype, fuse: bool
) -> Callable[[], object]:
    """Products of maps that read the same input, forward and backward."""
    weights, rows = tuple(_random(shape, dtype) for shape in shapes), min(rows, LONGEST)
    x, g = (_random((rows, n), product) for n in (shapes[0][1], sum(n for n, _ in shapes)))

    def run() -> None:
        times(x, weights, fuse)
        times_backward(g, x, weights, (True,) * len(weights), fuse)

    return run


def _sampling_products(decoder: Decoder, shapes: list[tuple[tuple[int, int], bool]], rows: int) -> Runs:
    """Products of a token for each of `rows` samples."""
    # with float32 copies too large to be held, tokens are drawn natively, and the choice is that of reading prompts
    if copies_fit(decoder, torch.float32):
        return {
            name: [_sampled_piece(_random(shape, dtype), rows, decoder.dtype, False) for shape, _ in shapes]
            for name, dtype in _dtypes(decoder)
        }

    def read(w: Tensor, x: Tensor, dtype: torch.dtype) -> Callable[[], object]:
        return lambda: times(x.to(dtype), (w,)).to(w.dtype)

    weights = [_random(shape, decoder.dtype) for shape, _ in shapes]
    return {
        name: [read(w, _random((ROWS, w.shape[1]), w.dtype), dtype) for w in weights]
        for name, dtype in _dtypes(decoder)
    }


def _sampled_piece(w: Tensor, rows: int, dtype: torch.dtype, laid_out: bool) -> Callable[[], object]:
    x, times_w = _random((rows, w.shape[1]), dtype), map_of(w, rows, laid_out)
    return lambda: times_w(x.to(w.dtype)).to(dtype)


# ---------------------------------------------------------------- attention
def _attention(decoder: Decoder, sizes: Sizes, gradient: bool) -> Runs:
    """Attention of an update over one group of the run's sizes, forward or its gradient, in both dtypes."""
    # one prompt with its actions below it, as in a packed micro-batch
    prompt, action = min(sizes.prompt, LONGEST), min(sizes.action, LONGEST)
    members = max(1, min(sizes.group, 2 * LONGEST // action))
    starts = range(prompt, prompt + members * action, action)
    n = starts.stop
    plan = Plan.of([Chain(0, prompt, n), *(Chain(s, s + action, s + action) for s in starts)])
    heads, rotary_size = decoder.layers[0].heads, decoder.layers[0].heads.size // 2 * 2
    kv = _kv_heads(decoder)
    qkv = _random((n, (heads.queries + 2 * kv) * heads.size), decoder.dtype)
    cos, sin = _random((n, rotary_size), decoder.dtype), _random((n, rotary_size), decoder.dtype)
    if not gradient:
        return {name: [lambda name=name: attend(qkv, cos, sin, plan, heads, name)] for name in ("native", "float32")}
    out, log_sum, rotated_qkv = attend(qkv, cos, sin, plan, heads)
    g = _random((n, heads.queries * heads.size), decoder.dtype)
    return {
        name: [lambda name=name: attend_backward(g, rotated_qkv, cos, sin, out, log_sum, plan, heads, name)]
        for name in ("float32", "native")
    }


def _kv_heads(decoder: Decoder) -> int:
    config = decoder.model.config
    return getattr(config, "num_key_value_heads", None) or config.num_attention_heads


def _prompts(decoder: Decoder, columns: int, rows: int, sizes: Sizes) -> Runs:
    """Attention of one sampled token, to a prompt that every sample has a copy of, or that its group shares."""
    layer, kv = decoder.layers[0], _kv_heads(decoder)
    prompts, group, size = max(1, rows // sizes.group), min(sizes.group, rows), layer.heads.size
    keys = _random((prompts, kv, columns, size), decoder.dtype)
    of_layers = Prompts([(keys, keys)] * len(decoder.layers), torch.ones(prompts, columns, dtype=torch.int64))
    owner = torch.arange(prompts).repeat_interleave(group)
    qkv = _random((owner.numel(), layer.heads.queries + 2 * kv, size), decoder.dtype)
    # in the middle of its action a sample has half of its tokens in the cache
    n_drawn = max(1, min(sizes.action, LONGEST) // 2)
    stepper = Stepper(decoder)  # which lays out no weights before it is asked for them

    def attend(branches: Branches) -> None:
        branches.caches[0].write(branches.length, qkv[:, layer.heads.queries :])
        branches.attend(0, layer, qkv[:, : layer.heads.queries])

    runs: dict[str, list[Callable[[], object]]] = {}
    for name in prompt_kernels(decoder.dtype, layer.heads):
        branches = Branches.of(stepper, of_layers, owner, torch.zeros(prompts, 1), n_drawn + 1, name)
        # as if these had been drawn: whatever stands in the cache, it takes as long
        branches.length += n_drawn
        runs[name] = [lambda branches=branches: attend(branches)]
    return runs
