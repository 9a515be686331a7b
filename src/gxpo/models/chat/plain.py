"""Encode texts piece by piece, and hold conversations of plain texts without a template."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from gxpo.base import media
from gxpo.base.errors import GxpoError, ModelError, need
from gxpo.models.chat import tools as toolbox
from gxpo.models.chat.formats import TAGS
from gxpo.models.chat.markers import MARKERS
from gxpo.models.chat.messages import has_calls, normal_messages, with_tags, without_prefill
from gxpo.models.chat.reading import read
from gxpo.models.picture_tokens import Codebook
from gxpo.parts.protocols import ContextUpdate, Message, Reply, ToolCall

RowsOf = Callable[[str], tuple[int, ...]]  # a picture's reference -> ids of its rows
ROLES = ("bos", "eos", "pad", "unk", "sep", "cls", "mask")  # of special tokens without content
BREAK = "\ufdd0\ufdd1\ufdd0"  # noncharacters of Unicode, which no ordinary text has
_ALONE = "\ufdd2\ufdd3\ufdd2"


class Tokens:
    """Token ids of text in the middle of a context, and back.

    Some tokenizers put a space before the first word they are given, or drop it when decoding. Each piece is therefore
    encoded and decoded behind a special token (the anchor), which is taken off again.

    A control token's name in a text is that token, as everywhere in transformers, unless the text was `typed`: then it
    is encoded as the letters that it is, and can still be put into a chat template, whose own control tokens stay.

    markers  added tokens of the vocabulary by text, special or not: no merge crosses them
    control  those that users and tools may not write: the special ones, and what is `guard`ed
    content  ids of special tokens that belong to the text of an action, such as an added <search>: none that end or pad
             a text or stand around turns
    bos      what the tokenizer puts before a text, where that is its bos alone
    rows_of  ids of a picture's rows, for vision models: a text holds a picture as `media.mark`
    picture  text of the token that stands for a picture in a template of that model
    """

    def __init__(self, tokenizer: Any, rows_of: RowsOf | None = None, picture: str | None = None) -> None:
        self.tokenizer, self.rows_of, self.picture = tokenizer, rows_of, picture
        added = tokenizer.added_tokens_decoder
        self.markers: dict[str, int] = {str(t.content): int(i) for i, t in added.items()}
        self.eos: int | None = tokenizer.eos_token_id
        if self.eos is not None:
            # the end-of-text token need not be among the added ones, and it always ends an action
            self.markers.setdefault(str(tokenizer.eos_token), self.eos)
        special = {t.content: int(i) for i, t in added.items() if t.special}
        special |= dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
        self._special, self.control = dict(special), special
        self._control = _pattern_of_any(special)
        # tokens with a role (bos, pad) or of turns are noise in an action; others, such as <search>, are part of what
        # it says
        roles = {getattr(tokenizer, f"{role}_token_id", None) for role in ROLES}
        self.special_ids = frozenset(special.values())
        self.content = frozenset(i for name, i in special.items() if i not in roles and name not in MARKERS)
        self.frame(())
        # such tokens eat the blanks beside them when the whole text is encoded; pieces have to do the same
        self._swallow_left = {t.content for t in added.values() if t.lstrip}
        self._swallow_right = {t.content for t in added.values() if t.rstrip}
        self.anchor = self._anchor(added)
        # only a bos alone is put before a text: other tokens of a tokenizer's post-processing belong to no conversation
        begin = list(tokenizer("", verbose=False).input_ids)[:1]
        self.bos: tuple[int, ...] = tuple(begin) if begin == [tokenizer.bos_token_id] else ()

    def guard(self, names: Iterable[str]) -> None:
        """Treat these markers as control tokens."""
        self.control |= {name: self.markers[name] for name in names}
        self._control = _pattern_of_any(self.control)
        self.frame(self.markers[name] for name in names)

    def frame(self, ids: Iterable[int]) -> None:
        """Treat these tokens as no content: they stand around turns, or end them."""
        self.content -= frozenset(ids)
        self._noise = _pattern_of_any(name for name, i in self._special.items() if i not in self.content)

    def _anchor(self, added: Any) -> tuple[int, str] | None:
        """Find a special token that encodes to itself and swallows no adjacent space."""
        usable = [int(i) for i, t in added.items() if t.special and not t.rstrip and not t.lstrip and not t.single_word]
        for i in ([self.eos] if self.eos in usable else []) + sorted(usable):
            text = added[i].content
            if self._ids(text + "a")[:1] == [i]:
                return i, text
        return None

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False, verbose=False).input_ids

    def text_of(self, token: int) -> str:
        """Text of one control token (a marker or eos)."""
        return self.tokenizer.convert_ids_to_tokens(token)

    def typed(self, value: Any) -> Any:
        """Escape the names of control tokens in a text (or a message), so that they are encoded as plain text."""
        if not isinstance(value, str):
            return _apply_to_parts(value, self.typed)
        if self._control is None or not self._control.search(value):
            return value
        return re.sub(f"(?={self._control.pattern})(.)", rf"\1{BREAK}", value, flags=re.DOTALL)

    def control_in(self, text: str) -> list[str]:
        """Names of control tokens in a text."""
        return [] if self._control is None else self._control.findall(text)

    def plain(self, value: Any) -> Any:
        """The inverse of `typed`."""
        return value.replace(BREAK, "") if isinstance(value, str) else _apply_to_parts(value, self.plain)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of text at the beginning of a context; no special token is added."""
        if media.MARK[0] in text:
            return self._with_pictures(text, self.encode)
        if self._control is not None and BREAK in text:
            return self._encode_typed(text, self._control, None, first=True)
        return tuple(self._ids(text))

    def encode_after(self, text: str, marker: int | None = None) -> tuple[int, ...]:
        """Token ids of text after `marker` (None: any other token)."""
        if not text:
            return ()
        # pictures are spans of ids beyond the vocabulary, which no tokenizer knows
        if media.MARK[0] in text:
            return self._with_pictures(text, lambda t: self.encode_after(t, marker))
        if self._control is not None and BREAK in text:
            return self._encode_typed(text, self._control, marker, first=False)
        # SentencePiece treats the start of a text as the start of a word: with an anchor before it the piece is encoded
        # as in the middle
        behind = self.anchor if marker is None else (marker, self.text_of(marker))
        if behind is not None:
            ids = self._ids(behind[1] + text)
            # the anchor's own id is cut off, but only if it was not merged with the text
            if ids and ids[0] == behind[0]:
                return tuple(ids[1:])
        return tuple(self._ids(text))

    def _with_pictures(self, text: str, begin: Callable[[str], tuple[int, ...]]) -> tuple[int, ...]:
        """Ids of a text with pictures; the text before the first one is encoded by `begin`."""
        if self.rows_of is None:
            raise ModelError("the messages hold a picture, and the model reads texts alone: take one that sees")
        first, *rest = media.split(text)
        ids = begin(first) if first else ()
        for ref, text_after in zip(rest[::2], rest[1::2], strict=True):
            ids += self.rows_of(ref) + self.encode_after(text_after)
        return ids

    def _encode_typed(self, text: str, control: re.Pattern[str], marker: int | None, first: bool) -> tuple[int, ...]:
        """Ids of a text with typed names of control tokens.

        The text is cut at its control tokens: stretches that hold such a name are encoded by themselves, all others as
        usual.
        """
        ids: tuple[int, ...] = ()
        pending, before = "", "" if marker is None else self.text_of(marker)

        def encode_ready() -> tuple[int, ...]:
            if not pending:
                return ()
            return tuple(self._ids(pending)) if first or ids else self.encode_after(pending, marker)

        for piece, after in zip(control.split(text), [*control.findall(text), ""], strict=True):
            if BREAK in piece:
                # what came before has to be encoded with its neighbours, as the tokenizer would without the typed name
                ids += encode_ready()
                # tokens with lstrip or rstrip eat blanks of the whole text, so a piece beside one loses them here
                piece = piece.lstrip() if before in self._swallow_right else piece
                piece = piece.rstrip() if after in self._swallow_left else piece
                ids += self._encode_letters(piece, first and not ids)
                pending = after
            else:
                pending += piece + after
            before = after
        return ids + encode_ready()

    def _encode_letters(self, text: str, first: bool) -> tuple[int, ...]:
        """Ids of a typed text, none of them a control token."""
        # a copy of the tokenizer that does not split at special tokens; its ids hold only where none is a control token
        if self._literal_tokenizer is not None:
            anchor_text = "" if first else _ALONE
            literal_ids = self._literal_tokenizer(
                anchor_text + self.plain(text), add_special_tokens=False, verbose=False
            ).input_ids
            ids = tuple(literal_ids[0 if first else 1 :])
            if not {*self.control.values()} & {*ids} - {self.tokenizer.unk_token_id}:
                return ids
        begin, *rest = text.split(BREAK)  # a name that is cut in two becomes no token
        ids = self.encode(begin) if first else self.encode_after(begin)
        return ids + tuple(i for piece in rest for i in self.encode_after(piece))

    @cached_property
    def _literal_tokenizer(self) -> Any:
        """Copy of a fast tokenizer that reads special tokens as text, with an anchor of its own.

        None for slow tokenizers, which would then know no added tokens at all.
        """
        if not getattr(self.tokenizer, "is_fast", False):
            return None
        twin = copy.deepcopy(self.tokenizer)
        twin.add_tokens([need("tokenizers", "train").AddedToken(_ALONE, normalized=False, special=False)])
        twin.split_special_tokens = True
        return twin

    def decode_after(self, ids: Sequence[int]) -> str:
        """Text of token ids in the middle of a context; special tokens are written out, and text that only looks like a
        control token is `typed`."""
        if not ids:
            return ""
        text = self._decoded(ids)
        # text that spells a control token without being one would be read as one when it is encoded again
        if self._control is None or not (control_names := self._control.findall(text)):
            return text
        control = {*self.control.values()}
        places = [n for n, i in enumerate(ids) if i in control]
        # every name in the text is a token in the ids: nothing was spelled out
        if control_names == [self.text_of(ids[n]) for n in places]:
            return text
        out, begin = "", 0
        for n in (*places, len(ids)):
            out += self.typed(self._decoded(ids[begin:n])) + (self.text_of(ids[n]) if n < len(ids) else "")
            begin = n + 1
        return out

    def _decoded(self, ids: Sequence[int]) -> str:
        if not ids:
            return ""
        if self.anchor is not None:
            text = self._text([self.anchor[0], *ids])
            if text.startswith(self.anchor[1]):
                return text[len(self.anchor[1]) :]
        return self._text(list(ids))

    def _text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def split_stop(self, ids: Sequence[int], stop_ids: Sequence[int]) -> tuple[str, int | None]:
        """Split an action into its text and the token that ended it (None: it was cut)."""
        if ids and ids[-1] in stop_ids:
            return self.decode_after(ids[:-1]), ids[-1]
        return self.decode_after(ids), None

    def without_special(self, text: str) -> str:
        """Remove special tokens that are no content; escaped names of them stay, as text."""
        return self.plain(self._noise.sub("", text) if self._noise else text)

    def marker_at_start(self, text: str) -> str | None:
        """Longest marker at the beginning of `text`, after optional white space; None without one."""
        text = text.lstrip()
        matches = [m for m in self.markers if text.startswith(m)]
        return max(matches, key=len) if matches else None

    def one_id(self, text: str) -> int:
        """Token id of a marker; `ModelError` if it is not a single token of the vocabulary."""
        if text not in self.markers:
            raise ModelError(f"{text!r} is not one token of this tokenizer: a stop token has to be")
        return self.markers[text]


