"""Grammars as masks of tokens: kinds, reasons of refusals, tokenizers, ends."""

import json

import numpy as np
import pytest
from tests.models.chat.families import tokenizer_of
from tests.sampling.engines.letters import letters

from gxpo.base.errors import ModelError
from gxpo.models.tiny import character_tokenizer
from gxpo.sampling.engines.grammar import Grammars, compile_grammar

pytest.importorskip("llguidance")


def allowed(matcher, vocabulary):
    """Ids that may come next."""
    bits = np.unpackbits(np.frombuffer(matcher.mask(), dtype=np.uint8), bitorder="little")[:vocabulary]
    return set(np.flatnonzero(bits).tolist())


def followed(grammars, grammar, tokenizer, text):
    """The matcher behind the tokens of a text, each of which its mask must allow."""
    matcher = grammars.matcher(grammar)
    for token in tokenizer(text, add_special_tokens=False).input_ids:
        assert token in allowed(matcher, 4096), (text, tokenizer.decode([token]))
        assert matcher.accept(token)
    return matcher


@pytest.mark.parametrize("tokenizer", [character_tokenizer(), tokenizer_of("qwen25")], ids=["characters", "bytes"])
def test_texts_of_a_schema_are_allowed_and_then_end(tokenizer):
    end, vocabulary = tokenizer.eos_token_id, len(tokenizer) + 7
    grammars = Grammars(tokenizer, vocabulary, [end])
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yz"]}},
              "required": ["a"], "additionalProperties": False}  # fmt: skip
    grammar = ("json", json.dumps(schema))
    for text in ('{"a": 12, "b": "yz"}', '{"a":-3}', '{\n  "a": 0\n}'):
        matcher = followed(grammars, grammar, tokenizer, text)
        assert allowed(matcher, vocabulary) == {end}
    opened = followed(grammars, grammar, tokenizer, '{"a": 1')
    assert end not in allowed(opened, vocabulary)
    # ids that the tokenizer does not have are never allowed
    assert max(allowed(opened, vocabulary)) < len(tokenizer)


def test_every_end_is_allowed_where_the_grammar_may_end():
    tokenizer = character_tokenizer()
    grammars = Grammars(tokenizer, len(tokenizer), [2, 0])
    matcher = followed(grammars, ("regex", "ab*"), tokenizer, "ab")
    assert allowed(matcher, len(tokenizer)) == {0, 2, tokenizer.convert_tokens_to_ids("b")}


def test_blanks_between_parts_have_a_limit():
    tokenizer = character_tokenizer()
    grammars = Grammars(tokenizer, len(tokenizer), [2])
    blank = tokenizer.convert_tokens_to_ids(" ")
    matcher = followed(grammars, ("json", '{"type": "array", "items": {"type": "boolean"}}'), tokenizer, "[" + " " * 24)
    assert blank not in allowed(matcher, len(tokenizer))


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (("json", '{"type": "array", "uniqueItems": true}'), "uniqueItems"),
        (("json", '{"type": "strange"}'), "Invalid type: strange"),
        (("regex", "(a"), "unclosed group"),
        (("lark", "start: nothing"), "nothing"),
        (("yaml", "a"), "of the kinds json, regex, choice, lark"),
    ],
)
def test_what_can_not_be_followed_is_refused_in_one_line(grammar, reason):
    with pytest.raises(ModelError) as caught:
        compile_grammar(grammar)
    assert reason in str(caught.value) and "\n" not in str(caught.value)


def test_a_tokenizer_without_texts_or_an_end_is_refused():
    with pytest.raises(ModelError, match="needs the tokenizer's texts"):
        Grammars(None, 31, [1])
    with pytest.raises(ModelError, match="needs a token that ends the reply"):
        Grammars(letters(), 31, [31])
