"""Results of `gxpo bench` as a table and as pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gxpo.bench.results import Results
from gxpo.errors import ConfigError, need

Row = Mapping[str, Any]
UNIQUE = "unique/"  # rows of `update` that differ in their number of unique tokens
PICTURES = (".svg", ".png", ".pdf")


def sides(row: Row) -> list[tuple[str, Mapping[str, Any]]]:
    """The two ways of doing the work, gxpo's own first, each with its figures."""
    return [(name, x) for name, x in row.items() if isinstance(x, Mapping) and "seconds" in x]


# ---------------------------------------------------------------- table
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
    shown = f"{ratio:.6f}" if "difference" in row else f"{ratio:.2f}"
    return shown + ("*" if row.get("busy") else "")


def _spread(row: Row) -> str:
    found = row.get("spread")
    return "-" if not found or found[0] is None else f"{found[0]:.2f}..{found[1]:.2f}"


def _of_side(place: int, figure: str) -> Callable[[Row], Any]:
    def read(row: Row) -> Any:
        found = sides(row)
        return found[place][1].get(figure) if len(found) > place else None

    return read


def _against(row: Row) -> Any:
    found = sides(row)
    return f"{found[0][0]} / {found[1][0]}" if len(found) > 1 else row.get("against")


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
    ("micro-batch", lambda row: row.get("micro_batch")),
    ("turns", lambda row: row.get("turns")),
    ("ms", lambda row: row.get("ms")),
    ("ns/turn", lambda row: row.get("ns_per_turn")),
    ("MB", lambda row: row.get("memory_mb")),
    ("difference", lambda row: row.get("difference")),
    ("of the loss", lambda row: row.get("loss_difference")),
    ("clipped", lambda row: row.get("clip_fraction")),
    ("agrees", lambda row: row.get("agrees")),
)


def heading(results: Results, reads: str) -> str:
    """Suite, machine, versions, and how the ratio is to be read."""
    m = dict(results.machine)
    peer = m.pop("peer", None) or {}
    known = {
        "processor": "{}",
        "cores": "{} cores",
        "threads": "threads: {}",
        "gpu": "{}",
        "instructions": "{}",
        "python": "python {}",
        "torch": "torch {}",
    }
    parts = [text.format(m.pop(k)) for k, text in known.items() if m.get(k) is not None]
    parts += [f"{k} {v}" for k, v in m.items() if v is not None]
    beside = [f"{k} {v}" for k, v in peer.items() if v is not None and k != "python"]
    if beside:
        parts.append(f"both sides with {', '.join(beside)}")
    return f"{results.suite}: {', '.join(parts)}; {reads}"


def table(results: Results, reads: str) -> None:
    """Prints the rows. Figures that no row has get no column."""
    from rich.console import Console
    from rich.table import Table

    columns = [(name, read) for name, read in COLUMNS if any(read(row) is not None for row in results.rows)]
    shown = Table(box=None, header_style="bold")
    shown.add_column("name", no_wrap=True)
    for name in ("ratio", "spread", *(name for name, _ in columns)):
        shown.add_column(name, justify="right")
    for row in results.rows:
        shown.add_row(row["name"], _ratio(row), _spread(row), *(_number(read(row)) for _, read in columns))
    console = Console(width=max(140, Console().width), highlight=False)
    console.print(heading(results, reads), soft_wrap=True, markup=False)
    console.print(shown)
    notes = [f"{row['name']}: {row['note']}" for row in results.rows if row.get("note")]
    if any(row.get("busy") for row in results.rows):
        notes.append("* others were using the machine meanwhile: not to be quoted")
    if any(row.get("quick") for row in results.rows):
        notes.append("--quick: too few rounds to be quoted")
    for line in notes:
        console.print(line, soft_wrap=True, markup=False)


# ---------------------------------------------------------------- pictures
def check_picture(path: Path) -> None:
    """`ConfigError` unless this is a picture's name, `MissingExtra` without matplotlib."""
    if path.suffix not in PICTURES:
        raise ConfigError(f"--plot {path}: its name must end in {', '.join(PICTURES)}")
    need("matplotlib", "plot")


