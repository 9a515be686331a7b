"""BM25 retrieval over generated texts: the search engine of the text environments."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from gxpo.base.errors import need

WORD = re.compile(r"[a-z0-9]+")
# words in nearly every text, which would only blur the ranking
COMMON = "a an and are at by for from has have how in is it its of on or the to was were what which with"
STOP = frozenset(COMMON.split())


def words(text: str) -> list[str]:
    """Lower-case words and numbers of a text, without the most common ones.

    >>> words("The river Tessel, in 1906")
    ['river', 'tessel', '1906']
    """
    return [word for word in WORD.findall(text.lower()) if word not in STOP]


class Retriever:
    """BM25 retrieval, best match first: Lucene's form, k1 = 1.5, b = 0.75, float64.

    Scores that agree to nine digits are a tie, and the first text wins it, so the order does not depend on
    the machine. Needs bm25s (extra `envs`).
    """

    def __init__(self, texts: Sequence[str]) -> None:
        bm25s = need("bm25s", "envs")
        self._index = bm25s.BM25(method="lucene", k1=1.5, b=0.75, dtype="float64")
        self._index.index([words(text) for text in texts], show_progress=False)

    def search(self, query: str, k: int) -> list[int]:
        """Indices of the best at most `k` texts that share a word with the query.

        >>> Retriever(["red shoe", "blue shoe", "a red and red boot"]).search("the RED boot", 5)
        [2, 0]
        """
        query_words = sorted(set(words(query)))
        if not query_words:
            return []
        # sums in another order differ in the last digits: rounded, they tie, and a stable sort keeps the texts' order
        scores = np.round(self._index.get_scores(query_words), 9)
        best = np.argsort(-scores, kind="stable")[:k]
        return [int(i) for i in best if scores[i] > 0]
