"""Results of a suite, saved after each row so that an interrupted suite keeps them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError


@dataclass
class Results:
    """Results of `gxpo bench SUITE`.

    machine  what the figures depend on: see `machine.describe`
    path     file that `add` writes; None: nowhere
    """

    suite: str
    machine: Mapping[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    path: Path | None = None

    @classmethod
    def open(cls, path: Path | None, suite: str, machine: Mapping[str, Any]) -> Results:
        """Continue the results of a file, or begin new ones; `ConfigError` if the file belongs to other work."""
        if path is None or not path.exists():
            return cls(suite, _plain(machine), path=path)
        results = cls.load(path)
        if results.suite != suite:
            raise ConfigError(f"{path} holds rows of suite {results.suite}, not {suite}: give another --out")
        now = _plain(machine)
        # Only what both know is compared: newer versions describe more.
        for name in sorted(now.keys() & results.machine.keys()):
            if results.machine[name] != now[name]:
                raise ConfigError(
                    f"{path} was measured with {name} {results.machine[name]}, which is {now[name]} now: give another "
                    "--out"
                )
        results.machine = {**results.machine, **now}  # what only the rows to come depend on
        return results

    @classmethod
    def load(cls, path: Path) -> Results:
        """Load results from a file; `ConfigError` if it holds none."""
        try:
            document = json.loads(path.read_text())
            return cls(document["suite"], document["machine"], list(document["rows"]), path)
        except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} holds no results of gxpo bench ({type(error).__name__}: {error})") from None

    def has(self, name: str) -> bool:
        """Return True if there is a row of this name or below it ("" is above all)."""
        return any(row["name"] == name or row["name"].startswith(f"{name}/" if name else "") for row in self.rows)

    def only(self, names: Sequence[str]) -> Results:
        """Rows whose names begin with one of `names` (none: all), for display."""
        rows = [row for row in self.rows if not names or row["name"].startswith(tuple(names))]
        return Results(self.suite, self.machine, rows)

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows and save atomically."""
        self.rows += [_plain(row) for row in rows]
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Written beside and moved: an interruption leaves the old file whole.
            unfinished = self.path.with_name(f".{self.path.name}-{os.getpid()}")
            unfinished.write_text(self.to_json() + "\n")
            unfinished.replace(self.path)

    def to_json(self) -> str:
        """{"suite", "machine", "rows"}."""
        document = {"suite": self.suite, "machine": self.machine, "rows": self.rows}
        return json.dumps(document, indent=1, allow_nan=False)


def _plain(value: Any) -> Any:
    """Convert a value to what JSON gives back; numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


Row = Mapping[str, Any]


def sides(row: Row) -> list[tuple[str, Mapping[str, Any]]]:
    """Names and figures of the two sides of a row, gxpo's first."""
    return [(name, x) for name, x in row.items() if isinstance(x, Mapping) and "seconds" in x]


