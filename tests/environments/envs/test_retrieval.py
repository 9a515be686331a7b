import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gxpo_worlds.retrieval import Retriever, words

ANIMALS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu")
texts = st.lists(st.lists(st.sampled_from(ANIMALS[:-1]), min_size=1, max_size=8), min_size=2, max_size=8)
queries = st.lists(st.sampled_from(ANIMALS), max_size=4)


def naive_scores(documents: list[list[str]], query: list[str]) -> list[float]:
    """BM25 with Lucene's idf, a loop over dictionaries."""
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for document in documents:
        count, total = Counter(document), 0.0
        for word in set(query):
            having = sum(word in other for other in documents)
            idf = math.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
            total += idf * count[word] / (count[word] + 1.5 * (1 - 0.75 + 0.75 * len(document) / mean))
        scores.append(round(total, 9))
    return scores


@given(texts, queries)
def test_the_ranking_is_bm25_with_ties_in_the_order_of_texts(documents: list[list[str]], query: list[str]):
    scores = naive_scores(documents, query)
    expected = sorted((i for i in range(len(documents)) if scores[i] > 0), key=lambda i: (-scores[i], i))
    retriever = Retriever([" ".join(document) for document in documents])
    assert retriever.search(" ".join(query), len(documents)) == expected
    assert retriever.search(" ".join(query), 1) == expected[:1]


def test_words():
    assert words("The Café's 2 doors; AND-or 1906?") == ["caf", "s", "2", "doors", "1906"]


def test_a_query_of_nothing_finds_nothing():
    retriever = Retriever(["red shoe", "blue shoe"])
    assert retriever.search("", 3) == retriever.search("the of", 3) == retriever.search("zebra", 3) == []
