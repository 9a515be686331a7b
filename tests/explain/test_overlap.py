"""Duplicates and leaks: what is the same text is found, what differs in a number is not."""

from hypothesis import given
from hypothesis import strategies as st

from gxpo.explain import overlap as module
from gxpo.explain.overlap import overlap
from gxpo.parts.protocols import Task


def tasks(*rows, start=0):
    return [Task(str(start + i), prompt, answer) for i, (prompt, answer) in enumerate(rows)]


def test_each_kind_of_pair_is_found_once():
    training = tasks(
        ("What is 2 + 3?", "5"),
        ("what is 2 + 3", "5"),  # the same but for case and punctuation
        ("What is 2 + 3?", "6"),
        ("Please name the capital city of the country of France.", "Paris"),
        ("Please name the capital city of the country France.", "Paris"),
        ("What is 2 * 3?", "6"),
    )
    held_out = tasks(("WHAT IS 2+3?", "5"), ("What is  2 * 3 ?", "6"), ("What is 7 * 3?", "21"), start=6)
    pairs = overlap(training, held_out)
    assert pairs.duplicates == [("0", "1")]
    assert pairs.conflicts == [("0", "2")]
    assert pairs.near == [("3", "4")]
    assert sorted(pairs.leaks) == [("0", "6"), ("5", "7")]
    assert pairs.compared


def test_other_numbers_or_answers_are_other_tasks():
    train, cats = "A train goes {} miles in 2 hours, how fast is it?", "Is it true that {} cats are black?"
    training = tasks((train.format(40), "20"), (cats.format("all"), "no"))
    pairs = overlap(training, tasks((train.format(60), "30"), (cats.format("old"), "yes"), start=2))
    assert (pairs.duplicates, pairs.conflicts, pairs.near, pairs.leaks) == ([], [], [], [])


def test_messages_and_token_ids():
    chat = ({"role": "user", "content": "Name a colour."},)
    pairs = overlap(
        [Task("a", chat, "red"), Task("b", (5, 6), "x")], [Task("c", chat, "red"), Task("d", (5, 6, 7), "x")]
    )
    assert pairs.leaks == [("a", "c")] and pairs.near == []


def test_too_many_for_all_pairs_is_said(monkeypatch):
    monkeypatch.setattr(module, "MAX_COMPARED", 3)
    words = ["apple", "mountain", "river", "quickly"]
    assert not overlap(tasks(*((w, "1") for w in words)), []).compared
    assert overlap(tasks(*((w, "1") for w in words[:3])), []).compared


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), unique=True, max_size=12))
def test_distinct_sums_never_overlap(pairs):
    rows = tasks(*((f"What is {a} + {b}?", str(a + b)) for a, b in pairs if a <= b))
    overlaps = overlap(rows[::2], rows[1::2])
    assert not (overlaps.duplicates or overlaps.conflicts or overlaps.near or overlaps.leaks)
