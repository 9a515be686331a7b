"""Text metrics: exact match, F1, error rates of speech recognition, BLEU, chrF, share of a script."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

from rapidfuzz.distance import Levenshtein

from gxpo.base.errors import need
from gxpo.environments.rewards.metrics import Unreadable

_WORD = re.compile(r"\w+(?:['\u2019]\w+)*")


def plain(text: Any) -> str:
    """A text's words in lower case with single spaces, without punctuation.

    >>> plain("  It's  HERE, now! ")
    "it's here now"
    """
    return " ".join(_WORD.findall(str(text).casefold()))


def exact(answer: str, reference: Any, *, normalize: bool = True) -> float:
    """1 where answer and reference are the same text: of words (`plain`), or with normalize=False as it stands.

    >>> exact("Paris.", "paris"), exact("B", "C"), exact("Paris.", "paris", normalize=False)
    (1.0, 0.0, 0.0)
    """
    if reference is None:
        return math.nan
    if not normalize:
        return float(answer.strip() == str(reference).strip())
    words = plain(answer), plain(reference)
    return float(words[0] == words[1]) if any(words) else exact(answer, reference, normalize=False)


_OPTION = re.compile(r"\(?([A-G])\)?\.?(?:[.:)]\s*\S.*)?", re.DOTALL)
_PREFIXES = re.compile(
    r"The (?:best|correct) (?:answer|option) is|The answer is|The answer|Best answer:|Best option:", re.IGNORECASE
)


def choice(answer: str, reference: Any) -> float:
    """1 where an answer begins with the option that the reference is, a letter from A to G or "B. its text"; where the
    reference is no such option, `exact`.

    The option of an answer is the first capital from A to G in it, without words like "The best answer is"; more than
    ten words without one have none. Source: the code of VideoChat-R1 (arXiv 2504.06958).

    >>> choice("B. a red ball", "B"), choice("The best answer is (C)", "B"), choice("Red.", "red")
    (1.0, 0.0, 1.0)
    """
    option = _OPTION.fullmatch(str(reference).strip()) if reference is not None else None
    if option is None:
        return exact(answer, reference)
    said = re.search(r"[A-G]", _PREFIXES.sub("", answer))
    return float(said is not None and said[0] == option[1])


def f1(answer: str, reference: Any) -> float:
    """F1 of the words that both have, each as often as both have it: 2 PR / (P + R); nan without a reference.

    >>> f1("in New York", "New York City")
    0.6666666666666666
    """
    said, gold = Counter(plain(answer).split()), Counter(plain(reference).split() if reference is not None else ())
    if not gold:
        return math.nan
    return 2 * (said & gold).total() / (said.total() + gold.total())


def _accuracy(answer: Sequence[str], reference: Sequence[str]) -> float:
    return 1 - Levenshtein.distance(answer, reference) / len(reference) if reference else math.nan


def wer(answer: str, reference: Any, *, normalize: bool = False) -> float:
    """1 - WER: 1 less substitutions, insertions and deletions of words per word of the reference.

    normalize  compare words in lower case, without punctuation; else what spaces separate

    Below 0 for an answer with more errors than the reference has words: `clip` decides what that is worth. nan for a
    reference without words.

    >>> wer("the cat sat on a", "the cat is on the"), wer("a b c d e f g", "v w x y z")
    (0.6, -0.3999999999999999)
    """
    given = (plain(answer), plain(reference)) if normalize else (answer, str(reference or ""))
    return _accuracy(given[0].split(), given[1].split())


def cer(answer: str, reference: Any, *, normalize: bool = False) -> float:
    """1 - CER: as `wer`, of characters; spaces count, but not around the text.

    >>> cer("kitten", "sitting")
    0.5714285714285714
    """
    given = (plain(answer), plain(reference)) if normalize else (answer.strip(), str(reference or "").strip())
    return _accuracy(given[0], given[1])


Smoothing = Literal["exp", "floor", "add-k", "none"]


@lru_cache
def _bleu(smooth: Smoothing, order: int) -> Any:
    return need("sacrebleu.metrics", "rewards").BLEU(smooth_method=smooth, max_ngram_order=order, effective_order=True)


@lru_cache
def _chrf(order: int, word_order: int) -> Any:
    return need("sacrebleu.metrics", "rewards").CHRF(char_order=order, word_order=word_order)


def _references(reference: Any) -> list[str]:
    listed = reference if isinstance(reference, (list, tuple)) else [reference]
    return [str(x) for x in listed if x is not None and str(x).strip()]


def bleu(answer: str, reference: Any, *, smooth: Smoothing = "exp", order: int = 4) -> float:
    """BLEU of the sentence, 0 to 1, by sacrebleu: effective order, so that short answers are not 0 for lack of 4-grams.

    reference  a text, or several of which any will do;   smooth  of n-gram orders without a match;   order  longest n
    """
    texts = _references(reference)
    return min(1.0, _bleu(smooth, order).sentence_score(answer, texts).score / 100) if texts else math.nan


def chrf(answer: str, reference: Any, *, order: int = 6, word_order: int = 0) -> float:
    """chrF, 0 to 1, by sacrebleu: F-score of character n-grams up to `order` (chrF++ with word_order=2)."""
    texts = _references(reference)
    return _chrf(order, word_order).sentence_score(answer, texts).score / 100 if texts else math.nan


def script_share(answer: str, reference: Any = None, *, script: str = "latin") -> float:
    """Share of the answer's letters that are of a script, by their Unicode names: latin, cyrillic, cjk, greek, ...

    Nothing is compared with. An answer without letters can't be read.

    >>> script_share("da: \u0434\u0430", script="cyrillic")
    0.5
    """
    letters = [unicodedata.name(c, "") for c in answer if c.isalpha()]
    if not letters:
        raise Unreadable("no letters")
    return sum(name.startswith(f"{script.upper()} ") for name in letters) / len(letters)
