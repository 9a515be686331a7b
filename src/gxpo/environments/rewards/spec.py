"""Rewards from their names in the configuration: task verifiers, built-in rewards, functions of files, callables."""

from __future__ import annotations

import importlib.util
import math
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError, need
from gxpo.environments.rewards import functions, group_level
from gxpo.environments.rewards.built_in import Entities, KeySteps, Numeric, well_formed
from gxpo.environments.rewards.code import CodeReward
from gxpo.environments.rewards.conformance import Conformance
from gxpo.environments.rewards.functions import Function
from gxpo.environments.rewards.judge import judged
from gxpo.environments.rewards.majority import MajorityVote
from gxpo.environments.rewards.match import Consistency, Match
from gxpo.environments.rewards.rubric import is_rubric
from gxpo.parts.protocols import Task, TaskSource

# ---------------------------------------------------------------- names and callables
GROUP_LEVEL: Mapping[str, Callable[[Mapping[str, Any]], Callable[..., Any]]] = {
    "majority_vote": lambda options: group_level.made(MajorityVote, options, "majority_vote"),
    "code": lambda options: group_level.made(CodeReward, options, "code"),
    "judge": judged,
    "numeric": lambda options: group_level.made(Numeric, options, "numeric"),
    "entities": lambda options: group_level.made(Entities, options, "entities"),
    "conformance": lambda options: group_level.made(Conformance, options, "conformance"),
    "key_steps": lambda options: group_level.made(KeySteps, options, "key_steps"),
    "match": Match.make,
    "consistency": Consistency.make,
}
BUILT_IN = ("math", "format", *GROUP_LEVEL)

Spec = str | Callable[..., Any] | Mapping[Any, float] | Sequence[Any] | None  # a sequence: of these, or (this, weight)


def example_of(source: TaskSource) -> Task | None:
    """A held-out task; None where the source has none."""
    return next(iter(source.held_out(1)), None)


def entries(spec: Spec, source: TaskSource) -> list[tuple[str | Callable[..., Any], float]]:
    """(name or callable, weight) for each reward that was asked for."""
    if spec is None:
        return [(getattr(source, "reward_default", None) or "correct", 1.0)]
    if isinstance(spec, (list, tuple)):
        return entries(weighted(spec), source)
    if not isinstance(spec, Mapping):
        one: Any = spec
        return [(one, 1.0)]
    for name, weight in spec.items():
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight):
            raise ConfigError(f"reward: the weight of {name!r} must be a finite number, not {weight!r}")
    if not any(spec.values()):
        raise ConfigError("reward: no reward has a weight other than 0; give one, as in {correct: 1.0}")
    return [(name, float(weight)) for name, weight in dict[Any, float](spec).items()]


def weighted(spec: Sequence[Any]) -> dict[Any, float]:
    """{reward: weight} of a list of rewards, some of them as (reward, weight); 1 for the others."""
    if not spec:
        raise ConfigError("reward: an empty list; leave it out for the task's own, or give a function")
    out: dict[Any, float] = {}
    for item in spec:
        pair = isinstance(item, (list, tuple))
        if pair and len(item) != 2:
            raise ConfigError(f"reward: {item!r} is neither a reward nor (reward, weight)")
        key, weight = item if pair else (item, 1.0)
        if key in out:
            raise ConfigError(f"reward: {getattr(key, '__name__', key)!r} is there twice; give it once, with a weight")
        out[key] = weight
    return out


def reward_of(key: str | Callable[..., Any], options: dict[str, Any]) -> Function | None:
    """The reward that a name or callable means; None where it is the name of a component. Its options are taken out."""
    if callable(key) or is_rubric(key):
        return functions.from_callable(key)
    if not isinstance(key, str):
        raise ConfigError(f"reward: {key!r} is neither a name nor a function nor a rubric of verifiers")
    if key in GROUP_LEVEL:
        return functions.grouped(GROUP_LEVEL[key](options.pop(key, {})), key, key)
    if key == "math":
        if importlib.util.find_spec("math_verify") is None:
            need("math_verify", "train")
        rehearsal = pickle.dumps(((), {"completion": "$1/2$", "answer": "0.5"}))
        source = functions.source_of(f"{Path(__file__).with_name('math.py')}:correct")
        source |= {"folder": None, "label": "math", "is_scorer": False, "rehearsal": rehearsal, "computes": True}
        return Function("math", "math", source, gives=("correct",), answered=True)
    return functions.from_file(key) if functions.names_file(key) else None


def own_functions(source: TaskSource, named: Mapping[str, float], *, alone: bool) -> list[Function]:
    """The task's verifier, which other rewards may replace, and the built-in `format` if it is named."""
    scorer, default = getattr(source, "scorer", None), getattr(source, "reward_default", None)
    own: list[Function] = []
    if scorer is not None:
        trusted = getattr(source, "scorer_trusted", False)
        computes = getattr(source, "scorer_computes", False)
        example = None if trusted else example_of(source)
        own.append(functions.from_scorer(scorer, trusted=trusted, computes=computes, example=example))
    elif default is not None and default not in GROUP_LEVEL and (alone or "correct" in named):
        verifier = reward_of(default, {})
        own += [verifier] if verifier is not None else []
    if "format" in named:
        own.append(
            Function("format", "format", call=well_formed, asks=("completion",), trusted=True, gives=("format",))
        )
    if alone and not own and not getattr(source, "components", ()) and default not in GROUP_LEVEL:
        raise ConfigError("reward: these tasks have no verifier of their own; name one, as my_rewards.py:exact or math")
    return own


# ---------------------------------------------------------------- entries of a set
@dataclass(eq=False)
class Entry:
    """A reward of a set.

    weight  of components that have none by their own names
    own     it is the task source's: it gives way where another computes a component of the same name
    names   of its components, None as long as they are unknown
    asks    parameters that it is called with; None: as a task's scorer is
    remote  its number among the functions of the workers; None: it runs in process
    failed  the last call of a group-level one gave nothing
    """

    function: Function
    weight: float = 0.0
    own: bool = False
    names: tuple[str, ...] | None = None
    asks: tuple[str, ...] | None = None
    remote: int | None = None
    failed: bool = False

    def __post_init__(self) -> None:
        self.names, self.asks = self.function.gives, self.function.asks


def check_answers(rewards: Iterable[Entry], source: TaskSource, *, given: bool) -> None:
    """Refuse rewards that compare with an answer where tasks have none. `given`: somebody chose them."""
    rewards = list(rewards)
    comparing = [r for r in rewards if r.function.answered]
    if not comparing or any(r.function.label_free for r in rewards):
        return
    if (task := getattr(source, "unanswered", None)) is None:
        return
    for reward in comparing:
        who = f"reward {reward.function.label}" if given else f"no reward was given, and {reward.function.label}"
        way = (
            "choose options of the world under which it says one"
            if hasattr(source, "answers")
            else "add a column 'answer' (tasks.options.answer names another)"
        )
        raise ConfigError(
            f"{who} compares with an answer, and task {task.id!r} has none: {way}, or give a reward that does without"
        )
