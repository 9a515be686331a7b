"""Conversations: messages to tokens turn by turn, for chat templates of transformers and for base models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gxpo.base.errors import ConfigError
from gxpo.base.imports import lazy_names

if TYPE_CHECKING:
    from gxpo.models.chat.check import Check, Report, check_template
    from gxpo.models.chat.plain import PlainChat, RowsOf
    from gxpo.models.chat.rendered import RenderedChat
    from gxpo.models.chat.template import TemplateChat
    from gxpo.parts.protocols import Chat

__all__ = ["Check", "PlainChat", "RenderedChat", "Report", "TemplateChat", "check_template", "make"]

# rollouts read `messages` alone, and composing a method loads rollouts: templates load when they are asked for
__getattr__ = lazy_names(
    __name__,
    Check="check",
    PlainChat="plain",
    RenderedChat="rendered",
    Report="check",
    TemplateChat="template",
    check_template="check",
)


def make(
    tokenizer: Any,
    *,
    template: str | Path = "auto",
    kwargs: Mapping[str, Any] | None = None,
    rewrites: str = "rebuild",
    tools_format: str = "auto",
    stop: Sequence[str] = (),
    rows_of: RowsOf | None = None,
    picture: str | None = None,
) -> Chat:
    """Conversation format of this tokenizer's model.

    template  "auto": the tokenizer's chat template if it has one, else none; "none": texts one after the other;
              "rendered": texts that hold a rendered template already, taken as they are (`RenderedChat`); else Jinja
              text or a file of it. The other arguments are those of `TemplateChat`, and need a template.
    rows_of   ids of a picture's rows by its reference, for a vision model
    picture   text of the token by which a template of that model shows a picture
    """
    from gxpo.models.chat.plain import PlainChat
    from gxpo.models.chat.render import has_template
    from gxpo.models.chat.rendered import RENDERED, RenderedChat
    from gxpo.models.chat.template import TemplateChat

    # settings of a template would be ignored without one: refuse them
    if template == RENDERED:
        if kwargs or tools_format == "native":
            raise ConfigError("template is 'rendered': kwargs and tools_format='native' need one that is rendered here")
        return RenderedChat(tokenizer)
    if template == "none" or (template == "auto" and not has_template(tokenizer)):
        if kwargs or stop or tools_format == "native":
            why = "template is 'none'" if template == "none" else "the tokenizer has no chat template"
            raise ConfigError(f"{why}: kwargs, stop and tools_format='native' need one (template=FILE.jinja)")
        return PlainChat(tokenizer, rows_of)
    text = None if template == "auto" else template
    return TemplateChat(tokenizer, text, kwargs, rewrites, tools_format, stop, rows_of, picture)
