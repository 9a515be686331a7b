"""Interchange `gxpo.rollouts/1`: JSON Lines, one trajectory a line, to and from `Forest`.

`parse` and `render` turn dicts into a forest and back, `load` and `dump` do it with files. Nothing half-loads and
nothing is half-written; every error names the line and the field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError
from torch import Tensor

from gxpo.errors import RecordError, did_you_mean, need
from gxpo.forest import Forest
from gxpo.reader import Fail, Reader
from gxpo.schema import SCHEMA, Fork, Record, Turn
from gxpo.writer import Writer

__all__ = ["SCHEMA", "Fork", "Record", "Turn", "dump", "load", "parse", "render"]


def parse(records: Iterable[Mapping[str, Any]], *, share: bool = True) -> Forest:
    """A forest from records (dicts as in the schema). Raises `RecordError` naming the record, from 1, and the field."""
    return _read(((f"record {n}", record) for n, record in enumerate(records, 1)), share, None)


def render(forest: Forest, *, share: bool = True) -> list[dict[str, Any]]:
    """Records of a forest; values that equal the schema's defaults are left out. `share=False` declares no forks."""
    writer = Writer(forest, share)
    return [writer.record(r) for r in range(forest.n_trajectories)]


def load(path: str | Path, *, share: bool = True) -> Forest:
    """Read a JSON Lines file of records, and the .safetensors files beside it that its `extras` name."""
    path = Path(path)
    if not path.is_file():
        raise RecordError(f"{path}: no such file")
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RecordError(f"{path}: can't be read: {error}") from None
    rows = [(f"{path}:{n}", _object(f"{path}:{n}", line)) for n, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise RecordError(f"{path}: holds no records")
    return _read(rows, share, path.parent)


def dump(forest: Forest, path: str | Path) -> None:
    """Write a JSON Lines file; named tensors go to NAME.safetensors beside it. The file appears whole or not at all."""
    path = Path(path)
    side = path.with_suffix(".safetensors")
    lines: list[str] = []
    tensors: dict[str, Tensor] = {}
    for record in render(forest):
        for i, turn in enumerate(record["turns"]):
            for name, value in turn.get("extras", {}).items():
                key = f"{len(lines) + 1}.{i}.{name}"
                tensors[key] = value.contiguous()
                turn["extras"][name] = f"{side.name}#{key}"
        try:
            lines.append(json.dumps(record, allow_nan=False) + "\n")
        except (ValueError, TypeError) as error:
            raise RecordError(f"trajectory {record['id']!r} can't be written as JSON: {error}") from None
    parts = [path.with_name(path.name + ".part"), side.with_name(side.name + ".part")]
    try:
        parts[0].write_text("".join(lines), encoding="utf-8")
        if tensors:
            need("safetensors", "train")
            from safetensors.torch import save_file

            save_file(tensors, parts[1])
            parts[1].replace(side)
        parts[0].replace(path)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


# ---------------------------------------------------------------- reading
def _read(rows: Iterable[tuple[str, Mapping[str, Any]]], share: bool, folder: Path | None) -> Forest:
    reader = Reader(share, folder)
    for where, raw in rows:
        fail = Fail(where)
        if not isinstance(raw, Mapping):
            raise RecordError(f"{where}: a record is a mapping, not {_short(raw)}")
        try:
            record = Record.model_validate(dict(raw))
        except ValidationError as error:
            _explain(error, fail)
        reader.add(record, fail)
    return reader.finish()


def _explain(error: ValidationError, fail: Fail) -> NoReturn:
    """The first thing that pydantic found, as field and message."""
    first = error.errors()[0]
    place = [p for p in first["loc"] if p not in ("bool", "list[bool]")]  # pydantic's names for the cases of a union
    field = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in place).lstrip(".")
    if first["type"] == "extra_forbidden":
        model = Turn if "turns" in place[:-1] else Fork if "fork" in place[:-1] else Record
        known = [f.alias or name for name, f in model.model_fields.items()]
        fail(field, f"is not a known key{did_you_mean(str(place[-1]), known)}; other keys go under `info`")
    if first["type"] == "missing":
        fail(field, "is missing")
    union = " or a list of them, one per action token" if "trainable" in place[:3] else ""
    fail(field, f"{first['msg'].lower()}{union} (got {_short(first.get('input'))})")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _object(where: str, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(
            line.decode("utf-8"), parse_constant=_number, parse_float=_number, object_pairs_hook=_distinct_keys
        )
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{where}: not a JSON object: {error}") from None
    if not isinstance(row, dict):
        raise RecordError(f"{where}: not a JSON object, but {_short(row)}")
    return row


def _number(text: str) -> float:
    value = float(text) if text[-1:].isdigit() else math.nan
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number; an unknown value is null")
    return value


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        names = [k for k, _ in pairs]
        raise ValueError(f"key {next(k for k in names if names.count(k) > 1)!r} stands twice")
    return out
