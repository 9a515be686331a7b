"""When an action ends."""

import itertools

import pytest
import torch
from tests.sampling.engines.letters import letters

from gxpo.base.errors import ModelError
from gxpo.sampling.engines.decode import Stopping

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


def test_long_stop_strings_cost_the_vocabulary_once():
    """A plain search for each of 4,096 ends in each of 150,000 tokens would take minutes."""

    class Large:
        asked = 0

        def __len__(self) -> int:
            return 150_000

        def convert_ids_to_tokens(self, token: int) -> str:
            self.asked += 1
            return f"\u0120t{token}"

        def decode(self, ids: list[int], **options: object) -> str:
            return f" t{ids[0]}"

    tokenizer = Large()
    for strings in ([chr(97 + i) * 256 for i in range(16)], ["xx t7", "5!"]):
        stopping = Stopping([], strings, tokenizer, 150_000)
    assert stopping.may_complete is not None and tokenizer.asked == 150_000
    # a stop string can end in " t7..." by "xx t7", and in no token by "5!", whose end is none's beginning
    assert stopping.may_complete.nonzero().squeeze(1).tolist() == [i for i in range(150_000) if str(i).startswith("7")]
