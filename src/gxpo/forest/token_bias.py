"""`TokenBias`: numbers added to a token's logits before it was sampled, and ids that were forbidden; as data.

Few biases of a run differ (a call's `logit_bias` has one, a grammar some dozens), so a token holds the 63-bit hash of
its bias (`extras["bias"]` [T]), and `Forest.biases` holds each distinct one once. Equal biases have equal hashes in
every forest, so that forests are joined and cut without renumbering.
"""

from __future__ import annotations

import base64
import hashlib
import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

BIAS = "bias"  # of `Forest.extras`: [T] int64 hashes, -1 none
PENALTY = "penalty"  # of `Forest.extras`: [T, 4] float64, nan none; see `PENALTIES`
PENALTIES = (
    "presence",
    "frequency",
    "repetition",
    "sampled",
)  # its columns; sampled: the call's tokens before this one


@dataclass(frozen=True, eq=False)
class TokenBias:
    """Bias of one token's logits [V], before temperature.

    ids      [K] int32, ascending
    values   [K] float32, added to the logits of these ids; -inf forbids one
    allowed  [ceil(V / 8)] uint8, bit i of byte j for id 8 j + i: ids that a grammar allows (None: all). Ids beyond are
             forbidden
    """

    ids: np.ndarray
    values: np.ndarray
    allowed: np.ndarray | None = None

    @classmethod
    def of(cls, values: Mapping[int, float], allowed: bytes | np.ndarray | None = None) -> TokenBias:
        """Bias from numbers by id and the packed bits of a grammar's mask.

        >>> TokenBias.of({3: -1.0, 1: 2.0}).ids.tolist()
        [1, 3]
        """
        ids = sorted(values)
        bits = np.frombuffer(allowed, dtype=np.uint8) if isinstance(allowed, bytes) else allowed
        return cls(np.asarray(ids, dtype=np.int32), np.asarray([values[i] for i in ids], dtype=np.float32), bits)

    @cached_property
    def key(self) -> int:
        """63 bits of the hash of its contents."""
        digest = hashlib.blake2b(self.ids.astype("<i4").tobytes(), digest_size=8)
        digest.update(self.values.astype("<f4").tobytes())
        digest.update(b"" if self.allowed is None else b"+" + self.allowed.tobytes())
        return int.from_bytes(digest.digest(), "little") >> 1

    def dense(self, vocabulary: int) -> Tensor:
        """[V] float32: what is added to each logit. ValueError for an id outside the vocabulary."""
        if len(self.ids) and int(self.ids[-1]) >= vocabulary:
            raise ValueError(f"a bias names the id {int(self.ids[-1])}; the vocabulary has 0 to {vocabulary - 1}")
        out = np.zeros(vocabulary, dtype=np.float32)
        if self.allowed is not None:
            bits = np.unpackbits(self.allowed, bitorder="little")[:vocabulary]
            out[: len(bits)][bits == 0] = -np.inf
            out[len(bits) :] = -np.inf
        out[self.ids] += self.values
        return torch.from_numpy(out)

    def at(self, ids: Tensor) -> Tensor:
        """Values of these ids [n], float32 [n]."""
        id_N = ids.numpy()
        out = np.zeros(len(id_N), dtype=np.float32)
        if self.allowed is not None:
            byte = np.minimum(id_N >> 3, len(self.allowed) - 1)
            is_allowed = ((self.allowed[byte] >> (id_N & 7)) & 1).astype(bool) & (id_N >> 3 < len(self.allowed))
            out[~is_allowed] = -np.inf
        for i, value in zip(self.ids.tolist(), self.values.tolist(), strict=True):
            out[id_N == i] += value
        return torch.from_numpy(out)

    # ------------------------------------------------------------ records
    def to_record(self) -> dict[str, Any]:
        """JSON of it: ids, values (null: -inf), and the mask's bits as base64 of their zlib compression."""
        out: dict[str, Any] = {}
        if len(self.ids):
            out["ids"] = self.ids.tolist()
            out["values"] = [x if math.isfinite(x) else None for x in self.values.tolist()]
        if self.allowed is not None:
            out["allowed"] = base64.b64encode(zlib.compress(self.allowed.tobytes(), 9)).decode()
        return out

    @classmethod
    def from_record(cls, record: Any) -> TokenBias:
        """The inverse of `to_record`; ValueError where it is not such JSON."""
        if not isinstance(record, Mapping) or not set(record) <= {"ids", "values", "allowed"}:
            raise ValueError("is not an object of ids, values and allowed")
        ids, values, allowed = record.get("ids", []), record.get("values", []), record.get("allowed")
        if not isinstance(ids, list) or not isinstance(values, list) or len(ids) != len(values):
            raise ValueError("has ids and values that are not lists of one length")
        if not all(type(i) is int and 0 <= i < 1 << 31 for i in ids) or ids != sorted(set(ids)):
            raise ValueError("has ids that are not ascending token ids")
        if not all(x is None or (isinstance(x, int | float) and not isinstance(x, bool)) for x in values):
            raise ValueError("has values that are neither numbers nor null")
        bits = None
        if allowed is not None:
            try:
                bits = zlib.decompress(base64.b64decode(allowed, validate=True))
            except (ValueError, TypeError, zlib.error) as error:
                raise ValueError(f"has an `allowed` that is not base64 of compressed bits: {error}") from None
        return cls.of(dict(zip(ids, (-math.inf if x is None else x for x in values), strict=True)), bits)


def to_records(biases: Mapping[int, TokenBias], keys: Iterable[int]) -> dict[str, Any]:
    """JSON of these biases by hash, in order of the hashes; -1 and hashes that are not there are left out."""
    return {str(key): biases[key].to_record() for key in sorted(set(keys)) if key in biases}


def from_records(records: Mapping[str, Any]) -> dict[int, TokenBias]:
    """Biases of a turn by hash; ValueError for one that can't be read, or whose hash is not that of its contents."""
    out = {}
    for name, record in records.items():
        try:
            bias = TokenBias.from_record(record)
        except ValueError as error:
            raise ValueError(f"{name[:24]}: {error}") from None
        if name != str(bias.key):
            raise ValueError(f"{name[:24]}: is not the hash of its contents, {bias.key}: was it edited?")
        out[bias.key] = bias
    return out


def penalised(logits: Tensor, count: Tensor, is_seen: Tensor, penalty: Tensor) -> Tensor:
    """Logits [n, V] under repetition, frequency and presence penalties, in this order, as vLLM has them.

    A logit l of an id that was seen becomes l / repetition if l > 0, else l * repetition; then every logit loses
    frequency * count + presence * (count > 0).

    count    [n, V] times that the reply has each id;   is_seen  [n, V] bool: prompt or reply has it
    penalty  [n, 3] presence, frequency, repetition
    """
    presence, frequency, repetition = penalty.to(logits).unbind(1)
    repeated = torch.where(logits > 0, logits / repetition[:, None], logits * repetition[:, None])
    out = torch.where(is_seen, repeated, logits)
    return out - frequency[:, None] * count - presence[:, None] * (count > 0)
