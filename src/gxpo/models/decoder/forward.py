"""Forward pass of decoder models: hidden states of a flat token list, by the modules of a transformers model."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gxpo.base.devices import to_host_float64
from gxpo.models.decoder import architecture
from gxpo.models.decoder.architecture import NO_ROPE, ONE_ROPE, Head, Layer, backbone_of, family_of, layers_of
from gxpo.models.decoder.attention import HALF, Chain, Plan, TreeAttention, attend, kernel_works
from gxpo.models.decoder.choices import kernel
from gxpo.models.decoder.layer import add_attention, add_mlp, queries_keys_values
from gxpo.models.decoder.vision import embed_with_pictures, triples_of, vision_of

Kernels = Literal["auto", "transformers"]
Products = Literal["auto", "native", "float32"]
Within = Callable[..., Tensor]  # (module, function, *arguments) -> result of the function
Tables = dict[str, tuple[Tensor, Tensor]]  # cos, sin [n, R] by the key of a layer's rotary embedding
PROBE = 15  # tokens of the probe
NARROW = 6  # window of the probe of a model whose window is wider than it


def directly(module: Any, function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """`Within` for parameters that are not sharded."""
    return function(*arguments)


class Decoder:
    """Hidden states of a transformers model of a family in `gxpo.models.decoder.architecture`, with its own parameters.

    causal    the model; adapters, biases, norms of other kinds and norms of queries and keys are run as they are
    products  dtype in which matrices are multiplied: "native" (of the parameters), or "float32", in which 16 bits round
              less. "auto": float32, until `models.decoder.measure` has timed both. It may change between two passes
    choices   kernels by purpose, as `models.decoder.measure` timed them (see `models.decoder.choices`)
    recompute hold one hidden state a token and layer, and compute the rest again in the backward pass
    run_inside  calls a function that uses the parameters of a layer's module (`gxpo.learning.sharded` gathers them
              around it); `states` alone goes through it

    `Decoder.why_not(causal)` is the reason for which a model can't be run here, None if it can.
    """

    def __init__(
        self,
        causal: Any,
        *,
        products: Products = "auto",
        choices: Mapping[str, str] | None = None,
        recompute: bool = False,
    ) -> None:
        family = family_of(causal)
        assert family is not None
        self.family, self.model, self.triples = family, backbone_of(causal), triples_of(causal)
        self.layers = layers_of(causal, family)
        vision = vision_of(causal)
        # pictures add features behind the first layers too, in models with DeepStack
        self.deep = vision if vision is not None and vision.deep else None
        self.head = Head.of(causal)
        self.recompute = recompute
        self.products: Products = products
        self.choices: Mapping[str, str] = choices or {}
        self.run_inside: Within = directly

    @staticmethod
    def why_not(causal: Any) -> str | None:
        """Reason why this model is not supported, from its class, configuration and device; None if it is."""
        if (reason := architecture.why_not(causal)) is not None:
            return reason
        if next(causal.parameters()).device.type != "cpu":
            return "its attention over blocks is written for CPUs"
        if not kernel_works():
            return "this build of torch lacks the attention kernel for CPUs"
        return None

    @classmethod
    def of(cls, causal: Any, **settings: Any) -> Decoder | None:
        """Decoder of a supported model, with the settings of its constructor, if its results agree with the model's on
        a short probe; else None."""
        if cls.why_not(causal) is not None:
            return None
        try:
            decoder = cls(causal, **settings)
            agrees = decoder._agrees(causal)
        # a model whose class has the right name may still be patched or of a newer version: the probe decides
        except (AttributeError, TypeError, RuntimeError, IndexError, KeyError) as error:
            decoder, agrees = None, str(error)[:100]
        if agrees is True:
            return decoder
        detail = "" if agrees is False else f" ({agrees})"
        warnings.warn(
            f"{type(causal).__name__} is run by transformers: it does not do what its configuration says{detail}",
            stacklevel=4,
        )
        return None

    @torch.no_grad()
    def _agrees(self, causal: Any) -> bool:
        """Return True if hidden states and logits are the model's on a few tokens, within its windows too."""
        if self.head is None:
            return False
        # ids spread over the vocabulary by a prime step: small ids alone could hide a wrong embedding
        tokens = torch.arange(1, PROBE + 1) * 7919 % causal.config.get_text_config().vocab_size
        # windows are longer than the probe: narrow copies show whether they are applied
        for decoder, window in ((self, None), *self._narrow_windows(causal)):
            with with_window(causal, window):
                decoder_states = decoder.states(tokens, torch.arange(PROBE), [Chain(0, PROBE, PROBE)])
                model_states = self.model(input_ids=tokens[None], use_cache=False).last_hidden_state[0]
                if not near(decoder_states, model_states):
                    return False
                logits = causal(input_ids=tokens[None], use_cache=False).logits[0]
            # the head by itself, on the model's own states: an error of the layers can't hide one of the head
            if not near(self.head(model_states), logits):
                return False
        return True

    def _narrow_windows(self, causal: Any) -> Iterator[tuple[Decoder, int]]:
        """Yield this decoder with windows shorter than the probe, if it has wider ones."""
        if any(layer.window is not None and layer.window >= PROBE for layer in self.layers):
            with with_window(causal, NARROW):
                narrow = Decoder(causal, products=self.products, choices=self.choices)
            yield narrow, NARROW

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the parameters."""
        return self.embedding.weight.dtype

    @property
    def embedding(self) -> Any:
        return getattr(self.model, self.family.embedding)

    @property
    def product(self) -> torch.dtype:
        """Dtype of matrix products."""
        return self.dtype if self.products == "native" or self.dtype not in HALF else torch.float32

    def states(self, tokens: Tensor, position: Tensor, chains: list[Chain], layer: int = -1) -> Tensor:
        """[n, H] hidden states after a layer (-1: the last, normed) of tokens [n] at positions [n] ([3, n]: of m-RoPE),
        in chains."""
        return self.states_after(tokens, position, chains, (layer,))[0]

    def states_after(
        self, tokens: Tensor, position: Tensor, chains: list[Chain], layers: Sequence[int]
    ) -> list[Tensor]:
        """Hidden states after each of several layers, from one pass that ends with the last of them."""
        x, add_deep = self._first_input(tokens)
        tables, product = self.tables(x, position), self.product
        plans = self._plans(chains, position, x.dtype)
        states_by_layer: dict[int, Tensor] = {}
        for i, layer in enumerate(self.layers):
            if i in layers:
                states_by_layer[i] = x
                # later layers add nothing that was asked for
                if states_by_layer.keys() >= set(layers):
                    return [states_by_layer[layer] for layer in layers]
            run: Callable[..., Tensor] = partial(self.run_inside, layer.module, self._layer)
            arguments = (layer, x, *tables[layer.rope], plans[layer.window], product)
            # hold one hidden state a layer; the rest of it is computed again in the backward pass
            if self.recompute and torch.is_grad_enabled():
                x = checkpoint(run, *arguments, use_reentrant=False, preserve_rng_state=False)
                assert isinstance(x, Tensor)
            else:
                x = run(*arguments)
            x = add_deep(x, i)
        last_states = self.norm(x)
        # the last layer's states are those behind the final norm, as in transformers
        return [states_by_layer.get(layer, last_states) for layer in layers]

    def embed(self, tokens: Tensor) -> Tensor:
        """Input [n, H] of the first layer."""
        x: Tensor = self.embedding(tokens)
        name = self.family.embedding_scale
        return x * getattr(self.model, name) if name else x

    def _first_input(self, tokens: Tensor) -> tuple[Tensor, Callable[[Tensor, int], Tensor]]:
        """Input [n, H] of the first layer, and a function that adds deeper features of pictures behind a layer."""
        if self.deep is None:
            return self.embed(tokens), lambda x, layer: x
        out, rows, later = embed_with_pictures(self.deep, self.embedding, tokens)
        picture_index = rows.nonzero().squeeze(1)
        return out, lambda x, layer: x.index_add(0, picture_index, later[layer]) if layer < len(later) else x

    def norm(self, x: Tensor) -> Tensor:
        """Final norm [n, H], as the head reads it."""
        return getattr(self.model, self.family.norm)(x)

    def tables(self, x: Tensor, position: Tensor) -> Tables:
        """Rotary tables by key, of positions [n] or, with m-RoPE, [3, n]."""
        by_key: Tables = {}
        for key in dict.fromkeys(layer.rope for layer in self.layers):
            if key == NO_ROPE:
                by_key[key] = (x.new_empty(x.shape[0], 0), x.new_empty(x.shape[0], 0))
            else:
                cos, sin = self.model.rotary_emb(x[None], position[..., None, :], *([] if key == ONE_ROPE else [key]))
                by_key[key] = (cos[0], sin[0])
        return by_key

    def positions(self, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
        """Positions [n] of the tokens of these prompts, one after the other; with m-RoPE [3, n], and of the token after
        each."""
        if self.triples is None:
            return torch.cat([torch.arange(len(prompt)) for prompt in prompts]), None
        prompt_positions = [self.triples.positions(prompt) for prompt in prompts]
        return torch.cat([position for position, _ in prompt_positions], 1), torch.tensor(
            [after for _, after in prompt_positions]
        )

    def _plans(self, chains: list[Chain], position: Tensor, dtype: torch.dtype) -> dict[int | None, Plan]:
        """Attention plan of each window."""
        return {
            window: Plan.of(chains) if window is None else Plan.in_window(chains, window, position, dtype)
            for window in {layer.window for layer in self.layers}
        }

    @torch.no_grad()
    def prefill(self, tokens: Tensor, position: Tensor, chains: list[Chain]) -> tuple[Tensor, list[Tensor]]:
        """Prefill: [n, H] hidden states as the head reads them, and keys and values [n, 2 kv, D] of each layer."""
        x, add_deep = self._first_input(tokens)
        tables, product, keys_and_values = self.tables(x, position), self.product, []
        plans = self._plans(chains, position, x.dtype)
        for i, layer in enumerate(self.layers):
            cos, sin = (table.to(x.dtype) for table in tables[layer.rope])
            qkv = queries_keys_values(layer, x, product)
            out, _, rotated_qkv = attend(qkv, cos, sin, plans[layer.window], layer.heads)
            # the keys as they are after rotation: a sampler attends to them as they are
            keys_and_values.append(rotated_qkv[:, layer.heads.queries :])
            x = add_deep(add_mlp(layer, add_attention(layer, x, out.flatten(1), product), product, x), i)
        return self.norm(x), keys_and_values

    def _layer(self, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor, plan: Plan, product: torch.dtype) -> Tensor:
        fuse = kernel(self.choices, "update weights") == "joined"
        qkv = queries_keys_values(layer, x, product, fuse)
        kernels = (kernel(self.choices, "attention"), kernel(self.choices, "attention gradient"))
        attention = TreeAttention.apply(qkv, cos, sin, plan, layer.heads, kernels)
        return add_mlp(layer, add_attention(layer, x, attention, product), product, x, fuse)


@contextmanager
def with_window(causal: Any, window: int | None) -> Iterator[None]:
    """Context manager: set the size of a model's sliding windows; None leaves them."""
    if window is None:
        yield
        return
    backbone = backbone_of(causal)
    # a vision model's backbone has a text configuration of its own: one narrow copy can't stand for both
    if backbone.config is not causal.config:
        raise RuntimeError("the windows of a vision model are not tried")
    configs = (causal.config, backbone.config)
    try:
        # a copy, since the model's configuration is shared with whoever loaded it
        causal.config = backbone.config = narrow = copy.copy(configs[1])
        narrow.sliding_window = window
        yield
    finally:
        causal.config, backbone.config = configs


def near(x: Tensor, y: Tensor) -> bool:
    """Return True if rows [n, H] differ only by rounding: most of them by less than half of their digits.

    In float64 by 1e-6: parts of transformers' models (softmax, routers) always compute in float32. A row of zeros, as
    of a padding id's embedding, differs from anything but zeros.
    """
    tolerance = max(torch.finfo(y.dtype).eps, 1e-12) ** 0.5
    x, y = to_host_float64(with_zeros(x)), to_host_float64(with_zeros(y))
    distance = (x - y).norm(dim=1)
    # 0 / 0 would make the median nan, and equal models different
    return bool(torch.where(distance == 0, 0.0, distance / y.norm(dim=1)).median() <= tolerance)


def with_zeros(logits: Tensor) -> Tensor:
    """Replace minus infinity by 0 in logits: banned ids count in no difference."""
    return torch.where(logits == -torch.inf, 0.0, logits)
