"""From token ids to log-probabilities and entropies, without ever holding [all tokens x vocabulary]."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gxpo.decoder.forward import Decoder, Kernels, Products, plain
from gxpo.errors import ModelError

OUTPUTS = ("logprob", "entropy", "value")


class Readout:
    """A causal language model split into what runs once per token and its head.

    `states` gives what a token leaves behind, `logits` turns chosen rows of it into logits. Where the split does not
    reproduce the model's own logits (tried once, on a short probe), states are the whole model's logits; said once.

    decoder  computes the states of the models that it knows on flat lists of tokens; None: there is none, and `states`
             runs the model of transformers on padded rows
    """

    def __init__(
        self,
        causal: Any,
        *,
        split: bool | None = None,
        kernels: Kernels = "auto",
        products: Products = "auto",
        recompute: bool = False,
    ) -> None:
        self.causal, self._trains_layers = causal, False
        self.name = type(causal).__name__
        config = causal.config.get_text_config()
        self.vocabulary = int(config.vocab_size)
        self.positions = getattr(config, "max_position_embeddings", None)
        self._backbone = getattr(causal, getattr(causal, "base_model_prefix", ""), None)
        self._head = causal.get_output_embeddings() if hasattr(causal, "get_output_embeddings") else None
        self._scale = (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)
        self._softcap = getattr(config, "final_logit_softcapping", None)
        self.split = self._reproduces_logits() if split is None else split
        if not self.split:
            warnings.warn(
                f"{self.name}: its head is not one gxpo knows, so the logits of every token are held at once; "
                "lower learner.tokens_per_microbatch if memory runs out",
                stacklevel=2,
            )
        self.decoder = (
            Decoder.of(causal, products=products, recompute=recompute) if kernels == "auto" and self.split else None
        )
        if recompute and self.decoder is None:
            self._checkpoint_layers()

    def _checkpoint_layers(self) -> None:
        """Makes the model of transformers compute its layers again in the backward pass; it does so in training mode
        alone, in which it differs by nothing else: there is no dropout."""
        if not getattr(self.causal, "supports_gradient_checkpointing", False):
            raise ModelError(f"{self.name} can't recompute its layers: leave learner.recompute out")
        enable = getattr(self.causal, "activation_checkpointing_enable", self.causal.gradient_checkpointing_enable)
        enable({"use_reentrant": False})
        self._trains_layers = True

    @property
    def width(self) -> int:
        """Components of a hidden state."""
        return int(self.causal.config.get_text_config().hidden_size)

    def states(self, tokens: Tensor, mask: Tensor | None, position: Tensor, layer: int = -1) -> Tensor:
        """[B, L, H] hidden states after a layer (-1: the last; without a split: [B, L, V] logits) of tokens [B, L] at
        positions [B, L]."""
        if self._trains_layers:
            self.causal.train(torch.is_grad_enabled())
        inputs = {"input_ids": tokens, "attention_mask": mask, "position_ids": position, "use_cache": False}
        if self.split:
            assert self._backbone is not None
            if layer != -1:
                return self._backbone(**inputs, output_hidden_states=True).hidden_states[layer]
            return self._backbone(**inputs).last_hidden_state
        return self.causal(**inputs).logits

    def head_weight(self) -> Tensor | None:
        """[V, H] in the dtype of products, where that is not the parameters' own; None: the head is run as it is."""
        if self.decoder is None or self._head is None or not plain(self._head):
            return None
        weight, product = self._head.weight, self.decoder.product
        return None if weight.dtype == product else weight.to(product)

    def logits(self, states: Tensor, weight: Tensor | None = None) -> Tensor:
        """[n, V] of rows of states [n, H]; `weight` from `head_weight`."""
        if not self.split:
            return states
        assert self._head is not None
        logits = self._head(states) if weight is None else states.to(weight.dtype) @ weight.t()
        logits = logits * self._scale if self._scale != 1.0 else logits
        return logits if self._softcap is None else self._softcap * torch.tanh(logits / self._softcap)

    @torch.no_grad()
    def _reproduces_logits(self) -> bool:
        if self._backbone is None or self._head is None:
            return False
        device = next(self.causal.parameters()).device
        tokens = (torch.arange(1, 7, device=device) % self.vocabulary)[None]
        position = torch.arange(6, device=device)[None]
        self.split = True
        own = self.causal(input_ids=tokens, position_ids=position, use_cache=False).logits
        try:
            split = self.logits(self.states(tokens, None, position))
        except (AttributeError, TypeError, RuntimeError):
            return False
        return split.shape == own.shape and bool(
            (split - own).abs().max() <= 32 * torch.finfo(own.dtype).eps * own.abs().max()
        )


