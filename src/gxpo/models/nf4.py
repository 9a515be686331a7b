"""Linear layers in NF4, 4-bit numbers with scales by block (QLoRA, Dettmers et al. 2023, arXiv 2305.14314), by
bitsandbytes: the frozen weights under adapters."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from gxpo.base.errors import ModelError, need

BLOCK = 64  # weights that share a scale; the scales are 8-bit numbers with scales of their own
LEAST_SHARE = 0.5  # of a model's inner matrices that have to be in NF4: else little memory is saved, in silence


def loading_arguments(config: Any, name: str, dtype: str, device: str) -> dict[str, Any]:
    """Arguments of `from_pretrained` that quantise a model's linear layers, but for its head, while it is loaded.

    dtype  in which products are computed, and of all other parameters

    Raises `ModelError` for a dtype without kernels and for a model whose files are quantised.
    """
    quiet()
    need("bitsandbytes", "nf4")
    need("accelerate", "nf4")
    transformers: Any = need("transformers", "train")
    if dtype not in ("bfloat16", "float32"):
        raise ModelError(f"learner.base=nf4 computes in learner.dtype=bfloat16 or float32, not {dtype}")
    if files_method := quantisation_method(config):
        raise ModelError(f"model {name!r}: its files are quantised ({files_method}): {UNQUANTISED}")
    return {
        "device_map": {"": device},
        "quantization_config": transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=getattr(torch, dtype),
        ),
    }


def quiet() -> None:
    """Call before anything imports bitsandbytes, as peft does: without the package `kernels` it warns of a kernel for
    CPUs that gxpo doesn't use."""
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


UNQUANTISED = "take the model that they were made from; learner.base=nf4 quantises it"


def quantisation_method(config: Any) -> str | None:
    """Method by which the files of a model are quantised, from its config; None: they aren't."""
    settings = getattr(config, "quantization_config", None)
    if settings is None:
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else getattr(settings, "quant_method", None)
    return str(getattr(method, "value", method) or "in an unknown way")


def is_nf4(parameter: Any) -> bool:
    """Return True for the packed weight of a layer in NF4."""
    return getattr(parameter, "quant_state", None) is not None


def layers_of(model: Any) -> dict[str, Any]:
    """Layers in NF4 by name; adapters over them are no layers."""
    return {name: m for name, m in model.named_modules() if isinstance(m, torch.nn.Linear) and is_nf4(m.weight)}


def settle(model: Any, name: str) -> None:
    """Make every product of a quantised model read the same numbers, and check them.

    On processors with AVX512-BF16, bitsandbytes lays a weight out anew in the first pass without gradient and rounds
    its scales to bfloat16: a sampler would change the weights that the learner reads. That is switched off.

    Raises `ModelError` where weights are not what their codes and scales say (the CPU kernel of bitsandbytes 0.50.2
    mixes up scales if rows are no multiple of `BLOCK` numbers), or where most inner matrices are no linear layers.
    """
    layer_by_name = layers_of(model)
    for layer in layer_by_name.values():
        layer.support_avx512bf16_for_cpu = False
    # one layer of each shape: kernels differ by shape alone
    for layer_name, layer in {x.weight.quant_state.shape: (n, x) for n, x in layer_by_name.items()}.values():
        expected, actual = values_of(layer.weight), dequantise(layer.weight)
        if not bool((actual.float() - expected).abs().max() <= 0.01 * expected.abs().max()):
            rows, columns = layer.weight.quant_state.shape
            raise ModelError(
                f"model {name!r}: bitsandbytes computes wrong weights for {layer_name} ({rows} x {columns}) on this "
                f"device; rows of a multiple of {BLOCK} numbers work: leave learner.base out"
            )
    # parameters in bytes are halved; what else has two axes or more is no linear layer, as stacked experts
    quantised = sum(2 * layer.weight.nbytes for layer in layer_by_name.values())
    ends = {id(m.weight) for m in (model.get_input_embeddings(), model.get_output_embeddings()) if m is not None}
    others = sum(p.numel() for p in model.parameters() if p.dim() > 1 and not is_nf4(p) and id(p) not in ends)
    if quantised < LEAST_SHARE * (quantised + others):
        raise ModelError(
            f"model {name!r}: {others:,} of its {quantised + others:,} inner weights are not in linear layers (experts "
            "are not), which stay in 16 or 32 bits: leave learner.base out"
        )


def tensors_of(model: Any) -> dict[str, Tensor]:
    """Codes and scales of all layers in NF4, by name."""
    out = {}
    for name, layer in layers_of(model).items():
        state = layer.weight.quant_state
        parts = {"weight": layer.weight.data, "absmax": state.absmax, "absmax2": state.state2.absmax}
        out |= {f"{name}.{part}": x for part, x in parts.items()}
    return out


def dequantise(weight: Any) -> Tensor:
    """[out, in] weight of a layer in NF4, as bitsandbytes computes it for a product."""
    functional: Any = need("bitsandbytes.functional", "nf4")
    return functional.dequantize_4bit(weight.data, weight.quant_state)


def values_of(weight: Any) -> Tensor:
    """[out, in] float32 weight of a layer in NF4, from its codes and scales by definition.

    A number is code[c] * scale of its block, c 4 bits, the first of a byte the high ones; a scale is offset +
    code2[s] * scale2 of its block of scales, s 8 bits.
    """
    state = weight.quant_state
    packed = weight.data.view(torch.uint8).flatten()
    index = torch.stack((packed >> 4, packed & 15), 1).flatten().long()
    nested = state.state2
    scale2 = nested.absmax.repeat_interleave(nested.blocksize)[: state.absmax.numel()]
    scale = state.offset + nested.code[state.absmax.long()] * scale2
    values = state.code[index] * scale.repeat_interleave(state.blocksize)[: index.numel()]
    return values[: state.shape.numel()].view(state.shape)


def as_dense(model: Any, dtype: torch.dtype) -> Any:
    """Replace a model's layers in NF4 by linear layers with the numbers that they compute with; return the model.

    dtype  of all parameters
    """
    logging.getLogger("transformers.integrations.bitsandbytes").setLevel(logging.ERROR)  # it says what is asked for
    return model.dequantize(dtype=dtype)
