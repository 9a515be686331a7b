"""The exact gradient of L(x) over any partition into micro-batches.

L is one function of the policy's outputs x on all path tokens of the step; its gradient is the sum over p of
(dL/dx_p) grad x_p, so micro-batches may be cut anywhere:

one pass    every unit within which entries are coupled is whole in one micro-batch: L is evaluated for each with its
            own entries live and all others constants. Exact because dL/dx_p depends on the entries of p's unit alone.
two passes  otherwise: a forward pass without gradient gives x, autograd on that float64 vector gives g = dL/dx, and
            each micro-batch back-propagates sum over p of g_p x_p.
No mean is taken over a micro-batch, and processes are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from gxpo.errors import ModelError
from gxpo.forest import Forest
from gxpo.learners import parallel
from gxpo.learners.packing import MicroBatch
from gxpo.protocols import LossFunction

Forward = Callable[[MicroBatch], Mapping[str, Tensor]]  # named outputs of the micro-batch's entries, float64, live


def unit_of(forest: Forest, couples: str) -> Tensor:
    """[P] dense ids of the sets of entries that may influence each other's derivative."""
    if couples == "token":
        return torch.arange(forest.n_entries)
    if couples == "trajectory":
        return forest.path_trajectory
    if couples == "group":
        return forest.ids("group", axis="P")
    if couples == "step":
        return torch.zeros(forest.n_entries, dtype=torch.int64)
    raise ModelError(f"couples is 'token', 'trajectory', 'group' or 'step', not {couples!r}")


def fill(forest: Forest, names: Sequence[str]) -> dict[str, Tensor]:
    """Constants [P] for entries that are not computed: the sampler's log-prob where known, else 0."""
    behaviour = forest.path_behaviour_logprob.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    return {name: behaviour if name == "logprob" else torch.zeros_like(behaviour) for name in names}


def values(forward: Forward, batches: Sequence[MicroBatch], start: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Outputs [P] of all micro-batches, dealt to the processes; `start` where there is none."""
    with torch.no_grad():
        mine = [(batch, forward(batch)) for batch in _mine(batches)]
    return _merge(mine, batches, start)


def one_pass(
    forward: Forward,
    batches: Sequence[MicroBatch],
    loss: LossFunction,
    start: Mapping[str, Tensor],
    collect: Callable[[], None],
) -> dict[str, Tensor]:
    """Adds the gradient of `loss` for micro-batches of whole units; gives the outputs [P]."""
    mine = []
    for batch in _mine(batches):
        live = forward(batch)
        x = {name: start[name].index_copy(0, batch.entries, live[name]) for name in start}
        _backward(loss(x), collect)
        mine.append((batch, {name: live[name].detach() for name in start}))
    return _merge(mine, batches, start)


def two_pass(
    forward: Forward,
    batches: Sequence[MicroBatch],
    loss: LossFunction,
    start: Mapping[str, Tensor],
    collect: Callable[[], None],
) -> dict[str, Tensor]:
    """Adds the gradient of `loss` for any micro-batches; gives the outputs [P]."""
    x = values(forward, batches, start)
    slope = gradient_of(loss, x)
    for batch in _mine(batches):
        g = {name: slope[name][batch.entries] for name in x}
        if any(bool(part.any()) for part in g.values()):
            live = forward(batch)
            _backward(torch.stack([(g[name] * live[name]).sum() for name in x]).sum(), collect)
    return x


def gradient_of(loss: LossFunction, x: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """dL/dx [P] of each output, by autograd in float64."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in x.items()}
    value = loss(leaves)
    if not value.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    return {n: torch.zeros_like(leaf) if g is None else g for (n, leaf), g in zip(leaves.items(), found, strict=True)}


def _mine(batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
    return batches[parallel.rank() :: parallel.world()]


def _backward(value: Tensor, collect: Callable[[], None]) -> None:
    if value.requires_grad:
        value.backward()
        collect()


def _merge(
    mine: Sequence[tuple[MicroBatch, Mapping[str, Tensor]]], batches: Sequence[MicroBatch], start: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    computed = {name: torch.zeros_like(x) for name, x in start.items()}
    for batch, found in mine:
        for name, x in computed.items():
            x[batch.entries] = found[name]
    parallel.all_sum([computed[name] for name in sorted(computed)])
    where = torch.zeros(len(next(iter(start.values()))), dtype=torch.bool)
    for batch in batches:
        where[batch.entries] = True
    wide = {name: where.view(-1, *[1] * (x.dim() - 1)) for name, x in start.items()}
    return {name: torch.where(wide[name], computed[name], x) for name, x in start.items()}
