"""A causal language model as the engine sees it: tokens and a cache in, next-token logits and a longer cache out."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gxpo.decoder.forward import Decoder, Kernels, Products
from gxpo.engines.cache import Layers, Layout, check_rows, columns_of, rows_of, spread
from gxpo.errors import ModelError

GROWING_ROPE = {"dynamic", "longrope"}  # these turn all keys anew once a context outgrows a length


@dataclass(frozen=True)
class State:
    """A batch between two tokens: next-token logits [n, V], cache, mask [n, columns so far] of what counts, and how
    many columns hold the prompts.

    What counts of a row are its last columns without a gap, so positions and windows are those of the row alone.
    """

    network: Network
    logits: Tensor
    cache: Any
    mask: Tensor
    prompts: int

    def advance(self, token: Tensor) -> State:
        """The batch after one more token [n] of each row."""
        mask = torch.cat([self.mask, torch.ones_like(self.mask[:, :1])], 1)
        logits, cache = self.network(token[:, None], mask, mask.sum(1, keepdim=True) - 1, self.cache)
        return State(self.network, logits, cache, mask, self.prompts)

    def select(self, rows: Tensor) -> State:
        return State(self.network, self.logits[rows], rows_of(self.cache, rows), self.mask[rows], self.prompts)

    def columns(self, row: int, prompt: int, tokens: int) -> Layers:
        """Copies of keys and values [heads, tokens, size] of a row, from the first of its `prompt` tokens on."""
        start = self.prompts - prompt
        return columns_of(self.cache, row, start, start + tokens)

    def spread(self, rows: Tensor, room: int) -> State:
        """These rows (repeats allowed) with room for further tokens."""
        return State(self.network, self.logits[rows], spread(self.cache, rows, room), self.mask[rows], self.prompts)


class Network:
    """A causal language model of transformers, or one wrapped by peft.

    decoder  our own forward pass for the models that it knows; None: transformers' is used
    """

    def __init__(
        self, model: Any, device: torch.device, *, kernels: Kernels = "auto", products: Products = "auto"
    ) -> None:
        self.model, self.device = model.to(device), device
        self.causal = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.name = type(self.causal).__name__
        if getattr(self.causal, "_is_stateful", False):
            check_rows(None, self.name)
        accepted = inspect.signature(self.causal.forward).parameters
        self._accepts = {name for name in ("position_ids", "logits_to_keep") if name in accepted}
        self.decoder = Decoder.of(self.causal, products=products) if kernels == "auto" else None

    def __call__(self, tokens: Tensor, mask: Tensor, position: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Logits after the last of `tokens` [n, new] and the cache that includes them.

        mask [n, columns]: 1 where a column of cache and new tokens counts; position [n, new]: how many count before it
        """
        extra = {"position_ids": position, "logits_to_keep": 1}
        out = self.causal(
            input_ids=tokens,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            **{name: extra[name] for name in self._accepts},
        )
        return out.logits[:, -1], getattr(out, "past_key_values", None)

    def head(self, states: Tensor) -> Tensor:
        """[n, V] of the last hidden states [n, H] of our decoder."""
        return self.causal.get_output_embeddings()(states)

    @cached_property
    def layout(self) -> Layout | None:
        """How this model's cache can be taken apart and put together again, found out with a forward pass of one token.

        None: it can't be (sliding windows, layers with states of their own, positions that the model counts itself).
        """
        zero = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        _, cache = self(zero, zero + 1, zero, None)
        check_rows(cache, self.name)
        if "position_ids" not in self._accepts or _rope_types(self.causal.config.get_text_config()) & GROWING_ROPE:
            return None
        return Layout.of(cache)

    def writes(self) -> int:
        """How often the parameters were written to so far, as torch counts it: a cache from before is stale."""
        return sum(p._version for p in self.model.parameters() if not p.is_inference())

    def check_length(self, prompt: int, new: int) -> None:
        limit = getattr(self.causal.config.get_text_config(), "max_position_embeddings", None)
        if limit and prompt + new > limit:
            raise ModelError(
                f"a prompt of {prompt} tokens and max_new_tokens {new} exceed the {limit} positions of {self.name}: "
                "lower max_new_tokens or shorten the prompt"
            )

    def end_ids(self, tokenizer: Any) -> tuple[int, ...]:
        """End-of-sequence ids of the tokenizer and of the model's generation settings."""
        sources = (tokenizer, getattr(self.causal, "generation_config", None))
        found = [getattr(source, "eos_token_id", None) for source in sources]
        return tuple(i for ids in found for i in (ids if isinstance(ids, (list, tuple)) else [ids]) if i is not None)


def _rope_types(config: Any) -> set[str]:
    """The kinds of rotary embedding that a configuration names, for all layers or by type of layer."""
    settings = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [x for x in settings.values() if isinstance(x, dict)]
    return {str(x.get("rope_type", x.get("type", "default"))) for x in (settings, *nested)}
