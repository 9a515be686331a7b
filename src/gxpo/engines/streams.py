"""Keyed streams of uniform numbers: what is drawn depends on the key, never on what else is in the batch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np

from gxpo.protocols import StreamKey


def generator(key: StreamKey) -> np.random.Generator:
    """A Philox generator whose 128-bit key is the blake2b hash of the stream's name."""
    name = json.dumps([key.seed, key.step, key.task, key.attempt, list(key.path), key.turn])
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest, dtype="<u8")))


def uniforms(keys: Sequence[StreamKey], length: int) -> np.ndarray:
    """float64 [len(keys), length] in [0, 1); a longer stream of the same key begins with the shorter one.

    >>> a = uniforms([StreamKey(seed=0, step=3, task="gsm8k/17", attempt=1)], 2)
    >>> b = uniforms([StreamKey(seed=0, step=3, task="gsm8k/17", attempt=1)], 5)
    >>> bool((a == b[:, :2]).all())
    True
    """
    out = np.empty((len(keys), length), dtype=np.float64)
    for row, key in zip(out, keys, strict=True):
        generator(key).random(out=row)
    return out
