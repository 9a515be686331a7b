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
    made = CallQueue(patience=patience, most_calls=most_calls, clock=Clock())
    attempts = [Attempt(f"k{i}", i, f"t/{i}", StreamKey(0, 1, "t", i), History(CHAT, TOKENIZER)) for i in range(n)]
    for attempt in attempts:
        made.open(attempt)
    return made, attempts


def taken(made):
    """The calls that are to be answered at once."""
    return made.take(made.clock())


def test_calls_wait_for_other_episodes_and_keep_their_order():
    made, (a, b, c) = queue(3)
    made.submit(c, ASKED)
    made.submit(a, ASKED)
    assert taken(made) == []
    made.submit(b, ASKED)
    assert [call.attempt for call in taken(made)] == [a, b, c]


def test_an_episode_that_is_over_is_not_waited_for():
    made, (a, b) = queue(2)
    made.submit(a, ASKED)
    threading.Timer(0.02, made.end, [b]).start()
    assert made.take() == [] and made.collect() == [b]  # first the next episode may begin
    assert [call.attempt for call in taken(made)] == [a]
    assert made.unawaited == 0


def test_a_late_episode_is_waited_for_once():
    made, (a, b) = queue(2, patience=5.0)
    call = made.submit(a, ASKED)
    made.clock.now += 4.9
    assert taken(made) == []
    made.clock.now += 0.2
    assert taken(made) == [call] and made.unawaited == 1
    made.answered(call)
    call = made.submit(a, ASKED)
    assert taken(made) == [call] and made.unawaited == 1
    made.answered(call)
    made.submit(b, ASKED)  # it asks again: it counts again
    assert taken(made) == []


def test_without_patience_calls_are_answered_as_they_come():
    made, (a, _) = queue(2, patience=0.0)
    call = made.submit(a, ASKED)
    assert taken(made) == [call] and made.unawaited == 0


def test_parallel_calls_of_an_episode_are_answered_together():
    made, (a,) = queue(1)
    for _ in range(2):
        made.submit(a, ASKED)
    assert taken(made) == []  # there may be more
    made.submit(a, ASKED)
    made.clock.now += 1.0
    assert len(taken(made)) == 3


def test_limits_and_ends():
    made, (a,) = queue(1, most_calls=2)
    made.submit(a, read({"messages": [user("x")], "n": 2}, chat=True))
    with pytest.raises(Refused, match=r"2 replies.*rollout\.max_calls") as caught:
        made.submit(a, ASKED)
    assert caught.value.status == 400 and a.limit == "calls"
    (call,) = taken(made)
    made.end(a)
    with pytest.raises(Refused, match="over"):
        made.attempt("k0")
    assert not call.answer.done()  # it was taken: whoever took it answers


def test_a_call_that_waits_is_refused_at_the_end_of_its_episode():
    made, (a, _) = queue(2)
    call = made.submit(a, ASKED)
    made.close()
    with pytest.raises(Refused, match="over"):
        call.answer.result(0)


def test_an_agents_time_is_its_own():
    made, (a,) = queue(1)
    made.clock.now += 2.0
    call = made.submit(a, ASKED)
    made.clock.now += 50.0
    assert a.own_seconds(made.clock()) == 2.0  # the wait for a reply is not counted
    taken(made)
    made.answered(call)
    made.clock.now += 3.0
    assert a.own_seconds(made.clock()) == 5.0


def newcomers(most_calls=10):
    made = CallQueue(patience=0.0, most_calls=most_calls, clock=Clock(), newcomer=lambda key: Attempt(
        key, 0, key, StreamKey(0, 1, key, 0), History(CHAT, TOKENIZER)))  # fmt: skip
    return made


def test_a_newcomers_episode_ends_with_its_reward_or_idle():
    made = newcomers()
    first = made.attempt("k")
    with pytest.raises(Refused, match="nothing to reward") as caught:
        made.post(first, 1.0)
    assert caught.value.status == 409
    first.history.threads.append(Thread(0, "agent"))
    made.post(first, 1.0)
    assert made.collect() == [first] and first.posted == 1.0
    second = made.attempt("k")
    assert second is not first and made.collect() == []
    call = made.submit(second, ASKED)
    made.clock.now += 10 * IDLE
    assert made.collect() == []  # it waits for a reply
    assert made.take(made.clock()) == [call]
    made.answered(call)
    made.clock.now += IDLE - 1
    assert made.attempt("k") is second  # which counts as a call
    made.clock.now += IDLE
    assert made.collect() == [second] and made.attempt("k") is not second


def test_of_too_many_episodes_the_longest_idle_one_ends(monkeypatch):
    monkeypatch.setattr("gxpo.sampling.serve.queue.MOST_EPISODES", 2)
    made = newcomers()
    first = made.attempt("a")
    made.clock.now += 1
    second = made.attempt("b")
    third = made.attempt("c")
    assert made.collect() == [first] and made.attempt("b") is second and made.attempt("c") is third
    for attempt in (second, third):
        made.submit(attempt, ASKED)
    with pytest.raises(Refused, match="2 episodes wait for replies") as caught:
        made.attempt("d")
    assert caught.value.status == 429


@pytest.mark.parametrize("key", ["a" * 257, "a\nb", "a\x1b[2J"])
def test_a_key_is_a_short_text(key):
    with pytest.raises(Refused, match="at most 256 printable characters"):
        newcomers().attempt(key)
