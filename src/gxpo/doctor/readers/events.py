"""TensorBoard event files: scalars of any trainer."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from gxpo.base.errors import need
from gxpo.doctor.readers.found import Found, flat

MARK = b"brain.Event:"  # in the first record of every event file


def read(path: Path) -> Found:
    """Scalars by step; a record that is cut short ends the file, one that can't be parsed is counted.

    Raises `MissingExtra` without the library.
    """
    event_pb2 = need("tensorboard.compat.proto.event_pb2", "tensorboard")
    rows: dict[int, dict[str, float]] = {}
    found = Found("events")
    with path.open("rb") as stream:
        # length, its checksum, the record, its checksum: tensorflow's record_writer.h
        while head := stream.read(12):
            size = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else 0
            data = stream.read(size + 4) if 0 < size < 1 << 30 else b""
            if len(data) < size + 4 or not data:
                found.torn = True
                break
            event = event_pb2.Event()
            try:
                event.ParseFromString(data[:-4])
            except Exception:  # DecodeError is of whichever protobuf there is
                found.unreadable += 1
                continue
            for value in event.summary.value:
                if value.tag == "args/text_summary" and value.tensor.string_val:
                    found.settings = _arguments(value.tensor.string_val[0])
                figure = _scalar(value)
                if figure is not None:
                    rows.setdefault(event.step, {})[value.tag] = figure
    found.rows = [(float(step), row) for step, row in rows.items()]
    if any("rollouts/zero_signal_groups" in row or "update/weights_crc" in row for row in rows.values()):
        # gxpo's own files: names behind the word that TensorBoard groups them by
        found.rows = [(step, {key.partition("/")[2]: v for key, v in row.items()}) for step, row in found.rows]
    elif any("zero/signal_groups" in row or "weights/crc" in row for row in rows.values()):
        # gxpo's of before: the first underline is a stroke there
        found.rows = [(step, {key.replace("/", "_", 1): v for key, v in row.items()}) for step, row in found.rows]
    return found


def _arguments(data: bytes) -> dict[str, Any]:
    """The arguments of training that transformers' `TensorBoardCallback` writes as a text."""
    try:
        return flat(json.loads(data))
    except (ValueError, RecursionError):
        return {}


def _scalar(value: Any) -> float | None:
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind == "tensor" and not value.tensor.tensor_shape.dim:
        if value.tensor.float_val:
            return float(value.tensor.float_val[0])
        if value.tensor.double_val:
            return float(value.tensor.double_val[0])
        if value.tensor.dtype == 1 and len(value.tensor.tensor_content) == 4:
            return struct.unpack("<f", value.tensor.tensor_content)[0]
    return None
