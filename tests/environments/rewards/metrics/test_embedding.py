"""Embedding similarity, and the baseline of unrelated texts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.metrics.embedding import bmas, embedding, random_pair_baseline

close = lambda x: pytest.approx(x, abs=1e-6)  # noqa: E731


# ---------------------------------------------------------------- embeddings
WORDS = {"north": (1.0, 0.0), "east": (0.0, 1.0), "up": (0.6, 0.8)}


def words(text):
    return np.array([WORDS[w] for w in text.split()]).reshape(-1, 2)


def test_the_cards_bmas():
    # rows' best .9 and .8, mean .85; columns' best .9, .8, .2, mean .633333
    assert bmas([[0.9, 0.1, 0.2], [0.3, 0.8, 0.1]]) == close(0.741667)


def test_embedding_similarities_and_contrast():
    assert embedding("up", "north", embedder=words) == close(0.6)
    assert embedding("up", "north", embedder=words, contrast="east") == close(0.6 - 0.8)
    # tokens: "up" is .6 and .8 alike; the best of either side: (.8 + (.6 + .8) / 2) / 2
    assert embedding("up", "north east", embedder=words, align="tokens") == close(0.75)
    assert math.isnan(embedding("up", None, embedder=words)) and embedding("", "up", embedder=words) == 0.0
    with pytest.raises(ConfigError, match="token embeddings"):
        embedding("up", "up", embedder=lambda text: words(text)[0], align="tokens")


def test_the_baseline_of_random_pairs():
    # up-north .6, up-east .8, north-east 0, each both ways round
    assert random_pair_baseline(embedding, ["up", "north", "east"], embedder=words) == close(1.4 / 3)
