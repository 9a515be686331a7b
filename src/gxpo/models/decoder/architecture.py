"""Model families of the fast forward pass, as data: names of a layer's parts, and how they are joined."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from gxpo.models.decoder.attention import Heads


@dataclass(frozen=True)
class Activation:
    """An activation: value(x), and slope(g, x, out), which writes g * d value / dx."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor, Tensor], None]


def _silu_slope(g: Tensor, x: Tensor, out: Tensor) -> None:
    torch.ops.aten.silu_backward.grad_input(g, x, grad_input=out)


def _gelu_tanh_slope(g: Tensor, x: Tensor, out: Tensor) -> None:
    torch.ops.aten.gelu_backward.grad_input(g, x, approximate="tanh", grad_input=out)


ACTIVATIONS = {
    "silu": Activation(silu, _silu_slope),
    "gelu_pytorch_tanh": Activation(partial(gelu, approximate="tanh"), _gelu_tanh_slope),
}

WINDOWED, FULL = "sliding_attention", "full_attention"
TEXT_PARTS = ("language_model", "text_model")  # of a model that sees
GUIDED = "is_guided"  # attribute of a backbone whose states are mixed of two passes (`gxpo.models.guidance`)
NO_ROPE, ONE_ROPE = "none", ""  # keys of rotary tables; others are the types of layers that have their own


@dataclass(frozen=True)
class Family:
    """Names of the parts of a model and of its layers; parts that a model lacks are left out of its computation.

    qkv           one map for queries, keys and values, or three; `by_head`: one map, whose rows are q k v of head
                  after head
    norms         before and after attention, before and after the MLP; "": there is none
    inner         gate and up of a gated MLP, in one map or two. A layer whose MLP has other parts, such as experts,
                  runs that MLP as it is
    rms           class of norms and what is added to their weight, if they are RMSNorms
    cap           attribute of attention at which scores are capped; residual, embedding: attributes (of a layer, of the
                  model) by which its branches and the embeddings are multiplied
    parallel      attribute of a layer that says whether attention and MLP read the same input
    must_be_none  settings of its configuration that are not computed here
    """

    embedding: str = "embed_tokens"
    norm: str = "norm"
    attention: str = "self_attn"
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    by_head: bool = False
    out: str = "o_proj"
    norms: tuple[str, str, str, str] = ("input_layernorm", "", "post_attention_layernorm", "")
    inner: tuple[str, ...] = ("gate_proj", "up_proj")
    activation: str = "hidden_act"
    rms: tuple[str, float] | None = None
    cap: str = ""
    residual: str = ""
    embedding_scale: str = ""
    parallel: str = ""
    must_be_none: tuple[str, ...] = ()


def _llama(name: str, **differs: Any) -> tuple[str, Family]:
    return f"{name}ForCausalLM", replace(Family(rms=(f"{name}RMSNorm", 0.0)), **differs)


GEMMA_NORMS = (
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
)  # fmt: skip
OLMO_NORMS = ("", "post_attention_layernorm", "", "post_feedforward_layernorm")
FAMILIES: Mapping[str, Family] = dict(
    (
        _llama("Llama"),
        _llama("Mistral"),
        _llama("Ministral"),
        _llama("Qwen2"),
        _llama("Qwen3"),
        _llama("Qwen2VL"),
        _llama("Qwen2_5_VL"),
        _llama("Qwen3VLText"),
        _llama("SmolLM3"),
        _llama("Mixtral"),
        _llama("Qwen2Moe"),
        _llama("Qwen3Moe"),
        _llama("Olmoe", must_be_none=("clip_qkv",)),
        _llama("Olmo2", norms=OLMO_NORMS),
        _llama("Olmo3", norms=OLMO_NORMS),
        _llama("Granite", residual="residual_multiplier", embedding_scale="embedding_multiplier"),
        _llama("Phi3", qkv=("qkv_proj",), inner=("gate_up_proj",)),
        _llama(
            "Gemma2", norms=GEMMA_NORMS, rms=("Gemma2RMSNorm", 1.0), activation="hidden_activation",
            cap="attn_logit_softcapping",
        ),
        _llama("Gemma3", norms=GEMMA_NORMS, rms=("Gemma3RMSNorm", 1.0), activation="hidden_activation"),
        _llama("Starcoder2", rms=None),
        _llama(
            "GPTNeoX", embedding="embed_in", norm="final_layer_norm", attention="attention", qkv=("query_key_value",),
            by_head=True, out="dense", rms=None, parallel="use_parallel_residual",
        ),
    )
)  # fmt: skip


