"""When calls are answered: all episodes' together, late ones apart, as they come; limits. The clock is the test's."""

from __future__ import annotations

import threading

import pytest
from tests.sampling.serve.agent_session import CHAT, TOKENIZER, user

from gxpo.parts.protocols import StreamKey
from gxpo.sampling.serve.history import History, Thread
from gxpo.sampling.serve.queue import IDLE, Attempt, CallQueue
from gxpo.sampling.serve.request import Refused, read

ASKED = read({"messages": [user("x")]}, chat=True)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def queue(n, patience=60.0, most_calls=10):
    built_call_queue = CallQueue(patience=patience, most_calls=most_calls, clock=Clock())
    attempts = [Attempt(f"k{i}", i, f"t/{i}", StreamKey(0, 1, "t", i), History(CHAT, TOKENIZER)) for i in range(n)]
    for attempt in attempts:
        built_call_queue.open(attempt)
    return built_call_queue, attempts


def taken(made):
    """The calls that are to be answered at once."""
    return made.take(made.clock())


def test_calls_wait_for_other_episodes_and_keep_their_order():
    built_value, (a, b, c) = queue(3)
    built_value.submit(c, ASKED)
    built_value.submit(a, ASKED)
    assert taken(built_value) == []
    built_value.submit(b, ASKED)
    assert [call.attempt for call in taken(built_value)] == [a, b, c]


def test_an_episode_that_is_over_is_not_waited_for():
    built_value, (a, b) = queue(2)
    built_value.submit(a, ASKED)
    threading.Timer(0.02, built_value.end, [b]).start()
    assert built_value.take() == [] and built_value.collect() == [b]  # first the next episode may begin
    assert [call.attempt for call in taken(built_value)] == [a]
    assert built_value.n_unawaited == 0


def test_a_late_episode_is_waited_for_once():
    built_value, (a, b) = queue(2, patience=5.0)
    call = built_value.submit(a, ASKED)
    built_value.clock.now += 4.9
    assert taken(built_value) == []
    built_value.clock.now += 0.2
    assert taken(built_value) == [call] and built_value.n_unawaited == 1
    built_value.count_answer(call)
    call = built_value.submit(a, ASKED)
    assert taken(built_value) == [call] and built_value.n_unawaited == 1
    built_value.count_answer(call)
    built_value.submit(b, ASKED)  # it asks again: it counts again
    assert taken(built_value) == []


def test_without_patience_calls_are_answered_as_they_come():
    built_value, (a, _) = queue(2, patience=0.0)
    call = built_value.submit(a, ASKED)
    assert taken(built_value) == [call] and built_value.n_unawaited == 0


def test_parallel_calls_of_an_episode_are_answered_together():
    built_value, (a,) = queue(1)
    for _ in range(2):
        built_value.submit(a, ASKED)
    assert taken(built_value) == []  # there may be more
    built_value.submit(a, ASKED)
    built_value.clock.now += 1.0
    assert len(taken(built_value)) == 3


def test_limits_and_ends():
    built_value, (a,) = queue(1, most_calls=2)
    built_value.submit(a, read({"messages": [user("x")], "n": 2}, chat=True))
    with pytest.raises(Refused, match=r"2 replies.*rollout\.max_calls") as caught:
        built_value.submit(a, ASKED)
    assert caught.value.status == 400 and a.limit == "calls"
    (call,) = taken(built_value)
    built_value.end(a)
    with pytest.raises(Refused, match="over"):
        built_value.attempt("k0")
    assert not call.answer.done()  # it was taken: whoever took it answers


def test_a_call_that_waits_is_refused_at_the_end_of_its_episode():
    built_value, (a, _) = queue(2)
    call = built_value.submit(a, ASKED)
    built_value.close()
    with pytest.raises(Refused, match="over"):
        call.answer.result(0)


def test_an_agents_time_is_its_own():
    built_value, (a,) = queue(1)
    built_value.clock.now += 2.0
    call = built_value.submit(a, ASKED)
    built_value.clock.now += 50.0
    assert a.own_seconds(built_value.clock()) == 2.0  # the wait for a reply is not counted
    taken(built_value)
    built_value.count_answer(call)
    built_value.clock.now += 3.0
    assert a.own_seconds(built_value.clock()) == 5.0


def newcomers(most_calls=10):
    built_call_queue = CallQueue(patience=0.0, most_calls=most_calls, clock=Clock(), newcomer=lambda key: Attempt(
        key, 0, key, StreamKey(0, 1, key, 0), History(CHAT, TOKENIZER)))  # fmt: skip
    return built_call_queue


def test_a_newcomers_episode_ends_with_its_reward_or_idle():
    built_newcomers = newcomers()
    first = built_newcomers.attempt("k")
    with pytest.raises(Refused, match="nothing to reward") as caught:
        built_newcomers.post(first, 1.0)
    assert caught.value.status == 409
    first.history.threads.append(Thread(0, "agent"))
    built_newcomers.post(first, 1.0)
    assert built_newcomers.collect() == [first] and first.outcome_body == 1.0
    second = built_newcomers.attempt("k")
    assert second is not first and built_newcomers.collect() == []
    call = built_newcomers.submit(second, ASKED)
    built_newcomers.clock.now += 10 * IDLE
    assert built_newcomers.collect() == []  # it waits for a reply
    assert built_newcomers.take(built_newcomers.clock()) == [call]
    built_newcomers.count_answer(call)
    built_newcomers.clock.now += IDLE - 1
    assert built_newcomers.attempt("k") is second  # which counts as a call
    built_newcomers.clock.now += IDLE
    assert built_newcomers.collect() == [second] and built_newcomers.attempt("k") is not second


def test_of_too_many_episodes_the_longest_idle_one_ends(monkeypatch):
    monkeypatch.setattr("gxpo.sampling.serve.queue.MOST_EPISODES", 2)
    built_newcomers = newcomers()
    first = built_newcomers.attempt("a")
    built_newcomers.clock.now += 1
    second = built_newcomers.attempt("b")
    third = built_newcomers.attempt("c")
    assert (
        built_newcomers.collect() == [first]
        and built_newcomers.attempt("b") is second
        and built_newcomers.attempt("c") is third
    )
    for attempt in (second, third):
        built_newcomers.submit(attempt, ASKED)
    with pytest.raises(Refused, match="2 episodes wait for replies") as caught:
        built_newcomers.attempt("d")
    assert caught.value.status == 429


@pytest.mark.parametrize("key", ["a" * 257, "a\nb", "a\x1b[2J"])
def test_a_key_is_a_short_text(key):
    with pytest.raises(Refused, match="at most 256 printable characters"):
        newcomers().attempt(key)
