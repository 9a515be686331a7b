"""Random models of common architectures, tiny or small, from transformers' configuration classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gxpo.base.errors import need


@dataclass(frozen=True)
class Sizes:
    """Sizes of a random model. The size of a head is not hidden / heads, as in many models that people have."""

    vocabulary: int = 32_000
    hidden: int = 384
    inner: int = 1024
    layers: int = 6
    heads: int = 6
    kv: int = 2
    head: int = 48
    positions: int = 4096
    window: int = 128
    experts: int = 8

    def settings(self) -> dict[str, Any]:
        """The sizes under the names that most configuration classes use."""
        return {
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv,
            "head_dim": self.head,
            "max_position_embeddings": self.positions,
            "eos_token_id": 1,
            "pad_token_id": 0,
            "bos_token_id": 2,
        }


@dataclass(frozen=True)
class Kind:
    """An architecture: its class is PREFIXForCausalLM, that of its configuration `config`, or PREFIXConfig.

    settings  of the configuration beside the sizes; a string names a size, None leaves a setting out
    expected  how gxpo runs it on a CPU: "fast", "packed" (by transformers, shared prompts once), "flat" (by
              transformers, a row for each rollout) or "refused"
    reads     models it stands for, as in the table of docs/models.md
    """

    prefix: str
    reads: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    expected: str = "fast"
    config: str = ""
    plain: bool = False  # it has its own names for the sizes
    kind: str = "ForCausalLM"

    def model(self, sizes: Sizes, seed: int = 0, **overrides: Any) -> Any:
        """A random model in evaluation mode; the global random state is left as it was."""
        import torch

        transformers: Any = need("transformers", "train")
        size_settings = {} if self.plain else sizes.settings()
        # Settings of the kind win over those that all have.
        settings = {**size_settings, **self.settings, **overrides}
        # A value `$NAME` stands for one of the sizes; a None takes a setting out.
        settings = {k: getattr(sizes, v[1:]) if _is_size(v) else v for k, v in settings.items() if v is not None}
        config = getattr(transformers, self.config or f"{self.prefix}Config")(**settings)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return getattr(transformers, self.prefix + self.kind)(config).eval()


def _is_size(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("$")


def _rope(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **settings}}


LLAMA3 = _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
EXPERTS = {"moe_intermediate_size": "$inner", "num_experts": "$experts", "num_experts_per_tok": 2}
NO_HEAD = {"head_dim": None}
KINDS: Mapping[str, Kind] = {
    "llama": Kind("Llama", "Llama 2, TinyLlama, SmolLM 1 and 2, most others"),
    "llama-3": Kind("Llama", "Llama 3.x: rotary scaling llama3, tied head", {**LLAMA3, "tie_word_embeddings": True}),
    "llama-yarn": Kind("Llama", "rotary scaling yarn", _rope("yarn", factor=4.0, original_max_position_embeddings=64)),
    "llama-linear": Kind("Llama", "rotary scaling linear", _rope("linear", factor=4.0)),
    "llama-dynamic": Kind("Llama", "rotary scaling dynamic, up to its positions", _rope("dynamic", factor=2.0)),
    "llama-biased": Kind("Llama", "attention_bias, mlp_bias", {"attention_bias": True, "mlp_bias": True}),
    "qwen2": Kind("Qwen2", "Qwen 2 and 2.5: biases of q k v, tied head", {"tie_word_embeddings": True}),
    "qwen2-window": Kind(
        "Qwen2", "the same with sliding windows in some layers",
        {"use_sliding_window": True, "sliding_window": "$window", "max_window_layers": 1},
    ),
    "qwen3": Kind("Qwen3", "Qwen 3: norms of queries and keys", {"tie_word_embeddings": True}),
    "mistral": Kind("Mistral", "Mistral 7B v0.2 and later, Nemo", {"sliding_window": None}),
    "mistral-window": Kind("Mistral", "Mistral 7B v0.1: sliding window", {"sliding_window": "$window"}),
    "smollm3": Kind("SmolLM3", "SmolLM3: some layers without positions", {**NO_HEAD, "tie_word_embeddings": True}),
    "gemma2": Kind(
        "Gemma2", "Gemma 2: soft-capped scores and logits, windows in every second layer",
        {"sliding_window": "$window", "attn_logit_softcapping": 5.0, "final_logit_softcapping": 4.0,
         "query_pre_attn_scalar": 20, "attn_implementation": "eager"},
    ),
    "gemma3": Kind(
        "Gemma3", "Gemma 3, text: windows, two bases of rotary embeddings, norms after attention and MLP",
        {"sliding_window": "$window", "query_pre_attn_scalar": 20, "sliding_window_pattern": 2,
         "layer_types": None},
        config="Gemma3TextConfig",
    ),
    "phi3": Kind(
        "Phi3", "Phi-3, Phi-4: fused maps, partial rotary embeddings", {**NO_HEAD, "partial_rotary_factor": 0.5}
    ),
    "gpt-neox": Kind(
        "GPTNeoX", "Pythia: attention and MLP in parallel, partial rotary embeddings, layer norms",
        {**NO_HEAD, "num_key_value_heads": None},
    ),
    "granite": Kind(
        "Granite", "Granite 3: multipliers",
        {**NO_HEAD, "residual_multiplier": 0.3, "embedding_multiplier": 5.0, "attention_multiplier": 0.2,
         "logits_scaling": 3.0},
    ),
    "olmo2": Kind("Olmo2", "OLMo 2: norms after attention and MLP alone"),
    "olmo3": Kind("Olmo3", "OLMo 3: the same with windows", {"sliding_window": "$window"}),
    "starcoder2": Kind(
        "Starcoder2", "StarCoder 2: layer norms, biases, plain MLP", {**NO_HEAD, "sliding_window": "$window"}
    ),
    "ministral": Kind("Ministral", "Ministral 8B: windows in some layers", {"sliding_window": "$window"}),
    "qwen3-moe": Kind("Qwen3Moe", "Qwen 3 mixtures of experts", EXPERTS),
    "qwen2-moe": Kind(
        "Qwen2Moe", "Qwen 2 mixtures of experts, with a shared one",
        {**EXPERTS, "shared_expert_intermediate_size": "$inner", "decoder_sparse_step": 1},
    ),
    "mixtral": Kind("Mixtral", "Mixtral", {"num_local_experts": "$experts", "num_experts_per_tok": 2}),
    "olmoe": Kind("Olmoe", "OLMoE", {**EXPERTS, **NO_HEAD}),
    "gpt2": Kind(
        "GPT2", "GPT-2: learned positions",
        {"vocab_size": "$vocabulary", "n_embd": "$hidden", "n_layer": "$layers", "n_head": "$heads",
         "n_positions": "$positions", "eos_token_id": 1, "bos_token_id": 2},
        "packed", plain=True, kind="LMHeadModel",
    ),
    "qwen3-next": Kind(
        "Qwen3Next", "Qwen3-Next: gated delta rule beside attention, experts",
        {**EXPERTS, "shared_expert_intermediate_size": "$inner", "linear_num_value_heads": 4,
         "linear_num_key_heads": 2, "linear_key_head_dim": "$head", "linear_value_head_dim": "$head",
         "full_attention_interval": 2},
        "flat",
    ),
    "lfm2": Kind(
        "Lfm2", "LFM2: short convolutions beside attention", {**NO_HEAD, "full_attn_idxs": [1]}, "flat",
    ),
    "falcon-h1": Kind(
        "FalconH1", "Falcon-H1: Mamba 2 and attention in every layer",
        {"mamba_d_ssm": "$hidden", "mamba_n_heads": 4, "mamba_d_head": None, "mamba_d_state": 16,
         "mamba_n_groups": 1, "mamba_chunk_size": 16},
        "flat",
    ),
    "mamba": Kind(
        "Mamba", "Mamba: no attention at all",
        {"vocab_size": "$vocabulary", "hidden_size": "$hidden", "num_hidden_layers": "$layers", "state_size": 8},
        "refused", plain=True,
    ),
}  # fmt: skip
TINY = Sizes(31, 32, 48, 4, 4, 2, 12, 256, 4, 4)
