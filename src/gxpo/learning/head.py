"""Log-probs and entropies of tokens from hidden states, with gradients by hand: from logits, or by blocks of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gxpo.models.decoder.architecture import are_plain_linears
from gxpo.models.decoder.choices import Trial, time_kernels

NEVER = -1e4  # a log-probability whose probability is 0 in every dtype, and finite: 0 times it is 0
COLUMNS = (256, 4096)  # least and most ids of a block


def divide_by_temperature(logits: Tensor, temperature: Tensor) -> Tensor:
    """[n, V] logits / temperature in float32 at least, in new memory."""
    z = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    return z if is_one(temperature) else z.div_(temperature[:, None].to(z))


def is_one(temperature: Tensor) -> bool:
    """Return True if all temperatures are 1; False on other devices than CPUs, whose answer the host would wait for. A
    division by 1 changes no bit."""
    return temperature.device.type == "cpu" and bool((temperature == 1).all())


class Chosen(Function):
    """log p(target) [n] and, if needed, entropy [n] (nats) of p = softmax(z), z = logits [n, V] / temperature [n].

    Keeps the logits in their own dtype. With respect to z the first has gradient onehot(target) - p, the second
    -p (log p + entropy).
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, temperature: Tensor, needs_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        z = divide_by_temperature(logits, temperature)
        # the highest logit is taken off first, or exp overflows
        highest = z.amax(1, keepdim=True)
        p = (z - highest).exp_()
        mass = p.sum(1)
        log_total = highest.squeeze(1) + mass.log()
        logprob = z.gather(1, target[:, None]).squeeze(1) - log_total
        entropy = None
        if needs_entropy:
            entropy = log_total - z.clamp_(min=torch.finfo(z.dtype).min).mul_(p).sum(1) / mass
        ctx.save_for_backward(logits, target, temperature, log_total, entropy)
        # an output that nobody reads has no gradient: None instead of a table of zeros
        ctx.set_materialize_grads(False)
        return logprob, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        logits, target, temperature, log_total, entropy = ctx.saved_tensors
        by_logprob, by_entropy = grads
        if by_logprob is None and by_entropy is None:
            return None, None, None, None
        # computed again from the logits: holding the probabilities would double the memory
        z = divide_by_temperature(logits, temperature).sub_(log_total[:, None])
        slope = torch.zeros_like(log_total) if by_logprob is None else -by_logprob
        if by_entropy is None:
            g = z.exp_().mul_(slope[:, None])
        else:
            p = z.exp()
            z.clamp_(min=NEVER).add_(entropy[:, None]).mul_(-by_entropy[:, None])
            g = p.mul_(z.add_(slope[:, None]))
        g.scatter_add_(1, target[:, None], -slope[:, None])
        if not is_one(temperature):
            g.div_(temperature[:, None].to(g))
        return g.to(logits.dtype), None, None, None


