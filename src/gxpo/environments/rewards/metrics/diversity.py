"""Lexical diversity of a text: the mean of eight signals."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from gxpo.base.errors import ConfigError, did_you_mean
from gxpo.environments.rewards.metrics.text import plain

_SENTENCE = re.compile(r"[^.!?\n]+[.!?\n]?")
_KINDS = {"?": "interrogative", "!": "exclamatory"}  # by what ends a sentence; any other is declarative
_FUNCTION_WORDS = (
    "a an the and or but if of at by for with about to from in on is are was were be been it its this that these those "
    "as not no so than then he she they we you i his her their our your my me him them us do does did have has had can "
    "could will would should may might must there here what which who when where how"
)
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
# Weights need not sum to 1: their sum divides.
SIGNALS: Mapping[str, float] = dict.fromkeys(
    (
        "vocabulary",
        "entropy",
        "sentence_lengths",
        "sentence_kinds",
        "adjacent_sentences",
        "yule",
        "bigrams",
        "function_words",
    ),
    1.0,
)


def yule_k(words: Sequence[str]) -> float:
    """Yule's K, 10,000 (sum of squared counts - n) / n^2: 0 where no word comes twice, larger where few are repeated.

    >>> yule_k("a b c a b a".split()), yule_k("a b c d e f".split())
    (2222.222222222222, 0.0)
    """
    counts = Counter(words).values()
    return 1e4 * (sum(c * c for c in counts) - len(words)) / len(words) ** 2 if words else 0.0


def _distinct(items: Sequence[Any]) -> float:
    """Share of distinct items; 0 of none."""
    return len(set(items)) / len(items) if items else 0.0


def _entropy(items: Sequence[Any], kinds: int) -> float:
    """Entropy of the empirical distribution over the log of the number of `kinds`; 0 where there is one or none."""
    n = len(items)
    return -sum(c / n * math.log(c / n) for c in Counter(items).values()) / math.log(kinds) if n and kinds > 1 else 0.0


def _variation(lengths: Sequence[int]) -> float:
    """Coefficient of variation of sentence lengths, at most 1."""
    mean = sum(lengths) / len(lengths) if lengths else 0.0
    return min(1.0, math.sqrt(sum((x - mean) ** 2 for x in lengths) / len(lengths)) / mean) if mean else 0.0


def _jaccard_distance(a: Sequence[str], b: Sequence[str]) -> float:
    """Jaccard distance of two lists of words as sets, not both empty."""
    return 1 - len({*a} & {*b}) / len({*a} | {*b})


def signals(text: str) -> dict[str, float]:
    """Signals of lexical diversity, eight from 0 to 1.

    Distinct words; their entropy / ln of the distinct; coefficient of variation of the sentences' lengths, at most 1;
    entropy of declarative, interrogative and exclamatory sentences / ln 3; Jaccard distance of adjacent sentences'
    words, mean; 1 / (1 + K), K Yule's; distinct bigrams; entropy of the function words / ln of how many there are.

    Source: MultiRole-R1, arXiv 2507.20187v4, appendix F. Its kinds of sentences and its function words are not listed,
    and its coefficient of variation has no upper bound.
    """
    words = plain(text).split()
    # The kind is read from the sentence's last sign, before its punctuation is taken out.
    sentence_words_and_kinds = [(plain(x).split(), _KINDS.get(x[-1], "declarative")) for x in _SENTENCE.findall(text)]
    sentences = [words_of_sentence for words_of_sentence, _ in sentence_words_and_kinds if words_of_sentence]
    distances = [_jaccard_distance(a, b) for a, b in pairwise(sentences)]
    return {
        "vocabulary": _distinct(words),
        "entropy": _entropy(words, len(set(words))),
        "sentence_lengths": _variation([len(s) for s in sentences]),
        "sentence_kinds": _entropy(
            [kind for words_of_sentence, kind in sentence_words_and_kinds if words_of_sentence], 3
        ),
        "adjacent_sentences": sum(distances) / len(distances) if distances else 0.0,
        "yule": 1 / (1 + yule_k(words)) if words else 0.0,
        "bigrams": _distinct(list(pairwise(words))),
        "function_words": _entropy([w for w in words if w in FUNCTION_WORDS], len(FUNCTION_WORDS)),
    }


def lexical_diversity(
    answer: str, reference: Any = None, *, weights: Mapping[str, float] = SIGNALS, min_words: int = 20
) -> float:
    """Lexical diversity: weighted mean of `signals`, times n / least for a text of n < least words; no reference.

    It rewards rare words as much as good ones and is easily gamed: a small weight, among right answers alone.
    """
    for name in weights:
        if name not in SIGNALS:
            raise ConfigError(f"lexical_diversity: weights has no {name!r}{did_you_mean(name, SIGNALS)}")
    value_by_signal, total = signals(answer), sum(weights.values())
    n = len(plain(answer).split())
    return min(1.0, n / min_words) * sum(w * value_by_signal[name] for name, w in weights.items()) / total
