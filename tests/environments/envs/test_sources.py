"""Names of environments, and what is refused before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gxpo.base.errors import ConfigError
from gxpo.environments.envs import ADAPTERS, WORLDS, EnvPool, EnvSource, source

HERE = "tests.environments.envs.small_worlds"


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


def refused(name: str, options: Mapping[str, object], match: str, workers: int = 0) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        found = source(name, options)
        assert found is not None
        EnvPool(found, workers=workers).close()
    assert "\n" not in str(caught.value)


def test_names() -> None:
    own = source("sokoban", {"boxes": 1})
    assert own is not None and own.trusted and own.options == {"boxes": 1}
    assert own.module == "gxpo_worlds.sokoban" and own.kind == "Sokoban"
    other = source("minigrid:BabyAI-GoToLocal-v0", {"size": 3})
    assert other is not None and not other.trusted and other.options == {"id": "BabyAI-GoToLocal-v0", "size": 3}
    assert set(WORLDS).isdisjoint(ADAPTERS)
    for name in ("arithmetic", "reasoning_gym:gcd", "data/tasks.jsonl", "sokoban2", ""):
        assert source(name) is None


def test_names_that_are_almost_one(tmp_path: Path) -> None:
    refused("sokoban:hard", {}, "tasks.options")
    refused("gymnasium:FrozenLake-v1", {"id": "Taxi"}, "the id stands in its name")
    refused("my_env.py", {}, "name a class in the file, as in my_env.py:MyEnv")
    refused("my_env.py:", {}, "name a class in the file")
    refused(f"{tmp_path}/none.py:Mine", {}, "there is no file")
    with pytest.raises(ConfigError, match="as in package"):
        EnvSource.of_module("gxpo.environments.envs")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_is_loaded_with_what_stands_beside_it(file: Path, workers: int) -> None:
    found = source(f"{file}:Mine", {"size": 4})
    assert found is not None
    with EnvPool(found, workers=workers) as envs:
        first = envs.reset({"a": 1})["a"]
        assert (envs.name, envs.instructions, envs.max_turns, envs.tools) == (f"{file}:Mine", "", 50, ())
        assert envs.provides == ()
        assert getattr(first, "observation", first) == "hello 4"


def test_a_file_edited_during_a_run_changes_nothing(file: Path) -> None:
    found = source(f"{file}:Mine", {"size": 4})
    assert found is not None
    file.write_text("gone")
    with EnvPool(found, workers=1) as envs:
        assert envs.max_turns == 50


def test_options_are_the_constructors(file: Path) -> None:
    refused(f"{file}:Mine", {"sise": 3, "size": 3}, "Mine has no option 'sise'; did you mean 'size'?")
    refused(f"{file}:Mine", {"size": 3, "qqq": 3}, "Mine has no option 'qqq'; it has size, speed")
    refused(f"{file}:Mine", {"speed": 3}, "Mine needs the option 'size'")
    refused(f"{file}:Mine", {"size": -1}, r"ValueError while loading: size is negative \(mine.py line 10\)")


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        ("Mime", "has no class 'Mime'; did you mean 'Mine'?"),
        ("LIMIT", "is a int, not a class"),
        ("NoStep", "NoStep has no method 'step'"),
        ("NoReset", "NoReset has no method 'reset'"),
        ("Words", "instructions is a tuple, not a text"),
        ("Turns", "max_turns is 0"),
        ("ToolsAlone", "no method 'call'; an environment with tools has"),
        ("OddTools", "what JSON can't"),
        ("Promises", "not a list out of states"),
        ("Broken", r"KeyError while resetting it with seed 0: 'nothing' \(mine.py line 44\)"),
    ],
)
def test_what_is_no_environment_is_refused(file: Path, kind: str, match: str) -> None:
    sized = {} if kind in ("NoStep", "NoReset") else {"size": 1}
    refused(f"{file}:{kind}", sized, match)


def test_the_same_is_refused_in_a_process(file: Path, tmp_path: Path) -> None:
    refused(f"{file}:Mine", {"sise": 3, "size": 3}, "did you mean 'size'", workers=1)
    refused(f"{file}:Ends", {"size": 3}, r"loading it and its first step: its process died \(exit code 7\)", workers=1)
    (tmp_path / "broken.py").write_text("x = 1\nclass Mine(:\n")
    refused(f"{tmp_path}/broken.py:Mine", {}, "broken.py line 2: invalid syntax", workers=1)


def test_a_seed_that_does_not_work_is_not_the_environments_end(file: Path) -> None:
    found = source(f"{file}:Recovers", {"size": 4})
    assert found is not None
    with EnvPool(found, workers=0) as envs:
        assert getattr(envs.reset({"a": 0})["a"], "kind", None) == "raised"
        assert getattr(envs.reset({"a": 1})["a"], "observation", None) == "hello 4"


def test_a_class_that_a_module_lacks() -> None:
    with pytest.raises(ConfigError, match="has no class 'Countr'; did you mean 'Counter"):
        EnvPool(EnvSource.of_module(f"{HERE}:Countr"), workers=0)
    with pytest.raises(ConfigError, match="ModuleNotFoundError while loading"):
        EnvPool(EnvSource.of_module("no.such.module:Countr"), workers=0)


def test_settings_of_the_pool() -> None:
    counter = EnvSource.of_module(f"{HERE}:Counter")
    for workers, timeout in ((-1, 5.0), (1, 0.0), (True, 5.0)):
        with pytest.raises(ConfigError, match="workers must be 0 or more and timeout above 0"):
            EnvPool(counter, workers=workers, timeout=timeout)
