"""Signals that end a run after its step: the first one is noted, a second SIGINT aborts, handlers return."""

import signal

import pytest

from gxpo.training.interrupts import Interrupts, ServerInterrupts, for_python_script


@pytest.fixture
def default_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_second_sigint_aborts_and_the_handler_returns(default_handler, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    lines = []
    with Interrupts(lines.append) as interrupts:
        assert not interrupts({}) and interrupts.signal is None
        signal.raise_signal(signal.SIGINT)
        assert interrupts({}) and interrupts.signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert lines == ["stopping after this step; once more to stop at once"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_signal_of_a_torchrun_process_aborts_nothing(default_handler, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with Interrupts(lambda line: None) as interrupts:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert interrupts.signal == signal.SIGINT


def test_a_script_with_a_handler_of_its_own_keeps_it(default_handler):
    assert for_python_script(print).signals == (signal.SIGINT,)
    signal.signal(signal.SIGINT, lambda number, frame: None)
    assert for_python_script(print).signals == ()


def test_a_server_is_aborted_within_abortable_alone(default_handler):
    with ServerInterrupts(lambda line: None) as interrupts:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # outside: records are being written
        assert interrupts.is_due
        with pytest.raises(KeyboardInterrupt), interrupts.abortable():
            signal.raise_signal(signal.SIGINT)
