"""Tokenizer and context length of a model by name, without its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gxpo.base.errors import ModelError, need
from gxpo.models import smollm2
from gxpo.models.peft_directory import config_home, tokenizer_home
from gxpo.models.tiny import DIMENSIONS, MASKED_DIMENSIONS, VISION_POSITIONS, built_in, tokenizer_of_built_in
from gxpo.training.models import picture_tokens
from gxpo.training.models.load import MASKED, VISION, is_path, no_such_directory, warm_task
from gxpo.training.models.warmup import WARMUPS, Recipe


def tokenizer_of(model: str) -> Any:
    """Load a model's tokenizer; code that comes with a model is never run. `ModelError` if it can't be loaded."""
    if built_in(model):
        return tokenizer_of_built_in(model)
    if picture_tokens.is_own(model):
        return picture_tokens.words()
    # A path that does not exist would be looked up on the hub, with an error about the network.
    name = str(smollm2.smollm2()) if model == smollm2.NAME else model
    local = Path(name).expanduser()
    if is_path(name) and not local.is_dir():
        raise ModelError(f"{model}: not a directory") if local.exists() else no_such_directory(local)
    transformers: Any = need("transformers", "train")
    try:
        return transformers.AutoTokenizer.from_pretrained(
            str(tokenizer_home(local)) if local.is_dir() else name, trust_remote_code=False
        )
    except Exception as error:  # transformers, tokenizers and the hub raise some twenty types here
        text = " ".join(str(error).split())
        raise ModelError(f"the tokenizer of {model!r} can't be loaded: {text[:300]}") from error


def positions(model: str, task: str) -> int | None:
    """Return the context length in the model's config in tokens; None if the config has no limit."""
    if built_in(model):
        recipe = WARMUPS.get(warm_task(model, task) or task, Recipe())
        if model.startswith(VISION) or recipe.vision:
            return VISION_POSITIONS
        if model.startswith(MASKED) or recipe.masked:
            return int({**MASKED_DIMENSIONS, **recipe.dimensions}["max_position_embeddings"])
        return int({**DIMENSIONS, **recipe.dimensions}["max_position_embeddings"])
    name = str(smollm2.smollm2()) if model == smollm2.NAME else str(config_home(Path(model).expanduser()))
    transformers: Any = need("transformers", "train")
    try:
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # as when a tokenizer is loaded
        raise ModelError(f"the config of {model!r} can't be loaded: {' '.join(str(error).split())[:300]}") from error
    return getattr(config.get_text_config(), "max_position_embeddings", None)
