"""`RewardSet`: several rewards, weighted by name, each run where it can do no harm."""

from __future__ import annotations

import importlib.util
import math
import pickle
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import torch
from torch import Tensor

from gxpo.errors import ConfigError, did_you_mean, need
from gxpo.forest import Forest
from gxpo.protocols import Task, TaskSource
from gxpo.rewards import user
from gxpo.rewards.format import well_formed
from gxpo.rewards.pool import Workers
from gxpo.rewards.user import Function
from gxpo.rewards.worker import Reply, attempt
from gxpo.usercode import one_line

FAILURES = ("raised", "timeout", "died", "nonsense")
BUILT_IN = ("math", "format")

Spec = str | Callable[..., Any] | Mapping[str, float] | None


class RewardSet:
    """Scores rollouts: outcome = sum over components of weight x value, in float64.

    A reward returns a number (a component with the reward's own name) or named numbers (components). A component has
    the weight given to its name, else the weight of the reward that computes it, else 0: recorded, not counted. The
    task's own scorer always runs; what another reward computes under the same name stands in its place.

    A reward that raises, takes longer than `timeout`, kills its process or returns anything but finite numbers under
    the usual names costs that trajectory alone: its components and, if they have weight, its outcome are nan
    (unscored), never 0. `counts` says how often each happened, `messages` holds the first message of each.

    math-verify, functions of files, importable callables and scorers that are not trusted run in worker processes.
    gxpo's own fast ones run in process. So does a callable that no other process can import (a lambda, a closure, a
    function of the running script), without a time limit and with a warning. A worker imports no torch unless a
    function does, or asks for `task`.

    `success` is the verifier's verdict: component "correct" >= 1. Without that component it is unknown (nan), except
    that a single function that returns a plain number is the verifier of tasks that have no scorer of their own.
    """

    def __init__(
        self,
        functions: Sequence[Function],
        function_weights: Sequence[float],
        named: Mapping[str, float],
        *,
        n_own: int,
        given: Sequence[str] = (),
        timeout: float,
        workers: int,
    ) -> None:
        """See `make`; the last `n_own` of `functions` give way where another computes a component of the same name.

        `given` names components that rollouts bring with them: what an environment paid.
        """
        self.counts: dict[str, int] = dict.fromkeys(FAILURES, 0)
        self.messages: dict[str, str] = {}
        self._functions, self._function_weights = list(functions), list(function_weights)
        self._named, self._n_own, self._given = dict(named), n_own, tuple(given)
        self._components = [f.gives for f in functions]  # names each returns, None as long as that is unknown
        self._asks = [f.asks for f in functions]
        self._workers: Workers | None = None
        self._remote = [k for k, f in enumerate(functions) if f.source is not None]
        if self._remote:
            sources = [f.source for f in functions if f.source is not None]
            self._workers = Workers(sources, timeout=timeout, count=workers)
            for k, declared in zip(self._remote, self._workers.declared, strict=True):
                self._asks[k] = declared

    @classmethod
    def make(cls, spec: Spec, *, source: TaskSource, timeout: float = 5.0, workers: int = 1) -> RewardSet:
        """From what a user writes; whatever can be found wrong before sampling is a ConfigError here.

        spec     None: the task's own verdict. A name: "math", "format", "my_rewards.py:exact" or a component of the
                 task's scorer. A callable with parameters as in `gxpo.rewards.worker.ARGUMENTS`. Or {name: weight}.
        source   has `scorer(text, task)`, or `reward_default` that names its verifier; `scorer_trusted` says that the
                 scorer can't hang
        timeout  seconds for one item
        workers  processes that share the items
        """
        if not timeout > 0 or workers < 1:
            raise ConfigError(
                f"reward: timeout must be above 0 and workers at least 1, not {timeout!r} and {workers!r}"
            )
        functions: list[Function] = []
        function_weights: list[float] = []
        named: dict[str, float] = {}
        for key, weight in _entries(spec, source):
            function = _function(key)
            if function is None:
                named[str(key)] = weight
            elif function.name in (f.name for f in functions):
                raise ConfigError(f"reward: two functions are named {function.name!r}; rename one")
            else:
                functions.append(function)
                function_weights.append(weight)
        for function in functions:
            if function.name in named:
                raise ConfigError(f"reward: {function.name!r} names both {function.label} and a component; rename one")
        own = _own(source, named, alone=not functions)
        everything = [*functions, *own]
        for function in everything:
            if function.endless:
                warnings.warn(
                    f"reward {function.label} can't be sent to a worker process: it runs in process and nothing ends "
                    "it if it hangs; put it into a file, as my_rewards.py:FUNCTION, to give it a time limit",
                    stacklevel=2,
                )
        weights = [*function_weights, *[0.0] * len(own)]
        given = tuple(getattr(source, "components", ()))
        rewards = cls(everything, weights, named, n_own=len(own), given=given, timeout=timeout, workers=workers)
        try:
            rewards._check_names(source)
        except BaseException:
            rewards.close()
            raise
        return rewards

    def score(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> Forest:
        """`forest` with `components`, `outcome` and `success`; `texts` and `tasks` are its trajectories', in order."""
        n = forest.n_trajectories
        if not len(texts) == len(tasks) == n:
            raise ValueError(f"{len(texts)} texts and {len(tasks)} tasks for {n} trajectories")
        columns = {x: forest.components[:, i] for i, x in enumerate(forest.component_names) if x in self._given}
        weights = {name: self._named.get(name, 0.0) for name in columns}
        for k, replies in enumerate(self._run(forest, texts, tasks)):
            function = self._functions[k]
            self._settle(k, replies)
            names = self._components[k] or (function.name,)
            values = torch.tensor(
                [self._row(k, names, reply, task) for reply, task in zip(replies, tasks, strict=True)],
                dtype=torch.float64,
            ).reshape(n, len(names))
            for name, column in zip(names, values.unbind(1), strict=True):
                if name not in columns:
                    columns[name] = column
                    weights[name] = self._named.get(name, self._function_weights[k])
                elif k < len(self._functions) - self._n_own:
                    raise ConfigError(f"reward {function.label} computes {name!r}, as another reward does; rename one")
        outcome = torch.zeros(n, dtype=torch.float64)
        for name, column in columns.items():
            if weights[name] != 0:
                outcome += weights[name] * column
        absent = [name for name in self._named if name not in columns]
        if absent and None not in self._components:
            self._refuse(absent[0], columns)
        if absent:  # the reward that computes it has not succeeded once yet
            outcome.fill_(math.nan)
        success = self._success(columns, n)
        known = forest.success.isfinite()  # the verdict of an environment
        return forest.with_rewards(
            outcome, components=columns, success=torch.where(known, forest.success, success) if self._given else success
        )

    def close(self) -> None:
        """End the worker processes; scoring again starts new ones."""
        if self._workers is not None:
            self._workers.close()

    def __enter__(self) -> RewardSet:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------ running
    def _run(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> list[list[Reply]]:
        """What came of every function on every trajectory, [functions][R]."""
        n = forest.n_trajectories
        asked = {name for asks in self._asks for name in asks or ()}
        tokens = [
            forest.token[forest.path_token[forest.path_of(r)]].tolist() if "tokens" in asked else [] for r in range(n)
        ]
        finish: list[str | None] = [None] * n
        for step, r in enumerate(forest.step_trajectory.tolist()):
            finish[r] = forest.step_finish[step]

        def call(k: int, r: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
            asks, task = self._asks[k], tasks[r]
            if asks is None:
                return (texts[r], task), {}
            known = {"prompt": task.prompt, "completion": texts[r], "answer": task.answer, "task": task,
                     "info": dict(task.info), "tokens": tokens[r], "finish": finish[r]}  # fmt: skip
            return (), {name: known[name] for name in asks}

        replies: list[list[Reply]] = [[("died", "never run")] * n for _ in self._functions]
        sent, places = [], []
        for k, function in enumerate(self._functions):
            for r in range(n):
                if function.call is not None:
                    replies[k][r] = attempt(function.call, *call(k, r))
                    continue
                try:
                    sent.append((self._remote.index(k), pickle.dumps(call(k, r))))
                    places.append((k, r))
                except Exception as error:
                    replies[k][r] = ("raised", one_line(f"its arguments can't be sent to a worker: {error}"))
        if self._workers is not None:
            for (k, r), reply in zip(places, self._workers.run(sent), strict=True):
                replies[k][r] = reply
        return replies

    def _settle(self, k: int, replies: Sequence[Reply]) -> None:
        """The names a function returns are those most of its first successes have; later ones must have the same."""
        if self._components[k] is None:
            shapes = Counter(_names(self._functions[k], value) for status, value in replies if status == "ok")
            if shapes:
                self._components[k] = shapes.most_common(1)[0][0]

    def _row(self, k: int, names: tuple[str, ...], reply: Reply, task: Task) -> list[float]:
        """One trajectory's components from function `k`, nan where it failed; failures are counted."""
        function, (status, value) = self._functions[k], reply
        if status == "ok":
            if set(_names(function, value)) == set(names):
                return [value[name] for name in names] if isinstance(value, dict) else [value]
            status = "nonsense"
            value = f"returned {', '.join(_names(function, value))} where it usually returns {', '.join(names)}"
        self.counts[status] += 1
        self.messages.setdefault(status, f"reward {function.label}: {value} (task {task.id})")
        return [math.nan] * len(names)

    def _success(self, columns: Mapping[str, Tensor], n: int) -> Tensor:
        verdict = columns.get("correct")
        if verdict is None and len(self._functions) == 1 and list(columns) == [self._functions[0].name]:
            verdict = columns[self._functions[0].name]
        if verdict is None:
            return torch.full((n,), math.nan, dtype=torch.float64)
        return torch.where(verdict.isnan(), verdict, (verdict >= 1).to(torch.float64))

    # ------------------------------------------------------------ names
    def _check_names(self, source: TaskSource) -> None:
        """Refuse weights for components that nobody computes, where that can be known before sampling.

        What a scorer returns is learnt from a held-out task and an empty text; what a user's function returns is known
        only when it has scored, so a name that could be its is checked then.
        """
        if {"correct", "format", *self._given}.issuperset(self._named):
            return
        example = _example(source)
        for k, function in enumerate(self._functions):
            if self._components[k] is None and function.is_scorer and example is not None:
                self._settle(k, [self._try(example, k)])
        if None not in self._components:
            known = [*self._given, *(name for names in self._components for name in names or ())]
            for name in self._named:
                if name not in known:
                    self._refuse(name, known)

    def _try(self, task: Task, k: int) -> Reply:
        """What the scorer says to an empty text."""
        function = self._functions[k].call
        if function is not None:
            return attempt(function, ("", task), {})
        assert self._workers is not None
        return self._workers.run([(self._remote.index(k), pickle.dumps((("", task), {})))])[0]

    def _refuse(self, name: str, known: Iterable[str]) -> NoReturn:
        there = [*dict.fromkeys([*known, *BUILT_IN])]
        raise ConfigError(
            f"reward: {name!r} has a weight, but no reward computes it{did_you_mean(name, there)} "
            f"There are {', '.join(there)} and functions of files, as my_rewards.py:exact"
        )


def _names(function: Function, value: float | dict[str, float]) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, dict) else (function.name,)


def _example(source: TaskSource) -> Task | None:
    return next(iter(source.held_out(1)), None)


def _entries(spec: Spec, source: TaskSource) -> list[tuple[str | Callable[..., Any], float]]:
    """(name or callable, weight) for each reward that was asked for."""
    if spec is None:
        return [(getattr(source, "reward_default", None) or "correct", 1.0)]
    if not isinstance(spec, Mapping):
        return [(spec, 1.0)]
    for name, weight in spec.items():
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight):
            raise ConfigError(f"reward: the weight of {name!r} must be a finite number, not {weight!r}")
    if not any(spec.values()):
        raise ConfigError("reward: no reward has a weight other than 0; give one, as in {correct: 1.0}")
    return [(name, float(weight)) for name, weight in spec.items()]


def _function(key: str | Callable[..., Any]) -> Function | None:
    """The function that a reward's name means; None where it is the name of a component."""
    if callable(key):
        return user.from_callable(key)
    if not isinstance(key, str):
        raise ConfigError(f"reward: {key!r} is neither a name nor a function")
    if key == "math":
        if importlib.util.find_spec("math_verify") is None:
            need("math_verify", "train")
        found = user.from_file(f"{Path(__file__).with_name('math.py')}:correct")
        rehearsal = pickle.dumps(((), {"completion": "$1/2$", "answer": "0.5"}))
        source = {**(found.source or {}), "folder": None, "label": "math", "rehearsal": rehearsal}
        return Function("math", "math", source, gives=("correct",))
    return user.from_file(key) if user.names_file(key) else None


def _own(source: TaskSource, named: Mapping[str, float], *, alone: bool) -> list[Function]:
    """The task's verifier, which gives way to what other rewards compute, and the built-in `format` if it is named."""
    scorer, default = getattr(source, "scorer", None), getattr(source, "reward_default", None)
    own: list[Function] = []
    if scorer is not None:
        trusted = getattr(source, "scorer_trusted", False)
        own.append(user.from_scorer(scorer, trusted=trusted, example=None if trusted else _example(source)))
    elif default is not None and (alone or "correct" in named):
        verifier = _function(default)
        own += [verifier] if verifier is not None else []
    if "format" in named:
        own.append(
            Function("format", "format", call=well_formed, asks=("completion",), trusted=True, gives=("format",))
        )
    if alone and not own and not getattr(source, "components", ()):
        raise ConfigError("reward: these tasks have no verifier of their own; name one, as my_rewards.py:exact or math")
    return own
