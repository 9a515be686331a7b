"""What the machine does besides, from counters that are given."""

import pytest
import torch

from gxpo.bench import machine


def test_cores_of_other_processes_exclude_own_seconds(monkeypatch):
    """In 4 seconds the machine worked 7 core seconds, 5 of them ours: others used half a core."""
    clock, busy = iter([100.0, 104.0]), iter([50.0, 57.0])
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(machine, "busy_seconds", lambda: next(busy))
    assert machine.OtherProcesses().cores(own_seconds=5.0) == 0.5


def test_no_less_than_none(monkeypatch):
    """Counters are coarse: ours may have moved on before the machine's."""
    clock, busy = iter([0.0, 1.0]), iter([10.0, 10.5])
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(machine, "busy_seconds", lambda: next(busy))
    assert machine.OtherProcesses().cores(own_seconds=0.6) == 0.0


def test_where_the_machine_does_not_say(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "STAT", tmp_path / "none")
    assert machine.busy_seconds() is None and machine.OtherProcesses().cores(own_seconds=0.0) == 0.0


def test_idle_time_and_waiting_for_disks_are_not_work(monkeypatch, tmp_path):
    """user 100, nice 20, system 30, idle 1000, iowait 500, irq 4, softirq 6, steal 40 ticks."""
    path = tmp_path / "stat"
    path.write_text("cpu  100 20 30 1000 500 4 6 40 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    monkeypatch.setattr(machine, "STAT", path)
    monkeypatch.setattr(machine, "TICKS", 100)
    assert machine.busy_seconds() == pytest.approx(2.0)


def test_the_peak_is_at_least_what_is_held():
    held_resident, peak = machine.resident("VmRSS"), machine.resident("VmHWM")
    assert 0 < held_resident <= peak


def test_a_machine_is_described_by_what_figures_depend_on():
    actual = machine.describe(3)
    assert actual["threads"] == 3 and actual["torch"] == torch.__version__ and actual["cores"] == machine.cores() >= 1
