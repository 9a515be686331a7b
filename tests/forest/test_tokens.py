"""Pieces are encoded and decoded as in the middle of a text, whatever the tokenizer does at its edges."""

import pytest
import tokenizers
import transformers
from tests.models.chat.families import tokenizer_of
from tokenizers import AddedToken

from gxpo.base.errors import ModelError
from gxpo.models.chat.plain import Tokens


def spaced() -> transformers.PreTrainedTokenizerFast:
    """A tokenizer that begins a text with a space and drops it again, with an end token that swallows what follows."""
    words = ["<unk>", "\u2581", "\u2581a", "a", "\u2581b", "b", "\n"]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            {w: i for i, w in enumerate(words)}, [("\u2581", "a"), ("\u2581", "b")], unk_token="<unk>"
        )
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = tokenizers.decoders.Metaspace(prepend_scheme="first")
    backend.add_special_tokens([AddedToken("</s>", special=True), AddedToken("<end>", rstrip=True, special=True)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="</s>", unk_token="<unk>", extra_special_tokens=["<end>"]
    )


def test_no_space_is_put_before_a_piece():
    tokens = Tokens(spaced())
    names = tokens.tokenizer.convert_ids_to_tokens
    assert names(list(tokens.encode("a"))) == ["\u2581a"]  # the first text of all
    assert names(list(tokens.encode_after("a"))) == ["a"]
    assert names(list(tokens.encode_after(" a"))) == ["\u2581a"]


def test_no_space_is_lost_in_decoding():
    tokens = Tokens(spaced())
    assert tokens.decode_after(tokens.encode_after(" a b")) == " a b"
    assert tokens.tokenizer.decode(tokens.encode_after(" a b")) == "a b"


def test_a_piece_after_an_end_token_that_swallows_white_space():
    tokens = Tokens(spaced())
    end = tokens.one_id("<end>")
    whole_ids = tokens.tokenizer("b<end>\n a", add_special_tokens=False).input_ids
    assert tokens.encode_after("\n a", end) == tuple(whole_ids[whole_ids.index(end) + 1 :])
    assert tokens.encode_after("\n a") != tokens.encode_after("\n a", end)
    assert tokens.anchor == (tokens.eos, "</s>")


def test_only_tokens_of_the_vocabulary_stop():
    tokens = Tokens(tokenizer_of("chatml"))
    assert tokens.one_id("<|im_end|>") == tokens.eos
    with pytest.raises(ModelError, match="'the end' is not one token"):
        tokens.one_id("the end")


def test_half_a_character_stays_what_it_was():
    tokens = Tokens(tokenizer_of("chatml"))
    ids = tokens.encode_after("a🙂")
    assert tokens.decode_after(ids[:-1]).startswith("a\ufffd")


def test_text_and_stop():
    tokens = Tokens(tokenizer_of("chatml"))
    end = tokens.one_id("<|im_end|>")
    ids = tokens.encode_after("so")
    assert tokens.split_stop([*ids, end], (end,)) == ("so", end)
    assert tokens.split_stop([end, *ids], (end,)) == ("<|im_end|>so", None)
    assert tokens.split_stop([], (end,)) == ("", None)
