"""Rows of JSON Lines: whole groups of a file, without parsing the lines that are not kept."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gxpo.doctor.rollout_sample import by_step

LARGE = 160 * 2**20  # of a larger file stretches are read
_STRETCHES, _STRETCH = 48, 2**20
STRETCHES = _STRETCHES * _STRETCH  # bytes of these
_LONGEST = 16 * 2**20  # a line beyond this is not looked at


@dataclass
class Lines:
    """Parsed lines of a file with their numbers, from 1 (-1 - byte offset where the lines before were not counted)."""

    rows: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    total: float = 0.0
    bad: int = 0
    exact: bool = True


def read_lines(path: Path, keys: Sequence[str], budget: int, large: int = LARGE) -> Lines:
    """About `budget` rows in whole groups: lines that agree in their fields `keys` are one group, the first key being
    the step where there are two."""
    size = path.stat().st_size
    if size <= large:
        lines = path.read_bytes().split(b"\n")
        numbered = [(i + 1, line) for i, line in enumerate(lines) if line.strip()]
        return _kept(numbered, keys, budget, path.name)
    return _stretches(path, size, keys, budget)


def _stretches(path: Path, size: int, keys: Sequence[str], budget: int) -> Lines:
    found = Lines(exact=False)
    stretch = min(_STRETCH, size // (2 * _STRETCHES))
    at = [round(i * (size - stretch) / (_STRETCHES - 1)) for i in range(_STRETCHES)]
    lines_seen = bytes_seen = 0
    with path.open("rb") as file:
        for k, begin in enumerate(at):
            file.seek(begin)
            block = file.read(stretch)
            if k and (cut := block.find(b"\n")) >= 0:
                begin, block = begin + cut + 1, block[cut + 1 :]
            if k < len(at) - 1:
                end = block.rfind(b"\n")
                if end < 0 and len(block) < _LONGEST:  # one line longer than the stretch
                    block += file.readline(_LONGEST)
                else:
                    block = block[: end + 1]
            numbered, offset = [], begin
            for line in block.split(b"\n"):
                if line.strip():
                    numbered.append((-1 - offset, line))
                offset += len(line) + 1
            lines_seen += len(numbered)
            bytes_seen += len(block)
            part = _kept(_inner(numbered, keys), keys, max(budget // len(at), 1), f"{path.name}{k}")
            found.rows += part.rows
            found.bad += part.bad
    found.total = lines_seen * size / max(bytes_seen, 1)
    return found


def _inner(numbered: list[tuple[int, bytes]], keys: Sequence[str]) -> list[tuple[int, bytes]]:
    """Without the first and the last group, which the stretch may have cut."""
    seen = [_key(line, keys) for _, line in numbered]
    if len(set(seen)) < 3:
        return numbered
    return [row for row, key in zip(numbered, seen, strict=True) if key not in (seen[0], seen[-1])]


def _kept(numbered: list[tuple[int, bytes]], keys: Sequence[str], budget: int, salt: str) -> Lines:
    found = Lines(total=len(numbered))
    seen = [_key(line, keys) for _, line in numbered]
    chosen = by_step([k[0] if len(keys) > 1 else b"" for k in seen], seen, budget, salt)
    for i in chosen:
        number, line = numbered[i]
        row = parsed(line)
        if row is None:
            found.bad += 1
        else:
            found.rows.append((number, row))
    return found


def parsed(line: bytes) -> dict[str, Any] | None:
    """A line's JSON object; None where it is none."""
    try:
        row = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


_VALUE = re.compile(rb'\s*("[^"\\]*(?:\\.[^"\\]*)*"|[^",\[{}\]]+)', re.DOTALL)


def _key(line: bytes, keys: Sequence[str]) -> tuple[bytes, ...]:
    """The raw bytes of the fields. A quote inside a text is escaped, so that `"name":` stands before a field only."""
    out = []
    for name in keys:
        quoted = f'"{name}":'.encode()
        at = line.find(quoted)
        while at > 0 and line[at - 1 : at] == b"\\":
            at = line.find(quoted, at + 1)
        found = _VALUE.match(line, at + len(quoted)) if at >= 0 else None
        out.append(found[1] if found else b"")
    return tuple(out)


def first_rows(path: Path, n: int = 8) -> list[dict[str, Any]]:
    """The first parsable objects among the first lines of a file; [] where it does not begin as JSON Lines."""
    with path.open("rb") as file:
        head = file.read(2**16)
        if b"\n" not in head and head.lstrip()[:1] == b"{" and len(head) == 2**16:
            head += file.readline(_LONGEST)
    lines = [line for line in head.split(b"\n") if line.strip()][: 4 * n]
    found = [row for row in map(parsed, lines) if row is not None]
    return found[:n]


def line_count(path: Path) -> float:
    """About how many lines a file has, by the mean length of its first."""
    with path.open("rb") as file:
        head = file.read(2**20)
    return path.stat().st_size / max(len(head), 1) * max(head.count(b"\n"), 1)
