"""Completions as bytes, for the other processes of a run."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from gxpo.forest.token_bias import TokenBias
from gxpo.parts.protocols import Completion


def pack(groups: list[list[Completion]]) -> bytes:
    """Encode completions as JSON for other processes, floats exactly."""

    def array_entry(array: Any) -> dict[str, Any]:
        array = np.asarray(array)
        return {"dtype": str(array.dtype), "shape": array.shape, "values": array.reshape(-1).tolist()}

    return json.dumps([[asdict(c) for c in group] for group in groups], default=array_entry).encode()


def unpack(blob: bytes) -> list[list[Completion]]:
    """Decode what `pack` has encoded."""

    def array(entry: dict[str, Any]) -> Any:
        if set(entry) != {"dtype", "shape", "values"}:
            return entry
        return np.asarray(entry["values"], dtype=entry["dtype"]).reshape(entry["shape"])

    def completion(row: dict[str, Any]) -> Completion:
        # JSON has texts for keys, and a bias is an object of its fields
        biases = {int(key): TokenBias(**bias) for key, bias in row["biases"].items()}
        return Completion(**{**row, "biases": biases})

    return [[completion(row) for row in group] for group in json.loads(blob, object_hook=array)]
