"""Load an environment of verifiers with its tasks; refuse one whose requirements are missing, by name."""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import itertools
import json
import os
import shutil
import socket
import sys
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from gxpo.base.errors import TaskError, did_you_mean, need
from gxpo.base.usercode import described, one_line
from gxpo.environments.verifiers import PREFIX, chat

ENDLESS = 1000  # tasks that are taken of a task set without an end
LOCAL = ("127.0.0.1", "localhost", "::1")
CONNECT_SECONDS = 3.0


@dataclass(frozen=True)
class Spec:
    """Name of an environment with the options of its tasks, carried by each task as JSON.

    name         a module, OWNER/NAME of the library's hub, or the path of a folder or file
    args         fields of the task set's configuration
    env          fields of the environment's configuration beside the task set: seats, and `id` of a reusable one
    limit        largest number of tasks; None: all, `ENDLESS` of a task set without an end
    success_at   the reward from which an episode is a success
    team_reward  "mean": what several traces of the policy in one episode are paid
    """

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    success_at: float = 1.0
    team_reward: str | None = None

    @property
    def label(self) -> str:
        """Name of the task in the configuration."""
        return f"{PREFIX}{self.name}"

    def text(self) -> str:
        """JSON from which `load` makes the environment."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(eq=False)
class LoadedEnv:
    """An environment of the library with the tasks that are played in it.

    env       the library's `Env`
    tasks     its `Task`s
    policies  seats that the policy plays
    """

    spec: Spec
    env: Any
    tasks: list[Any]
    policies: tuple[str, ...]


def fields_of(name: str) -> tuple[str, ...]:
    """Names of the fields of a task set's configuration. Raises TaskError where it can't be imported."""
    loaders = need("verifiers.v1.utils.loaders", "verifiers")
    return tuple(field for field in loaders.taskset_config_type(_module_of(name)).model_fields if field != "id")


@functools.lru_cache(maxsize=8)
def load(text: str) -> LoadedEnv:
    """Load the environment of a `Spec.text()`, once in a process. Raises TaskError, which says what is missing."""
    spec = Spec(**json.loads(text))
    loaders = need("verifiers.v1.utils.loaders", "verifiers")
    chat.register()
    module = _module_of(spec.name)
    # The library ignores or reports unknown fields in words of its command line: they are refused here.
    env_type = _call(spec, "it", loaders.env_config_type, module, spec.env.get("id", ""))
    _check_fields(spec, "env", spec.env, [name for name in env_type.model_fields if name != "taskset"])
    _check_fields(spec, "args", spec.args, fields_of(spec.name))
    raw = {**spec.env, "taskset": {**spec.args, "id": module}}
    config = _call(spec, "its configuration", loaders.resolve_env_config, raw)
    config = _with_local_seats(spec, config, loaders)
    _check_needs(spec, config)
    env = _call(spec, "it", loaders.load_environment, config)
    policies = _policies(spec, env, config)
    tasks = _tasks(spec, env)
    _check_tasks(spec, env, config, tasks, loaders)
    return LoadedEnv(spec, env, tasks, policies)


# ---------------------------------------------------------------- modules
@functools.lru_cache(maxsize=32)
def _module_of(name: str) -> str:
    """Import the module that a name means, and return its id for the library. Raises TaskError."""
    loaders = need("verifiers.v1.utils.loaders", "verifiers")
    path, label = Path(name).expanduser(), f"{PREFIX}{name}"
    is_local = name.endswith(".py") or path.is_dir()
    module = _local_module(path, label) if is_local else name.rsplit("/", 1)[-1].split("@", 1)[0]
    try:
        package = loaders.import_taskset(module)
    except ImportError as error:
        # the library wraps the error that says what is not there, which may be a package that the module imports
        cause = error.__cause__ or error
        reason, is_absent = one_line(str(cause)), getattr(cause, "name", None) == module.replace("-", "_")
        if is_local or not is_absent:
            raise TaskError(f"{label} can't be imported ({reason}): install what it needs") from error
        raise TaskError(
            f"{label}: {reason}: install the environment's package, or name its folder or file, as "
            f"{PREFIX}path/to/my_env.py"
        ) from error
    except Exception as error:
        raise TaskError(f"{label}: {described(error)}") from error
    if is_local and path.resolve() not in (file := Path(str(package.__file__)).resolve(), *file.parents):
        raise TaskError(f"{label}: its name {module!r} is that of another module, {package.__file__}: rename it")
    if not _exports_taskset(package):
        if hasattr(package, "load_environment"):
            raise TaskError(
                f"{label} is of the classic API, which verifiers 0.4 no longer has: pip install "
                "'verifiers>=0.1.14,<0.4'"
            )
        raise TaskError(f"{label}: module {package.__name__} names no Taskset in __all__")
    return module


def _exports_taskset(package: Any) -> bool:
    base = need("verifiers.v1", "verifiers").Taskset
    objects = (getattr(package, name, None) for name in getattr(package, "__all__", ()))
    return any(isinstance(x, type) and issubclass(x, base) and x is not base for x in objects)


def _local_module(path: Path, label: str) -> str:
    """Put the folder of a local module last on the path, for tool servers, which are processes, too."""
    path = path.resolve()
    if not path.exists():
        raise TaskError(f"{label}: there is no file {path}")
    inner = path / path.name.replace("-", "_")
    # a project's folder holds the package of its name; a package or a file lies in the folder that is imported from
    package = inner if (inner / "__init__.py").is_file() else path
    if package.is_dir() and not (package / "__init__.py").is_file():
        raise TaskError(f"{label}: {package} is no package: it has no __init__.py")
    module, folder = package.stem, str(package.parent)
    if module != module.lower() or not module.isidentifier():
        raise TaskError(f"{label}: the library imports only names in lower case: rename {package.name}")
    if folder not in sys.path:
        sys.path.append(folder)
        importlib.invalidate_caches()
        on_path = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = f"{on_path}{os.pathsep}{folder}" if on_path else folder
    return module


# ---------------------------------------------------------------- configuration
def _call(spec: Spec, label: str, call: Any, *arguments: Any) -> Any:
    """Call the library, or code of the environment; any exception becomes a TaskError."""
    try:
        return call(*arguments)
    except Exception as error:
        # pydantic lists every field, each with a link to its manual
        fields = error.errors() if isinstance(error, ValidationError) else []
        reason = one_line("; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in fields)) or described(error)
        raise TaskError(f"{spec.label}: {label} can't be loaded ({reason})") from error


def _check_fields(spec: Spec, option: str, values: Mapping[str, Any], names: Any) -> None:
    if unknown := [name for name in values if name not in names]:
        hint = did_you_mean(unknown[0], names) or f"; there are {', '.join(names)}"
        raise TaskError(f"{spec.label}: tasks.options.{option} has no {unknown[0]!r}{hint}")


def _with_local_seats(spec: Spec, config: Any, loaders: Any) -> Any:
    """Give each seat what it leaves open: this machine instead of the library's sandboxes, and `chat` as its harness.

    A seat keeps a harness that the options name, that its task set bundles, or that its environment pins; the chat
    programs of the library (`null`, and `bash` where nothing names it) are the loop of `chat`, without a process.
    """
    agents = need("verifiers.v1.configs.agent", "verifiers")
    runtimes = need("verifiers.v1.runtimes", "verifiers")
    default_harness = loaders.default_harness_id(config.taskset.id)
    seats = agents.agent_config_fields(config)
    changes = {}
    for seat, agent in seats.items():
        options = spec.env.get(seat) or {}
        change: dict[str, Any] = {}
        if agent.runtime.type == "prime" and "runtime" not in options:
            change["runtime"] = runtimes.SubprocessConfig()
        is_open = agent.harness is None and default_harness == "bash"
        is_plain = agent.harness is not None and agent.harness.id == "null"
        if "harness" not in options and (is_open or is_plain):
            change["harness"] = chat.config(agent.harness)
        if agent.model is not None and agent.client is None:
            raise TaskError(
                f"{spec.label}: seat {seat} plays the model {agent.model}, and the run has one policy: say where that "
                f"model is, as tasks.options.env.{seat}.client: {{base_url: URL, api_key_var: NAME}}, or set its model "
                "to null"
            )
        # the endpoint reads from the model's name which agent of an episode speaks
        if agent.client is None and sum(other.client is None for other in seats.values()) > 1:
            change["model"] = f"policy/{seat}"
        changes[seat] = agent.model_copy(update=change)
    return config.model_copy(update=changes)


def _parts(config: Any, path: str) -> Iterator[tuple[str, Any]]:
    """All configurations within one, by their paths."""
    yield path, config
    for name, value in config:
        values = value if isinstance(value, list) else [value]
        for number, item in enumerate(values):
            if isinstance(item, BaseModel):
                suffix = f"[{number}]" if isinstance(value, list) else ""
                yield from _parts(item, f"{path}.{name}{suffix}".removeprefix("env.taskset."))


def _check_needs(spec: Spec, config: Any) -> None:
    """Raise TaskError for a key, a program or a server that the configuration needs and that is not here."""
    clients = need("verifiers.v1.configs.client", "verifiers")
    for path, part in _parts(config, "env"):
        if isinstance(part, clients.BaseClientConfig):
            host = urlsplit(part.base_url).hostname or ""
            if host not in LOCAL and clients.resolve_api_key(part) == "EMPTY":
                raise TaskError(
                    f"{spec.label}: {path} calls a model at {part.base_url}, and {part.api_key_var} is not set: set "
                    f"it, or give tasks.options {path}.base_url, and api_key_var, of a server that is here"
                )
        if getattr(part, "max_retries", 0) or getattr(part, "rules", ()):
            raise TaskError(
                f"{spec.label}: {path} would play a failed episode again, whose first calls are recorded: leave "
                "retries out; a failed episode is unscored"
            )
        if (kind := getattr(getattr(part, "runtime", None), "type", None)) is not None:
            _check_runtime(spec, f"{path}.runtime", kind)
        if isinstance(url := getattr(part, "url", None), str):
            _check_reachable(spec, path, url)


def _check_runtime(spec: Spec, path: str, kind: str) -> None:
    lacking = {
        "docker": None if shutil.which("docker") else "the program docker",
        "apptainer": None if shutil.which("apptainer") else "the program apptainer",
        "prime": None if os.environ.get("PRIME_API_KEY") else "PRIME_API_KEY",
        "modal": None if importlib.util.find_spec("modal") else "the package modal",
        "e2b": None if os.environ.get("E2B_API_KEY") else "E2B_API_KEY",
    }.get(kind)
    if lacking is not None:
        raise TaskError(f"{spec.label}: {path} is {kind}, and {lacking} is not here")


def _check_reachable(spec: Spec, path: str, url: str) -> None:
    address = urlsplit(url)
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((address.hostname or "", port), CONNECT_SECONDS).close()
    except OSError as error:
        raise TaskError(f"{spec.label}: {path} is a server at {url}, which can't be reached ({error})") from error


# ---------------------------------------------------------------- seats
def _policies(spec: Spec, env: Any, config: Any) -> tuple[str, ...]:
    """Seats that the policy plays. Raises TaskError where what they are paid can't be learned from one outcome."""
    agents = need("verifiers.v1.agent", "verifiers")
    seats = agents.agent_config_fields(config)
    # An environment says in `setup` which seats are not trained: it is asked with stand-ins, before any episode.
    stand_ins = agents.Agents(config, lambda name, agent: SimpleNamespace(name=name, config=agent, trainable=True))
    _call(spec, "its setup", _in_thread, env.setup(stand_ins))
    policies = tuple(seat for seat, agent in seats.items() if agent.client is None)
    if fixed_seats := [seat for seat in policies if not getattr(stand_ins, seat).trainable]:
        raise TaskError(
            f"{spec.label}: seat {fixed_seats[0]} is not trained by its environment, and every call of the policy is: "
            f"give it a model of its own, as tasks.options.env.{fixed_seats[0]}: {{model: NAME, client: {{base_url: "
            "URL, api_key_var: KEY}}"
        )
    if len(policies) > 1 and spec.team_reward is None:
        raise TaskError(
            f"{spec.label}: the policy has {len(policies)} seats ({', '.join(policies)}), each with a reward, and an "
            "episode has one outcome: set tasks.options.team_reward=mean to pay all of them the mean (nothing is "
            "learned from a game of opposed seats so), or give all seats but one a model of their own"
        )
    return policies


