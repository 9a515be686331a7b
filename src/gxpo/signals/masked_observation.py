"""Log-probs of the actions with part of the observation masked (PAPO, VPPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from gxpo.columns import sum_before
from gxpo.forest import ACTION
from gxpo.registry import part
from gxpo.signals.base import SignalPart, SignalTools

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals

_LOW = (1 << 32) - 1


def _mixed(x: Tensor) -> Tensor:
    """[n] int64 in [0, 2^32): a hash of each (xorshift and multiplication, twice)."""
    x = x & _LOW
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x45D9F3B) & _LOW
    return x ^ (x >> 16)


def prefix_keys(forest: Forest, seed: int, step: int) -> Tensor:
    """Hash of (seed, step, all tokens from the root up to and including this one), [T] int64 in [0, 2^32).

    Equal contexts have equal keys, however they are stored and in whatever order.
    """
    packed = forest.pack()
    salt = _mixed(torch.tensor(seed)) ^ _mixed(torch.tensor(step + 0x9E3779B9))
    own = _mixed(_mixed(forest.token + salt) + packed.position * 0x9E3779B9)
    return _mixed(own + sum_before(packed.predecessor, own))


def hidden_tokens(forest: Forest, share: float, seed: int, step: int) -> Tensor:
    """Prompt and observation tokens to mask, each with probability `share` by its `prefix_keys`; [T] bool.

    Never the first token of a root path (bos), an action token, or what is no vocabulary id.
    """
    context = (forest.kind != ACTION)[forest.token_node] & (forest.token >= 0) & (forest.pack().predecessor >= 0)
    return context & (prefix_keys(forest, seed, step) < share * 2**32)


def without(forest: Forest, hidden: Tensor, fill: str, blank_id: int, seed: int, step: int) -> Forest:
    """The forest with its hidden tokens replaced by `blank_id`, or by ids drawn from its own contexts."""
    if fill == "blank":
        other = torch.full_like(forest.token, blank_id)
    else:
        shown = (forest.kind != ACTION)[forest.token_node] & (forest.token >= 0)
        vocabulary = torch.unique(forest.token[shown])
        other = vocabulary[prefix_keys(forest, seed + 1, step) % max(1, len(vocabulary))] if len(vocabulary) else None
    return forest if other is None else forest.replace(token=torch.where(hidden, other, forest.token))


@part("masked_observation", stage="signal")
@dataclass(frozen=True)
class MaskedObservation(SignalPart):
    """The signal "masked_logprob" [P]: log-probs of the actions with the context partly masked (PAPO, VPPO).

    share  probability that a prompt or observation token is hidden
    fill   replacement: "blank" (a token that says nothing) or "random" (an id from the step's own contexts, each
           as often as any other)

    Which tokens are hidden depends on (seed, step, the context up to them): trajectories that share a context have it
    masked alike, others differ, and every step draws anew. Positions stay; actions are never touched, so later turns
    still see earlier actions. Chat markup is masked like the rest. Costs one more forward pass of the step.

    Source: PAPO (arXiv 2507.06448) and VPPO (arXiv 2510.09285) hide image patches with probability 0.6; text tokens in
    their place is this library's reading.
    """

    share: Annotated[float, Interval(gt=0, le=1)] = 0.6
    fill: Literal["blank", "random"] = "blank"

    provides = ("masked_logprob",)

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        forest.need_ids("a masked observation")
        hidden = hidden_tokens(forest, self.share, tools.seed, tools.step)
        masked = without(forest, hidden, self.fill, tools.blank_id, tools.seed, tools.step)
        return {"masked_logprob": tools.learner.outputs(masked, ("logprob",))["logprob"]}

    def learn(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, float]:
        """Figure masked_kl: mean k3 of the policy at the start of the step (or the sampler's log-probs, where the step
        has no others) from itself with the observation masked."""
        d = (signals["masked_logprob"] - signals["proximal_logprob"])[forest.path_trainable]
        d = d[d.isfinite()]
        return {"masked_kl": float((d.expm1() - d).mean())} if d.numel() else {}
