"""Text metrics: error rates, exact match, F1, BLEU and shares of a script."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gxpo.environments.rewards.metrics import Unreadable
from gxpo.environments.rewards.metrics.text import bleu, cer, chrf, exact, f1, script_share, wer

close = lambda x: pytest.approx(x, abs=1e-6)  # noqa: E731


# ---------------------------------------------------------------- texts
def test_word_error_rates():
    # 5 words, one substituted (is -> sat), one (the -> a): 2 errors
    assert wer("the cat sat on a", "the cat is on the") == close(0.6)
    assert wer("one two three four five six seven", "a b c d e") == close(-0.4)  # 5 substituted, 2 inserted
    assert wer("", "a b") == 0.0 and wer("a", "a") == 1.0 and math.isnan(wer("a", ""))
    assert wer("The cat.", "the cat") == 0.0 and wer("The cat.", "the cat", normalize=True) == 1.0
    assert cer("kitten", "sitting") == close(1 - 3 / 7)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from("abc"), max_size=6), st.lists(st.sampled_from("abc"), min_size=1, max_size=6))
def test_wer_is_the_shortest_edit_script(said, gold):
    table = [[0] * (len(gold) + 1) for _ in range(len(said) + 1)]
    for i in range(len(said) + 1):
        for j in range(len(gold) + 1):
            if not i or not j:
                table[i][j] = i + j
            else:
                swap = table[i - 1][j - 1] + (said[i - 1] != gold[j - 1])
                table[i][j] = min(swap, table[i - 1][j] + 1, table[i][j - 1] + 1)
    assert wer(" ".join(said), " ".join(gold)) == close(1 - table[-1][-1] / len(gold))


def test_exact_and_f1():
    assert exact("New York.", "new  york") == 1.0 and exact("C", "B") == 0.0
    assert exact("+", "-") == 0.0 and exact("+", "+") == 1.0  # no words: as they stand
    assert f1("in New York", "New York City") == close(2 * 2 / 6)
    assert f1("", "a") == 0.0 and math.isnan(f1("a", None))


def test_bleu_of_short_answers_is_not_zero():
    # unigrams 1/2; no bigram of 1 matches: exp smoothing gives 1/2 of 1 / 1; brevity 1: sqrt(.5 * .5) = .5
    assert bleu("the dog", "the cat") == close(0.5)
    assert bleu("the dog", "the cat", smooth="none") == 0.0
    assert bleu("the cat", "the cat") == 1.0 and bleu("x", ["the cat", "x"]) == 1.0
    # brevity: one word of two, exp(1 - 2 / 1)
    assert bleu("the", "the cat") == close(math.exp(-1))
    assert chrf("cat", "cat") == close(1.0) and chrf("dog", "cat") == 0.0 and math.isnan(bleu("a", " "))


def test_share_of_a_script():
    assert script_share("ab \u0434\u0430 1", script="cyrillic") == 0.5
    assert script_share("\u4f60\u597d", script="cjk") == 1.0
    with pytest.raises(Unreadable):
        script_share("42")