def _in_thread(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end, also where the calling thread has an event loop, as a notebook's has."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


# ---------------------------------------------------------------- tasks
def _tasks(spec: Spec, env: Any) -> list[Any]:
    limit = spec.limit if spec.limit is not None else None if env.taskset.bounded else ENDLESS
    try:
        tasks = list(itertools.islice(env.taskset, limit))
    except Exception as error:
        raise TaskError(
            f"{spec.label}: its tasks can't be loaded ({described(error)}); data that it downloads has to be in the "
            "cache of this machine, or reachable"
        ) from error
    if not tasks:
        raise TaskError(f"{spec.label} has no tasks")
    return tasks


def _check_tasks(spec: Spec, env: Any, config: Any, tasks: list[Any], loaders: Any) -> None:
    """Raise TaskError for a task that no seat can play here: a container, a network policy, no prompt."""
    fit = need("verifiers.v1.utils.compile", "verifiers")
    seats = need("verifiers.v1.configs.agent", "verifiers").agent_config_fields(config)
    single = need("verifiers.v1.envs.single_agent", "verifiers").SingleAgentEnv
    shared_tools = env.taskset.toolsets(config.taskset)
    for path, part in (p for tool in shared_tools for p in _parts(tool.config, "args.tools")):
        if isinstance(url := getattr(part, "url", None), str):
            _check_reachable(spec, path, url)
    if type(env) is single and (unopened := next((t for t in tasks if t.data.prompt is None), None)) is not None:
        raise TaskError(
            f"{spec.label}: task {unopened.data.idx} has no prompt, and nobody opens the conversation: name an "
            "environment that does, as tasks.options.env: {id: user-sim}"
        )
    if any(_has_picture(task.data.prompt) for task in tasks):
        raise TaskError(f"{spec.label}: its prompts have pictures, and gxpo's endpoint takes texts")
    # An environment with several seats may give them other tasks, which are known only as it plays.
    if len(seats) > 1:
        return
    (agent,) = seats.values()
    harness = loaders.load_harness(agent.harness if agent.harness is not None else _default_harness(config))
    if agent.runtime.type == "subprocess" and harness.config.id in ("bash", "null") and not _has_uv():
        raise TaskError(f"{spec.label}: harness {harness.config.id} starts its program by uv: pip install uv")
    for task in tasks:
        try:
            runtime = fit.resolve_runtime_config(agent.runtime, task)
            fit.validate_pairing(harness, type(task), runtime, tools=[*task.toolsets(task.config), *shared_tools])
        except (TypeError, ValueError) as error:
            raise TaskError(f"{spec.label}: {one_line(str(error))}") from error


def _has_picture(prompt: Any) -> bool:
    messages = prompt if isinstance(prompt, list) else []
    contents = [m.content for m in messages if isinstance(getattr(m, "content", None), list)]
    return any(part.type != "text" for content in contents for part in content)


def _has_uv() -> bool:
    """Find uv on the path, or beside this interpreter, whose folder then goes on the path for the library."""
    if shutil.which("uv") is None and shutil.which("uv", path=(folder := os.path.dirname(sys.executable))):
        os.environ["PATH"] = f"{os.environ.get('PATH', '')}{os.pathsep}{folder}"
    return shutil.which("uv") is not None


def _default_harness(config: Any) -> Any:
    return need("verifiers.v1.configs.env", "verifiers").default_agent_harness(config.taskset.id)
