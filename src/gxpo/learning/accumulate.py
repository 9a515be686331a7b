"""Exact gradient of L(x), accumulated over any micro-batches.

L is one function of the policy's outputs x on all action tokens of the step; its gradient is the sum over p of
(dL/dx_p) grad x_p, so micro-batches may be cut anywhere:

one pass    every unit within which tokens are coupled is whole in one micro-batch: L is evaluated for each with its
            own tokens live and all others constants. Exact because dL/dx_p depends on the tokens of p's unit alone.
two passes  otherwise: a forward pass without gradient gives x, autograd on that float64 vector gives g = dL/dx, and
            each micro-batch back-propagates sum over p of g_p x_p.
No mean is taken over a micro-batch, and processes are summed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby

import torch
from torch import Tensor

from gxpo.base import runtime
from gxpo.base.errors import ModelError
from gxpo.forest.forest import Forest
from gxpo.learning.packing import MicroBatch
from gxpo.parts.protocols import LossFunction


def whole_units(unit: Tensor, batches: Sequence[MicroBatch]) -> bool:
    """Return True if no unit (dense ids over P) is split between two micro-batches."""
    pairs = [torch.unique(unit[batch.entries]) for batch in batches]
    return torch.cat(pairs).unique().numel() == sum(p.numel() for p in pairs) if pairs else True


Forward = Callable[[MicroBatch], Mapping[str, Tensor]]  # named outputs of the micro-batch's tokens, float64, live


def unit_of(forest: Forest, couples: str) -> Tensor:
    """[P] dense ids of the sets of action tokens within which derivatives are coupled."""
    if couples == "token":
        return torch.arange(forest.n_entries)
    if couples == "trajectory":
        return forest.path_trajectory
    if couples == "group":
        return forest.ids("group", axis="P")
    if couples == "step":
        return torch.zeros(forest.n_entries, dtype=torch.int64)
    raise ModelError(f"couples is 'token', 'trajectory', 'group' or 'step', not {couples!r}")


def constants(forest: Forest, names: Sequence[str]) -> dict[str, Tensor]:
    """Constants [P] for tokens that are not computed: the rollout log-prob where known, else 0."""
    behaviour = forest.path_behaviour_logprob.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    return {name: behaviour if name == "logprob" else torch.zeros_like(behaviour) for name in names}


def outputs_of(
    forward: Forward, batches: Sequence[MicroBatch], start: Mapping[str, Tensor], *, lockstep: bool = False
) -> dict[str, Tensor]:
    """Outputs [P] of all micro-batches, computed by all processes; `start` for tokens in none of them.

    lockstep  every process makes equally many passes, as sharded parameters need; a last one may be unused
    """
    with torch.no_grad():
        own_passes = [(batch, forward(batch), real) for batch, real in _batches_of_rank(batches, lockstep)]
    return _merge([(batch, outputs) for batch, outputs, real in own_passes if real], batches, start)


def in_one_pass(
    forward: Forward,
    batches: Sequence[MicroBatch],
    loss: LossFunction,
    start: Mapping[str, Tensor],
    collect: Callable[[], None],
    *,
    lockstep: bool = False,
) -> dict[str, Tensor]:
    """Accumulate the gradient of `loss` over micro-batches of whole units; return the outputs [P]."""
    own_outputs = []
    for batch, real in _batches_of_rank(batches, lockstep):
        live = forward(batch)
        if not real:  # in lockstep: this process only keeps the collectives of the others going
            _backward(_zero_of(live, start), collect)
            continue
        # L sees all of P, with this micro-batch's tokens live and the others as constants
        x = {name: start[name].index_copy(0, batch.entries, live[name]) for name in start}
        value = loss(x)
        _backward(value + _zero_of(live, start) if lockstep else value, collect)
        own_outputs.append((batch, {name: live[name].detach() for name in start}))
    return _merge(own_outputs, batches, start)


def in_two_passes(
    forward: Forward,
    batches: Sequence[MicroBatch],
    loss: LossFunction,
    start: Mapping[str, Tensor],
    collect: Callable[[], None],
    *,
    lockstep: bool = False,
) -> dict[str, Tensor]:
    """Accumulate the gradient of `loss` over any micro-batches, in two passes; return the outputs [P]."""
    # the first pass needs no gradient: the loss is evaluated on its outputs, and its slopes are constants in the second
    x = outputs_of(forward, batches, start, lockstep=lockstep)
    slope = gradient_of(loss, x)
    # a micro-batch whose slopes are all 0 needs no forward pass, except in lockstep
    for batch, real in _batches_of_rank(batches, lockstep):
        g = {name: slope[name][batch.entries] for name in x}
        has_slope = real and any(bool(part.any()) for part in g.values())
        if has_slope or lockstep:
            live = forward(batch)
            value = (
                torch.stack([(g[name] * live[name]).sum() for name in x]).sum() if has_slope else _zero_of(live, start)
            )
            _backward(value, collect)
    return x


def gradient_of(loss: LossFunction, x: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """dL/dx [P] of each output, by autograd in float64."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in x.items()}
    value = loss(leaves)
    if not value.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    return {
        n: torch.zeros_like(leaf) if g is None else g for (n, leaf), g in zip(leaves.items(), gradients, strict=True)
    }


def _batches_of_rank(batches: Sequence[MicroBatch], lockstep: bool) -> list[tuple[MicroBatch, bool]]:
    """Micro-batches that this process runs, and True for those whose result counts.

    In lockstep every process has equally many, and those that go through the model together are of one policy: the
    parameters whose gradients are summed are the same everywhere.
    """
    rank, world = runtime.rank(), runtime.world()
    if not lockstep:
        return [(batch, True) for batch in batches[rank::world]]
    out = []
    for _, of_policy in groupby(batches, key=lambda batch: batch.policy):
        policy_batches = list(of_policy)
        for i in range(rank, -(-len(policy_batches) // world) * world, world):
            out.append((policy_batches[i], True) if i < len(policy_batches) else (policy_batches[-1], False))
    return out


def _zero_of(live: Mapping[str, Tensor], names: Iterable[str]) -> Tensor:
    """Return 0 with a gradient of 0 in every parameter that the outputs depend on."""
    return torch.stack([live[name].nan_to_num(0.0, 0.0, 0.0).sum() for name in names]).sum() * 0.0


def _backward(value: Tensor, collect: Callable[[], None]) -> None:
    if value.requires_grad:
        value.backward()
        collect()


def _merge(
    own_outputs: Sequence[tuple[MicroBatch, Mapping[str, Tensor]]],
    batches: Sequence[MicroBatch],
    start: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    merged = {name: torch.zeros_like(x) for name, x in start.items()}
    for batch, outputs in own_outputs:
        for name, x in merged.items():
            x[batch.entries] = outputs[name]
    runtime.all_sum([merged[name] for name in sorted(merged)])
    computed_P = torch.zeros(len(next(iter(start.values()))), dtype=torch.bool)
    for batch in batches:
        computed_P[batch.entries] = True
    computed_mask = {name: computed_P.view(-1, *[1] * (x.dim() - 1)) for name, x in start.items()}
    return {name: torch.where(computed_mask[name], merged[name], x) for name, x in start.items()}
