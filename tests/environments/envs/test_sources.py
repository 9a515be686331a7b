"""Names of environments, and what is refused before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gxpo.base.errors import ConfigError
from gxpo.environments.envs import ADAPTERS, WORLDS, EnvPool, EnvSource, source

HERE = "tests.environments.envs.small_worlds"


def refused(name: str, options: Mapping[str, object], match: str, workers: int = 0) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        actual = source(name, options)
        assert actual is not None
        EnvPool(actual, workers=workers).close()
    assert "\n" not in str(caught.value)


def test_names() -> None:
    own_source = source("sokoban", {"boxes": 1})
    assert own_source is not None and own_source.trusted and own_source.options == {"boxes": 1}
    assert own_source.module == "gxpo_worlds.sokoban" and own_source.kind == "Sokoban"
    other = source("minigrid:BabyAI-GoToLocal-v0", {"size": 3})
    assert other is not None and not other.trusted and other.options == {"id": "BabyAI-GoToLocal-v0", "size": 3}
    assert set(WORLDS).isdisjoint(ADAPTERS)
    for name in ("arithmetic", "reasoning_gym:gcd", "data/tasks.jsonl", "sokoban2", ""):
        assert source(name) is None


def test_names_that_are_almost_one(tmp_path: Path) -> None:
    refused("sokoban:hard", {}, "tasks.options")
    refused("gymnasium:FrozenLake-v1", {"id": "Taxi"}, "the id is part of its name")
    refused("my_env.py", {}, "name a class in the file, as in my_env.py:MyEnv")
    refused("my_env.py:", {}, "name a class in the file")
    refused(f"{tmp_path}/none.py:Mine", {}, "there is no file")
    with pytest.raises(ConfigError, match="as in package"):
        EnvSource.of_module("gxpo.environments.envs")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_is_loaded_with_what_stands_beside_it(file: Path, workers: int) -> None:
    actual = source(f"{file}:Mine", {"size": 4})
    assert actual is not None
    with EnvPool(actual, workers=workers) as envs:
        first = envs.reset({"a": 1})["a"]
        assert (envs.name, envs.instructions, envs.max_turns, envs.tools) == (f"{file}:Mine", "", 50, ())
        assert envs.provides == ()
        assert getattr(first, "observation", first) == "hello 4"


def test_a_file_edited_during_a_run_changes_nothing(file: Path) -> None:
    actual = source(f"{file}:Mine", {"size": 4})
    assert actual is not None
    file.write_text("gone")
    with EnvPool(actual, workers=1) as envs:
        assert envs.max_turns == 50


def test_settings_of_the_pool() -> None:
    counter = EnvSource.of_module(f"{HERE}:Counter")
    for workers, timeout in ((-1, 5.0), (1, 0.0), (True, 5.0)):
        with pytest.raises(ConfigError, match="workers must be 0 or more and timeout above 0"):
            EnvPool(counter, workers=workers, timeout=timeout)
