"""Tasks of an environment of verifiers, as the source of a run."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from gxpo.base.errors import TaskError, did_you_mean
from gxpo.environments.tasks.listed import ListedTasks
from gxpo.environments.tasks.source import check_options, fraction_of
from gxpo.environments.verifiers import PREFIX
from gxpo.environments.verifiers.episodes import INFO
from gxpo.environments.verifiers.world import LoadedEnv, Spec, fields_of, load
from gxpo.parts.protocols import Task

NUMBER = (int, float)


class VerifiersTasks(ListedTasks):
    """Tasks of an environment, `MODULE/INDEX`, which `episodes.play` plays; a share is held out by content.

    name     "verifiers:NAME": an installed module, OWNER/NAME of the library's hub, or the path of a folder or file
    options  `args`, fields of the task set's configuration, each also by itself; `env`, the environment's other fields,
             as {agent: {max_turns: 4}}; `held_out`, fields in which the task set of the held-out tasks differs, as
             {dataset_split: test}, without which `held_out_fraction` (0.1) of the tasks is held out; `limit`, at most
             so many tasks; `success_at` (1.0), the reward from which an episode is a success; `team_reward: mean`, what
             several traces of the policy in an episode are paid

    Raises TaskError for unknown options, and for what the environment needs that is not here.
    """

    options: ClassVar[Mapping[str, Any]] = {
        "args": dict,
        "env": dict,
        "held_out": dict,
        "held_out_fraction": NUMBER,
        "limit": int,
        "success_at": NUMBER,
        "team_reward": str,
    }
    scorer: ClassVar[None] = None

    def __init__(self, name: str, options: Mapping[str, Any] | None = None, *, seed: int = 0, per_step: int = 32):
        self.name, self.seed, self.per_step = name, seed, per_step
        library_name = name.removeprefix(PREFIX)
        own_options, args = _split_options(name, library_name, dict(options or {}))
        spec_options = {
            "env": own_options.get("env", {}),
            "limit": own_options.get("limit"),
            "success_at": float(own_options.get("success_at", 1.0)),
            "team_reward": own_options.get("team_reward"),
        }
        world = load(Spec(library_name, args, **spec_options).text())
        training = _tasks_of(world, "")
        if "held_out" in own_options:
            held_out_args = {**args, **own_options["held_out"]}
            held_out = _tasks_of(load(Spec(library_name, held_out_args, **spec_options).text()), "held_out/")
        else:
            training, held_out = _by_content(training, world, float(own_options.get("held_out_fraction", 0.1)), name)
        self.split(training, held_out, 0.1)
        # what a reward of the configuration may weigh: the outcome, and the rubric's parts by name
        self.components = ("agent", *_reward_names(world))

    reward_default: ClassVar[str] = "agent"

    def fingerprint(self) -> str:
        """SHA-256 of the keys of both sides' tasks."""
        digest = hashlib.sha256()
        for task in (*self._training, None, *self._held_out):
            digest.update(repr(task and (task.id, task.info["key"])).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def _split_options(name: str, library_name: str, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the source, and fields of the task set's configuration."""
    own_options = {key: value for key, value in options.items() if key in VerifiersTasks.options}
    check_options(name, own_options, VerifiersTasks.options)
    args = dict(own_options.get("args", {}))
    fields = fields_of(library_name)
    for key, value in options.items():
        if key in own_options:
            continue
        if key not in fields:
            option_names = (*VerifiersTasks.options, *fields)
            raise TaskError(
                f"task {name!r} has no option {key!r}{did_you_mean(key, option_names)}; there are "
                f"{', '.join(option_names)}"
            )
        if key in args:
            raise TaskError(f"task {name!r}: option {key!r} is also in args: give it once")
        args[key] = value
    if (limit := own_options.get("limit")) is not None and limit < 1:
        raise TaskError(f"task {name!r}: limit must be at least 1, not {limit}")
    if own_options.get("team_reward") not in (None, "mean"):
        raise TaskError(f"task {name!r}: team_reward is 'mean', not {own_options['team_reward']!r}")
    return own_options, args


def _tasks_of(world: LoadedEnv, side: str) -> list[Task]:
    """Tasks of a run for those of the library; a prompt that several have is told apart by the task's index."""
    module, env = world.spec.name.rstrip("/").rsplit("/", 1)[-1].removesuffix(".py"), world.spec.text()
    prompts = [task.data.prompt_text for task in world.tasks]
    counts = Counter(prompts)
    tasks = []
    for number, (task, text) in enumerate(zip(world.tasks, prompts, strict=True)):
        label = task.data.name or f"task {task.data.idx}"
        is_distinct = text and counts[text] == 1 and len(prompts) > 1
        prompt = text if is_distinct else f"{text}\n[{side}{label}]".lstrip("\n")
        info = {INFO: {"env": env, "task": number}, "key": task.key}
        tasks.append(Task(f"{module}/{side}{task.data.idx}", prompt, None, info))
    return tasks


def _by_content(tasks: list[Task], world: LoadedEnv, fraction: float, name: str) -> tuple[list[Task], list[Task]]:
    """Split into training and held-out tasks by the hash of the content, at least one on each side."""
    if not 0 < fraction < 1:
        raise TaskError(f"task {name!r}: held_out_fraction must be between 0 and 1, not {fraction}")
    if len(tasks) == 1:
        warnings.warn(
            f"{name} has one task, which is trained and evaluated: its held-out accuracy is that of training; name "
            "others by tasks.options.held_out, as {FIELD: VALUE} of its task set",
            stacklevel=4,
        )
        return tasks, _tasks_of(world, "held_out/")
    shares = [fraction_of(task.info["key"]) for task in tasks]
    distinct = sorted(set(shares))
    # as in `ListedTasks`: of a few tasks one is held out, and never all
    cut = distinct[min(max(sum(x < fraction for x in distinct), 1), len(distinct) - 1)]
    pairs = list(zip(tasks, shares, strict=True))
    return [t for t, x in pairs if x >= cut], [t for t, x in pairs if x < cut]


def _reward_names(world: LoadedEnv) -> tuple[str, ...]:
    """Names of the rewards and metrics that a task has as methods; those that its environment records are not known."""
    task = world.tasks[0]
    names = (hook.__name__ for kind in ("reward", "metric") for hook in task.hooks(kind))
    return tuple(name for name in dict.fromkeys(names) if name != "agent")
