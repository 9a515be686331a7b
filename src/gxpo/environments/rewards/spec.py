"""Rewards from their names in the configuration: task verifiers, built-in rewards, functions of files, callables."""

from __future__ import annotations

import importlib.util
import math
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError, did_you_mean, need
from gxpo.environments.rewards import functions
from gxpo.environments.rewards.base import from_options
from gxpo.environments.rewards.built_in import Entities, KeySteps, Numeric, well_formed
from gxpo.environments.rewards.code import CodeReward
from gxpo.environments.rewards.conformance import Conformance
from gxpo.environments.rewards.functions import Function
from gxpo.environments.rewards.judge import judge_reward
from gxpo.environments.rewards.majority import MajorityVote
from gxpo.environments.rewards.match import Consistency, Match
from gxpo.environments.rewards.rubric import is_rubric
from gxpo.parts.protocols import Task, TaskSource

# ---------------------------------------------------------------- names and callables
GROUP_LEVEL: Mapping[str, Callable[[Mapping[str, Any]], Callable[..., Any]]] = {
    "majority_vote": lambda options: from_options(MajorityVote, options, "majority_vote"),
    "code": lambda options: from_options(CodeReward, options, "code"),
    "judge": judge_reward,
    "numeric": lambda options: from_options(Numeric, options, "numeric"),
    "entities": lambda options: from_options(Entities, options, "entities"),
    "conformance": lambda options: from_options(Conformance, options, "conformance"),
    "key_steps": lambda options: from_options(KeySteps, options, "key_steps"),
    "match": Match.make,
    "consistency": Consistency.make,
}
BUILT_IN = ("math", "format", *GROUP_LEVEL)

Spec = str | Callable[..., Any] | Mapping[Any, float] | Sequence[Any] | None  # a sequence: of these, or (this, weight)


def example_of(source: TaskSource) -> Task | None:
    """First held-out task; None where the source has none."""
    return next(iter(source.held_out(1)), None)


def weighted_keys(spec: Spec, source: TaskSource) -> list[tuple[str | Callable[..., Any], float]]:
    """Pairs of (name or callable, weight), one for each reward of the configuration."""
    if spec is None:
        # The task's own verifier unless something is configured.
        return [(getattr(source, "reward_default", None) or "correct", 1.0)]
    if isinstance(spec, (list, tuple)):
        return weighted_keys(with_weights(spec), source)
    if not isinstance(spec, Mapping):
        reward: Any = spec
        return [(reward, 1.0)]
    for name, weight in spec.items():
        # A bool is an int for Python, and `true` is no weight.
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight):
            raise ConfigError(f"reward: the weight of {name!r} must be a finite number, not {weight!r}")
    if not any(spec.values()):
        raise ConfigError("reward: no reward has a weight other than 0; give one, as in {correct: 1.0}")
    return [(name, float(weight)) for name, weight in dict[Any, float](spec).items()]


def with_weights(spec: Sequence[Any]) -> dict[Any, float]:
    """Weights by reward of a list of rewards and (reward, weight) pairs; 1 without a weight."""
    if not spec:
        raise ConfigError("reward: an empty list; leave it out for the task's own, or give a function")
    out: dict[Any, float] = {}
    for item in spec:
        pair = isinstance(item, (list, tuple))
        if pair and len(item) != 2:
            raise ConfigError(f"reward: {item!r} is neither a reward nor (reward, weight)")
        key, weight = item if pair else (item, 1.0)
        if key in out:
            raise ConfigError(f"reward: {getattr(key, '__name__', key)!r} is listed twice; list it once, with a weight")
        out[key] = weight
    return out


def reward_of(key: str | Callable[..., Any], options: dict[str, Any]) -> Function | None:
    """Reward function of a name or callable; None for the name of a component. Removes its options from `options`."""
    if callable(key) or is_rubric(key):
        return functions.from_callable(key)
    if not isinstance(key, str):
        raise ConfigError(f"reward: {key!r} is neither a name nor a function nor a rubric of verifiers")
    if key in GROUP_LEVEL:
        return functions.grouped(GROUP_LEVEL[key](options.pop(key, {})), key, key)
    if key == "math":
        if importlib.util.find_spec("math_verify") is None:
            need("math_verify", "train")
        # The call is a rehearsal: importing math-verify and sympy takes seconds, which no item's clock should count.
        rehearsal = pickle.dumps(((), {"completion": "$1/2$", "answer": "0.5"}))
        source = functions.source_of(f"{Path(__file__).with_name('math.py')}:correct")
        # Math only computes: a limit on processor time is fair on a loaded machine.
        source |= {"folder": None, "label": "math", "is_scorer": False, "rehearsal": rehearsal, "computes": True}
        return Function("math", "math", source, gives=("correct",), needs_answer=True)
    return functions.from_file(key) if functions.names_file(key) else None