def plot(results: Results, path: Path, reads: str) -> None:
    """Draws the ratios with their spread; of rows `unique/...` the seconds against the unique tokens."""
    check_picture(path)
    figure_class = need("matplotlib.figure", "plot").Figure
    need("matplotlib", "plot").rcParams["svg.hashsalt"] = "gxpo"  # the same picture for the same rows
    rows = [row for row in results.rows if row.get("ratio") is not None]
    lined = [row for row in rows if _unique(row) is not None]
    if not rows:
        raise ConfigError("there are no rows to draw")
    panels = 1 + (len(lined) > 1)
    figure = figure_class(figsize=(9, (0.32 * len(rows) + 1.6) + 4.2 * (panels - 1)), layout="constrained")
    axes = figure.subplots(panels, 1, squeeze=False, height_ratios=[0.32 * len(rows) + 1.6, 4.2][:panels])[:, 0]
    _bars(axes[0], rows, results, reads)
    if panels == 2:
        _line(axes[1], lined)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _bars(axis: Any, rows: Sequence[Row], results: Results, reads: str) -> None:
    ratios = [row["ratio"] for row in rows]
    spreads = [row.get("spread") or [row["ratio"]] * 2 for row in rows]
    error = [
        [max(0.0, r - low) for r, (low, _) in zip(ratios, spreads, strict=True)],
        [max(0.0, high - r) for r, (_, high) in zip(ratios, spreads, strict=True)],
    ]
    place = list(range(len(rows)))
    colours = ["#2a6f97" if r >= 1 else "#bc6c25" for r in ratios]
    axis.barh(place, ratios, xerr=error, color=colours, ecolor="#333333", capsize=2)
    axis.set_yticks(place, [row["name"] + ("*" if row.get("busy") else "") for row in rows])
    axis.invert_yaxis()
    axis.axvline(1.0, color="#333333", linewidth=0.8)
    for y, ratio, (_, high) in zip(place, ratios, spreads, strict=True):
        axis.annotate(
            f"{ratio:.2f}", (max(ratio, high), y), (4, 0), textcoords="offset points", va="center", fontsize=8
        )
    axis.margins(x=0.1)
    axis.set_xlabel(reads)
    m = results.machine
    axis.set_title(f"{results.suite}: {m.get('processor')}, threads: {m.get('threads')}", fontsize=10)


def _unique(row: Row) -> tuple[float, float] | None:
    """(unique tokens, seconds of gxpo's side) of a row that stands for a number of unique tokens."""
    name, found = row["name"].removeprefix("update/"), sides(row)
    tokens = row.get("unique_tokens")
    return (float(tokens), float(found[0][1]["seconds"])) if name.startswith(UNIQUE) and tokens and found else None


def fitted(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """(seconds at 0, seconds per token, r^2) of the straight line of least squares."""
    import numpy as np

    x, y = np.array(points, dtype=np.float64).T
    slope, start = np.polyfit(x, y, 1)
    left = ((y - start - slope * x) ** 2).sum()
    return float(start), float(slope), float(1 - left / ((y - y.mean()) ** 2).sum())


def _line(axis: Any, rows: Sequence[Row]) -> None:
    points = sorted(p for p in map(_unique, rows) if p is not None)
    start, slope, r2 = fitted(points)
    axis.plot([x for x, _ in points], [y for _, y in points], "o", color="#2a6f97")
    ends = [0.0, points[-1][0]]
    label = f"{start * 1e3:.0f} ms + {slope * 1e6:.1f} us per token, r2 = {r2:.4f}"
    axis.plot(ends, [start + slope * x for x in ends], "-", color="#bc6c25", linewidth=1, label=label)
    axis.set_xlabel("unique tokens of a step")
    axis.set_ylabel("seconds of a step")
    axis.set_ylim(bottom=0)
    axis.legend()
