"""Fixtures of the environments' tests: stand-ins of libraries, and a file with a user's classes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.environments.envs import fake_libraries


@pytest.fixture
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in named by the test's parameter, in the place of the library."""
    for name, module in getattr(fake_libraries, request.param)().items():
        monkeypatch.setitem(sys.modules, name, module)
    return request.param


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(
        """
import helper_beside
from gxpo import TimeStep

LIMIT = 3

class Mine:
    def __init__(self, size, speed=1):
        if size < 0:
            raise ValueError("size is negative")
        self.size = size
    def reset(self, seed):
        return TimeStep(f"{helper_beside.WORD} {self.size}")
    def step(self, action):
        return TimeStep(action, done=True)

class NoStep:
    def reset(self, seed):
        return TimeStep("begin")

class NoReset:
    def step(self, action):
        return TimeStep("begin")

class Words(Mine):
    instructions = ("be", "good")

class Turns(Mine):
    max_turns = 0

class ToolsAlone(Mine):
    tools = [{"type": "function"}]

class OddTools(Mine):
    tools = [{"type": {1, 2}}]
    def call(self, content, calls):
        return TimeStep(content)

class Promises(Mine):
    provides = ("wings",)

class Broken(Mine):
    def reset(self, seed):
        return {}["nothing"] if seed < 2 else None

class Recovers(Mine):
    def reset(self, seed):
        if seed == 0:
            raise ValueError("no seed 0")
        return super().reset(seed)

class Ends(Mine):
    def reset(self, seed):
        import os
        os._exit(7)
"""
    )
    (tmp_path / "helper_beside.py").write_text("WORD = 'hello'\n")
    return path
