"""Decode loop: prefix caches, keyed uniforms, draws, stop conditions."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampling.engines.letters import letters

from gxpo.base.errors import ModelError
from gxpo.parts.protocols import Sampling, StreamKey
from gxpo.sampling.engines.decode import CachedPrefix, PrefixCaches
from gxpo.sampling.engines.draws import draw, support_of, uniforms
from gxpo.sampling.engines.stopping import Stopping

RECORDED = [0.2643139893316775, 0.16797051523419038, 0.5295954909838224]


# ---------------------------------------------------------------- prefix caches
def prefix(*tokens):
    return CachedPrefix(tokens, [(torch.zeros(1, len(tokens), 1), torch.zeros(1, len(tokens), 1))])


def test_the_least_recently_used_cache_is_dropped():
    caches = PrefixCaches(6)
    caches.put("a", prefix(1, 2))
    caches.put("b", prefix(3, 4))
    caches.put("c", prefix(5, 6))
    assert (caches.tokens, caches.n_dropped) == (6, 0)
    caches.use(["a", "unknown"])
    caches.put("d", prefix(7))  # b makes room
    assert (caches.tokens, caches.n_dropped) == (5, 1)
    assert caches.take("b", (3, 4, 5)) is None and caches.n_mismatched == 0
    assert caches.take("a", (1, 2, 3)).tokens == (1, 2)
    assert caches.take("a", (1, 2, 3)) is None  # it was taken
    assert caches.tokens == 3


def test_a_cache_over_the_limit_evicts_nothing():
    caches = PrefixCaches(3)
    caches.put("a", prefix(1, 2))
    caches.put("b", prefix(1, 2, 3, 4))
    assert (caches.tokens, caches.n_dropped) == (2, 1)
    caches.put("a", prefix(1, 2, 3, 4))  # the older cache of a is out of date
    assert (caches.tokens, caches.n_dropped) == (0, 2)


def test_a_prompt_that_begins_differently_is_a_mismatch():
    caches = PrefixCaches(9)
    caches.put("a", prefix(1, 2))
    assert caches.take("a", (1, 3, 2)) is None
    assert (caches.tokens, caches.n_mismatched, caches.n_dropped) == (0, 1, 0)


NAMES = st.sampled_from("abcd")
ACTIONS = st.one_of(
    st.tuples(st.just("put"), NAMES, st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple)),
    st.tuples(st.just("take"), NAMES, st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple)),
    st.tuples(st.just("use"), NAMES, st.none()),
    st.tuples(st.just("release"), NAMES, st.none()),
)


@given(st.lists(ACTIONS, max_size=30), st.integers(0, 12))
def test_caches_behave_as_a_list_in_order_of_use(actions, limit):
    caches, expected_caches, dropped = PrefixCaches(limit), [], 0  # (name, tokens), the most recently used last
    for action, name, tokens in actions:
        mine = [x for x in expected_caches if x[0] == name]
        others = [x for x in expected_caches if x[0] != name]
        if action == "put":
            caches.put(name, prefix(*tokens))
            expected_caches = others
            if len(tokens) > limit:
                dropped += 1
            else:
                expected_caches = [*others, (name, tokens)]
                while sum(len(t) for _, t in expected_caches) > limit:
                    expected_caches, dropped = expected_caches[1:], dropped + 1
        elif action == "take":
            prefix_found = caches.take(name, tokens)
            expected = [t for _, t in mine if tokens[: len(t)] == t]
            assert ([] if prefix_found is None else [prefix_found.tokens]) == expected
            expected_caches = others
        elif action == "use":
            caches.use([name])
            expected_caches = others + mine
        else:
            caches.release([name])
            expected_caches = others
        assert caches.tokens == sum(len(t) for _, t in expected_caches) and caches.n_dropped == dropped


# ---------------------------------------------------------------- streams
KEYS = st.builds(
    StreamKey,
    seed=st.integers(-(2**40), 2**40),
    step=st.integers(0, 10**6),
    task=st.text(max_size=8),
    attempt=st.integers(0, 64),
    path=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    turn=st.integers(0, 9),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(KEYS, min_size=1, max_size=5), st.integers(1, 20), st.integers(0, 10))
def test_a_row_depends_on_its_key_alone(keys, length, more):
    together = uniforms(keys, length)
    for row, key in zip(together, keys, strict=True):
        assert (uniforms([key], length + more)[0, :length] == row).all()
    assert together.dtype == np.float64 and (together >= 0).all() and (together < 1).all()


def test_every_field_of_the_key_changes_the_stream():
    base = {"seed": 0, "step": 0, "task": "a", "attempt": 0, "path": (), "turn": 0}
    changes = [
        {},
        {"seed": 1},
        {"step": 1},
        {"task": "b"},
        {"attempt": 1},
        {"path": (0,)},
        {"path": (0, 0)},
        {"turn": 1},
    ]
    rows = uniforms([StreamKey(**{**base, **change}) for change in changes], 4)
    for a, b in itertools.combinations(rows, 2):
        assert not (a == b).any()


def test_members_of_a_group_draw_different_numbers():
    # T35: one seed for the whole group would make its members copies of each other
    rows = uniforms([StreamKey(seed=0, step=0, task="t", attempt=i) for i in range(64)], 1)
    assert len(set(rows[:, 0])) == 64


def test_streams_are_the_same_on_every_machine():
    # recorded once; a change here changes every run
    row = uniforms([StreamKey(seed=7, step=3, task="gsm8k/17", attempt=2, path=(1, 0), turn=4)], 3)[0]
    assert row.tolist() == RECORDED


def test_many_streams_together_are_uniform():
    values = np.sort(uniforms([StreamKey(0, 0, "t", i) for i in range(2000)], 5).reshape(-1))
    grid = (np.arange(values.size) + 0.5) / values.size
    assert abs(values - grid).max() < 1.63 / np.sqrt(values.size)  # Kolmogorov's bound at 1 per cent


# ---------------------------------------------------------------- draws
def by_hand(logits: list[float], sampling: Sampling) -> dict[int, float]:
    """The processed distribution from its definition, with loops and dictionaries."""
    scaled = {i: z / sampling.temperature for i, z in enumerate(logits)}
    order = sorted(scaled, key=lambda i: -scaled[i])
    if sampling.top_k:
        order = order[: sampling.top_k]
    total = math.fsum(math.exp(scaled[i]) for i in order)
    support, mass = [], 0.0
    for i in order:
        if mass >= sampling.top_p:
            break
        support.append(i)
        mass += math.exp(scaled[i]) / total
    total = math.fsum(math.exp(scaled[i]) for i in support)
    return {i: math.exp(scaled[i]) / total for i in support}


SETTINGS = [
    Sampling(),
    Sampling(temperature=0.6),
    Sampling(temperature=1.7, top_k=3),
    Sampling(top_p=0.8),
    Sampling(temperature=1.3, top_k=6, top_p=0.7),
    Sampling(top_k=1),
    Sampling(top_p=1e-9),
    Sampling(top_k=1000),
]


# one block of columns, two whole ones, several and a rest; probabilities of float32 logits are computed in float32
@pytest.mark.parametrize("columns", [11, 256, 300])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("sampling", SETTINGS)
def test_draws_follow_the_processed_distribution(sampling, dtype, close, columns):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(40, columns, generator=generator, dtype=dtype)
    uniform = torch.rand(40, generator=generator, dtype=torch.float64)
    draws = draw(logits, uniform, sampling)
    for i in range(40):
        p = by_hand(logits[i].double().tolist(), sampling)
        below, expected_token = 0.0, None
        for token in sorted(p):
            below += p[token]
            if below > float(uniform[i]):
                expected_token = token
                break
        assert int(draws.token[i]) == expected_token
        assert math.isclose(float(draws.logprob[i]), math.log(p[expected_token]), abs_tol=close)
        if sampling.truncated_support:
            assert [t for t in draws.support[i].tolist() if t >= 0] == sorted(p)
    assert (draws.support is None) == (not sampling.truncated_support)


def test_greedy_takes_the_most_likely_with_certainty():
    draws = draw(torch.tensor([[0.0, 3.0, 1.0]]), torch.tensor([0.99], dtype=torch.float64), Sampling(temperature=0))
    assert (draws.token.tolist(), draws.logprob.tolist(), draws.support) == ([1], [0.0], None)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_ends_of_the_interval_draw_no_impossible_token(uniform):
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]])
    draws = draw(logits, torch.tensor([uniform], dtype=torch.float64), Sampling())
    assert int(draws.token) == (1 if uniform == 0.0 else 2)


def test_support_counts_the_token_that_reaches_top_p():
    # p = 0.5, 0.3, 0.2: 0.5 is below 0.6, with 0.3 it is reached; exactly 0.5 is reached by the first alone
    scaled = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64).log()
    assert support_of(scaled, 0, 0.6).tolist() == [[1, 2]]
    assert support_of(scaled, 0, 0.4999).tolist() == [[1]]
    assert support_of(scaled, 2, 1.0).tolist() == [[1, 2]]


def test_rows_of_different_support_are_padded():
    scaled = torch.tensor([[0.98, 0.01, 0.01], [0.34, 0.33, 0.33]], dtype=torch.float64).log()
    assert support_of(scaled, 0, 0.9).tolist() == [[0, -1, -1], [0, 1, 2]]


def test_nearly_equal_logits_may_change_places():
    # the order of ids, not of probabilities: rounding noise must not change which token a uniform number names
    uniform = torch.tensor([0.25], dtype=torch.float64)
    sampling = Sampling(top_k=2)
    one = draw(torch.tensor([[1.0, 1.0 + 1e-6, -5.0]], dtype=torch.float64), uniform, sampling)
    other = draw(torch.tensor([[1.0 + 1e-6, 1.0, -5.0]], dtype=torch.float64), uniform, sampling)
    assert int(one.token) == int(other.token) == 0


def test_one_uniform_is_needed_for_each_row():
    with pytest.raises(ValueError, match="uniform"):
        draw(torch.zeros(3, 4), torch.zeros(2, dtype=torch.float64), Sampling())


# ---------------------------------------------------------------- stop conditions
LETTERS = letters()


def test_stop_ids_end_an_action():
    stopping = Stopping([1, 5], [], None, 27)
    assert stopping.is_done(torch.tensor([1, 4, 5]), torch.tensor([[1], [4], [5]])).tolist() == [True, False, True]


def test_the_token_that_completes_a_stop_string_ends_it():
    a, b, c, ab, bc = LETTERS.convert_tokens_to_ids(["a", "b", "c", "ab", "bc"])
    stopping = Stopping([], ["abc"], LETTERS, len(LETTERS))
    assert stopping.is_done(torch.tensor([c]), torch.tensor([[ab, c]])).tolist() == [True]
    assert stopping.is_done(torch.tensor([bc]), torch.tensor([[a, bc]])).tolist() == [True]
    assert stopping.is_done(torch.tensor([c]), torch.tensor([[b, c]])).tolist() == [False]
    assert stopping.is_done(torch.tensor([b]), torch.tensor([[a, b]])).tolist() == [False]


@pytest.mark.parametrize("string", ["a", "bc", "abc", "cab", " a", "a a", "q"])
def test_no_completing_token_is_missed(string):
    # against decoding every prefix of every sequence of three tokens
    ids = LETTERS.convert_tokens_to_ids(["a", "b", "c", "q", "ab", "bc", "abc", " a"])
    stopping = Stopping([], [string], LETTERS, len(LETTERS))
    for sequence in itertools.product(ids, repeat=3):
        texts = [LETTERS.decode(list(sequence[:n])) for n in (1, 2, 3)]
        ended = [string in text for text in texts]
        if not any(ended[:2]):
            assert stopping.is_done(torch.tensor(sequence[2:]), torch.tensor([sequence])).tolist() == [ended[2]]


def test_most_tokens_are_never_decoded():
    stopping = Stopping([], ["abc"], LETTERS, len(LETTERS))
    candidates = [LETTERS.convert_ids_to_tokens(i) for i in stopping.may_complete.nonzero().squeeze(1).tolist()]
    assert set(candidates) >= {"c", "bc", "abc"} and not set(candidates) & {"a", "b", "ab", "q", " a"}


def test_stop_strings_need_a_tokenizer_and_a_text():
    with pytest.raises(ModelError, match="tokenizer"):
        Stopping([], ["x"], None, 27)
    with pytest.raises(ModelError, match="empty string"):
        Stopping([], [""], LETTERS, 27)


@pytest.mark.slow
def test_long_stop_strings_read_the_vocabulary_once():
    """A plain search for each of 4,096 ends in each of 150,000 tokens would take minutes."""

    class Large:
        lookups = 0

        def __len__(self) -> int:
            return 150_000

        def convert_ids_to_tokens(self, token: int) -> str:
            self.lookups += 1
            return f"\u0120t{token}"

        def decode(self, ids: list[int], **options: object) -> str:
            return f" t{ids[0]}"

    tokenizer = Large()
    for strings in ([chr(97 + i) * 256 for i in range(16)], ["xx t7", "5!"]):
        stopping = Stopping([], strings, tokenizer, 150_000)
    assert stopping.may_complete is not None and tokenizer.lookups == 150_000
    # a stop string can end in " t7..." by "xx t7", and in no token by "5!", whose end is none's beginning
    assert stopping.may_complete.nonzero().squeeze(1).tolist() == [i for i in range(150_000) if str(i).startswith("7")]
