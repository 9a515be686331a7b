"""Lexical diversity of a text: the mean of eight signals."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from gxpo.errors import ConfigError, did_you_mean
from gxpo.rewards.metrics.text import plain

_SENTENCE = re.compile(r"[.!?\n]+")
_FUNCTION_WORDS = (
    "a an the and or but if of at by for with about to from in on is are was were be been it its this that these those "
    "as not no so than then he she they we you i his her their our your my me him them us do does did have has had can "
    "could will would should may might must there here what which who when where how"
)
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
# the sum of the weights divides: any positive numbers do
SIGNALS: Mapping[str, float] = dict.fromkeys(
    ("vocabulary", "entropy", "sentence_lengths", "openings", "bigrams", "trigrams", "yule", "content"), 1.0
)


def yule_k(words: Sequence[str]) -> float:
    """Yule's K, 10,000 (sum of squared counts - n) / n^2: 0 where no word comes twice, larger where few are repeated.

    >>> yule_k("a b c a b a".split()), yule_k("a b c d e f".split())
    (2222.222222222222, 0.0)
    """
    counts = Counter(words).values()
    return 1e4 * (sum(c * c for c in counts) - len(words)) / len(words) ** 2 if words else 0.0


def _distinct(items: Sequence[Any]) -> float:
    return len(set(items)) / len(items) if items else 0.0


def _entropy(words: Sequence[str]) -> float:
    n = len(words)
    return -sum(c / n * math.log(c / n) for c in Counter(words).values()) / math.log(n) if n > 1 else 0.0


def _spread(lengths: Sequence[int]) -> float:
    """Coefficient of variation v as v / (1 + v)."""
    mean = sum(lengths) / len(lengths) if lengths else 0.0
    v = math.sqrt(sum((x - mean) ** 2 for x in lengths) / len(lengths)) / mean if mean else 0.0
    return v / (1 + v)


def signals(text: str) -> dict[str, float]:
    """The eight signals, 0 to 1: distinct words, their entropy / ln n, spread of sentence lengths, distinct sentence
    openings, distinct bigrams and trigrams, 1 - K / 10,000, share of words that are not function words."""
    words = plain(text).split()
    sentences = [said for x in _SENTENCE.split(text) if (said := plain(x).split())]
    return {
        "vocabulary": _distinct(words),
        "entropy": _entropy(words),
        "sentence_lengths": _spread([len(s) for s in sentences]),
        "openings": _distinct([s[0] for s in sentences]),
        "bigrams": _distinct(list(pairwise(words))),
        "trigrams": _distinct(list(zip(words, words[1:], words[2:], strict=False))),
        "yule": 1 - yule_k(words) / 1e4 if words else 0.0,
        "content": sum(w not in FUNCTION_WORDS for w in words) / len(words) if words else 0.0,
    }


def lexical_diversity(
    answer: str, reference: Any = None, *, weights: Mapping[str, float] = SIGNALS, least: int = 20
) -> float:
    """Weighted mean of `signals`, times n / least for a text of n < least words; nothing is compared with.

    It rewards rare words as much as good ones and is easily gamed: a small weight, among right answers alone.
    """
    for name in weights:
        if name not in SIGNALS:
            raise ConfigError(f"lexical_diversity: weights has no {name!r}{did_you_mean(name, SIGNALS)}")
    found, total = signals(answer), sum(weights.values())
    n = len(plain(answer).split())
    return min(1.0, n / least) * sum(w * found[name] for name, w in weights.items()) / total
