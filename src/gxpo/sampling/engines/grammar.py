"""Grammars that a reply has to follow (JSON Schema, regular expression, choices), as masks of tokens, by llguidance."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from gxpo.base.errors import ModelError, need

# json: a JSON Schema; regex: an expression of Rust's `regex`; choice: a JSON list of texts; lark: llguidance's grammars
KINDS = ("json", "regex", "choice", "lark")
COMPILED = 64  # grammars in the cache
# A policy that is not trained yet can go on with blanks for ever: some are enough for any layout.
BLANKS = {"whitespace_flexible": True, "whitespace_pattern": r"[ \t\r\n]{0,24}"}


def compile_grammar(grammar: tuple[str, str]) -> str:
    """Grammar in llguidance's form. ModelError with its reason for one that it can't take."""
    matcher = need("llguidance", "structured").LLMatcher
    kind, source = grammar
    if kind not in KINDS:
        raise ModelError(f"a grammar is of the kinds {', '.join(KINDS)}, not {kind!r}")
    try:
        if kind == "json":
            text = matcher.grammar_from_json_schema(source, defaults=BLANKS)
        elif kind == "regex":
            text = matcher.grammar_from_regex(source)
        else:
            text = matcher.grammar_from_lark(_choices(source) if kind == "choice" else source)
    except ValueError as error:
        raise ModelError(_one_line(error)) from error
    if error := matcher.validate_grammar(text):
        # what it only warns of, it enforces otherwise than it was meant
        raise ModelError(_one_line(error))
    return text


def _choices(source: str) -> str:
    """Lark grammar of one of several texts."""
    return "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in json.loads(source))


def _one_line(error: Any) -> str:
    return " ".join(str(error).split())[:160]


class Grammars:
    """Matchers of grammars for one tokenizer.

    tokenizer   of transformers;   vocabulary  width of the logits
    stop_ids    ids that end a reply: they are allowed where the grammar may end, and alone where it must
    """

    def __init__(self, tokenizer: Any, vocabulary: int, stop_ids: Sequence[int]) -> None:
        if tokenizer is None:
            raise ModelError("a grammar needs the tokenizer's texts: give the engine a tokenizer")
        ends = sorted({i for i in stop_ids if 0 <= i < vocabulary})
        if not ends:
            raise ModelError(
                "a grammar needs a token that ends the reply, and the model has none: set sampling.stop_ids"
            )
        self._tokenizer = _llguidance_tokenizer(tokenizer, vocabulary, ends)
        self._matchers: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def matcher(self, grammar: tuple[str, str]) -> Matcher:
        """A matcher at the beginning of the grammar. ModelError for one that can't be compiled."""
        if grammar not in self._matchers:
            matcher = need("llguidance", "structured").LLMatcher(self._tokenizer, compile_grammar(grammar), log_level=0)
            if matcher.is_error():
                raise ModelError(_one_line(matcher.get_error()))
            self._matchers[grammar] = matcher
            if len(self._matchers) > COMPILED:
                self._matchers.popitem(last=False)
        self._matchers.move_to_end(grammar)
        return Matcher(self._matchers[grammar].deep_copy())


class Matcher:
    """Place of one reply in its grammar."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def mask(self) -> bytes | None:
        """Packed bits of the ids that may come next; None: llguidance gave up (the grammar became too complex)."""
        mask = self._matcher.compute_bitmask()
        return None if self._matcher.is_error() else mask

    def accept(self, token: int) -> bool:
        """Go on by a token; False if llguidance can't."""
        return bool(self._matcher.consume_token(token))


# ---------------------------------------------------------------- tokenizers
def _llguidance_tokenizer(tokenizer: Any, vocabulary: int, ends: list[int]) -> Any:
    """llguidance's form of a tokenizer: from its file or, of one that it can't read, from the texts of its tokens."""
    llguidance = need("llguidance", "structured")
    try:
        from llguidance import hf

        return hf.from_tokenizer(tokenizer, n_vocab=vocabulary, eos_token=ends)
    except Exception:  # its own reader knows byte-level and byte-fallback vocabularies alone
        wrapper = llguidance.TokenizerWrapper(_Texts(tokenizer, ends[0]))
        return llguidance.LLTokenizer(wrapper, n_vocab=vocabulary, eos_token=ends)


class _Texts:
    """Tokens as bytes, of a vocabulary whose tokens are written as they decode."""

    def __init__(self, tokenizer: Any, end: int) -> None:
        decode: Callable[..., str] = tokenizer.decode
        special = {int(i) for i in tokenizer.added_tokens_decoder} | set(tokenizer.all_special_ids)
        texts = [decode([i], clean_up_tokenization_spaces=False) for i in range(len(tokenizer))]
        # a token that decodes to half a character has no text by which a grammar could know it
        if any(not text or "\ufffd" in text for i, text in enumerate(texts) if i not in special):
            raise ModelError(
                f"the tokens of {type(tokenizer).__name__} can't be told as bytes, so no grammar can be followed: use "
                "a model with a byte-level or SentencePiece tokenizer"
            )
        self.tokens = [text.encode() for text in texts]
        self.special_token_ids = sorted(special)
        self.eos_token_id, self.bos_token_id = end, tokenizer.bos_token_id
        plain = (i for i in range(len(texts)) if i not in special)
        self._id_of = {self.tokens[i]: i for i in plain}
        self._longest = max(map(len, self._id_of), default=1)

    def __call__(self, text: bytes | str) -> list[int]:
        """Ids of a text, the longest token first: where a grammar leaves one text, its tokens are forced as these."""
        rest = text.encode() if isinstance(text, str) else bytes(text)
        out: list[int] = []
        while rest:
            n = next((n for n in range(self._longest, 0, -1) if rest[:n] in self._id_of), 0)
            if not n:
                break  # llguidance goes on byte by byte
            out.append(self._id_of[rest[:n]])
            rest = rest[n:]
        return out
