"""Cooperative routines: batches of calls, errors of services, cancelling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gxpo.training.asynchronous.routines import Call, Cancelled, Rounds, Routine


def asking(times: int) -> Any:
    """A routine's work: it asks so many times, and gives what it was told."""
    return lambda routine: [routine.ask("sums", "add", routine.owner * 10 + i) for i in range(times)]


def test_calls_that_wait_together_are_served_together() -> None:
    batches: list[list[int]] = []

    def sums(calls: Sequence[Call]) -> None:
        batches.append([call.arguments[0] for call in calls])
        for call in calls:
            call.answer = call.arguments[0] + 100

    rounds = Rounds({"sums": sums}, barrier=True)
    for owner, times in ((1, 3), (2, 1), (3, 2)):
        rounds.add(Routine(owner, asking(times)))
    over: list[Routine] = []
    while rounds.routines:
        over += rounds.run_round()
    rounds.close()
    assert batches == [[10, 20, 30], [11, 31], [12]]
    assert {r.owner: r.result for r in over} == {1: [110, 111, 112], 2: [120], 3: [130, 131]}


def test_an_error_of_a_service_is_raised_in_its_callers() -> None:
    def failing(calls: Sequence[Call]) -> None:
        raise ValueError("no sums today")

    def caught(routine: Routine) -> str:
        try:
            return routine.ask("sums", "add", 1)
        except ValueError as error:
            return str(error)

    rounds = Rounds({"sums": failing}, barrier=True)
    rounds.add(Routine("caught", caught))
    rounds.add(Routine("raised", lambda routine: routine.ask("sums", "add", 1)))
    over: list[Routine] = []
    while rounds.routines:
        over += rounds.run_round()
    rounds.close()
    assert {r.owner: (r.result, str(r.error)) for r in over} == {
        "caught": ("no sums today", "None"),
        "raised": (None, "no sums today"),
    }


def test_closing_ends_routines_at_their_calls() -> None:
    tidied: list[str] = []

    def work(routine: Routine) -> None:
        try:
            routine.ask("sums", "add", 1)
            routine.ask("sums", "add", 2)
        finally:
            tidied.append("tidied")
            with pytest.raises(Cancelled):
                routine.ask("sums", "add", 3)

    rounds = Rounds({"sums": lambda calls: None}, barrier=True)
    routine = Routine("one", work)
    rounds.add(routine)
    rounds.run_round()
    rounds.close()
    assert tidied == ["tidied"] and routine.is_over and isinstance(routine.error, Cancelled)
