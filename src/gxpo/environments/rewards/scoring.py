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

from gxpo.base.errors import ConfigError, GxpoError, did_you_mean
from gxpo.base.usercode import one_line
from gxpo.environments.rewards import functions, group_level
from gxpo.environments.rewards.batch import AsyncEach, Batch, DecodeRaw, actions_of, components_of, raw_texts
from gxpo.environments.rewards.functions import Function
from gxpo.environments.rewards.pool import Workers
from gxpo.environments.rewards.spec import (
    BUILT_IN,
    GROUP_LEVEL,
    Entry,
    Spec,
    check_answers,
    entries,
    example_of,
    own_functions,
    reward_of,
)
from gxpo.environments.rewards.worker import Reply, attempts
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Task, TaskSource

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

    A check by math-verify that would take more than it may (`rewards.math`) is no failure: the answer is wrong, 0,
    and `counts["limit"]` says how many. It computes and waits for nothing, so its `timeout` is of processor time, which
    a loaded machine does not change. Other rewards may wait for something: their `timeout` is of the clock, without
    the time in which their process was ready to run and had no processor (Linux).

    math-verify, functions of files, importable callables and scorers that are not trusted run in worker processes.
    gxpo's own fast ones run in process. So does a callable that no other process can import (a lambda, a closure, a
    function of the running script), without a time limit and with a warning. A worker imports no torch unless a
    function does, or asks for `task`.

    `success` is the verifier's verdict: component "correct" >= 1. Without that component it is unknown (nan), except
    that a single function that returns plain numbers is the verifier of tasks that have no scorer of their own.
    """

    def __init__(
        self,
        rewards: Sequence[Entry],
        named: Mapping[str, float],
        *,
        given: Sequence[str] = (),
        timeout: float,
        workers: int,
    ) -> None:
        """See `make`.

        named  weights of components by name
        given  names components that rollouts bring with them: what an environment paid
        """
        self._decode_raw: DecodeRaw | None = None
        self.counts: dict[str, int] = dict.fromkeys((*FAILURES, LIMIT), 0)
        self.messages: dict[str, str] = {}
        self._rewards, self._named, self._given = list(rewards), dict(named), tuple(given)
        self._single = [r for r in rewards if not r.function.grouped]
        self._label_free = any(r.function.label_free and not r.own for r in rewards)
        self._workers: Workers | None = None
        sent = [(r, r.function.source) for r in self._single if r.function.source is not None]
        if sent:
            self._workers = Workers([source for _, source in sent], timeout=timeout, count=workers)
            for number, ((reward, _), declared) in enumerate(zip(sent, self._workers.declared, strict=True)):
                reward.remote, reward.asks = number, declared

    @classmethod
    def make(
        cls,
        spec: Spec,
        *,
        source: TaskSource,
        timeout: float = 5.0,
        workers: int = 1,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        given: Sequence[str] = (),
    ) -> RewardSet:
        """Build from the configuration; any mistake that can be found before sampling is a ConfigError here.

        spec     None: the task's own verdict. A name: "math", "format", "numeric", "majority_vote", "code",
                 "judge", "my_rewards.py:exact" or a component of the task's scorer. A callable with parameters as in
                 `rewards.worker.ARGUMENTS`, as in `batch.Batch`, or (forest, texts, tasks); a rubric of verifiers.
                 {any of these: weight}, or a list of any of these, some as (it, weight).
        source   has `scorer(text, task)`, `rate(forest, texts, tasks)`, or `reward_default` that names its verifier;
                 `scorer_trusted` says that the scorer can't hang
        timeout  seconds for one item
        workers  processes that share the items
        options  of "numeric", "majority_vote", "code" and "judge", by name
        given    components that rollouts bring with them, beside those of the source
        """
        if not timeout > 0 or workers < 1:
            raise ConfigError(
                f"reward: timeout must be above 0 and workers at least 1, not {timeout!r} and {workers!r}"
            )
        found: list[Entry] = []
        named: dict[str, float] = {}
        unused = dict(options or {})
        for key, weight in entries(spec, source):
            function = reward_of(key, unused)
            if function is None:
                named[str(key)] = weight
                continue
            if any(r.function.name == function.name for r in found):
                raise ConfigError(f"reward: two functions are named {function.name!r}; rename one")
            found.append(Entry(function, weight))
        found.sort(key=lambda r: r.function.grouped)
        rate, default = getattr(source, "rate", None), getattr(source, "reward_default", None)
        rated = None if rate is None else functions.grouped(rate, "the task's rate", "rate")
        if isinstance(default, str) and default in GROUP_LEVEL and not found and rated is None:
            rated = reward_of(default, unused)  # a component of it was named
        for reward in found:
            if (name := reward.function.name) in named:
                raise ConfigError(f"reward: {name!r} names both {reward.function.label} and a component; rename one")
        if unused:
            asked = f"the reward does not ask for it{did_you_mean(next(iter(unused)), GROUP_LEVEL)}"
            raise ConfigError(f"scoring.options.{next(iter(unused))}: {asked}")
        alone = rated is None and all(r.function.label_free for r in found)
        own = own_functions(source, named, alone=alone)
        found += [Entry(f, own=True) for f in (*own, *([] if rated is None else [rated]))]
        check_answers(found, source, given=spec is not None)
        for reward in found:
            if isinstance(reward.function.call, AsyncEach):
                reward.function.call.timeout = timeout
            if reward.function.grouped:
                group_level.prepare(reward.function.call, source, timeout, workers)
            if isinstance(reward.function.call, Batch):
                reward.function.call.check([*source.held_out(1), *getattr(source, "training", ())[:1]])
            if reward.function.endless:
                warnings.warn(
                    f"reward {reward.function.label} can't be sent to a worker process: it runs in process and nothing "
                    "ends it if it hangs; put it into a file, as my_rewards.py:FUNCTION, to give it a time limit",
                    stacklevel=2,
                )
        rewards = cls(
            found, named, given=(*getattr(source, "components", ()), *given), timeout=timeout, workers=workers
        )
        try:
            for reward in found:
                if reward.function.label_free and not reward.own:
                    rewards._check_verifier(source, reward.function.label)
                    reward.function.call.bind(rewards._verify)  # type: ignore[union-attr]  # label_free has looked for it
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
        left_out: dict[str, Tensor] = {}  # [R] where a reward that may leave rollouts out has done so
        weights = {name: self._named.get(name, 0.0) for name in columns}
        replies = self._run(forest, texts, tasks, self._single)
        for reward in sorted(self._rewards, key=_reads_success):
            function = reward.function
            grouped = function.grouped
            seen = self._with_verdicts(forest, columns, function.label) if _reads_success(reward) else forest
            found = self._rate(reward, seen, texts, tasks) if grouped else self._rows(reward, replies[reward], tasks)
            for name, column in found.items():
                if name not in columns:
                    columns[name] = column
                    weights[name] = self._named.get(name, 0.0 if name in function.reports else reward.weight)
                    if getattr(function.call, "skips", False) and not reward.failed:
                        left_out[name] = column.isnan()
                elif not reward.own:
                    raise ConfigError(f"reward {function.label} computes {name!r}, as another reward does; rename one")
        outcome = _weighted(columns, weights, left_out, n)
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

    @property
    def weighed(self) -> tuple[str, ...]:
        """The components that have a weight by their own name."""
        return tuple(self._named)

    def read_with(self, decode: DecodeRaw) -> None:
        """Give the rewards what makes text of token ids with special tokens written out (`completion_raw`)."""
        self._decode_raw = decode
        for call in self._having("decode_raw"):
            call.decode_raw = decode

    def at(self, step: int, steps: int) -> None:
        """Tell the rewards that ask for it which step of how many the run is at."""
        for reward in self._rewards:
            if isinstance(reward.function.call, Batch):
                reward.function.call.step, reward.function.call.steps = step, steps
            elif reward.function.grouped and hasattr(reward.function.call, "at"):
                reward.function.call.at(step)  # type: ignore[union-attr]  # hasattr has looked

    def observe(self, step: int, forest: Forest, texts: Callable[[], Sequence[str]], tasks: Mapping[str, Task]) -> None:
        """Show a step's scored rollouts to the rewards that learn from them."""
        for call in self._having("observe"):
            call.observe(step, forest, texts(), [tasks[name] for name in forest.task])

    def state_dict(self) -> dict[str, Any]:
        """State of the rewards that have any, by name, as JSON."""
        stateful = [(r.function.name, r.function.call) for r in self._rewards if r.function.grouped]
        return {name: call.state_dict() for name, call in stateful if call is not None and hasattr(call, "state_dict")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        for reward in self._rewards:
            call = reward.function.call
            if reward.function.name in state and call is not None and hasattr(call, "load_state_dict"):
                call.load_state_dict(state[reward.function.name])  # type: ignore[attr-defined]  # hasattr has looked

    def _having(self, name: str) -> list[Any]:
        """The group-level rewards that have an optional method."""
        return [r.function.call for r in self._rewards if r.function.grouped and hasattr(r.function.call, name)]

    def close(self) -> None:
        """End the worker processes; scoring again starts new ones."""
        if self._workers is not None:
            self._workers.close()
        for call in self._having("close"):
            call.close()

    def __enter__(self) -> RewardSet:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------ running
    def _run(
        self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task], rewards: Sequence[Entry]
    ) -> dict[Entry, list[Reply]]:
        """What came of these functions of one rollout on every trajectory, [R] each."""
        n = forest.n_trajectories
        asked = {name for reward in rewards for name in reward.asks or ()}
        tokens = actions_of(forest) if "tokens" in asked else [[] for _ in range(n)]
        raw = raw_texts(forest, texts, self._decode_raw) if "completion_raw" in asked else texts
        finish: list[str | None] = [None] * n
        for step, r in enumerate(forest.step_trajectory.tolist()):
            finish[r] = forest.step_finish[step]
        replies: dict[Entry, list[Reply]] = {reward: [("died", "never run")] * n for reward in rewards}
        rows = list(zip(tasks, texts, tokens, finish, raw, strict=True))
        sent, places = [], []
        for reward in rewards:
            calls = [_arguments(reward.asks, *row) for row in rows]
            if reward.function.call is not None:
                replies[reward] = attempts(reward.function.call, calls)
                continue
            for r, call in enumerate(calls):
                try:
                    sent.append((reward.remote, pickle.dumps(call)))
                    places.append((reward, r))
                except Exception as error:
                    replies[reward][r] = ("raised", one_line(f"its arguments can't be sent to a worker: {error}"))
        if self._workers is not None:
            for (reward, r), reply in zip(places, self._workers.run(sent), strict=True):
                replies[reward][r] = reply
        return replies

    def _rows(self, reward: Entry, replies: Sequence[Reply], tasks: Sequence[Task]) -> dict[str, Tensor]:
        """Components [R] of a function of one rollout."""
        self._settle(reward, replies)
        names = reward.names or (reward.function.name,)
        rows = [self._row(reward, names, reply, task) for reply, task in zip(replies, tasks, strict=True)]
        values = torch.tensor(rows, dtype=torch.float64).reshape(len(tasks), len(names))
        return dict(zip(names, values.unbind(1), strict=True))

    def _rate(self, reward: Entry, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        """Components [R] of a group-level reward; failures are counted."""
        function, known = reward.function, reward.names
        assert function.call is not None, "it runs in process"

        def counted(name: str) -> bool:
            return self._named.get(name, 0.0 if name in function.reports else reward.weight) != 0

        more = {"texts_raw": raw_texts(forest, texts, self._decode_raw)} if function.raw else {}
        columns, failures = components_of(function.name, function.call, known, forest, texts, tasks, counted, more)
        reward.failed = columns is None
        if columns is not None:
            reward.names = tuple(columns)
        for kind, message in failures:
            self.counts[kind] += 1
            self.messages.setdefault(kind, f"reward {function.label}: {message}")
        blank = torch.full((forest.n_trajectories,), math.nan, dtype=torch.float64)
        return columns if columns is not None else {name: blank for name in known or (function.name,)}

    @property
    def _verifier(self) -> Entry | None:
        """The function that says "correct": the task's own, or else the first that is known to."""
        for reward in sorted(self._single, key=lambda r: not r.own):
            function = reward.function
            if function.name != "format" and (function.is_scorer or "correct" in (function.gives or ())):
                return reward
        return None

    def _verify(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> Tensor:
        """[R] component "correct" of the tasks' own verifier, nan where it fails: for rewards without labels."""
        verifier = self._verifier
        assert verifier is not None, "_check_verifier has seen to it"
        replies = self._run(forest, texts, tasks, [verifier])[verifier]
        found = self._rows(verifier, replies, tasks).get("correct")
        return found if found is not None else torch.full((len(texts),), math.nan, dtype=torch.float64)

    def _check_verifier(self, source: TaskSource, label: str) -> None:
        """Refuse a verifier that is not there, or that can't judge by `answer` alone: it would read the truth."""
        verifier, example = self._verifier, example_of(source)
        if verifier is None:
            raise ConfigError(
                f"reward: {label} needs a verifier that compares with an answer, and these tasks have none of "
                "their own: add one with weight 0, as {majority_vote: 1.0, math: 0}"
            )
        write = getattr(source, "worked_example", None)
        if example is None:
            return
        blind = dataclasses.replace(example, answer="no such answer", info={})
        text = "" if write is None else write(example)
        status, value = self._try(blind, verifier, text)
        known = self._try(example, verifier, text)[0] == "ok"
        if known and (status != "ok" or value == 1 or (isinstance(value, dict) and value.get("correct") == 1)):
            reads = f"can't do without the rest ({value})" if status != "ok" else "does not look at it"
            raise ConfigError(
                f"reward: {label} needs a verifier that judges by a task's answer alone, and this one {reads}: "
                "choose another task, or name another verifier beside it with weight 0"
            )

    @property
    def _all_known(self) -> bool:
        """Whether the names of all components are known."""
        return all(reward.names is not None for reward in self._rewards)

    def _settle(self, reward: Entry, replies: Sequence[Reply]) -> None:
        """The names a function returns are those most of its first successes have; later ones must have the same."""
        if reward.names is None:
            shapes = Counter(_names(reward.function, value) for status, value in replies if status == "ok")
            if shapes:
                reward.names = shapes.most_common(1)[0][0]

    def _row(self, reward: Entry, names: tuple[str, ...], reply: Reply, task: Task) -> list[float]:
        """One trajectory's components from a function, nan where it failed; failures are counted."""
        function, (status, value) = reward.function, reply
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

    def _with_verdicts(self, forest: Forest, columns: Mapping[str, Tensor], label: str) -> Forest:
        """The forest with the verdicts of what has been computed, for a reward that reads `success`."""
        known = forest.success.isfinite()
        if "correct" not in columns and forest.n_trajectories and not bool(known.any()):
            raise GxpoError(
                f"reward {label} asks about right attempts alone, and no reward gives a verdict: add one, as "
                f"scoring.weights {{math: 1, {label}: 0}}"
            )
        success = self._success({name: x for name, x in columns.items() if name == "correct"}, forest.n_trajectories)
        return forest.replace(success=torch.where(known, forest.success, success))

    def _success(self, columns: Mapping[str, Tensor], n: int) -> Tensor:
        verdict = columns.get("correct")
        if verdict is None and len(self._rewards) == 1:
            (function,) = (reward.function for reward in self._rewards)
            counted = [name for name in columns if name not in function.reports]
            if (function.verdict or not function.grouped) and counted == [function.name]:
                verdict = columns[function.name]
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
        for reward in self._single:
            if reward.names is None and reward.function.is_scorer and example is not None:
                self._settle(reward, [self._try(example, reward)])
        if self._all_known:
            ordered = sorted(self._rewards, key=lambda r: r.function.grouped)
            known = [*self._given, *(name for reward in ordered for name in reward.names or ())]
            for name in self._named:
                if name not in known:
                    self._refuse(name, known)

    def _try(self, task: Task, reward: Entry, text: str = "") -> Reply:
        """What a function says to a text."""
        args, keywords = _arguments(reward.asks, task, text, [], "stop", text)
        if reward.function.call is not None:
            return attempts(reward.function.call, [(args, keywords)])[0]
        assert self._workers is not None and reward.remote is not None
        return self._workers.run([(reward.remote, pickle.dumps((args, keywords)))])[0]

    def _refuse(self, name: str, known: Iterable[str]) -> NoReturn:
        there = [*dict.fromkeys([*known, *BUILT_IN])]
        raise ConfigError(
            f"reward: {name!r} has a weight, but no reward computes it{did_you_mean(name, there) or '.'} "
            f"There are {', '.join(there)} and functions of files, as my_rewards.py:exact"
        )


def _reads_success(reward: Entry) -> bool:
    """True if a reward is given the verdicts of the others, so that it runs after them."""
    return reward.function.grouped and bool(getattr(reward.function.call, "reads_success", False))


def _weighted(
    columns: Mapping[str, Tensor], weights: Mapping[str, float], left_out: Mapping[str, Tensor], n: int
) -> Tensor:
    """[R] sum of weight x value: nan where a component is, except that what a reward left out counts for nothing there;
    nan, too, where all left it out."""
    outcome, silent = torch.zeros(n, dtype=torch.float64), torch.ones(n, dtype=torch.bool)
    for name, column in columns.items():
        if weights[name] == 0:
            continue
        absent = left_out.get(name)
        if absent is None:
            outcome += weights[name] * column
            silent &= False
        else:
            outcome += weights[name] * column.masked_fill(absent, 0.0)
            silent &= absent
    return outcome.masked_fill(silent, math.nan) if left_out else outcome


def _arguments(
    asks: Sequence[str] | None, task: Task, text: str, tokens: Sequence[int], finish: str | None, raw: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a function that asks for these parameters; None: of a scorer."""
    if asks is None:
        return (text, task), {}
    known = {"prompt": task.prompt, "completion": text, "answer": task.answer, "task": task,
             "info": dict(task.info), "tokens": tokens, "finish": finish, "completion_raw": raw}  # fmt: skip
    return (), {name: known[name] for name in asks}


def _names(function: Function, value: float | dict[str, float]) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, dict) else (function.name,)
