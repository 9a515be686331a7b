"""`gxpo check-template`: test a chat template on multi-turn conversations. Loads only a tokenizer."""

from __future__ import annotations

from gxpo.models.chat import Report, check_template
from gxpo.training.models.without_weights import tokenizer_of


def check(model: str, template: str | None = None) -> Report:
    """Test the chat format of `model`: a directory, an id on the hub, or a name that gxpo knows.

    template  a .jinja file instead of the tokenizer's own
    """
    return check_template(tokenizer_of(model), template)
