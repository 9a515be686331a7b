"""Parameters of tests of which `make test` tries some and `make test-all` the rest."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import pytest

ALL = pytest.mark.thorough


def some(values: Iterable[Any], tried: Iterable[Any]) -> list[Any]:
    """All values; those that are not among `tried` are marked `thorough`."""
    kept = list(tried)
    return [pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=[ALL] * (v not in kept)) for v in values]


def cover(names: Iterable[str], features: Callable[[str], Iterable[Hashable]]) -> list[Any]:
    """All names; few that have each feature of any of them between them are tried, the others are marked `thorough`."""
    names = list(names)
    kept = few(names, features)
    return [pytest.param(name, marks=[ALL] * (name not in kept)) for name in names]


def cover_in_lists(names: Iterable[str], features: Callable[[str], Iterable[Hashable]]) -> list[Any]:
    """Two lists, for tests that go through one: few names that have each feature of any of them between them, and the
    others, marked `thorough`."""
    names = list(names)
    kept = few(names, features)
    others = [name for name in names if name not in kept]
    return [
        pytest.param([name for name in names if name in kept], id="few"),
        pytest.param(others, id="others", marks=ALL),
    ]


def few(names: Iterable[str], features: Callable[[str], Iterable[Hashable]]) -> set[str]:
    """Names that have each feature of any of these between them."""
    own = {name: set(features(name)) for name in names}
    kept, left = set(), set().union(*own.values())
    while left:
        name = max(own, key=lambda name: len(own[name] & left))
        kept.add(name)
        left -= own[name]
    return kept
