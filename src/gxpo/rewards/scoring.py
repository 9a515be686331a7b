"""Weighted sum of rewards (`RewardSet`): in process, in worker processes, or on all rollouts at once."""

from __future__ import annotations

import dataclasses
import math
import pickle
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn

import torch
from torch import Tensor

from gxpo.errors import ConfigError, did_you_mean
from gxpo.forest import Forest
from gxpo.protocols import Task, TaskSource
from gxpo.rewards import group_level
from gxpo.rewards.group_level import Grouped
from gxpo.rewards.pool import Workers
from gxpo.rewards.spec import (
    BUILT_IN,
    GROUP_LEVEL,
    Spec,
    entries,
    example_of,
    function_of,
    group_level_of,
    own_functions,
)
from gxpo.rewards.user import Function
from gxpo.rewards.worker import Reply, attempt
from gxpo.usercode import one_line

FAILURES = ("raised", "timeout", "died", "nonsense")  # unscored
LIMIT = "limit"  # scored as wrong


class RewardSet:
    """Weighted set of rewards: outcome = sum over components of weight x value, in float64.

    A reward returns a number (a component with the reward's own name) or named numbers (components). A component has
    the weight given to its name, else the weight of the reward that computes it, else 0: recorded, not counted. The
    task's own scorer always runs; a component of the same name from another reward replaces it. A group-level
    reward (`group_level.GroupReward`: built in, a function of (forest, texts, tasks), or `rate` of the task source)
    sees all rollouts of the step at once, and runs in process.

    A reward that raises, takes longer than `timeout`, kills its process or returns anything but finite numbers under
    the usual names costs that trajectory alone: its components and, if they have weight, its outcome are nan
    (unscored), never 0. `counts` says how often each happened, `messages` holds the first message of each.

    A check by math-verify that would take more than it may (`gxpo.rewards.math`) is no failure: the answer is wrong, 0,
    and `counts["limit"]` says how many. It computes and waits for nothing, so its `timeout` is of processor time, which
    a loaded machine does not change. Other rewards may wait for something: their `timeout` is of the clock, without
    the time in which their process was ready to run and had no processor (Linux).

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
        groups: Sequence[tuple[Grouped, float]] = (),
        rate: Grouped | None = None,
        given: Sequence[str] = (),
        timeout: float,
        workers: int,
    ) -> None:
        """See `make`; the last `n_own` of `functions` and `rate`, the task source's own group-level reward, give way
        where another computes a component of the same name.

        groups  group-level rewards with their weights
        given   names components that rollouts bring with them: what an environment paid
        """
        self.counts: dict[str, int] = dict.fromkeys((*FAILURES, LIMIT), 0)
        self.messages: dict[str, str] = {}
        self._functions, self._function_weights = list(functions), list(function_weights)
        self._named, self._n_own, self._given = dict(named), n_own, tuple(given)
        self._components = [f.gives for f in functions]  # names each returns, None as long as that is unknown
        self._asks = [f.asks for f in functions]
        self._groups = [*groups, *([(rate, 0.0)] if rate is not None else [])]
        self._n_groups = len(groups)
        self._group_components = [g.gives for g, _ in self._groups]
        self._label_free = any(g.label_free for g, _ in groups)
        self._workers: Workers | None = None
        self._remote = [k for k, f in enumerate(functions) if f.source is not None]
        if self._remote:
            sources = [f.source for f in functions if f.source is not None]
            self._workers = Workers(sources, timeout=timeout, count=workers)
            for k, declared in zip(self._remote, self._workers.declared, strict=True):
                self._asks[k] = declared

    @classmethod
    def make(
        cls,
        spec: Spec,
        *,
        source: TaskSource,
        timeout: float = 5.0,
        workers: int = 1,
        options: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> RewardSet:
        """Build from the configuration; any mistake that can be found before sampling is a ConfigError here.

        spec     None: the task's own verdict. A name: "math", "format", "numeric", "majority_vote", "code",
                 "judge", "my_rewards.py:exact" or a component of the task's scorer. A callable with parameters as in
                 `gxpo.rewards.worker.ARGUMENTS`, or (forest, texts, tasks). Or {name: weight}.
        source   has `scorer(text, task)`, `rate(forest, texts, tasks)`, or `reward_default` that names its verifier;
                 `scorer_trusted` says that the scorer can't hang
        timeout  seconds for one item
        workers  processes that share the items
        options  of "numeric", "majority_vote", "code" and "judge", by name
        """
        if not timeout > 0 or workers < 1:
            raise ConfigError(
                f"reward: timeout must be above 0 and workers at least 1, not {timeout!r} and {workers!r}"
            )
        functions: list[Function] = []
        function_weights: list[float] = []
        named: dict[str, float] = {}
        groups: list[tuple[Grouped, float]] = []
        unused = dict(options or {})
        for key, weight in entries(spec, source):
            grouped = group_level_of(key, unused)
            function = None if grouped is not None else function_of(key)
            found = grouped or function
            if found is None:
                named[str(key)] = weight
                continue
            if found.name in (f.name for f in (*functions, *(g for g, _ in groups))):
                raise ConfigError(f"reward: two functions are named {found.name!r}; rename one")
            if grouped is not None:
                groups.append((grouped, weight))
            elif function is not None:
                functions.append(function)
                function_weights.append(weight)
        rate = getattr(source, "rate", None)
        rated = None if rate is None else group_level.wrap(rate, "the task's rate", "rate")
        default = getattr(source, "reward_default", None)
        if isinstance(default, str) and default in GROUP_LEVEL and not groups and not functions and rated is None:
            rated = group_level_of(default, unused)  # a component of it was named
        for found in (*functions, *(g for g, _ in groups)):
            if found.name in named:
                raise ConfigError(f"reward: {found.name!r} names both {found.label} and a component; rename one")
        if unused:
            asked = f"the reward does not ask for it{did_you_mean(next(iter(unused)), GROUP_LEVEL)}"
            raise ConfigError(f"scoring.options.{next(iter(unused))}: {asked}")
        alone = not functions and all(g.label_free for g, _ in groups) and rated is None
        own = own_functions(source, named, alone=alone)
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
        limits: dict[str, Any] = {"timeout": timeout, "workers": workers}
        rewards = cls(everything, weights, named, n_own=len(own), groups=groups, rate=rated, given=given, **limits)
        try:
            for grouped, _ in groups:
                if grouped.label_free:
                    rewards._check_verifier(source, grouped)
                    grouped.call.bind(rewards._verify)  # type: ignore[attr-defined]  # what label_free has looked for
            rewards._check_names(source)
        except BaseException:
            rewards.close()
            raise
        return rewards

    def score(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> Forest:
        """Score: `forest` with `components`, `outcome` and `success`; `texts` and `tasks` [R] of its trajectories."""
        n = forest.n_trajectories
        if not len(texts) == len(tasks) == n:
            raise ValueError(f"{len(texts)} texts and {len(tasks)} tasks for {n} trajectories")
        columns = {x: forest.components[:, i] for i, x in enumerate(forest.component_names) if x in self._given}
        weights = {name: self._named.get(name, 0.0) for name in columns}
        n_users = len(self._functions) - self._n_own
        replies = self._run(forest, texts, tasks, range(len(self._functions)))

        def enter(label: str, computed: Mapping[str, Tensor], weight: Callable[[str], float], *, own: bool) -> None:
            for name, column in computed.items():
                if name not in columns:
                    columns[name], weights[name] = column, self._named.get(name, weight(name))
                elif not own:
                    raise ConfigError(f"reward {label} computes {name!r}, as another reward does; rename one")

        def functions(which: Iterable[int], *, own: bool) -> None:
            for k in which:
                rows = self._rows(k, replies[k], tasks)
                enter(self._functions[k].label, rows, lambda name, k=k: self._function_weights[k], own=own)

        def groups(which: Iterable[int], *, own: bool) -> None:
            for k in which:
                grouped, weight = self._groups[k]
                rows = self._rate(k, forest, texts, tasks)
                enter(grouped.label, rows, lambda x, g=grouped, w=weight: 0.0 if x in g.reports else w, own=own)

        functions(range(n_users), own=False)
        groups(range(self._n_groups), own=False)
        functions(range(n_users, len(self._functions)), own=True)
        groups(range(self._n_groups, len(self._groups)), own=True)
        outcome = torch.zeros(n, dtype=torch.float64)
        for name, column in columns.items():
            if weights[name] != 0:
                outcome += weights[name] * column
        absent = [name for name in self._named if name not in columns]
        if absent and self._all_known:
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
    def _run(
        self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task], which: Sequence[int]
    ) -> dict[int, list[Reply]]:
        """What came of these functions on every trajectory, [R] each."""
        n = forest.n_trajectories
        asked = {name for k in which for name in self._asks[k] or ()}
        tokens = [
            forest.token[forest.path_token[forest.path_of(r)]].tolist() if "tokens" in asked else [] for r in range(n)
        ]
        finish: list[str | None] = [None] * n
        for step, r in enumerate(forest.step_trajectory.tolist()):
            finish[r] = forest.step_finish[step]

        def call(k: int, r: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
            return _arguments(self._asks[k], tasks[r], texts[r], tokens[r], finish[r])

        replies: dict[int, list[Reply]] = {k: [("died", "never run")] * n for k in which}
        sent, places = [], []
        for k in which:
            function = self._functions[k]
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

    def _rows(self, k: int, replies: Sequence[Reply], tasks: Sequence[Task]) -> dict[str, Tensor]:
        """Components [R] of function `k`."""
        self._settle(k, replies)
        names = self._components[k] or (self._functions[k].name,)
        values = torch.tensor(
            [self._row(k, names, reply, task) for reply, task in zip(replies, tasks, strict=True)], dtype=torch.float64
        ).reshape(len(tasks), len(names))
        return dict(zip(names, values.unbind(1), strict=True))

    def _rate(self, k: int, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        """Components [R] of the group-level reward `k`; failures are counted."""
        grouped, weight = self._groups[k]
        known = self._group_components[k]

        def counted(name: str) -> bool:
            return self._named.get(name, 0.0 if name in grouped.reports else weight) != 0

        columns, failures = group_level.rate(grouped, known, forest, texts, tasks, counted)
        if columns is not None:
            self._group_components[k] = tuple(columns)
        for kind, message in failures:
            self.counts[kind] += 1
            self.messages.setdefault(kind, f"reward {grouped.label}: {message}")
        blank = torch.full((forest.n_trajectories,), math.nan, dtype=torch.float64)
        return columns if columns is not None else {name: blank for name in known or (grouped.name,)}

    @property
    def _verifier(self) -> int | None:
        """The function that says "correct": the task's own, or else the first that is known to."""
        own = range(len(self._functions) - self._n_own, len(self._functions))
        says = [k for k in (*own, *range(len(self._functions))) if self._functions[k].name != "format"]
        found = [k for k in says if self._functions[k].is_scorer or "correct" in (self._functions[k].gives or ())]
        return found[0] if found else None

    def _verify(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> Tensor:
        """[R] component "correct" of the tasks' own verifier, nan where it fails: for rewards without labels."""
        k = self._verifier
        assert k is not None, "_check_verifier has seen to it"
        replies = self._run(forest, texts, tasks, (k,))[k]
        found = self._rows(k, replies, tasks).get("correct")
        return found if found is not None else torch.full((len(texts),), math.nan, dtype=torch.float64)

    def _check_verifier(self, source: TaskSource, grouped: Grouped) -> None:
        """Refuse a verifier that is not there, or that can't judge by `answer` alone: it would read the truth."""
        k, example = self._verifier, example_of(source)
        if k is None:
            raise ConfigError(
                f"reward: {grouped.label} needs a verifier that compares with an answer, and these tasks have none of "
                "their own: add one with weight 0, as {majority_vote: 1.0, math: 0}"
            )
        write = getattr(source, "worked_example", None)
        if example is None:
            return
        blind = dataclasses.replace(example, answer="no such answer", info={})
        text = "" if write is None else write(example)
        status, value = self._try(blind, k, text)
        if self._try(example, k, text)[0] == "ok" and (status != "ok" or value == 1 or _says(value, "correct") == 1):
            reads = f"can't do without the rest ({value})" if status != "ok" else "does not look at it"
            raise ConfigError(
                f"reward: {grouped.label} needs a verifier that judges by a task's answer alone, and this one {reads}: "
                "choose another task, or name another verifier beside it with weight 0"
            )

    @property
    def _all_known(self) -> bool:
        """Whether the names of all components are known."""
        return None not in self._components and None not in self._group_components

    def _settle(self, k: int, replies: Sequence[Reply]) -> None:
        """The names a function returns are those most of its first successes have; later ones must have the same."""
        if self._components[k] is None:
            shapes = Counter(_names(self._functions[k], value) for status, value in replies if status == "ok")
            if shapes:
                self._components[k] = shapes.most_common(1)[0][0]

    def _row(self, k: int, names: tuple[str, ...], reply: Reply, task: Task) -> list[float]:
        """One trajectory's components from function `k`, nan where it failed; failures are counted."""
        function, (status, value) = self._functions[k], reply
        if self._label_free and task.answer is None:  # nothing to compare with: not a failure
            named = value if status == "ok" and isinstance(value, dict) else {}
            return [math.nan if name == "correct" else named.get(name, math.nan) for name in names]
        if status == "ok":
            if set(_names(function, value)) == set(names):
                return [value[name] for name in names] if isinstance(value, dict) else [value]
            status = "nonsense"
            value = f"returned {', '.join(_names(function, value))} where it usually returns {', '.join(names)}"
        self.counts[status] += 1
        self.messages.setdefault(status, f"reward {function.label}: {value} (task {task.id})")
        return [0.0 if status == LIMIT else math.nan] * len(names)

    def _success(self, columns: Mapping[str, Tensor], n: int) -> Tensor:
        verdict = columns.get("correct")
        if verdict is None and len(self._functions) == 1 and list(columns) == [self._functions[0].name]:
            verdict = columns[self._functions[0].name]
        if verdict is None:
            return torch.full((n,), math.nan, dtype=torch.float64)
        return torch.where(verdict.isnan(), verdict, (verdict >= 1).to(torch.float64))

    # ------------------------------------------------------------ names
    def _check_names(self, source: TaskSource) -> None:
        """Refuse weights for components that no reward computes, where that can be known before sampling.

        What a scorer returns is learnt from a held-out task and an empty text; what a user's function returns is known
        only when it has scored, so a name that could be its is checked then.
        """
        if {"correct", "format", *self._given}.issuperset(self._named):
            return
        example = example_of(source)
        for k, function in enumerate(self._functions):
            if self._components[k] is None and function.is_scorer and example is not None:
                self._settle(k, [self._try(example, k)])
        if self._all_known:
            computed = (*self._components, *self._group_components)
            known = [*self._given, *(name for names in computed for name in names or ())]
            for name in self._named:
                if name not in known:
                    self._refuse(name, known)

    def _try(self, task: Task, k: int, text: str = "") -> Reply:
        """What the function says to a text."""
        call = self._functions[k].call
        args, keywords = _arguments(self._asks[k], task, text, [], "stop")
        if call is not None:
            return attempt(call, args, keywords)
        assert self._workers is not None
        return self._workers.run([(self._remote.index(k), pickle.dumps((args, keywords)))])[0]

    def _refuse(self, name: str, known: Iterable[str]) -> NoReturn:
        there = [*dict.fromkeys([*known, *BUILT_IN])]
        raise ConfigError(
            f"reward: {name!r} has a weight, but no reward computes it{did_you_mean(name, there) or '.'} "
            f"There are {', '.join(there)} and functions of files, as my_rewards.py:exact"
        )


def _arguments(
    asks: Sequence[str] | None, task: Task, text: str, tokens: Sequence[int], finish: str | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a function that asks for these parameters; None: of a scorer."""
    if asks is None:
        return (text, task), {}
    known = {"prompt": task.prompt, "completion": text, "answer": task.answer, "task": task,
             "info": dict(task.info), "tokens": tokens, "finish": finish}  # fmt: skip
    return (), {name: known[name] for name in asks}


def _names(function: Function, value: float | dict[str, float]) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, dict) else (function.name,)


def _says(value: Any, name: str) -> float | None:
    return value.get(name) if isinstance(value, dict) else None
