"""The side's process: lines in, lines out."""

import io
import json

import pytest

from gxpo.bench.worker import Gate, target


def lines(text):
    return [json.loads(line) for line in text.getvalue().splitlines()]


def test_a_gate_says_that_it_is_ready_then_answers_every_round():
    ask, answer = io.StringIO('{"round": true}\n{"round": true}\n'), io.StringIO()
    gate = Gate(ask, answer)
    while gate.wait():
        gate.finish_round({"tokens": 5})
    ready, *rounds = lines(answer)
    assert ready["ready"] and ready["memory_floor_mb"] > 0
    assert len(rounds) == 2
    assert all(r["tokens"] == 5 and r["seconds"] >= 0 and r["cpu_seconds"] >= 0 and r["memory_mb"] >= 0 for r in rounds)


def test_work_may_say_what_of_the_round_counts():
    answer = io.StringIO()
    gate = Gate(io.StringIO("{}\n"), answer)
    assert gate.wait()
    gate.finish_round({"seconds": 0.25})
    assert lines(answer)[1]["seconds"] == 0.25


def test_targets_are_named_by_module_and_function():
    assert target("json:dumps") is json.dumps
    with pytest.raises(AttributeError):
        target("json:nothing")