# ---------------------------------------------------------------- blocks
def columns_of_block(rows: int, vocabulary: int, logits_at_once: int) -> int:
    """Ids of a block for so many rows: as many as fit into `logits_at_once`, within `COLUMNS`."""
    low, high = COLUMNS
    return min(vocabulary, max(low, min(high, logits_at_once // max(1, rows))))


def has_blocks(readout: Any) -> bool:
    """Return True if `Blocks` can compute this readout's head: a linear map, scaled at most, that is not sharded."""
    head = readout.head
    has_cap = readout.decoder is None or readout.decoder.head is None or readout.decoder.head.cap is not None
    return head is not None and not has_cap and are_plain_linears(head) and not hasattr(head.weight, "to_local")


class Blocks(Function):
    """`Chosen` from states [n, H] and the head's weight [V, H], by `columns` ids at a time.

    Logits are `scale` times the product, in the dtype `product`. None of them are held: the backward pass multiplies
    again, into the same memory block by block, which takes less time than reading new memory.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        product: torch.dtype,
        scale: float,
        target: Tensor,
        temperature: Tensor,
        needs_entropy: bool,
        columns: int,
    ) -> tuple[Tensor, Tensor | None]:
        x, n = states.to(product), states.shape[0]
        wide_dtype = torch.promote_types(product, torch.float32)
        factor = _factor(scale, temperature, wide_dtype)
        # softmax over the blocks so far: highest logit, sum of exp(z - highest), and of z times that
        highest = torch.full((n, 1), -torch.inf, dtype=wide_dtype)
        mass, moment, target_z = (
            torch.zeros(n, 1, dtype=wide_dtype),
            torch.zeros(n, 1, dtype=wide_dtype),
            torch.zeros_like(highest),
        )
        spare = x.new_empty(n, columns, dtype=wide_dtype) if needs_entropy else None
        for start, _, z in _blocks(x, weight, factor, columns):
            new_highest = torch.maximum(highest, z.amax(1, keepdim=True))
            decay = (highest - new_highest).exp_()
            inside = (target >= start) & (target < start + z.shape[1])
            column = (target - start).clamp_(0, z.shape[1] - 1)[:, None]
            target_z = torch.where(inside[:, None], z.gather(1, column), target_z)
            if spare is None:
                mass = mass * decay + z.sub_(new_highest).exp_().sum(1, keepdim=True)
            else:
                p = torch.sub(z, new_highest, out=spare[:, : z.shape[1]]).exp_()
                mass = mass * decay + p.sum(1, keepdim=True)
                moment = moment * decay + z.clamp_(min=torch.finfo(wide_dtype).min).mul_(p).sum(1, keepdim=True)
            highest = new_highest
        log_total = highest + mass.log()
        entropy = (log_total - moment / mass).squeeze(1) if needs_entropy else None
        ctx.save_for_backward(states, weight, target, temperature, log_total, entropy)
        ctx.product, ctx.scale, ctx.columns = product, scale, columns
        ctx.set_materialize_grads(False)
        return (target_z - log_total).squeeze(1), entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        states, weight, target, temperature, log_total, entropy = ctx.saved_tensors
        by_logprob, by_entropy = grads
        if by_logprob is None and by_entropy is None:
            return (None,) * 8
        x, wide_dtype, n = states.to(ctx.product), log_total.dtype, states.shape[0]
        factor = _factor(ctx.scale, temperature, wide_dtype)
        slope = torch.zeros_like(log_total) if by_logprob is None else -by_logprob[:, None].to(wide_dtype)
        # sums over blocks are in float32: rounded once, as a whole product is
        by_x = torch.zeros(states.shape, dtype=wide_dtype)
        by_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        buffer = x.new_empty(n, ctx.columns)
        spare = None if by_entropy is None else x.new_empty(n, ctx.columns, dtype=wide_dtype)
        for start, w, z in _blocks(x, weight, factor, ctx.columns):
            end = start + z.shape[1]
            z.sub_(log_total)
            if spare is None or by_entropy is None:
                g = z.exp_().mul_(slope)
            else:
                g = torch.exp(z, out=spare[:, : z.shape[1]])
                g.mul_(z.clamp_(min=NEVER).add_(entropy[:, None]).mul_(-by_entropy[:, None]).add_(slope))
            inside = ((target >= start) & (target < end))[:, None]
            column = (target - start).clamp_(0, z.shape[1] - 1)[:, None]
            g.scatter_add_(1, column, torch.where(inside, -slope, 0.0))
            g = g if factor is None else g.mul_(factor)
            g = buffer[:, : z.shape[1]].copy_(g)
            by_x += g @ w
            if by_weight is not None:
                by_weight[start:end] = g.t() @ x
        return by_x.to(states.dtype), by_weight, None, None, None, None, None, None


def _factor(scale: float, temperature: Tensor, dtype: torch.dtype) -> Tensor | None:
    """[n, 1] factor of the logits; None: 1."""
    if scale == 1.0 and is_one(temperature):
        return None
    return (scale / temperature.to(dtype))[:, None]


def _blocks(x: Tensor, weight: Tensor, factor: Tensor | None, columns: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield each block's first id, its weight in the dtype of x, and its logits, all in the same memory."""
    wide_dtype = torch.promote_types(x.dtype, torch.float32)
    low = x.new_empty(x.shape[0] * columns)
    high = low if wide_dtype == x.dtype else x.new_empty(x.shape[0] * columns, dtype=wide_dtype)
    for start in range(0, weight.shape[0], columns):
        w = weight[start : start + columns].to(x.dtype)
        shape = (x.shape[0], w.shape[0])
        z = torch.mm(x, w.t(), out=low[: shape[0] * shape[1]].view(shape))
        z = z if wide_dtype == x.dtype else high[: z.numel()].view(shape).copy_(z)
        yield start, w, z if factor is None else z.mul_(factor)


# ---------------------------------------------------------------- trial
ROWS, IDS = 256, 1 << 14  # of a trial, at most


def head_trials(
    readout: Any, rows: int, choices: Mapping[str, str], logits_at_once: int
) -> Iterator[tuple[str, Trial]]:
    """Time log-probs from whole logits and by blocks, forward and backward, unless `choices` has the kernel."""
    vocabulary, rows = readout.vocabulary, min(rows, ROWS)
    columns = columns_of_block(rows, vocabulary, logits_at_once)
    if "head" in choices or not has_blocks(readout) or columns == vocabulary:
        return
    weight = readout.head.weight
    product = choices.get("products", "float32")
    dtype = torch.float32 if product == "float32" and weight.dtype.itemsize < 4 else weight.dtype
    # fewer ids are enough: time is proportional to them
    w = torch.randn(min(vocabulary, IDS), weight.shape[1]).mul_(0.02).to(weight.dtype)
    w.requires_grad_(weight.requires_grad)
    x = torch.randn(rows, w.shape[1]).to(w.dtype).requires_grad_()
    target, temperature = torch.zeros(rows, dtype=torch.int64), torch.ones(rows)
    at_once = max(1, logits_at_once // vocabulary)

    def backward(*logprobs: Tensor) -> None:
        torch.cat(logprobs).sum().backward()
        x.grad = w.grad = None

    def read_whole() -> None:
        last = w if dtype == w.dtype else w.to(dtype)  # once for all chunks, as `read` does
        pieces = zip(x.split(at_once), target.split(at_once), temperature.split(at_once), strict=True)
        backward(*(Chosen.apply(a.to(dtype) @ last.t(), t, hot, False)[0] for a, t, hot in pieces))

    def read_blocks() -> None:
        backward(Blocks.apply(x, w, dtype, 1.0, target, temperature, False, columns)[0])

    runs: dict[str, list[Callable[[], object]]] = {"whole": [read_whole], "blocks": [read_blocks]}
    with torch.enable_grad():
        yield "head", time_kernels("head", runs)
