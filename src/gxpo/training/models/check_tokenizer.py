"""Check that a tokenizer fits its chat template and its model: round trip, special tokens, end and pad ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gxpo.base.errors import ModelError
from gxpo.models.chat.check import tag_note
from gxpo.models.chat.facts import message
from gxpo.models.chat.plain import Tokens
from gxpo.models.chat.render import has_template, source
from gxpo.models.chat.template import TemplateChat

PLAIN = "Question: what is 12 + 30?\nAnswer: 42"  # for a tokenizer without a template
CONVERSATION = [
    message("user", "What is 12 + 30?"),
    message("assistant", "It is 42."),
    message("user", "And 7 * 6?\nShort, please."),
]
MAX_LISTED = 6  # tokens listed in a line
MARKER = re.compile(r"<\|[^|<>\s{}'\"]+\|>")  # special tokens that a template spells out
TOKEN_NAME = re.compile(r"\b(bos_token|eos_token|pad_token|unk_token)\b")  # variables that a template is given


@dataclass
class TokenizerFacts:
    """Result of each check as a line of text, with notes and problems."""

    round_trip: str = ""
    template_tokens: str = ""
    ends: str = ""
    pad: str = ""
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def check_tokenizer(tokenizer: Any, vocabulary: int, end_ids: tuple[int, ...] | list[int]) -> TokenizerFacts:
    """Check the tokenizer of a model of `vocabulary` ids whose answers end with one of `end_ids`."""
    facts, chat = TokenizerFacts(), None
    if has_template(tokenizer):
        try:
            chat = TemplateChat(tokenizer)
        except ModelError as error:
            facts.problems.append(f"chat template: {error} (gxpo check-template MODEL says more)")
        _check_template_tokens(facts, tokenizer, vocabulary, chat)
    _check_round_trip(facts, tokenizer, chat)
    _check_ends(facts, tokenizer, vocabulary, end_ids, chat)
    _check_pad(facts, tokenizer, vocabulary, end_ids)
    if note := tag_note(Tokens(tokenizer) if chat is None else chat.tokens):
        facts.notes.append(note)
    return facts


def _check_round_trip(facts: TokenizerFacts, tokenizer: Any, chat: TemplateChat | None) -> None:
    """Check ids -> text -> ids on a conversation as the template renders it, or on a plain text."""
    tokens = Tokens(tokenizer)
    text, kind = PLAIN, "a plain text"
    if chat is not None:
        text, kind = chat.template.render(CONVERSATION), "the template's conversation"
    ids = tokens.encode(text)
    decoded = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    reencoded = tokens.encode(decoded)
    position = _first_difference(ids, reencoded)
    if reencoded == ids:
        facts.round_trip = f"ids -> text -> ids: the same {len(ids)} ids of {kind}"
    else:
        facts.round_trip = (
            f"ids -> text -> ids: others from id {position} of {len(ids)} of {kind} on ({_difference(text, decoded)})"
        )
    if "".join(text.split()) != "".join(decoded.split()):
        facts.problems.append(
            f"decoding loses text: {_difference(text, decoded)}; rewards and judges read another text than the ids "
            "stand for"
        )
    elif reencoded != ids:
        facts.notes.append("ids change by way of text: train on sampled ids, as gxpo does, not on their text")


def _first_difference(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the first index at which two sequences differ; the shorter length if there is none."""
    differences = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differences, min(len(one), len(other)))


def _difference(text: str, decoded: str) -> str:
    """Quote both texts from their first difference on."""
    position = _first_difference(text, decoded)
    return f"{text[position : position + 12]!r} became {decoded[position : position + 12]!r}"