def _apply_to_parts(value: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to every part of a mapping or list."""
    if isinstance(value, Mapping):
        return {key: change(x) for key, x in value.items()}
    return [change(x) for x in value] if isinstance(value, list | tuple) else value


def _pattern_of_any(texts: Iterable[str]) -> re.Pattern[str] | None:
    longest_first = sorted({t for t in texts if t}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def decoder(tokenizer: Any, chat: Any = None) -> Callable[[Sequence[int]], str]:
    """Function from ids to text for people and rewards: ids outside of the vocabulary are left out, pictures named.

    Special tokens are left out, but for those that the `chat` format knows as content (`Tokens.content`).
    """
    tokens: Tokens | None = getattr(chat, "tokens", None)
    # tools' markers such as <tool_call> may be special tokens, and a reward that parses calls needs to see them
    content = frozenset() if tokens is None else tokens.content
    codebook = Codebook.of(tokenizer)

    def plain(ids: Sequence[int]) -> str:
        ids = [t for t in ids if t >= 0]
        if codebook is not None and min(ids, default=codebook.end) < len(codebook.patches):
            return media.label(codebook.picture(ids))
        if content.isdisjoint(ids):
            return tokenizer.decode(ids, skip_special_tokens=True)
        assert tokens is not None
        noise = tokens.special_ids - content
        return tokenizer.decode([t for t in ids if t not in noise], skip_special_tokens=False)

    # ids of pictures are beyond the vocabulary, and a tokenizer raises on them
    return lambda ids: media.readable(ids, plain) if max(ids, default=0) >= media.FIRST else plain(ids)


def raw_decoder(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    """Function from ids to their exact text, special tokens written out; ids outside of the vocabulary are left out."""

    def plain(ids: Sequence[int]) -> str:
        vocabulary_ids = [t for t in ids if 0 <= t < media.FIRST]
        return tokenizer.decode(vocabulary_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    return plain


# ---------------------------------------------------------------- conversations without a template
class PlainChat:
    """Plain text: the texts of the first messages, joined by newlines, after the tokenizer's bos. Later ones are
    appended as they are, so any separator between an action and the next observation, e.g. a newline, is part of the
    observation. The name of a special token in one of them stays text.

    An action ends at eos. Roles are not written. Calls have the form `<tool>name({"key": value})</tool>`.
    """

    tools_format = "tags"

    def __init__(self, tokenizer: Any, rows_of: RowsOf | None = None) -> None:
        self.tokenizer = tokenizer
        self.tokens = Tokens(tokenizer, rows_of)
        eos = self.tokens.eos
        self.stop_ids: tuple[int, ...] = () if eos is None else (eos,)
        self.tokens.frame(self.stop_ids)

    def start(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> PlainConversation:
        """Start a conversation: bos, if the tokenizer has one, and the texts."""
        if not messages:
            raise ModelError("a conversation starts with at least one message")
        return PlainConversation(self, messages, tools)


class PlainConversation:
    """Conversation of `PlainChat.start`; its context is only ever appended to."""

    rebuilt = kept_against_template = respelled = 0
    _opened: str | None = None  # closing tag of a thought that the prompt opens

    def __init__(self, chat: PlainChat, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self.chat = chat
        messages = normal_messages(messages)
        messages = [m if isinstance(m["content"], str) else media.with_marks(m) for m in messages]
        # a last message of the assistant's is the beginning of the answer: the policy continues it
        self.messages, self._prefix = without_prefill(messages)  # the context ends in the assistant's text in any case
        self._has_tools = bool(tools)
        self._calls: tuple[ToolCall, ...] = ()
        self._count = 0
        self._waits_for_action = True
        prompt_messages = toolbox.with_instructions(messages, tools, True) if tools else messages
        # user text may spell control tokens: `typed` has it encoded as letters
        self.context: tuple[int, ...] = chat.tokens.bos + chat.tokens.encode(
            chat.tokens.typed(joined_texts(prompt_messages))
        )

    def copy(self) -> PlainConversation:
        """Independent copy of the conversation."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.messages = list(self.messages)
        return twin

    def act(self, tokens: Sequence[int]) -> Reply:
        """Append the sampled ids as they are, and return the parsed action."""
        if not self._waits_for_action:
            # ids of an observation follow each action: without one, two actions would count as one in the tree
            raise GxpoError("two actions in a row: observe() something (an empty list is possible) between them")
        ids = tuple(int(t) for t in tokens)
        text, _ = self.chat.tokens.split_stop(ids, self.chat.stop_ids)
        reading = read(text, TAGS, {}, self._has_tools, self._opened)
        plain = self.chat.tokens.plain
        calls = tuple(
            ToolCall(plain(c.name), plain(c.arguments), f"call{self._count + i:05d}", c.error)
            # names and arguments are the policy's text and may hold broken control tokens: shown as plain text
            for i, c in enumerate(reading.calls)
        )
        # the sampled ids and not those of the decoded text: encoding is not the inverse of decoding
        self.context += ids
        self._calls, self._count, self._waits_for_action = calls, self._count + len(calls), False
        self.messages.append({"role": "assistant", "content": self._prefix + plain(text)})
        clean = self.chat.tokens.without_special
        thinking = clean(reading.reasoning) if reading.reasoning is not None else None
        return Reply(clean(reading.content), thinking, calls)

    def observe(self, messages: Sequence[Message]) -> ContextUpdate:
        """Append texts; tool results are put between `<tool_result>` and `</tool_result>`."""
        if self._waits_for_action:
            raise GxpoError("observe() comes after act(): messages before the first action belong to start()")
        messages = toolbox.with_call_ids([media.with_marks(m) for m in normal_messages(messages)], self._calls)
        ids = self.chat.tokens.encode_after(self.chat.tokens.typed(joined_texts(messages)))
        self.context += ids
        messages, self._prefix = without_prefill(messages)
        self.messages += messages
        self._waits_for_action = True
        return ContextUpdate(ids)


def joined_texts(messages: Sequence[Message]) -> str:
    """Texts of messages, joined by newlines; tool calls and their answers are tags."""
    if has_calls(messages):
        messages = toolbox.as_user(with_tags(messages))
    return "\n".join([x if isinstance(x := m.get("content"), str) else media.marked(x) for m in messages])