def _number(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "-" if value is None else str(value)


def _ratio(row: Row) -> str:
    ratio = row.get("ratio")
    if ratio is None:
        return "-"
    text = f"{ratio:.6f}" if "difference" in row else f"{ratio:.2f}"
    return text + ("*" if row.get("busy") else "")


def _spread(row: Row) -> str:
    spread = row.get("spread")
    return "-" if not spread or spread[0] is None else f"{spread[0]:.2f}..{spread[1]:.2f}"


def _of_side(place: int, figure: str) -> Callable[[Row], Any]:
    def read(row: Row) -> Any:
        row_sides = sides(row)
        return row_sides[place][1].get(figure) if len(row_sides) > place else None

    return read


def _against(row: Row) -> Any:
    row_sides = sides(row)
    return f"{row_sides[0][0]} / {row_sides[1][0]}" if len(row_sides) > 1 else row.get("against")


COLUMNS: tuple[tuple[str, Callable[[Row], Any]], ...] = (
    ("against", _against),
    ("own s", _of_side(0, "seconds")),
    ("other s", _of_side(1, "seconds")),
    ("own tok/s", _of_side(0, "tokens_per_s")),
    ("other tok/s", _of_side(1, "tokens_per_s")),
    ("tokens x", lambda row: row.get("unique_token_ratio")),
    ("memory x", lambda row: row.get("memory_ratio")),
    ("own MB", lambda row: _of_side(0, "memory_mb")(row) or None),
    ("other MB", lambda row: _of_side(1, "memory_mb")(row) or None),
    ("sampling", lambda row: row.get("sampling_share")),
    ("update", lambda row: row.get("update_share")),
    ("rest", lambda row: row.get("rest")),
    ("GFLOP", lambda row: row.get("gflop")),
    ("GFLOP/s", lambda row: row.get("gflop_per_s")),
    ("GB/s", lambda row: row.get("gb_per_s")),
    ("us/token", lambda row: row.get("us_per_token")),
    ("KB/token", lambda row: row.get("kb_per_token")),
    ("micro-batch", lambda row: row.get("micro_batch")),
    ("turns", lambda row: row.get("turns")),
    ("turns each", lambda row: row.get("turns_each")),
    ("overlap", lambda row: row.get("overlap")),
    ("early", lambda row: row.get("early")),
    ("rank", lambda row: row.get("rank")),
    ("+-", lambda row: row.get("rank_error")),
    ("ceiling", lambda row: row.get("ceiling")),
    ("sign", lambda row: row.get("sign")),
    ("bias", lambda row: row.get("bias")),
    ("variance", lambda row: row.get("variance")),
    ("tokens/task", lambda row: row.get("tokens_per_task")),
    ("rank/1000 tokens", lambda row: row.get("rank_per_kilotoken")),
    ("ms", lambda row: row.get("ms")),
    ("ns/turn", lambda row: row.get("ns_per_turn")),
    ("MB", lambda row: row.get("memory_mb")),
    ("difference", lambda row: row.get("difference")),
    ("of the loss", lambda row: row.get("loss_difference")),
    ("clipped", lambda row: row.get("clip_fraction")),
    ("agrees", lambda row: row.get("agrees")),
)


def heading(results: Results, reads: str) -> str:
    """Suite, machine, versions, and the meaning of the ratio."""
    machine = dict(results.machine)
    peer = machine.pop("peer", None) or {}
    formats = {
        "processor": "{}",
        "cores": "{} cores",
        "threads": "threads: {}",
        "gpu": "{}",
        "instructions": "{}",
        "python": "python {}",
        "torch": "torch {}",
    }
    parts = [text.format(machine.pop(k)) for k, text in formats.items() if machine.get(k) is not None]
    parts += [f"{k} {v}" for k, v in machine.items() if v is not None]
    peer_versions = [f"{k} {v}" for k, v in peer.items() if v is not None and k != "python"]
    if peer_versions:
        parts.append(f"both sides with {', '.join(peer_versions)}")
    return f"{results.suite}: {', '.join(parts)}; {reads}"


def _is_left_out(row: Row) -> bool:
    return str(row.get("note", "")).startswith("left out: ")


def table(results: Results, reads: str) -> None:
    """Print the rows. Figures that no row has get no column."""
    from rich.table import Table

    from gxpo.base import terminal

    columns = [(name, read) for name, read in COLUMNS if any(read(row) is not None for row in results.rows)]
    rich_table = Table(box=None, header_style="bold")
    rich_table.add_column("name", no_wrap=True)
    for name in ("ratio", "spread", *(name for name, _ in columns)):
        rich_table.add_column(name, justify="right")
    rows = [row for row in results.rows if not _is_left_out(row)]
    for row in rows:
        rich_table.add_row(row["name"], _ratio(row), _spread(row), *(_number(read(row)) for _, read in columns))
    console = terminal.console(width=max(140, terminal.console().width))
    console.print(heading(results, reads), soft_wrap=True)
    console.print(rich_table)
    # Below the table: everything that forbids to quote a figure as it stands.
    notes = [f"{row['name']}: {row['note']}" for row in rows if row.get("note")]
    if names_left_out := [row["name"] for row in results.rows if _is_left_out(row)]:
        notes.append(f"left out ({len(names_left_out)}; --json says why): {', '.join(names_left_out)}")
    if any(row.get("busy") for row in results.rows):
        notes.append("* others were using the machine meanwhile: not to be quoted")
    if any(row.get("quick") for row in results.rows):
        notes.append("--quick: too few rounds to be quoted")
    for line in notes:
        console.print(line, soft_wrap=True)