# families of language models whose class has another name
OF_TEXT = {"Qwen2VLTextModel": "Qwen2VLForCausalLM", "Qwen2_5_VLTextModel": "Qwen2_5_VLForCausalLM"}


def family_of(causal: Any) -> Family | None:
    """Family of a model's class or of its nearest base class with one; for a vision model, of its language model."""
    names = [c.__name__ for c in type(causal).__mro__]
    if backbone_of(causal) is not getattr(causal, causal.base_model_prefix, None):
        text = type(backbone_of(causal)).__name__
        names = [OF_TEXT.get(text, text.removesuffix("Model") + "ForCausalLM")]
    return next((FAMILIES[name] for name in names if name in FAMILIES), None)


def backbone_of(causal: Any) -> Any:
    """Part of a causal model below its head (for a vision model: its language model); None if it names none."""
    inner = getattr(causal, getattr(causal, "base_model_prefix", ""), None)
    if not hasattr(inner, "get_image_features"):
        return inner
    return next((getattr(inner, name) for name in TEXT_PARTS if hasattr(inner, name)), inner)


def are_plain_linears(*modules: Any) -> bool:
    """Return True if these are linear maps without bias or adapters."""
    return all(type(m) is nn.Linear and m.bias is None for m in modules)


@dataclass(frozen=True)
class Layer:
    """Layer of a transformers model, its parts by the names of its family. They are looked up each time: adapters
    replace them.

    rope    key of its rotary tables; window: tokens that it sees, itself included (None: all)
    """

    module: Any
    family: Family
    heads: Heads
    rope: str
    window: int | None
    act: Activation | None

    @property
    def attention(self) -> Any:
        return getattr(self.module, self.family.attention)

    @property
    def mlp(self) -> Any:
        return self.module.mlp

    @property
    def maps(self) -> list[Any]:
        """Linear maps to queries, keys and values."""
        return [getattr(self.attention, name) for name in self.family.qkv]

    @property
    def out(self) -> Any:
        return getattr(self.attention, self.family.out)

    @property
    def inner(self) -> list[Any]:
        """Gate and up of a gated MLP with a known activation, in one map or two; empty without one."""
        names, mlp = self.family.inner, self.mlp
        if self.act is None or not all(hasattr(mlp, name) for name in (*names, "down_proj")):
            return []
        return [getattr(mlp, name) for name in names]

    @property
    def matrices(self) -> list[Any]:
        """Linear maps of the layer outside of experts."""
        return [*self.maps, self.out, *([*self.inner, self.mlp.down_proj] if self.inner else [])]

    def norm(self, place: int) -> Any:
        """Norm before (0) and after (1) attention, before (2) and after (3) the MLP; None without one."""
        name = self.family.norms[place]
        return getattr(self.module, name) if name else None

    @property
    def norms_of_heads(self) -> list[Any]:
        """Norms of queries and keys; empty without them."""
        norms = (getattr(self.attention, name, None) for name in ("q_norm", "k_norm"))
        return [norm for norm in norms if norm is not None]

    @property
    def multiple(self) -> float:
        """Factor of the residual branches."""
        return float(getattr(self.module, self.family.residual)) if self.family.residual else 1.0

    @property
    def parallel(self) -> bool:
        """True if attention and MLP read the same input."""
        return bool(self.family.parallel and getattr(self.module, self.family.parallel))

    @property
    def sequential(self) -> bool:
        """True if the layer is x + attention(norm(x)), then x + mlp(norm(x)), and nothing else."""
        before = self.family.norms[0] and self.family.norms[2]
        after = self.family.norms[1] or self.family.norms[3]
        return bool(before and not after) and self.multiple == 1.0 and not self.parallel