def read(
    readout: Readout,
    states: Tensor,
    target: Tensor,
    temperature: Tensor,
    support: Tensor | None,
    names: Sequence[str],
    *,
    head: nn.Linear | None = None,
    logits_at_once: int = 2**23,
) -> dict[str, Tensor]:
    """Named outputs [n] of the distribution softmax(logits / temperature), restricted to `support` where given.

    logprob = z_target - logsumexp z and entropy = logsumexp z - sum p z with z = logits / temperature over the allowed
    ids; value = head(state), of the state in which the token is chosen. states [n, H]; target [n] ids; temperature [n];
    support [n, K] allowed ids padded with -1, a row of all -1 being the whole vocabulary. Computed in float32 at least,
    in chunks of `logits_at_once` logits, which the backward pass computes again instead of holding.
    """
    unknown = set(names) - set(OUTPUTS)
    if unknown:
        raise ModelError(f"the torch learner has no output {min(unknown)!r}; it has {', '.join(OUTPUTS)}")
    if "value" in names and head is None:
        raise ModelError("no value head was made: make the learner with value_head=True")
    n = target.shape[0]
    if states.shape[:1] != (n,) or temperature.shape != (n,) or (support is not None and support.shape[:1] != (n,)):
        raise ValueError(
            f"states {tuple(states.shape)}, target {tuple(target.shape)}, temperature {tuple(temperature.shape)} and "
            f"support {None if support is None else tuple(support.shape)} must share their first dimension"
        )
    values = {"value": head(states).squeeze(1)} if head is not None and "value" in names else {}
    names = [name for name in names if name not in values]
    free = torch.ones(n, dtype=torch.bool, device=target.device) if support is None else (support < 0).all(1)
    rows_per_chunk = max(1, logits_at_once // readout.vocabulary)
    parts = [(rows, None) for rows in free.nonzero().squeeze(1).split(rows_per_chunk)]
    if support is not None:
        parts += [(rows, support[rows]) for rows in (~free).nonzero().squeeze(1).split(rows_per_chunk)]
    parts = [(rows, allowed) for rows, allowed in parts if rows.numel()]
    if not parts:
        return values | {name: states.new_zeros(0) for name in names}
    recompute = len(parts) > 1 and torch.is_grad_enabled()
    weight = readout.head_weight()
    pieces = []
    for rows, allowed in parts:
        arguments = (readout, states[rows], target[rows], temperature[rows], allowed, tuple(names), weight)
        if recompute:
            pieces.append(checkpoint(_read_chunk, *arguments, use_reentrant=False, preserve_rng_state=False))
        else:
            pieces.append(_read_chunk(*arguments))
    back = torch.cat([rows for rows, _ in parts]).argsort()
    return values | {name: torch.cat([piece[i] for piece in pieces])[back] for i, name in enumerate(names)}


def _read_chunk(
    readout: Readout,
    states: Tensor,
    target: Tensor,
    temperature: Tensor,
    support: Tensor | None,
    names: tuple[str, ...],
    weight: Tensor | None,
) -> list[Tensor]:
    logits = readout.logits(states, weight)
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    z = z / temperature[:, None].to(z)
    own = z.gather(1, target[:, None]).squeeze(1)
    if support is not None:
        z = z.gather(1, support.clamp_min(0)).masked_fill(support < 0, -torch.inf)
    total = z.logsumexp(1)
    out = {"logprob": own - total}
    if "entropy" in names:
        p = (z - total[:, None]).exp()
        out["entropy"] = total - (p * z.masked_fill(z == -torch.inf, 0.0)).sum(1)
    return [out[name] for name in names]
