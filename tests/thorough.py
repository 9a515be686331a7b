"""Parameters of tests of which `make test` tries some, `make slow` others and `make test-all` the rest."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import pytest

ALL = pytest.mark.thorough
SLOW = pytest.mark.slow


def some(values: Iterable[Any], tried: Iterable[Any], rest: pytest.MarkDecorator = ALL) -> list[Any]:
    """All values; those that are not among `tried` are marked `thorough`, or as `rest` is."""
    kept_tried = list(tried)
    return [pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=[rest] * (v not in kept_tried)) for v in values]


def cover(
    names: Iterable[str],
    features: Callable[[str], Iterable[Hashable]],
    kinds: Callable[[str], Iterable[Hashable]],
) -> list[Any]:
    """All names. Few that have each feature of any of them between them are kept; of these, few that have each of their
    kinds are tried, the others are marked `slow`; the rest is marked `thorough`."""
    names = list(names)
    kept_few = few(names, features)
    tried = few(kept_few, kinds)
    return [pytest.param(name, marks=[SLOW if name in kept_few else ALL] * (name not in tried)) for name in names]


def cover_in_lists(names: Iterable[str], features: Callable[[str], Iterable[Hashable]]) -> list[Any]:
    """Two lists, for tests that go through one: few names that have each feature of any of them between them, and the
    others, marked `thorough`."""
    names = list(names)
    kept_few = few(names, features)
    others = [name for name in names if name not in kept_few]
    return [
        pytest.param([name for name in names if name in kept_few], id="few"),
        pytest.param(others, id="others", marks=ALL),
    ]


def few(names: Iterable[str], features: Callable[[str], Iterable[Hashable]]) -> set[str]:
    """Names that have each feature of any of these between them."""
    own_features = {name: set(features(name)) for name in sorted(names)}
    chosen_names, left = set(), set().union(*own_features.values())
    while left:
        name = max(own_features, key=lambda name: len(own_features[name] & left))
        chosen_names.add(name)
        left -= own_features[name]
    return chosen_names
