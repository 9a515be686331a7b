"""All adapters: a missing library is named with its extra, and importing an adapter loads no library.

The real libraries do not agree on their requirements, so most machines have few of them or none:
scripts/checks/check_adapters.py installs each in an environment of its own and plays it.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest

from gxpo.base.errors import MissingExtra
from gxpo.environments import envs
from gxpo.environments.envs.adapters import textworld as textworld_module

MODULES = ("minigrid", "openenv", "textarena", "textworld", "verifiers")


def adapter(kind: str) -> type[Any]:
    """The class that a name such as "minigrid:ID" stands for."""
    module, _, name = envs.ADAPTERS[kind].partition(":")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize(
    ("kind", "id", "missing"),
    [
        ("textworld", "coin", "textworld_express"),
        ("minigrid", "MiniGrid-Empty-5x5-v0", "gymnasium"),
        ("textarena", "TicTacToe", "textarena"),
        ("verifiers", "gsm8k", "verifiers"),
        ("openenv", "http://127.0.0.1:1", "websockets"),
    ],
)
def test_without_the_library_the_extra_is_named(kind: str, id: str, missing: str, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    textworld_module._shared_process.cache_clear()
    with pytest.raises(MissingExtra, match=rf"gxpo\[{kind}\]"):
        adapter(kind)(id)


def test_importing_them_loads_neither_torch_nor_a_library() -> None:
    code = (
        "import sys\n"
        f"from gxpo.environments.envs.adapters import {', '.join(sorted(MODULES))}\n"
        "unwanted = {'torch', 'textworld_express', 'gymnasium', 'textarena', 'verifiers', 'websockets'}\n"
        "found = unwanted & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
