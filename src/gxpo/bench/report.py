"""Tables of `gxpo bench` results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gxpo.bench.results import Results

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
    m = dict(results.machine)
    peer = m.pop("peer", None) or {}
    formats = {
        "processor": "{}",
        "cores": "{} cores",
        "threads": "threads: {}",
        "gpu": "{}",
        "instructions": "{}",
        "python": "python {}",
        "torch": "torch {}",
    }
    parts = [text.format(m.pop(k)) for k, text in formats.items() if m.get(k) is not None]
    parts += [f"{k} {v}" for k, v in m.items() if v is not None]
    peer_versions = [f"{k} {v}" for k, v in peer.items() if v is not None and k != "python"]
    if peer_versions:
        parts.append(f"both sides with {', '.join(peer_versions)}")
    return f"{results.suite}: {', '.join(parts)}; {reads}"


def _left_out(row: Row) -> bool:
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
    rows = [row for row in results.rows if not _left_out(row)]
    for row in rows:
        rich_table.add_row(row["name"], _ratio(row), _spread(row), *(_number(read(row)) for _, read in columns))
    console = terminal.console(width=max(140, terminal.console().width))
    console.print(heading(results, reads), soft_wrap=True)
    console.print(rich_table)
    # Below the table: everything that forbids to quote a figure as it stands.
    notes = [f"{row['name']}: {row['note']}" for row in rows if row.get("note")]
    if left_out := [row["name"] for row in results.rows if _left_out(row)]:
        notes.append(f"left out ({len(left_out)}; --json says why): {', '.join(left_out)}")
    if any(row.get("busy") for row in results.rows):
        notes.append("* others were using the machine meanwhile: not to be quoted")
    if any(row.get("quick") for row in results.rows):
        notes.append("--quick: too few rounds to be quoted")
    for line in notes:
        console.print(line, soft_wrap=True)
