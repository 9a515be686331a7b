import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("transformers")

from gxpo.models.tiny import CHARACTERS
from gxpo.training.models import character_tokenizer, tiny_model

TOKENIZER = character_tokenizer()


def test_ids():
    # pad 0, bos 1, eos 2, unk 3, newline 4, then ASCII 32..126 from 5
    assert TOKENIZER("1+2=\n").input_ids == [1, 5 + 17, 5 + 11, 5 + 18, 5 + 29, 4]
    assert TOKENIZER("é~", add_special_tokens=False).input_ids == [3, 99]
    assert len(TOKENIZER) == 100
    assert (TOKENIZER.pad_token_id, TOKENIZER.bos_token_id, TOKENIZER.eos_token_id) == (0, 1, 2)


@given(st.text(alphabet=CHARACTERS, max_size=40))
def test_text_comes_back(text: str):
    ids = TOKENIZER(text, add_special_tokens=False).input_ids
    if "<" not in text:  # special tokens typed out are special tokens
        assert len(ids) == len(text)
    assert TOKENIZER.decode(ids) == text
    assert TOKENIZER.decode([1, *ids, 2, 0, 0], skip_special_tokens=True) in (
        text,
        TOKENIZER.decode(ids, skip_special_tokens=True),
    )


def test_size_and_type():
    model = tiny_model()
    assert 1_000_000 <= sum(p.numel() for p in model.parameters()) <= 3_000_000
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.config.vocab_size == len(TOKENIZER) and not model.training


def test_parameters_depend_on_the_seed_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, again, other = tiny_model(3), tiny_model(3), tiny_model(4)
    assert torch.equal(torch.rand(1), expected)  # nobody else's random numbers were used
    pairs = list(zip(first.parameters(), again.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert any(not torch.equal(a, c) for a, _, c in pairs)
