"""A policy that sees and follows a script, in whole runs: what it says is a function of the stream's name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gxpo
from gxpo.models.tiny import IMAGE, character_tokenizer
from gxpo.parts.protocols import Completion, StreamKey
from gxpo.sampling.engines.torch import TorchEngine

TOKENIZER = character_tokenizer(IMAGE)
SMALL = {"tasks.per_step": 2, "rollout.group_size": 4, "eval.tasks": 2, "optim.weight_decay": 0.0}


def two_steps(
    method: str, task: str, say: Callable[[StreamKey], str], out: Path, patch: pytest.MonkeyPatch, **keys: Any
) -> Any:
    """A run of two steps of an untrained model that sees, which says `say(stream)` in training, "?" elsewhere."""

    def sample(engine: Any, requests: Any, sampling: Any) -> list[list[Completion]]:
        return [[completion(say(k) if k.step > 0 else "?") for k in r.streams] for r in requests]

    patch.setattr(TorchEngine, "sample", sample)
    return gxpo.train("tiny-vision:cold", task, method, 2, out=out, set={**SMALL, **keys})


def completion(text: str) -> Completion:
    tokens = [*TOKENIZER(text, add_special_tokens=False).input_ids, TOKENIZER.eos_token_id]
    return Completion(tokens, [-1.0] * len(tokens), "stop")
