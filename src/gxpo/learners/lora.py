"""Low-rank adapters through peft; the reference policy is the model with its adapters off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gxpo.errors import need


@dataclass(frozen=True)
class LoraSettings:
    """LoRA (Hu et al., 2021): W + (alpha / rank) B A, with A random from `seed` and B zero.

    targets  names of the modules that are adapted, or "all-linear" (every linear layer but the head)
    """

    rank: int = 16
    alpha: float = 32.0
    targets: str | tuple[str, ...] = "all-linear"
    seed: int = 0


def with_lora(model: Any, settings: LoraSettings, base: str | None = None) -> Any:
    """The model wrapped by peft; only the adapters stay trainable. The global random state is left as it was.

    base  what a saved adapter says that it belongs to: a directory or an id on the hub
    """
    peft: Any = need("peft", "train")
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=settings.targets if isinstance(settings.targets, str) else list(settings.targets),
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        wrapped = peft.get_peft_model(model, config)
    if base is not None:
        config.base_model_name_or_path = base
    return wrapped


def merged(model: Any) -> Any:
    """The adapters added to the weights they adapt: a plain model again. Takes `model` apart: give it a copy."""
    return model.merge_and_unload(safe_merge=True)
