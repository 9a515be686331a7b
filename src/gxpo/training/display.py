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
from gxpo.training.figures import LIVE, Latest, written

SECONDS = 60.0  # between two lines where there is no bar, evaluations aside
BAR = 10  # columns
REFRESH = 0.2  # seconds between two drawings of a bar


def display(progress: bool | str | None) -> Display:
    """None: a bar where there is a terminal or a notebook, else lines. True: a bar. False: lines. "none": nothing."""
    if progress not in (None, True, False, "none"):
        raise ConfigError(f'progress={progress!r}: True (a bar), False (a line now and then), None or "none"')
    if progress == "none" or runtime.environment("RANK", 0) > 0:
        return Display()
    if progress is not False and notebook():
        return NotebookBar()
    if progress or (progress is None and sys.stderr.isatty()):
        return TerminalBar()
    return Lines()


def notebook() -> bool:
    """Whether this is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


@contextmanager
def no_loading_bars() -> Iterator[None]:
    """Context manager: transformers draws no bars, which a log would have in it; those of the caller's stay as set."""
    logging = need("transformers.utils.logging", "train")
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


class Display(Callback):
    """Shows nothing."""

    latest: Latest

    def say(self, line: str) -> None:
        """A line beside the progress."""

    def on_start(self, run: Any) -> None:
        self.latest = Latest(run)


class Lines(Display):
    """A line after every evaluation, and else once a minute; no control characters, for logs."""

    def __init__(self) -> None:
        self._said = 0.0

    def say(self, line: str) -> None:
        say(line, err=not notebook())

    def on_step(self, row: Mapping[str, Any], run: Any) -> None:
        self.latest.take(row)
        if "eval_accuracy" in row or time.monotonic() - self._said >= SECONDS:
            self._said = time.monotonic()
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
        self._drawn = 0.0

    def say(self, line: str) -> None:
        say(line)

    def on_start(self, run: Any) -> None:
        super().on_start(run)
        self._handle = import_module("IPython.display").display(self._data(), raw=True, display_id=True)

    def on_step(self, row: Mapping[str, Any], run: Any) -> None:
        self.latest.take(row)
        if time.monotonic() - self._drawn >= REFRESH:
            self._draw()

    def on_end(self, run: Any, error: BaseException | None) -> None:
        self._draw()

    def _draw(self) -> None:
        self._handle.update(self._data(), raw=True)
        self._drawn = time.monotonic()

    def _data(self) -> dict[str, str]:
        return {"text/plain": escaped(self.latest.text()), "text/html": html(self.latest)}


def html(latest: Latest) -> str:
    """A bar, and the newest figures under their names; of the held-out accuracy the first one, too."""
    run = latest.run
    steps = run.trainer.settings.trainer.steps
    names = [name for name in LIVE if name in latest.figures]
    cells = []
    for name in names:
        first, now = written(name, latest.first[name]), written(name, latest.figures[name])
        cells.append(f"{first} &rarr; {now}" if name == "eval_accuracy" and first != now else now)
    head = "".join(f"<th style='text-align:right'>{name}</th>" for name in names)
    body = "".join(f"<td style='text-align:right'>{cell}</td>" for cell in cells)
    texts = (f"step {run.step} of {steps}", latest.left, str(run.path))
    caption = " &middot; ".join(escape(escaped(x)) for x in texts if x)
    bar = f"<progress max='1' value='{latest.share:.4f}' style='width:20em;vertical-align:middle'></progress>"
    table = f"<table><tr>{head}</tr><tr>{body}</tr></table>" if names else ""
    return f"<div>{bar} {caption}{table}</div>"
