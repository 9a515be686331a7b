"""Models of a run: the embedded tiny model, its warm starts, and causal language models loaded by transformers."""

from gxpo.models.tiny import character_tokenizer, tiny_model
from gxpo.training.models.load import LoadedModel, ModelDescription, describe, load, unread_style
from gxpo.training.models.warmup import WARMUPS, Check, Recipe, warm_start

__all__ = [
    "WARMUPS",
    "Check",
    "LoadedModel",
    "ModelDescription",
    "Recipe",
    "character_tokenizer",
    "describe",
    "load",
    "tiny_model",
    "unread_style",
    "warm_start",
]