def _check_template_tokens(facts: TokenizerFacts, tokenizer: Any, vocabulary: int, chat: TemplateChat | None) -> None:
    """Check the special tokens in the template's source: each must be one id, and one that the model has."""
    text = source(tokenizer, None)
    token_by_name = [(name, getattr(tokenizer, name, None)) for name in dict.fromkeys(TOKEN_NAME.findall(text))]
    for name in [name for name, value in token_by_name if value is None]:
        facts.problems.append(
            f"the chat template uses {name}, and the tokenizer has none: set it in tokenizer_config.json"
        )
    # A marker of several ids is ordinary text to the model. That may be on purpose, unless it is to end an answer.
    ids: dict[str, int] = {}
    missing: list[str] = []
    for token in dict.fromkeys([*MARKER.findall(text), *(value for _, value in token_by_name if value is not None)]):
        pieces = tokenizer(token, add_special_tokens=False, verbose=False).input_ids
        if len(pieces) != 1:
            missing.append(f"{token} (read as {len(pieces)} ids)")
            if chat is not None and _ends_with(chat, token):
                facts.problems.append(
                    f"the chat template ends an answer with {token}, which is no token of the vocabulary: read as "
                    f"{len(pieces)} ids, and no stop"
                )
        elif pieces[0] >= vocabulary:
            facts.problems.append(f"the chat template writes {token}, id {pieces[0]}: the model has {vocabulary:,} ids")
        else:
            ids[token] = pieces[0]
    examples = ", ".join(f"{token} {i}" for token, i in list(ids.items())[:MAX_LISTED])
    more = f" and {len(ids) - MAX_LISTED} more" if len(ids) > MAX_LISTED else ""
    facts.template_tokens = f"{examples}{more}" if ids else "names none"
    if missing:  # roles of some models are plain text
        facts.template_tokens += f"; no tokens: {', '.join(missing)}"
        facts.notes.append(
            "the chat template writes markers that are no tokens: right for a model that was trained so, and the wrong "
            "tokenizer or template for others"
        )


def _ends_with(chat: TemplateChat, token: str) -> bool:
    """Return True if the template writes `token` directly after an answer."""
    text = chat.template.render(CONVERSATION[:2], answer=False)
    return text.rpartition(CONVERSATION[1]["content"])[2].lstrip().startswith(token)


def _check_ends(
    facts: TokenizerFacts,
    tokenizer: Any,
    vocabulary: int,
    end_ids: tuple[int, ...] | list[int],
    chat: TemplateChat | None,
) -> None:
    """Check that end ids can be sampled, and list those that the chat template adds."""
    # A model may have more ids than its tokenizer, which then has no text for them.
    names = {i: tokenizer.convert_ids_to_tokens(i) if i < len(tokenizer) else None for i in end_ids}
    for i, name in names.items():
        if i >= vocabulary:
            facts.problems.append(f"end id {i} can't be sampled: the model has {vocabulary:,} ids")
        elif name is None:
            facts.problems.append(f"end id {i} is no token of the tokenizer")
    labels = [f"{name} {i}" for i, name in names.items() if name is not None and i < vocabulary]
    template_ends = [] if chat is None else [i for i in chat.stop_ids if i not in names]
    labels += [f"{tokenizer.convert_ids_to_tokens(i)} {i} by the chat template" for i in template_ends]
    facts.ends = ", ".join(labels)
    if template_ends:
        facts.notes.append(
            f"the chat template ends a turn with {tokenizer.convert_ids_to_tokens(template_ends[0])}, which "
            "generation_config.json does not name: gxpo stops there, other programs may not"
        )
    if chat is not None and not chat.stop_ids:
        facts.problems.append("the chat template has no token that ends an answer: give sampling.stop")


def _check_pad(facts: TokenizerFacts, tokenizer: Any, vocabulary: int, end_ids: tuple[int, ...] | list[int]) -> None:
    pad = tokenizer.pad_token_id
    if pad is None:
        facts.problems.append("no pad token: set pad_token in tokenizer_config.json")
        return
    facts.pad = f"{tokenizer.pad_token} {pad}"
    if pad >= vocabulary:
        facts.problems.append(f"pad id {pad} is none of the model's {vocabulary:,} ids")
    if pad in end_ids:
        facts.pad += ", an end id too"
        facts.notes.append(
            "pad is an end id: gxpo masks by position and trains the end; what masks by id trains no end at all"
        )
