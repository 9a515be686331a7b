"""What is remembered, and what goes first."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from gxpo.sampling.engines.decode import CachedPrefix, PrefixCaches


def kept(*tokens):
    return CachedPrefix(tokens, [(torch.zeros(1, len(tokens), 1), torch.zeros(1, len(tokens), 1))])


def test_what_was_not_used_for_longest_goes_first():
    caches = PrefixCaches(6)
    caches.put("a", kept(1, 2))
    caches.put("b", kept(3, 4))
    caches.put("c", kept(5, 6))
    assert (caches.tokens, caches.dropped) == (6, 0)
    caches.use(["a", "unknown"])
    caches.put("d", kept(7))  # b makes room
    assert (caches.tokens, caches.dropped) == (5, 1)
    assert caches.take("b", (3, 4, 5)) is None and caches.mismatched == 0
    assert caches.take("a", (1, 2, 3)).tokens == (1, 2)
    assert caches.take("a", (1, 2, 3)) is None  # it was taken
    assert caches.tokens == 3


def test_one_that_is_too_long_pushes_nothing_out():
    caches = PrefixCaches(3)
    caches.put("a", kept(1, 2))
    caches.put("b", kept(1, 2, 3, 4))
    assert (caches.tokens, caches.dropped) == (2, 1)
    caches.put("a", kept(1, 2, 3, 4))  # what a held before is out of date
    assert (caches.tokens, caches.dropped) == (0, 2)


def test_another_beginning_is_a_mismatch():
    caches = PrefixCaches(9)
    caches.put("a", kept(1, 2))
    assert caches.take("a", (1, 3, 2)) is None
    assert (caches.tokens, caches.mismatched, caches.dropped) == (0, 1, 0)


NAMES = st.sampled_from("abcd")
ACTIONS = st.one_of(
    st.tuples(st.just("put"), NAMES, st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple)),
    st.tuples(st.just("take"), NAMES, st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple)),
    st.tuples(st.just("use"), NAMES, st.none()),
    st.tuples(st.just("release"), NAMES, st.none()),
)


@given(st.lists(ACTIONS, max_size=30), st.integers(0, 12))
def test_against_a_list(actions, limit):
    caches, held, dropped = PrefixCaches(limit), [], 0  # held: (name, tokens), what was used last stands last
    for what, name, tokens in actions:
        mine = [x for x in held if x[0] == name]
        others = [x for x in held if x[0] != name]
        if what == "put":
            caches.put(name, kept(*tokens))
            held = others
            if len(tokens) > limit:
                dropped += 1
            else:
                held = [*others, (name, tokens)]
                while sum(len(t) for _, t in held) > limit:
                    held, dropped = held[1:], dropped + 1
        elif what == "take":
            got = caches.take(name, tokens)
            expected = [t for _, t in mine if tokens[: len(t)] == t]
            assert ([] if got is None else [got.tokens]) == expected
            held = others
        elif what == "use":
            caches.use([name])
            held = others + mine
        else:
            caches.release([name])
            held = others
        assert caches.tokens == sum(len(t) for _, t in held) and caches.dropped == dropped
