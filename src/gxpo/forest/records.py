"""Rollout records `gxpo.rollouts/1` (JSON Lines, one trajectory a line) to and from `Forest`.

`parse` and `render` turn dicts into a forest and back, `load` and `dump` do it with files. Nothing half-loads and
nothing is half-written; every error names the line and the field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from gxpo.base.errors import RecordError, need
from gxpo.base.media import FOLDER, PICTURES, made_in, pictures_of
from gxpo.forest.forest import Forest
from gxpo.forest.record_format.reader import columns_of, short
from gxpo.forest.record_format.schema import SCHEMA, Fork, Record, Turn
from gxpo.forest.record_format.writer import render

__all__ = ["SCHEMA", "Fork", "Record", "Turn", "dump", "load", "parse", "render"]


def parse(records: Iterable[Mapping[str, Any]], *, share: bool = True) -> Forest:
    """Forest from records (dicts as in the schema). Raises `RecordError` naming the record, from 1, and the field."""
    return Forest.from_records(records, share=share)


def load(path: str | Path, *, share: bool = True) -> Forest:
    """Load a JSON Lines file of records, and the .safetensors files that its `extras` name."""
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
    PICTURES.look_in(path.parent / FOLDER)
    return Forest(**columns_of(rows, share, path.parent))


def dump(forest: Forest, path: str | Path) -> None:
    """Write a JSON Lines file, atomically; named tensors go to NAME.safetensors in the same folder."""
    # a record's tensors are replaced by references before it is JSON
    path = Path(path)
    tensor_file = path.with_suffix(".safetensors")
    lines: list[str] = []
    tensors: dict[str, Tensor] = {}
    for record in render(forest):
        for i, turn in enumerate(record["turns"]):
            for name, value in turn.get("extras", {}).items():
                key = f"{len(lines) + 1}.{i}.{name}"
                tensors[key] = value.contiguous()
                turn["extras"][name] = f"{tensor_file.name}#{key}"
        try:
            lines.append(json.dumps(record, allow_nan=False) + "\n")
        except (ValueError, TypeError) as error:
            raise RecordError(f"trajectory {record['id']!r} can't be written as JSON: {error}") from None
    # written beside and renamed, records last: a file of records never names tensors that are not there
    partial_files = [path.with_name(path.name + ".part"), tensor_file.with_name(tensor_file.name + ".part")]
    try:
        PICTURES.save([*pictures_of(forest.media), *made_in(forest.info)], path.parent / FOLDER)
        partial_files[0].write_text("".join(lines), encoding="utf-8")
        if tensors:
            need("safetensors", "train")
            from safetensors.torch import save_file

            save_file(tensors, partial_files[1])
            partial_files[1].replace(tensor_file)
        partial_files[0].replace(path)
    finally:
        for part in partial_files:
            part.unlink(missing_ok=True)


def _object(where: str, line: bytes) -> dict[str, Any]:
    """Parse one line as a JSON object: finite numbers, distinct keys. RecordError otherwise."""
    try:
        row = json.loads(
            line.decode("utf-8"), parse_constant=_number, parse_float=_number, object_pairs_hook=_distinct_keys
        )
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{where}: not a JSON object: {error}") from None
    if not isinstance(row, dict):
        raise RecordError(f"{where}: not a JSON object, but {short(row)}")
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
        raise ValueError(f"key {next(k for k in names if names.count(k) > 1)!r} is given twice")
    return out
