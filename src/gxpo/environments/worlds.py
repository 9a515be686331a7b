"""Make a run's task source and environment from the task's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from gxpo.base.errors import ConfigError, TaskError, did_you_mean, need
from gxpo.base.usercode import Unusable, check_defined
from gxpo.environments import envs, tasks, verifiers
from gxpo.environments.envs.corrupted import Corruption
from gxpo.environments.envs.pool import EnvPool
from gxpo.environments.mcp.episodes import ToolEpisodes
from gxpo.environments.mcp.settings import ServerSpec
from gxpo.environments.tasks import user_source
from gxpo.environments.tasks.seeds import SeedTasks
from gxpo.parts.protocols import TaskSource


@dataclass
class World:
    """Task source and environment of a run.

    envs  None where tasks are prompts; `ToolEpisodes`, which has what a run uses of a pool, where they have tools
    """

    source: TaskSource
    envs: EnvPool | None = None

    def close(self) -> None:
        """End the worker processes of the environment, or the servers of tools."""
        if self.envs is not None:
            self.envs.close()


def make(
    name: str,
    *,
    seed: int,
    options: Mapping[str, Any] | None = None,
    per_step: int = 32,
    workers: int | None = None,
    timeout: float = 10.0,
    concurrency: int | None = None,
    source_object: Any = None,
    corruption: Corruption | None = None,
    mcp: Sequence[ServerSpec] = (),
    max_turns: int | None = None,
) -> World:
    """Make the task source and environment of a name.

    name     of `gxpo.environments.tasks.make`, or of an environment: a world of gxpo, "gymnasium:ID", an adapter's as
             "textworld:coin", or "FILE.py:Class"; or "FILE.py:NAME" of a task source or of a function that gives rows
    options  of the task source; of an environment: what its constructor takes, and `pool` (see `SeedTasks`)
    workers  processes for the environment; None: 0 for gxpo's own worlds (in process), 1 for others
    concurrency  episodes of one worker that act at the same time; None: the environment's default
    source_object  the task source itself, an object of the user's that is called `name`
    corruption  of the observations of an environment; ConfigError where tasks are prompts
    mcp      servers whose tools every task gets, in episodes of up to `max_turns` replies; ConfigError where tasks are
             episodes of an environment
    """
    world = _make_world(name, seed, options, per_step, workers, timeout, concurrency, source_object, corruption)
    if corruption is not None and world.envs is None:
        raise ConfigError(f"env.corrupt changes observations of an environment, and task {name!r} is none")
    return _with_tools(world, name, mcp, max_turns, concurrency) if mcp else world


def _with_tools(
    world: World, name: str, mcp: Sequence[ServerSpec], max_turns: int | None, concurrency: int | None
) -> World:
    """Make the tasks of a world episodes with tools; no server is started yet."""
    if world.envs is not None:
        world.close()
        raise ConfigError(f"env.mcp gives tools to tasks with one answer, and {name!r} is an environment: leave it out")
    need("mcp", "mcp")
    episodes = ToolEpisodes(mcp, max_turns=max_turns, concurrency=concurrency)
    return World(world.source, cast("EnvPool", episodes))


def _make_world(
    name: str,
    seed: int,
    options: Mapping[str, Any] | None,
    per_step: int,
    workers: int | None,
    timeout: float,
    concurrency: int | None,
    source_object: Any,
    corruption: Corruption | None,
) -> World:
    options = dict(options or {})
    if source_object is not None:
        return World(user_source.adopt(source_object, name, seed=seed, options=options, per_step=per_step))
    if user_source.names_source(name):
        return World(user_source.from_file(name, seed=seed, options=options, per_step=per_step))
    if verifiers.names_tasks(name):
        from gxpo.environments.verifiers.tasks import VerifiersTasks  # loads the library

        return World(VerifiersTasks(name, options, seed=seed, per_step=per_step))
    # A name is an environment's or a task source's; `pool` is an option of the seeds, not of an environment.
    spec = envs.source(name, {k: v for k, v in options.items() if k != "pool"})
    if spec is None:
        return World(_tasks(name, seed=seed, options=options, per_step=per_step))
    pool = options.get("pool")
    env_pool = EnvPool(spec, workers=workers, timeout=timeout, concurrency=concurrency, corruption=corruption)
    try:
        label = name if spec.file is None else f"{Path(spec.file).name}:{spec.kind}"
        source = SeedTasks(name, env_pool.contents, seed, pool, env_pool.answers, label, env_pool.levels, per_step)
        return World(source, env_pool)
    except BaseException:
        env_pool.close()
        raise


def make_if_safe(
    name: str, *, seed: int, options: Mapping[str, Any], per_step: int, mcp: Sequence[ServerSpec] = ()
) -> World | None:
    """Make a world if that runs no user code and downloads nothing; else None, after the possible checks.

    A server of `mcp` is started only when somebody asks for its tools.
    """
    if user_source.names_source(name):  # the call has found the name in the file
        return None
    if verifiers.names_tasks(name):
        if find_spec("verifiers") is None:
            need("verifiers", "verifiers")
        return None
    spec = envs.source(name, {k: v for k, v in options.items() if k != "pool"})
    if spec is None and name.startswith("dataset:"):
        need("datasets", "hub")
        return None
    if spec is None or spec.trusted:
        return make(name, seed=seed, options=options, per_step=per_step, workers=0, mcp=mcp)
    if spec.file is not None:
        try:
            check_defined(f"{spec.file}:{spec.kind}")
        except Unusable as error:
            raise TaskError(f"task {name!r}: {error}") from error
    else:
        library, extra = envs.LIBRARIES[name.partition(":")[0]]
        if find_spec(library) is None:
            need(library, extra)
    return None


def _tasks(name: str, **arguments: Any) -> TaskSource:
    """Make a task source; an unknown name that is near an environment's gets that hint."""
    try:
        return tasks.make(name, **arguments)
    except TaskError as error:
        if str(error).startswith("unknown task") and (hint := did_you_mean(name, envs.WORLDS)):
            raise TaskError(f"unknown task {name!r}{hint}") from None
        raise
