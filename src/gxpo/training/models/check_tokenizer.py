"""Whether a tokenizer fits its chat template and its model: round trip, special tokens, end and pad ids."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from gxpo.base.errors import ModelError
from gxpo.models.chat.check import tag_note
from gxpo.models.chat.facts import message
from gxpo.models.chat.plain import Tokens
from gxpo.models.chat.render import has_template, source
from gxpo.models.chat.template import TemplateChat

PLAIN = "Question: what is 12 + 30?\nAnswer: 42"  # of a tokenizer without a template
ASKED = [
    message("user", "What is 12 + 30?"),
    message("assistant", "It is 42."),
    message("user", "And 7 * 6?\nShort, please."),
]
SHOWN = 6  # tokens in a line
WRITTEN = re.compile(r"<\|[^|<>\s{}'\"]+\|>")  # names of special tokens in a template's text
NAMED = re.compile(r"\b(bos_token|eos_token|pad_token|unk_token)\b")  # and those that it is given


@dataclass
class TokenizerFacts:
    """A line for each question, and what is wrong or worth knowing."""

    round_trip: str = ""
    template_tokens: str = ""
    ends: str = ""
    pad: str = ""
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def check_tokenizer(tokenizer: Any, vocabulary: int, end_ids: tuple[int, ...] | list[int]) -> TokenizerFacts:
    """Check the tokenizer of a model of `vocabulary` ids whose answers end with one of `end_ids`."""
    found, chat = TokenizerFacts(), None
    if has_template(tokenizer):
        try:
            chat = TemplateChat(tokenizer)
        except ModelError as error:
            found.problems.append(f"chat template: {error} (gxpo check-template MODEL says more)")
        _template_tokens(found, tokenizer, vocabulary, chat)
    _round_trip(found, tokenizer, chat)
    _ends(found, tokenizer, vocabulary, end_ids, chat)
    _pad(found, tokenizer, vocabulary, end_ids)
    if note := tag_note(Tokens(tokenizer) if chat is None else chat.tokens):
        found.notes.append(note)
    return found


def _round_trip(found: TokenizerFacts, tokenizer: Any, chat: TemplateChat | None) -> None:
    """Ids -> text -> ids of a conversation as the template writes it, else of a plain text."""
    tokens = Tokens(tokenizer)
    text, of = (PLAIN, "a plain text") if chat is None else (chat.template.render(ASKED), "the template's conversation")
    ids = tokens.encode(text)
    back = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    again = tokens.encode(back)
    at = next((i for i, (a, b) in enumerate(zip(ids, again, strict=False)) if a != b), min(len(ids), len(again)))
    if again == ids:
        found.round_trip = f"ids -> text -> ids: the same {len(ids)} ids of {of}"
    else:
        found.round_trip = f"ids -> text -> ids: others from id {at} of {len(ids)} of {of} on ({_near(text, back)})"
    if "".join(text.split()) != "".join(back.split()):
        found.problems.append(
            f"decoding loses text: {_near(text, back)}; rewards and judges read another text than the ids stand for"
        )
    elif again != ids:
        found.notes.append("ids change by way of text: train on sampled ids, as gxpo does, not on their text")


def _near(text: str, back: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(text, back, strict=False)) if a != b), min(len(text), len(back)))
    return f"{text[at : at + 12]!r} became {back[at : at + 12]!r}"


def _template_tokens(found: TokenizerFacts, tokenizer: Any, vocabulary: int, chat: TemplateChat | None) -> None:
    """Tokens that the template's source names."""
    text = source(tokenizer, None)
    named = [(name, getattr(tokenizer, name, None)) for name in dict.fromkeys(NAMED.findall(text))]
    for name in [name for name, value in named if value is None]:
        found.problems.append(
            f"the chat template uses {name}, and the tokenizer has none: set it in tokenizer_config.json"
        )
    ids: dict[str, int] = {}
    missing: list[str] = []
    for token in dict.fromkeys([*WRITTEN.findall(text), *(value for _, value in named if value is not None)]):
        pieces = tokenizer(token, add_special_tokens=False, verbose=False).input_ids
        if len(pieces) != 1:
            missing.append(f"{token} (read as {len(pieces)} ids)")
            if chat is not None and _ends_with(chat, token):
                found.problems.append(
                    f"the chat template ends an answer with {token}, which is no token of the vocabulary: read as "
                    f"{len(pieces)} ids, and no stop"
                )
        elif pieces[0] >= vocabulary:
            found.problems.append(f"the chat template writes {token}, id {pieces[0]}: the model has {vocabulary:,} ids")
        else:
            ids[token] = pieces[0]
    shown = ", ".join(f"{token} {i}" for token, i in list(ids.items())[:SHOWN])
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    found.template_tokens = f"{shown}{more}" if ids else "names none"
    if missing:  # roles of some models are plain text
        found.template_tokens += f"; no tokens: {', '.join(missing)}"
        found.notes.append(
            "the chat template writes markers that are no tokens: right for a model that was trained so, and the wrong "
            "tokenizer or template for others"
        )


def _ends_with(chat: TemplateChat, token: str) -> bool:
    """Whether the template writes a token right behind an answer."""
    text = chat.template.render(ASKED[:2], answer=False)
    return text.rpartition(ASKED[1]["content"])[2].lstrip().startswith(token)


def _ends(
    found: TokenizerFacts,
    tokenizer: Any,
    vocabulary: int,
    end_ids: tuple[int, ...] | list[int],
    chat: TemplateChat | None,
) -> None:
    """Where an answer ends: whether those ids can be sampled, and what the template adds to them."""
    names = {i: tokenizer.convert_ids_to_tokens(i) if i < len(tokenizer) else None for i in end_ids}
    for i, name in names.items():
        if i >= vocabulary:
            found.problems.append(f"end id {i} can't be sampled: the model has {vocabulary:,} ids")
        elif name is None:
            found.problems.append(f"end id {i} is no token of the tokenizer")
    told = [f"{name} {i}" for i, name in names.items() if name is not None and i < vocabulary]
    more = [] if chat is None else [i for i in chat.stop_ids if i not in names]
    told += [f"{tokenizer.convert_ids_to_tokens(i)} {i} by the chat template" for i in more]
    found.ends = ", ".join(told)
    if more:
        found.notes.append(
            f"the chat template ends a turn with {tokenizer.convert_ids_to_tokens(more[0])}, which "
            "generation_config.json does not name: gxpo stops there, other programs may not"
        )
    if chat is not None and not chat.stop_ids:
        found.problems.append("the chat template has no token that ends an answer: give sampling.stop")


def _pad(found: TokenizerFacts, tokenizer: Any, vocabulary: int, end_ids: tuple[int, ...] | list[int]) -> None:
    pad = tokenizer.pad_token_id
    if pad is None:
        found.problems.append("no pad token: set pad_token in tokenizer_config.json")
        return
    found.pad = f"{tokenizer.pad_token} {pad}"
    if pad >= vocabulary:
        found.problems.append(f"pad id {pad} is none of the model's {vocabulary:,} ids")
    if pad in end_ids:
        found.pad += ", an end id too"
        found.notes.append(
            "pad is an end id: gxpo masks by position and trains the end; what masks by id trains no end at all"
        )
