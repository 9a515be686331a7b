"""What a run shows while it goes on: a table as wide as the terminal, lines for logs, a bar."""

import io
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from tests import started
from tests.training.callbacks.parity import REWARD, SMALL

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.training import figures
from gxpo.training.display import Display, Lines, NotebookBar, TerminalBar, display, html
from gxpo.training.figures import Latest, Table, clock
from gxpo.training.interrupts import Interrupts, is_interactive
from gxpo.training.metrics import NAMES

ROW = {"step": 1, "reward_mean": 0.5, "zero_signal_groups": 0.25, "clip_fraction": 0.0, "approx_kl": 0.001,
       "entropy": 1.5, "length_mean": 3.0, "time_step_s": 2.0, "time_sample_tokens_per_s": 1234.0}  # fmt: skip


def test_columns_are_named_as_the_metrics():
    assert set(figures.FORMATS) <= set(NAMES)
    heading, line = Table(120).lines(ROW)
    assert heading.split() == ["step", "reward_mean", "eval_accuracy", "zero_signal_groups", "clip_fraction",
                               "approx_kl", "entropy", "length_mean", "time_step_s"]  # fmt: skip
    assert line.split() == ["1", "0.500", "25%", "0.0%", "1.0e-03", "1.500", "3.0", "2.0"]
    assert len(heading) == len(line) <= 120 and heading.index("clip_fraction") + 13 == line.index("0.0%") + 4


@pytest.mark.parametrize(
    ("width", "last"),
    [(200, "time_update_tokens_per_s"), (101, "length_mean"), (100, "entropy"), (40, "eval_accuracy"), (1, None)],
)
def test_a_narrow_terminal_has_fewer_columns(width, last):
    heading = Table(width).lines(ROW)[0]
    assert len(heading) <= width and (heading.split() or [None])[-1] == last


def test_the_reference_kl_takes_the_place_of_the_steps_own():
    table = Table(120)
    assert "approx_kl" in table.lines({"step": 0, "eval_accuracy": 0.5})[0]
    heading, _ = table.lines(ROW | {"kl": 0.02})
    assert " kl " in heading and "approx_kl" not in heading
    assert len(table.lines(ROW | {"kl": 0.03, "step": 2})) == 1  # no heading again


class FakeRun:
    """What `Latest` reads of a run: 3 of 12 steps."""

    path = Path("runs/<b>")
    step = 3

    class trainer:
        budget_share = 0.0

        class settings:
            class trainer:
                steps = 12


def test_the_time_that_is_left_is_by_the_share_that_is_done(monkeypatch):
    now = iter([100.0, 200.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    run = FakeRun()
    run.step = 0
    latest = Latest(run)
    latest.take({"step": 0, "eval_accuracy": 0.25})  # the evaluation took 100 seconds
    run.step = 3
    latest.take({"step": 3, "reward_mean": 0.5, "zero_signal_groups": 0.5})
    monkeypatch.setattr(time, "monotonic", lambda: 290.0)  # 3 of 12 steps in 90 seconds
    full_text = "step 3/12  0:04:30 left  reward_mean 0.500  zero_signal_groups 50%  eval_accuracy 0.250"
    assert latest.text() == latest.text(len(full_text)) == full_text
    assert latest.text(68) == "step 3/12  0:04:30 left  reward_mean 0.500  zero_signal_groups 50%"
    run.trainer.budget_share = 0.5  # a budget that is spent sooner than the steps
    assert latest.time_left == "0:01:30 left"
    assert "runs/&lt;b&gt;" in html(latest) and "value='0.5000'" in html(latest)
    run.trainer.budget_share = 0.0


def test_hours_minutes_seconds():
    assert [clock(x) for x in (0.4, 59.6, 3725)] == ["0:00:00", "0:01:00", "1:02:05"]


def test_what_is_shown_is_by_what_there_is(monkeypatch):
    assert type(display(None)) is Lines and type(display(False)) is Lines and type(display("none")) is Display
    assert type(display(True)) is TerminalBar
    monkeypatch.setattr(sys, "stderr", type("Terminal", (io.StringIO,), {"isatty": lambda self: True})())
    assert type(display(None)) is TerminalBar and type(display(False)) is Lines
    shell = type("Shell", (), {"kernel": None})()
    monkeypatch.setitem(sys.modules, "IPython", type("IPython", (), {"get_ipython": staticmethod(lambda: shell)}))
    assert type(display(None)) is NotebookBar and type(display(False)) is Lines and is_interactive()
    monkeypatch.setenv("RANK", "1")
    assert type(display(True)) is Display
    with pytest.raises(ConfigError, match=r"progress='bar': True"):
        display("bar")


@pytest.mark.slow
def test_log_has_plain_lines_and_one_for_each_evaluation(tmp_path, capsys):
    gxpo.train(reward=REWARD, steps=3, out=tmp_path / "run", set=SMALL)
    message = capsys.readouterr()
    steps = [line.split()[1] for line in message.err.splitlines() if line.startswith("step ")]
    assert message.out == "" and steps == ["0/3", "2/3", "3/3"]
    assert "\x1b" not in message.err and "\r" not in message.err
    gxpo.train(reward=REWARD, steps=1, out=tmp_path / "quiet", set=SMALL, progress="none")
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar(tmp_path):
    from rich.console import Console

    console = Console(file=io.StringIO(), force_terminal=True, width=110)
    bar = TerminalBar(console)
    gxpo.train(reward=REWARD, steps=2, out=tmp_path / "run", set=SMALL, progress="none", callbacks=[bar])
    text = console.file.getvalue()
    assert "step 2/2  reward_mean" in text and "zero_signal_groups" in text and text.count("\n") < 10


SCRIPT = """
import sys
import gxpo

run = gxpo.train(reward=sys.argv[2], steps=10_000, out=sys.argv[1], set=eval(sys.argv[3]))
print("not reached")
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_script_after_the_step_which_is_saved(tmp_path):
    script, out = tmp_path / "script.py", tmp_path / "run"
    script.write_text(SCRIPT)
    with started.Started([script, out, REWARD, repr(SMALL)]) as child:
        while child.poll() is None and not (out / "rollouts").is_dir():  # step 2
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        said_text, err = child.communicate()
    assert child.returncode != 0 and said_text == "", err
    assert err.splitlines()[-1] == "KeyboardInterrupt"
    run = gxpo.resume(out, watch=lambda row: True)
    assert f"interrupted at step {run.step - 1}, which is saved: gxpo.resume({str(out)!r}) goes on" in err
    assert "stopping after this step; once more to stop at once" in err


def test_the_second_interrupt_is_one_and_handlers_come_back():
    messages: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with Interrupts(messages.append) as interrupts:
        assert not interrupts({})
        signal.raise_signal(signal.SIGINT)
        assert interrupts({}) and interrupts.signal == signal.SIGINT and len(messages) == 1
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_in_a_thread_takes_no_signals(tmp_path):
    actual = []
    thread = threading.Thread(target=lambda: actual.append(Interrupts(print).__enter__().__exit__()))
    thread.start()
    thread.join()
    assert actual == [None]