def task_functions(
    source: TaskSource, component_weights: Mapping[str, float], *, needs_verifier: bool
) -> list[Function]:
    """Reward functions of the task: its verifier, which other rewards may replace, and `format` if it has a weight.

    needs_verifier  no reward of the configuration can judge an answer: ConfigError where the task can't either
    """
    scorer, default = getattr(source, "scorer", None), getattr(source, "reward_default", None)
    functions_of_task: list[Function] = []
    # The task's own scorer always runs; without one its default verifier does where nothing else can judge.
    if scorer is not None:
        trusted = getattr(source, "scorer_trusted", False)
        computes = getattr(source, "scorer_computes", False)
        # An example tells which components a scorer returns.
        example = None if trusted else example_of(source)
        functions_of_task.append(functions.from_scorer(scorer, trusted=trusted, computes=computes, example=example))
    elif default is not None and default not in GROUP_LEVEL and (needs_verifier or "correct" in component_weights):
        verifier = reward_of(default, {})
        functions_of_task += [verifier] if verifier is not None else []
    if "format" in component_weights:
        functions_of_task.append(
            Function(
                "format", "format", call=well_formed, argument_names=("completion",), trusted=True, gives=("format",)
            )
        )
    if (
        needs_verifier
        and not functions_of_task
        and not getattr(source, "components", ())
        and default not in GROUP_LEVEL
    ):
        raise ConfigError("reward: these tasks have no verifier of their own; name one, as my_rewards.py:exact or math")
    return functions_of_task


# ---------------------------------------------------------------- entries of a set
@dataclass(eq=False)
class Entry:
    """Reward of a `RewardSet`, with its weight and its state in a run.

    weight          of components that have none by their own names
    from_task       it is the task source's own: it gives way to another that computes a component of the same name
    names           names of its components, None as long as they are unknown
    argument_names  parameters that it is called with; None: `(text, task)`, as a task's scorer is
    worker_index    its number among the functions of the workers; None: it runs in process
    failed          the last call of a group-level one gave nothing
    """

    function: Function
    weight: float = 0.0
    from_task: bool = False
    names: tuple[str, ...] | None = None
    argument_names: tuple[str, ...] | None = None
    worker_index: int | None = None
    failed: bool = False

    def __post_init__(self) -> None:
        self.names, self.argument_names = self.function.gives, self.function.argument_names


def check_answers(rewards: Iterable[Entry], source: TaskSource, *, is_configured: bool) -> None:
    """Refuse rewards that compare with an answer where tasks have none.

    is_configured  the configuration names a reward; False: it is the task's default
    """
    rewards = list(rewards)
    comparing = [r for r in rewards if r.function.needs_answer]
    # A label-free reward stands in for answers that are missing.
    if not comparing or any(r.function.label_free for r in rewards):
        return
    if (task := getattr(source, "unanswered", None)) is None:
        return
    for reward in comparing:
        subject = (
            f"reward {reward.function.label}" if is_configured else f"no reward was given, and {reward.function.label}"
        )
        remedy = (
            "choose options of the world with which its tasks have one"
            if hasattr(source, "answers")
            else "add a column 'answer' (tasks.options.answer names another)"
        )
        raise ConfigError(
            f"{subject} compares with an answer, and task {task.id!r} has none: {remedy}, or give a reward "
            "that needs none"
        )


def resolve(
    spec: Spec, source: TaskSource, options: Mapping[str, Mapping[str, Any]]
) -> tuple[list[Entry], dict[str, float]]:
    """Rewards of a configuration with the task's own behind them, and weights of components by name.

    ConfigError for two rewards of one name, options that no reward takes, and tasks without a verifier or answers.
    """
    rewards: list[Entry] = []
    component_weights: dict[str, float] = {}
    unused_options = dict(options)
    for key, weight in weighted_keys(spec, source):
        function = reward_of(key, unused_options)
        if function is None:
            # A name that is no reward is the weight of a component.
            component_weights[str(key)] = weight
            continue
        if any(r.function.name == function.name for r in rewards):
            raise ConfigError(f"reward: two functions are named {function.name!r}; rename one")
        rewards.append(Entry(function, weight))
    # Components of functions of one rollout come before those of group-level rewards.
    rewards.sort(key=lambda r: r.function.grouped)
    # The source may score whole groups itself, by `rate` or by a built-in default whose component has a weight.
    rate, default = getattr(source, "rate", None), getattr(source, "reward_default", None)
    task_group_reward = None if rate is None else functions.grouped(rate, "the task's rate", "rate")
    if isinstance(default, str) and default in GROUP_LEVEL and not rewards and task_group_reward is None:
        task_group_reward = reward_of(default, unused_options)
    for reward in rewards:
        if (name := reward.function.name) in component_weights:
            raise ConfigError(f"reward: {name!r} names both {reward.function.label} and a component; rename one")
    if unused_options:
        name = next(iter(unused_options))
        hint = did_you_mean(name, GROUP_LEVEL)
        raise ConfigError(f"scoring.options.{name}: no reward of this run takes it{hint}")
    # The task's own verifier goes last, so that a reward of the configuration replaces it.
    needs_verifier = task_group_reward is None and all(r.function.label_free for r in rewards)
    own_functions = task_functions(source, component_weights, needs_verifier=needs_verifier)
    rewards += [Entry(f, from_task=True) for f in (*own_functions, task_group_reward) if f is not None]
    check_answers(rewards, source, is_configured=spec is not None)
    return rewards, component_weights
