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
    """Normalise a text: its words in lower case with single spaces, without punctuation.

    >>> plain("  It's  HERE, now! ")
    "it's here now"
    """
    return " ".join(_WORD.findall(str(text).casefold()))


def exact(answer: str, reference: Any, *, normalize: bool = True) -> float:
    """Exact match: 1 where answer and reference have the same words (`plain`) or, with normalize=False, are equal.

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
    """Multiple choice: 1 where an answer begins with the reference's option, a letter from A to G or "B. its text"; for
    a reference that is no option, `exact`.

    The option of an answer is the first capital from A to G in it, without words like "The best answer is"; more than
    ten words without one have none. Source: the code of VideoChat-R1 (arXiv 2504.06958).

    >>> choice("B. a red ball", "B"), choice("The best answer is (C)", "B"), choice("Red.", "red")
    (1.0, 0.0, 1.0)
    """
    option = _OPTION.fullmatch(str(reference).strip()) if reference is not None else None
    if option is None:
        return exact(answer, reference)
    letter = re.search(r"[A-G]", _PREFIXES.sub("", answer))
    return float(letter is not None and letter[0] == option[1])


def f1(answer: str, reference: Any) -> float:
    """Word F1 with multiplicity, 2 PR / (P + R); nan without a reference.

    >>> f1("in New York", "New York City")
    0.6666666666666666
    """
    answer_words, reference_words = (
        Counter(plain(answer).split()),
        Counter(plain(reference).split() if reference is not None else ()),
    )
    if not reference_words:
        return math.nan
    return 2 * (answer_words & reference_words).total() / (answer_words.total() + reference_words.total())


def _accuracy(answer: Sequence[str], reference: Sequence[str]) -> float:
    """1 - edit distance / length of the reference; nan for an empty one."""
    return 1 - Levenshtein.distance(answer, reference) / len(reference) if reference else math.nan


def wer(answer: str, reference: Any, *, normalize: bool = False) -> float:
    """Word accuracy, 1 - WER: 1 minus substitutions, insertions and deletions of words per word of the reference.

    normalize  compare words in lower case, without punctuation; else what spaces separate

    Below 0 for an answer with more errors than the reference has words: `clip` decides what that is worth. nan for a
    reference without words.

    >>> wer("the cat sat on a", "the cat is on the"), wer("a b c d e f g", "v w x y z")
    (0.6, -0.3999999999999999)
    """
    texts = (plain(answer), plain(reference)) if normalize else (answer, str(reference or ""))
    return _accuracy(texts[0].split(), texts[1].split())


def cer(answer: str, reference: Any, *, normalize: bool = False) -> float:
    """Character accuracy, 1 - CER: as `wer`, of characters; spaces count, but not around the text.

    >>> cer("kitten", "sitting")
    0.5714285714285714
    """
    texts = (plain(answer), plain(reference)) if normalize else (answer.strip(), str(reference or "").strip())
    return _accuracy(texts[0], texts[1])


Smoothing = Literal["exp", "floor", "add-k", "none"]


@lru_cache
def _bleu(smooth: Smoothing, order: int) -> Any:
    return need("sacrebleu.metrics", "rewards").BLEU(smooth_method=smooth, max_ngram_order=order, effective_order=True)


@lru_cache
def _chrf(order: int, word_order: int) -> Any:
    return need("sacrebleu.metrics", "rewards").CHRF(char_order=order, word_order=word_order)


def _references(reference: Any) -> list[str]:
    """Non-empty texts of a reference, one or several."""
    candidates = reference if isinstance(reference, (list, tuple)) else [reference]
    return [str(x) for x in candidates if x is not None and str(x).strip()]


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
    """Script share: share of the answer's letters in a script, by Unicode names: latin, cyrillic, cjk, greek, ...

    It reads no reference. An answer without letters can't be read.

    >>> script_share("da: \u0434\u0430", script="cyrillic")
    0.5
    """
    letters = [unicodedata.name(c, "") for c in answer if c.isalpha()]
    if not letters:
        raise Unreadable("no letters")
    return sum(name.startswith(f"{script.upper()} ") for name in letters) / len(letters)
