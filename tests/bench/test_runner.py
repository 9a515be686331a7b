"""Rows from figures that are given, refusals on a busy machine, and real processes with trivial work."""

import sys
from pathlib import Path

import pytest

from gxpo.bench import runner
from gxpo.bench.runner import BenchError, Case, Side, Worker

HERE = {"PYTHONPATH": str(Path(__file__).parent)}


def side(name, function, **arguments):
    return Side(name, f"targets:{function}", arguments, env=HERE)


def figures(seconds, memory=0.0, **more):
    return {"seconds": seconds, "cpu_seconds": 0.0, "memory_mb": memory, **more}


CASE = Case("a/row", Side("gxpo", "x:y"), Side("other", "x:z"), rounds=3, figures={"unique_token_ratio": 1.5})


class Busy:
    """A machine on which others use half a core."""

    def cores(self, own):
        return 0.5


class Quiet:
    def cores(self, own):
        return 0.0


class Told:
    """A worker whose rounds are given: gxpo's take 1 s, others' 2."""

    def __init__(self, side, threads):
        self.floor, self.seconds = 100.0, 1.0 if side.name == "gxpo" else 2.0

    def round(self):
        return figures(self.seconds)

    def close(self):
        pass


def test_a_row_is_the_median_of_neighbouring_rounds():
    """Ratios 2/1, 6/2, 2/4; medians of the seconds 2 and 2: their quotient, 1, is not the row's."""
    rounds = [
        [figures(1.0, 10, tokens=8, why="text"), figures(2.0, 40)],
        [figures(2.0, 30, tokens=10), figures(6.0, 40)],
        [figures(4.0, 20, tokens=12), figures(2.0, 40)],
    ]
    row = runner.row_of(CASE, rounds, [200.0, 300.0], other_cores=0.01)
    assert row["name"] == "a/row" and row["ratio"] == 2.0 and row["spread"] == [0.5, 3.0]
    assert row["gxpo"] == {"seconds": 2.0, "memory_mb": 20, "tokens": 10, "memory_floor_mb": 200.0}
    assert row["other"] == {"seconds": 2.0, "memory_mb": 40, "memory_floor_mb": 300.0}
    assert row["memory_ratio"] == 0.5 and row["unique_token_ratio"] == 1.5 and row["rounds"] == 3


def test_a_busy_machine_is_refused_before(monkeypatch):
    monkeypatch.setattr(runner, "OtherProcesses", Busy)
    with pytest.raises(BenchError, match=r"0\.50 cores now"):
        runner.check_quiet(0.0)
    monkeypatch.setattr(runner, "OtherProcesses", Quiet)
    runner.check_quiet(0.0)


def test_a_machine_that_became_busy_is_refused_after(monkeypatch):
    monkeypatch.setattr(runner, "Worker", Told)
    monkeypatch.setattr(runner, "OtherProcesses", Busy)
    with pytest.raises(BenchError, match=r"0\.50 cores while a/row was measured.*--anyway"):
        runner.measure(CASE, threads=1)
    row = runner.measure(CASE, threads=1, anyway=True)
    assert row["ratio"] == 2.0 and row["others_cores"] == 0.5
    monkeypatch.setattr(runner, "OtherProcesses", Quiet)
    assert runner.measure(CASE, threads=1)["others_cores"] == 0.0


def test_warm_up_rounds_do_not_count(monkeypatch):
    """The first two rounds of both sides take 100 s."""

    class Cold(Told):
        begun = 0

        def round(self):
            Cold.begun += 1
            return figures(100.0) if Cold.begun <= 4 else figures(self.seconds)

    monkeypatch.setattr(runner, "Worker", Cold)
    monkeypatch.setattr(runner, "OtherProcesses", Quiet)
    case = Case("warm", CASE.candidate, CASE.baseline, rounds=2, warmup=2)
    assert runner.measure(case, threads=1)["spread"] == [2.0, 2.0]
    assert Cold.begun == 8


@pytest.mark.thorough
def test_real_processes_take_turns_with_pinned_threads():
    """One says what surrounds it, and prints; the other is a loop that asks for its rounds, in an interpreter given."""
    loop = Side("other", "targets:gated", {"seconds": 5.0}, python=sys.executable, env=HERE)
    messages = []
    case = Case("real", side("gxpo", "sleeper", seconds=0.01), loop, rounds=2)
    row = runner.measure(case, threads=1, anyway=True, notify=messages.append)
    assert row["gxpo"]["tokens"] == 7 and row["gxpo"]["threads"] == 1 and "note" not in row["gxpo"]
    assert row["other"]["done"] == 2.5, "the rounds after the one for warming up"
    assert row["other"]["seconds"] == 5.0 and row["gxpo"]["seconds"] >= 0.01
    assert row["ratio"] > 1 and row["gxpo"]["memory_floor_mb"] > 1
    assert messages == ["real: gxpo against other"]


@pytest.mark.slow
@pytest.mark.parametrize(("function", "message"), [("broken", "ValueError: no such work"), ("dies", "exit status 3")])
def test_a_side_that_fails_is_named_with_the_reason(function, message):
    with pytest.raises(BenchError, match=f"mine: .*{message}"):
        Worker(side("mine", function), 1)
