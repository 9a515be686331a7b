"""Soft tokens in the learner: mixtures of embeddings as inputs, and the density of their Gumbel noise as log-prob."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gxpo.learning.architecture import pad
from gxpo.learning.packing import MicroBatch, Sheet
from gxpo.learning.readout import Readout
from gxpo.models.decoder.soft import log_density, mixed_embeddings

Y, WEIGHT = "soft_y", "soft_weight"  # extras [T, K]: nan at ordinary tokens


def soft_inputs(readout: Readout, sheet: Sheet) -> AbstractContextManager[None]:
    """Context manager: the model reads soft tokens of a sheet as mixtures of their support's embeddings."""
    extras = sheet.packing.forest.extras
    if WEIGHT not in extras:
        return nullcontext()
    weight = extras[WEIGHT][sheet.index]
    rows = weight.isfinite().any(1).nonzero().squeeze(1)
    if not rows.numel():
        return nullcontext()
    places = rows
    # transformers' rows are padded, and an embedding's input is counted with the padding
    if readout.decoder is None:
        places = pad(sheet).is_token.reshape(-1).nonzero().squeeze(1)[rows]
    ids = extras["support"][sheet.index[rows]]
    return mixed_embeddings(readout.causal.get_input_embeddings(), places, ids, weight[rows].nan_to_num(nan=0.0))


def with_densities(
    outputs: Mapping[str, Tensor],
    batch: MicroBatch,
    reading: Tensor,
    readout: Readout,
    states: Tensor,
    temperature: Tensor,
    logits_at_once: int,
) -> Mapping[str, Tensor]:
    """Replace the "logprob" of soft tokens in the outputs [n] of a micro-batch by the `log_density` of their noise.

    The density is under p, the policy's distribution on the support that they were sampled on.

    reading [E]: which of the n each entry of the batch is; states [n, H] in which they are chosen; temperature [n]
    """
    forest = batch.packing.forest
    if Y not in forest.extras or "logprob" not in outputs:
        return outputs
    # by reading: several entries may share a token
    token = torch.zeros(len(temperature), dtype=torch.int64)
    token[reading] = forest.path_token[batch.entries]
    is_soft = forest.extras[Y][token].isfinite().any(1)
    if not bool(is_soft.any()):
        return outputs
    # stored noise is y = log p + g: the density needs the policy's log p on the same support
    device = states.device
    weight = readout.head_weight()

    def density(states: Tensor, temperature: Tensor, support: Tensor, y: Tensor) -> Tensor:
        logits = readout.logits(states, weight)
        z = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature[:, None].to(logits.device)
        inside = z.gather(1, support.clamp_min(0)).masked_fill(support < 0, -torch.inf)
        return log_density(y.to(device), inside.double().log_softmax(1))

    # in chunks, as `read` does: never [all soft tokens, vocabulary] at once
    parts = is_soft.nonzero().squeeze(1).split(max(1, logits_at_once // readout.vocabulary))
    pieces = []
    for rows in parts:
        support, y = forest.extras["support"][token[rows]].to(device), forest.extras[Y][token[rows]].to(device)
        device_rows = rows.to(device)
        arguments = (states[device_rows], temperature.to(device)[device_rows], support, y)
        recompute = len(parts) > 1 and torch.is_grad_enabled()
        pieces.append(checkpoint(density, *arguments, use_reentrant=False) if recompute else density(*arguments))
    rows = torch.cat(parts).to(device)
    densities = torch.cat(pieces)
    return {**outputs, "logprob": outputs["logprob"].to(densities).index_copy(0, rows, densities)}
