"""Model sizes for estimates of memory, traffic and time: parameters, layers, widths; no weights are loaded."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gxpo.base.errors import ModelError, did_you_mean, need
from gxpo.models import smollm2
from gxpo.models.peft_directory import config_home
from gxpo.models.tiny import BUILT_IN

CACHED = ("full_attention", "sliding_attention", "chunked_attention")  # types of layers whose cache holds every token


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a causal language model.

    parameters  of the whole model, tied ones once; active: that a token goes through (of a mixture of experts fewer)
    layers, hidden, vocabulary   number of layers, size of a hidden state, number of ids
    kv_layers   layers with keys and values; kv_heads, head_dim: of each of them; heads: of queries
    intermediate   hidden units of the MLP that a token goes through (of a mixture: of all its experts together)
    experts, active_experts   of a layer, and those that a token goes through; 0: no mixture
    has_tied_head   the head is the embedding;   has_qk_norm: queries and keys are normed by head
    """

    parameters: int
    active: int
    layers: int
    hidden: int
    vocabulary: int
    kv_layers: int
    kv_heads: int
    head_dim: int
    heads: int
    intermediate: int
    experts: int = 0
    active_experts: int = 0
    has_tied_head: bool = False
    has_qk_norm: bool = False

    @property
    def largest_unit(self) -> int:
        """Parameters of the largest unit that is gathered at once: a layer (an average one, embeddings counted in), or
        the embeddings."""
        return max(-(-self.parameters // self.layers), self.vocabulary * self.hidden)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of a token's keys and values at 16 bits."""
        return 4 * self.kv_layers * self.kv_heads * self.head_dim


def _dense(
    parameters: int,
    layers: int,
    hidden: int,
    heads: tuple[int, int, int],
    intermediate: int,
    vocabulary: int,
    *,
    is_tied: bool = False,
    has_qk_norm: bool = False,
) -> ModelShape:
    """Shape of a dense model; heads: of queries, of keys and values, and the size of each."""
    queries, kv_heads, head_dim = heads
    return ModelShape(
        parameters, parameters, layers, hidden, vocabulary, layers, kv_heads, head_dim, queries, intermediate,
        has_tied_head=is_tied, has_qk_norm=has_qk_norm,
    )  # fmt: skip


# Sizes are those of config.json in each model's repository on the hub, which `SOURCES` names.
KNOWN = {
    smollm2.NAME: _dense(134_515_008, 30, 576, (9, 3, 64), 1536, 49_152, is_tied=True),
    "qwen2.5-0.5b": _dense(494_032_768, 24, 896, (14, 2, 64), 4864, 151_936, is_tied=True),
    "qwen2.5-1.5b": _dense(1_543_714_304, 28, 1536, (12, 2, 128), 8960, 151_936, is_tied=True),
    "qwen2.5-7b": _dense(7_615_616_512, 28, 3584, (28, 4, 128), 18_944, 152_064),
    "qwen2.5-32b": _dense(32_763_876_352, 64, 5120, (40, 8, 128), 27_648, 152_064),
    "qwen3-0.6b": _dense(596_049_920, 28, 1024, (16, 8, 128), 3072, 151_936, is_tied=True, has_qk_norm=True),
    "qwen3-1.7b": _dense(1_720_574_976, 28, 2048, (16, 8, 128), 6144, 151_936, is_tied=True, has_qk_norm=True),
    "qwen3-4b": _dense(4_022_468_096, 36, 2560, (32, 8, 128), 9728, 151_936, is_tied=True, has_qk_norm=True),
    "qwen3-8b": _dense(8_190_735_360, 36, 4096, (32, 8, 128), 12_288, 151_936, has_qk_norm=True),
    "qwen3-30b-a3b": ModelShape(
        30_532_122_624, 3_353_032_704, 48, 2048, 151_936, 48, 4, 128, 32, 8 * 768, 128, 8, has_qk_norm=True
    ),
    "gpt-oss-20b": ModelShape(20_914_757_184, 4_187_440_704, 24, 2880, 201_088, 24, 8, 64, 64, 4 * 2880, 32, 4),
    "llama-3.1-8b": _dense(8_030_261_248, 32, 4096, (32, 8, 128), 14_336, 128_256),
    "llama-3.1-70b": _dense(70_553_706_496, 80, 8192, (64, 8, 128), 28_672, 128_256),
}
SOURCES = {
    smollm2.NAME: "HuggingFaceTB/SmolLM2-135M-Instruct",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    **{name: f"meta-llama/{name.title()}" for name in KNOWN if name.startswith("llama")},
    **{name: f"Qwen/{name.title()}" for name in KNOWN if name.startswith("qwen") and "a3b" not in name},
}
_VARIANT = re.compile(r"-(instruct|base|chat|it)$")


def source_of(name: str) -> str | None:
    """The repository whose config.json the sizes of a known name are from; None for models that are read."""
    short = _VARIANT.sub("", name.rpartition("/")[2].lower())
    return SOURCES[short] if short in KNOWN and not Path(name).exists() else None


def shape_of(name: str) -> ModelShape:
    """Sizes of a model: a name in `KNOWN` (with or without owner and -Instruct), a built-in model, a directory or
    config.json of transformers, or an id in the hub's cache. Raises `ModelError` if its sizes are unknown."""
    short = _VARIANT.sub("", name.rpartition("/")[2].lower())
    # a directory of that name is the user's own model, whose sizes may differ
    if short in KNOWN and not Path(name).exists():
        return KNOWN[short]
    if name.partition(":")[0] == BUILT_IN[0]:
        from gxpo.models.tiny import tiny_model

        return shape_of_model(tiny_model())
    if name.partition(":")[0] == BUILT_IN[1]:
        from gxpo.models.tiny import tiny_vision_model

        return shape_of_model(tiny_vision_model())
    if name.partition(":")[0] == BUILT_IN[2]:
        from gxpo.models.tiny import tiny_masked_model

        return shape_of_model(tiny_masked_model())
    return _shape_of_config(_config(name))


def stated_shape(
    parameters: float,
    layers: int | None,
    hidden: int | None,
    kv_heads: int | None,
    head_dim: int | None,
    vocabulary: int | None,
) -> ModelShape:
    """Shape of a dense model of these sizes; ModelError unless all are given.

    Its queries are taken to be as wide as a hidden state, its head untied, and its MLP to have all other parameters.
    """
    if None in (layers, hidden, kv_heads, head_dim, vocabulary):
        sizes = {"layers": layers, "hidden": hidden, "kv-heads": kv_heads, "head-dim": head_dim}
        missing = [f"--{k}" for k, v in {**sizes, "vocabulary": vocabulary}.items() if v is None]
        raise ModelError(f"--parameters needs {', '.join(missing)} too")
    assert layers and hidden and kv_heads and head_dim and vocabulary
    heads = max(1, hidden // head_dim)
    attention = 2 * hidden * head_dim * (heads + kv_heads)
    intermediate = max(0, (int(parameters) - 2 * vocabulary * hidden) // layers - attention) // (3 * hidden)
    return _dense(int(parameters), layers, hidden, (heads, kv_heads, head_dim), intermediate, vocabulary)


def _config(name: str) -> Any:
    path = Path(name).expanduser()
    transformers = need("transformers", "train")
    if path.is_dir():
        path = config_home(path) / "config.json"
    try:
        # a file is read here: from_pretrained wants a directory or an id
        if path.suffix == ".json":
            fields = dict(json.loads(path.read_text(encoding="utf-8")))
            return transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
        # an estimate must not download anything
        return transformers.AutoConfig.from_pretrained(name, local_files_only=True)
    except FileNotFoundError as error:
        raise ModelError(f"model {name!r}: no file {path}") from error
    except (KeyError, TypeError) as error:
        raise ModelError(f"model {name!r}: {path} is not a configuration of a transformers model") from error
    except (OSError, ValueError) as error:
        hint = did_you_mean(name.lower(), KNOWN) or f"; known are {', '.join(KNOWN)}"
        raise ModelError(
            f"model {name!r}: its sizes are not known here{hint}; or give its directory or config.json, or "
            "--parameters, --layers, --hidden, --kv-heads, --head-dim and --vocabulary"
        ) from error


def _shape_of_config(config: Any) -> ModelShape:
    import torch

    if getattr(config.get_text_config(), "kv_lora_rank", None):
        raise ModelError(
            f"{config.model_type} caches latent vectors, for which there is no formula here: state its numbers with "
            "--parameters, --layers, --hidden, --kv-heads, --head-dim and --vocabulary"
        )
    try:
        # on the meta device parameters have shapes and take no memory
        with torch.device("meta"):
            return shape_of_model(need("transformers", "train").AutoModelForCausalLM.from_config(config))
    except ValueError as error:
        raise ModelError(f"{config.model_type} is no causal language model of transformers") from error


def shape_of_model(model: Any) -> ModelShape:
    """Sizes of a transformers model, which may be on the device "meta"."""
    config = model.config.get_text_config()
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    # a token passes through a few of the experts, and only their parameters count as active
    expert_parameters = sum(n for name, n in sizes.items() if ".experts." in name)
    counts = (getattr(config, k, 0) for k in ("num_local_experts", "num_experts", "n_routed_experts"))
    experts = next((n for n in counts if n), 0) if expert_parameters else 0
    active_experts = int(getattr(config, "num_experts_per_tok", None) or experts) if experts else 0
    idle_parameters = expert_parameters * (experts - active_experts) // experts if experts else 0
    width = getattr(config, "moe_intermediate_size", None) if experts else None
    width = int(width or getattr(config, "intermediate_size", None) or 4 * config.hidden_size)
    # layers of linear attention or convolutions hold no keys and values
    layer_types = getattr(config, "layer_types", None) or [CACHED[0]] * config.num_hidden_layers
    heads = int(config.num_attention_heads)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    return ModelShape(
        parameters=sum(sizes.values()),
        active=sum(sizes.values()) - idle_parameters,
        layers=int(config.num_hidden_layers),
        hidden=int(config.hidden_size),
        vocabulary=int(config.vocab_size),
        kv_layers=sum(kind in CACHED for kind in layer_types),
        kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        heads=heads,
        intermediate=width * (active_experts or 1),
        experts=int(experts),
        active_experts=active_experts,
        has_tied_head=head is not None and head.weight is embedding.weight,
        has_qk_norm=any(name.endswith("q_norm.weight") for name in sizes),
    )
