"""Fixtures of the tests of scripts."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch) -> Iterator[Callable[[str], ModuleType]]:
    """Function that imports a module of `scripts` by name; after the test it is forgotten."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    names: list[str] = []

    def load(name: str) -> ModuleType:
        names.append(name)
        return importlib.import_module(name)

    yield load
    for name in names:
        sys.modules.pop(name, None)
