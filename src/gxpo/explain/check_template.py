"""`gxpo check-template`: test a chat template on multi-turn conversations. Loads only a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gxpo.chat import Report, check_template
from gxpo.errors import ModelError, need
from gxpo.models import smollm2
from gxpo.models.load import is_path, no_such_directory
from gxpo.models.tokenizer import built_in, tokenizer_of_built_in


def check(model: str, template: str | None = None) -> Report:
    """Test the chat format of `model`: a directory, an id on the hub, or a name that gxpo knows.

    template  a .jinja file instead of the tokenizer's own
    """
    return check_template(tokenizer_of(model), template)


def tokenizer_of(model: str) -> Any:
    """Load the tokenizer alone; code that comes with a model is never run. `ModelError` if it can't be loaded."""
    if built_in(model):
        return tokenizer_of_built_in(model)
    name = str(smollm2.smollm2()) if model == smollm2.NAME else model
    local = Path(name).expanduser()
    if is_path(name) and not local.is_dir():
        raise ModelError(f"{model}: not a directory") if local.exists() else no_such_directory(local)
    transformers: Any = need("transformers", "train")
    try:
        return transformers.AutoTokenizer.from_pretrained(
            str(local) if local.is_dir() else name, trust_remote_code=False
        )
    except Exception as error:  # transformers, tokenizers and the hub raise some twenty types here
        text = " ".join(str(error).split())
        raise ModelError(f"the tokenizer of {model!r} can't be loaded: {text[:300]}") from error
