"""The progress that `gxpo.train` shows: a bar in a terminal or a notebook, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape
from importlib import import_module
from typing import Any

from gxpo.base import runtime
from gxpo.base.errors import ConfigError, need
from gxpo.base.terminal import console, escaped, say
from gxpo.training.callbacks import Callback
from gxpo.training.figures import LIVE, Latest, format_value

SECONDS = 60.0  # between two lines where there is no bar, evaluations aside
BAR = 10  # columns
REFRESH = 0.2  # seconds between two drawings of a bar


def display(progress: bool | str | None) -> Display:
    """Choose the display. None: a bar in a terminal or notebook, else lines; True: a bar; False: lines; "none"."""
    if progress not in (None, True, False, "none"):
        raise ConfigError(f'progress={progress!r}: True (a bar), False (a line now and then), None or "none"')
    if progress == "none" or runtime.environment("RANK", 0) > 0:
        return Display()
    if progress is not False and in_notebook():
        return NotebookBar()
    if progress or (progress is None and sys.stderr.isatty()):
        return TerminalBar()
    return Lines()


def in_notebook() -> bool:
    """Return True in the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


@contextmanager
def no_loading_bars() -> Iterator[None]:
    """Context without the loading bars of transformers, which would fill a log; the caller's setting returns."""
    logging = need("transformers.utils.logging", "train")
    were_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_enabled:
            logging.enable_progress_bar()


class Display(Callback):
    """A display that shows nothing; base of the others."""

    latest: Latest

    def say(self, line: str) -> None:
        """Print a line beside the progress."""

    def on_start(self, run: Any) -> None:
        self.latest = Latest(run)


class Lines(Display):
    """A line after every evaluation, and else once a minute; no control characters, for logs."""

    def __init__(self) -> None:
        self._last_line = 0.0

    def say(self, line: str) -> None:
        say(line, err=not in_notebook())

    def on_step(self, row: Mapping[str, Any], run: Any) -> None:
        self.latest.take(row)
        if "eval_accuracy" in row or time.monotonic() - self._last_line >= SECONDS:
            self._last_line = time.monotonic()
            self.say(self.latest.text())


class TerminalBar(Display):
    """A bar of rich on standard error; what is printed meanwhile appears above it."""

    def __init__(self, shown_on: Any = None) -> None:
        self.console = shown_on or console(stderr=True)
        self._bar: Any = None

    def say(self, line: str) -> None:
        self.console.print(line)

    def on_start(self, run: Any) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        super().on_start(run)
        columns = (BarColumn(bar_width=BAR), TextColumn("{task.description}", markup=False))
        self._bar = Progress(*columns, console=self.console, refresh_per_second=1 / REFRESH)
        self._task = self._bar.add_task(self._text, total=1.0, completed=self.latest.share)
        self._bar.start()

    def on_step(self, row: Mapping[str, Any], run: Any) -> None:
        self.latest.take(row)
        self._bar.update(self._task, description=self._text, completed=self.latest.share)

    def on_end(self, run: Any, error: BaseException | None) -> None:
        self._bar.stop()

    @property
    def _text(self) -> str:
        return self.latest.text(self.console.width - BAR - 2)


class NotebookBar(Display):
    """One output of the cell, updated: a bar and a table, or the same as a text where HTML is not shown."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._last_drawn = 0.0

    def say(self, line: str) -> None:
        say(line)

    def on_start(self, run: Any) -> None:
        super().on_start(run)
        self._handle = import_module("IPython.display").display(self._data(), raw=True, display_id=True)

    def on_step(self, row: Mapping[str, Any], run: Any) -> None:
        self.latest.take(row)
        if time.monotonic() - self._last_drawn >= REFRESH:
            self._draw()

    def on_end(self, run: Any, error: BaseException | None) -> None:
        self._draw()

    def _draw(self) -> None:
        self._handle.update(self._data(), raw=True)
        self._last_drawn = time.monotonic()

    def _data(self) -> dict[str, str]:
        return {"text/plain": escaped(self.latest.text()), "text/html": html(self.latest)}


def html(latest: Latest) -> str:
    """HTML of a bar and the newest figures, with the first held-out accuracy beside the newest."""
    run = latest.run
    steps = run.trainer.settings.trainer.steps
    names = [name for name in LIVE if name in latest.figures]
    cells = []
    for name in names:
        first, last = format_value(name, latest.first[name]), format_value(name, latest.figures[name])
        cells.append(f"{first} &rarr; {last}" if name == "eval_accuracy" and first != last else last)
    head = "".join(f"<th style='text-align:right'>{name}</th>" for name in names)
    body = "".join(f"<td style='text-align:right'>{cell}</td>" for cell in cells)
    texts = (f"step {run.step} of {steps}", latest.time_left, str(run.path))
    caption = " &middot; ".join(escape(escaped(x)) for x in texts if x)
    bar = f"<progress max='1' value='{latest.share:.4f}' style='width:20em;vertical-align:middle'></progress>"
    table = f"<table><tr>{head}</tr><tr>{body}</tr></table>" if names else ""
    return f"<div>{bar} {caption}{table}</div>"
