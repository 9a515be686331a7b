"""Choices between kernels that were measured on this machine: equal runs choose alike, and each is measured once.

One JSON file for each case (processor, torch, threads, sizes of the model, classes of the step's sizes) in `kernels` of
the cache directory. Deleting it makes the next run measure again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from gxpo.base.runtime import processor_name
from gxpo.models.cache import cache_directory
from gxpo.models.decoder.choices import PURPOSES, Sizes, class_of
from gxpo.training.checkpoint import write_atomic

# What the time of a kernel depends on in a model's configuration.
DIMENSIONS = (
    "model_type", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "num_hidden_layers", "vocab_size", "num_experts",
)  # fmt: skip
Lines = dict[str, list[str]]  # purpose -> chosen kernel, and how it compares in words


def case_of(config: Any, dtype: torch.dtype, sizes: Sizes, **further: Any) -> dict[str, Any]:
    """Facts that decide which kernels are fastest; `further`: settings that bear on them."""
    facts = {
        "processor": processor_name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "model": {name: getattr(config, name, None) for name in DIMENSIONS},
        "dtype": str(dtype),
        "kernels": {name: list(purpose.kernels) for name, purpose in PURPOSES.items()},
        "classes": [class_of(n) for n in (sizes.prompt, sizes.action, sizes.group, sizes.samples)],
    }
    return dict(**facts, **further)  # an error where `further` has a name of these


def recall(case: Mapping[str, Any], measure: Callable[[], Lines]) -> tuple[Lines, Path | None]:
    """Return the choices stored for a case and their file; else measure and store them.

    Processes that ask at the same time wait for the first. Where the cache can't be written, they are measured, and the
    file is None.
    """
    text = json.dumps(case, sort_keys=True)
    path = cache_directory() / "kernels" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if (lines := _read(path, case)) is None:
                lines = measure()
                write_atomic(path, json.dumps({"case": case, "choices": lines}, indent=1))
        return lines, path
    except OSError:
        return measure(), None


def _read(path: Path, case: Mapping[str, Any]) -> Lines | None:
    """Read the choices of a case; None where there are none, or the file is damaged."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return document["choices"] if document["case"] == json.loads(json.dumps(case)) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
