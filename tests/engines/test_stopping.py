"""When an action ends."""

import itertools

import pytest
import torch
from tests.engines.letters import letters

from gxpo.engines.decode import Stopping
from gxpo.errors import ModelError

LETTERS = letters()


def test_ids():
    stopping = Stopping([1, 5], [], None, 27)
    assert stopping.done(torch.tensor([1, 4, 5]), torch.tensor([[1], [4], [5]])).tolist() == [True, False, True]


def test_the_token_that_completes_the_string():
    a, b, c, ab, bc = LETTERS.convert_tokens_to_ids(["a", "b", "c", "ab", "bc"])
    stopping = Stopping([], ["abc"], LETTERS, len(LETTERS))
    assert stopping.done(torch.tensor([c]), torch.tensor([[ab, c]])).tolist() == [True]
    assert stopping.done(torch.tensor([bc]), torch.tensor([[a, bc]])).tolist() == [True]
    assert stopping.done(torch.tensor([c]), torch.tensor([[b, c]])).tolist() == [False]
    assert stopping.done(torch.tensor([b]), torch.tensor([[a, b]])).tolist() == [False]


@pytest.mark.parametrize("string", ["a", "bc", "abc", "cab", " a", "a a", "q"])
def test_no_completing_token_is_passed_over(string):
    # against decoding every prefix of every sequence of three tokens
    ids = LETTERS.convert_tokens_to_ids(["a", "b", "c", "q", "ab", "bc", "abc", " a"])
    stopping = Stopping([], [string], LETTERS, len(LETTERS))
    for sequence in itertools.product(ids, repeat=3):
        texts = [LETTERS.decode(list(sequence[:n])) for n in (1, 2, 3)]
        ended = [string in text for text in texts]
        if not any(ended[:2]):
            assert stopping.done(torch.tensor(sequence[2:]), torch.tensor([sequence])).tolist() == [ended[2]]


def test_most_tokens_cost_no_decode():
    stopping = Stopping([], ["abc"], LETTERS, len(LETTERS))
    candidates = [LETTERS.convert_ids_to_tokens(i) for i in stopping.may_complete.nonzero().squeeze(1).tolist()]
    assert set(candidates) >= {"c", "bc", "abc"} and not set(candidates) & {"a", "b", "ab", "q", " a"}


def test_refusals():
    with pytest.raises(ModelError, match="tokenizer"):
        Stopping([], ["x"], None, 27)
    with pytest.raises(ModelError, match="empty string"):
        Stopping([], [""], LETTERS, 27)
