"""Lexical diversity of a text."""

from __future__ import annotations

import math

import pytest

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.metrics.diversity import lexical_diversity, signals, yule_k

close = lambda x: pytest.approx(x, abs=1e-6)  # noqa: E731


def test_lexical_diversity_uses_yules_k_and_cuts_short_texts():
    # three a, two b, one c: 10,000 (9 + 4 + 1 - 6) / 36
    assert yule_k(list("abcaba")) == close(2222.222222) and yule_k(list("abcdef")) == 0.0
    actual = signals("Red red dogs. Blue dogs run.")
    # words red red dogs blue dogs run: 4 of 6 distinct; bigrams 5 of 5; two sentences of 3 words with 1 of 4 in common
    assert actual["vocabulary"] == close(4 / 6) and actual["bigrams"] == 1.0
    assert actual["sentence_lengths"] == actual["sentence_kinds"] == actual["function_words"] == 0.0
    assert actual["adjacent_sentences"] == close(3 / 4)
    # counts 2, 2, 1, 1 of 6, of 4 kinds
    assert actual["entropy"] == close((2 / 3 * math.log(3) + 1 / 3 * math.log(6)) / math.log(4))
    assert actual["yule"] == close(1 / (1 + 1e4 * (4 + 4 + 1 + 1 - 6) / 36))
    full_lexical_diversity = lexical_diversity("a b", weights={"vocabulary": 1.0}, min_words=2)
    assert full_lexical_diversity == 1.0 and lexical_diversity(
        "a b", weights={"vocabulary": 1.0}, min_words=20
    ) == close(0.1)
    assert signals("") == dict.fromkeys(signals("a"), 0.0) and 0 <= lexical_diversity("!!! a ?") <= 1
    with pytest.raises(ConfigError, match="did you mean 'vocabulary'"):
        lexical_diversity("a", weights={"vocabluary": 1.0})
