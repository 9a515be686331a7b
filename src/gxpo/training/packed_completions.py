"""Completions as bytes, which the process that sampled them sends to the others."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from gxpo.parts.protocols import Completion


def pack(groups: list[list[Completion]]) -> bytes:
    """Completions as JSON, floats exactly."""
    return json.dumps([[asdict(c) for c in group] for group in groups], default=_listed).encode()


def _listed(array: Any) -> dict[str, Any]:
    array = np.asarray(array)
    return {"dtype": str(array.dtype), "shape": array.shape, "values": array.reshape(-1).tolist()}


def unpack(blob: bytes) -> list[list[Completion]]:
    def array(entry: dict[str, Any]) -> Any:
        if set(entry) != {"dtype", "shape", "values"}:
            return entry
        return np.asarray(entry["values"], dtype=entry["dtype"]).reshape(entry["shape"])

    return [[Completion(**row) for row in group] for group in json.loads(blob, object_hook=array)]
