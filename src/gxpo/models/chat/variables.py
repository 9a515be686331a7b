"""A chat format with other variables of its template, for one conversation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gxpo.base.errors import ModelError
from gxpo.models.chat.template import TemplateChat
from gxpo.parts.protocols import Chat

# Parameters of transformers' `apply_chat_template`, which the conversation itself gives.
TAKEN = frozenset(
    {
        *("conversation", "messages", "tools", "documents", "chat_template", "add_generation_prompt", "tokenize"),
        *("continue_final_message", "padding", "truncation", "max_length", "return_tensors", "return_dict"),
        *("return_assistant_tokens_mask", "tokenizer_kwargs"),
    }
)


def with_variables(chat: Chat, variables: Mapping[str, Any]) -> Chat:
    """The same format with these variables beside its own (`enable_thinking`).

    ModelError for a variable that the template does not read, and where actions would end by other tokens than the run
    samples to. Takes a few renderings: keep what it returns.
    """
    if not isinstance(chat, TemplateChat):
        raise ModelError("the policy has no chat template, so that there is nothing to set: leave the variables out")
    for name in variables:
        if name in TAKEN:
            raise ModelError(f"{name!r} is no variable of a template: leave it out")
        if not re.search(rf"\b{re.escape(name)}\b", chat.template.text):
            raise ModelError(f"the chat template reads no variable {name[:80]!r}: leave it out")
    other = TemplateChat(chat.tokenizer, chat.template.text, {**chat.template.kwargs, **variables}, *chat.settings)
    if other.stop_ids != chat.stop_ids:
        raise ModelError(
            f"with {dict(variables)} an action would end by other tokens than those that the run samples to"
        )
    return other