def layers_of(causal: Any, family: Family) -> list[Layer]:
    """Layers of a supported model, first to last."""
    config, model = causal.config.get_text_config(), backbone_of(causal)
    layer_types = getattr(config, "layer_types", None)
    act = ACTIVATIONS.get(getattr(config, family.activation, None) or "")
    ropes = getattr(model.rotary_emb, "rope_type", None)
    layers = []
    for i, module in enumerate(model.layers):
        # SmolLM3 leaves rotary embeddings out of some layers; Gemma 3 has other ones for windowed layers
        attention = getattr(module, family.attention)
        # layers may differ: windowed ones, other embeddings, none
        kind = FULL if layer_types is None else layer_types[i]
        rope = kind if isinstance(ropes, dict) else ONE_ROPE
        cap = getattr(attention, family.cap) if family.cap else None
        # configurations spell the head's size differently: the module's own attribute decides
        size = getattr(attention, "head_dim", None) or attention.head_size
        heads = Heads(config.num_attention_heads, int(size), float(attention.scaling), cap)
        rope = rope if getattr(attention, "use_rope", True) else NO_ROPE
        layers.append(Layer(module, family, heads, rope, window_of(config, i), act))
    return layers


def window_of(config: Any, layer: int) -> int | None:
    """Window of a layer in tokens, the token itself included; None: full attention."""
    layer_types, window = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    if layer_types is None:
        return window if getattr(config, "use_sliding_window", True) else None
    return window if layer_types[layer] == WINDOWED else None


def why_not(causal: Any) -> str | None:
    """Reason why no family describes a model, from its class and configuration; None if one does."""
    name, family, config = type(causal).__name__, family_of(causal), causal.config.get_text_config()
    if family is None:
        return f"{name} is not one of the architectures with a fast forward pass (docs/models.md)"
    if backbone_of(causal) is None or not len(backbone_of(causal).layers):
        return "it has no layers"
    if getattr(backbone_of(causal), GUIDED, False):
        return "its guidance takes two passes"
    # fields that change the formula in ways that no family describes
    if set_keys := [key for key in family.must_be_none if getattr(config, key, None) is not None]:
        return f"its {set_keys[0]} is set"
    # m-RoPE gives all tokens of a picture few positions, and a window is measured in tokens
    if hasattr(backbone_of(causal).rotary_emb, "mrope_section") and any(
        window_of(config, i) is not None for i in range(len(backbone_of(causal).layers))
    ):
        return "it has sliding windows, and with m-RoPE positions do not count tokens"
    unknown = sorted(set(getattr(config, "layer_types", None) or ()) - {FULL, WINDOWED})
    return f"it has {' and '.join(unknown)} layers" if unknown else None


# ---------------------------------------------------------------- head and longest context
@dataclass(frozen=True)
class Head:
    """Hidden states [n, H] to logits [n, V]: the last linear map, then `scale`, then a soft cap."""

    causal: Any
    scale: float = 1.0
    cap: float | None = None

    @property
    def module(self) -> Any:
        """The last linear map; looked up each time, since adapters replace it."""
        return self.causal.get_output_embeddings()

    @staticmethod
    def of(causal: Any) -> Head | None:
        """Head of a model; None if it names no last map."""
        if not hasattr(causal, "get_output_embeddings") or causal.get_output_embeddings() is None:
            return None
        config = causal.config.get_text_config()
        scale = (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)
        return Head(causal, scale, getattr(config, "final_logit_softcapping", None))

    def __call__(
        self, states: Tensor, map: Callable[[Tensor], Tensor] | None = None, product: torch.dtype | None = None
    ) -> Tensor:
        """Logits of states; map: the last map, of states in the dtype of products (None: run the module itself)."""
        logits = self.module(states) if map is None else map(states.to(product))
        logits = logits * self.scale if self.scale != 1.0 else logits
        return logits if self.cap is None else self.cap * (logits / self.cap).tanh()


def rope_settings(config: Any) -> Sequence[Mapping[str, Any]]:
    """Rotary embedding settings of a configuration, one for all layers or one for each type of layer."""
    settings = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [x for x in settings.values() if isinstance(x, dict)]
    return nested or [settings]


def positions(config: Any) -> tuple[int | None, str]:
    """Longest context in tokens (None: no known limit), and the reason if it is shorter than the model's own limit.

    Rotary embeddings of type longrope turn every key anew once a context outgrows a length: keys that a sampler holds
    would be others than those of the learner.
    """
    limit = getattr(config, "max_position_embeddings", None)
    for settings in rope_settings(config):
        kind = settings.get("rope_type", settings.get("type"))
        original = settings.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        if kind == "longrope" and original and (not limit or original < limit):
            return int(original), " before its longrope turns every key anew, which caches and shared prompts can't do"
    return limit, ""
