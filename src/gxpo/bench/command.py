"""The command `gxpo bench`, without its option parsing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gxpo.base.errors import ConfigError
from gxpo.base.terminal import say
from gxpo.bench import pictures, suites
from gxpo.bench.machine import cores
from gxpo.bench.plan import Plan
from gxpo.bench.results import Results, table
from gxpo.bench.runner import BenchError


@dataclass(frozen=True)
class Options:
    """Options of `gxpo bench --help`; `source` is --from."""

    threads: int | None = None
    rounds: int | None = None
    quick: bool = False
    anyway: bool = False
    out: Path | None = None
    plot: Path | None = None
    source: Path | None = None
    python: str | None = None
    vllm: str | None = None
    as_json: bool = False


def bench(suite: str | None, names: Sequence[str], options: Options) -> str | None:
    """Measure or load results and show them; returns the failure of the measurement in a line, or None.

    Rows that were finished before a failure are shown as a table, but not as JSON.
    """
    # A file that matplotlib can't write is refused before minutes of measuring.
    if options.plot is not None:
        pictures.check(options.plot)
    if options.source is not None:
        if suite is not None or names or options.out is not None:
            raise ConfigError("--from shows what a file holds: it goes with --json and --plot alone")
        results = Results.load(options.source)
        _show(results, options)
        return _verdict(results)
    suites.check_suite(suite)
    assert suite is not None
    partial_results: list[Results] = []
    try:
        # The results so far are collected by the callee, so that a failure loses none.
        results = _measure_suite(suite, names, options, partial_results)
    except BenchError as error:
        finished_results = partial_results[0].only(names) if partial_results else None
        if finished_results and finished_results.rows and not options.as_json:
            table(finished_results, _reads(suite))
        return str(error)
    _show(results, options)
    return _verdict(results)


def _measure_suite(suite: str, names: Sequence[str], options: Options, partial_results: list[Results]) -> Results:
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with tempfile.TemporaryDirectory(prefix="gxpo-bench-") as folder:
        plan = Plan(
            Path(folder),
            options.threads or cores(),
            options.rounds,
            options.quick,
            options.anyway,
            options.python,
            options.vllm,
            lambda line: say(line, err=True),
        )
        return suites.run(suite, names, plan, options.out, partial_results.append)


def _show(results: Results, options: Options) -> None:
    reads = _reads(results.suite)
    if options.plot is not None:
        pictures.plot(results, options.plot, reads)
    if options.as_json:
        say(results.to_json())
    else:
        table(results, reads)


def _reads(suite: str) -> str:
    return suites.SUITES[suite].reads if suite in suites.SUITES else suites.FASTER


def _verdict(results: Results) -> str | None:
    """Failures among the rows."""
    wrong = [row["name"] for row in results.rows if row.get("agrees") is False]
    return f"gxpo and TRL do not agree: {', '.join(wrong)}" if wrong else None
