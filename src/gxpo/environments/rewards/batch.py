"""Rewards of whole batches and awaitable ones: TRL's signature, and async functions of one rollout."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import math
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gxpo.base.errors import ConfigError, GxpoError, did_you_mean
from gxpo.base.usercode import described, one_line
from gxpo.environments.rewards.group_level import Failure
from gxpo.environments.rewards.worker import ARGUMENTS, judge

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Task

BATCH = ("prompts", "completions", "completion_ids", "completions_raw")  # by which TRL's signature is recognised
DecodeRaw = Callable[[Sequence[int]], str]
EXTRAS = ("trainer_state", "log_extra", "log_metric")  # what TRL hands over beside the columns
AT_ONCE = 64  # rollouts that an async function of one scores at the same time


def takes_batch(names: Sequence[str], label: str, *, keywords: bool = False) -> bool:
    """Whether a function with these parameters has TRL's signature `(prompts, completions, **columns)`, else that of
    one rollout. `keywords`: it takes any others, too.

    ConfigError where the names do not tell.
    """
    batch, one = [n for n in names if n in BATCH], [n for n in names if n in ("prompt", "completion", "completion_raw")]
    if batch and one:
        raise ConfigError(
            f"reward {label}: asks for {batch[0]!r} (of a batch) and {one[0]!r} (of one rollout): use either "
            "(prompts, completions, ...) and return a list, or (prompt, completion, ...) and return a number"
        )
    if not batch and keywords and not any(n in ARGUMENTS for n in names):
        raise ConfigError(
            f"reward {label}: its parameters do not say what it scores: name completions (a batch, it returns a list) "
            "or completion (one rollout, it returns a number); a decorated function keeps its own by functools.wraps"
        )
    return bool(batch)


def actions_of(forest: Forest) -> list[list[int]]:
    """[R] token ids of all that each trajectory's actions say."""
    tokens, begins = forest.token[forest.path_token].tolist(), forest._entry_begin.tolist()
    return [tokens[begin:end] for begin, end in itertools.pairwise(begins)]


def raw_texts(forest: Forest, texts: Sequence[str], decode: DecodeRaw | None) -> list[str]:
    """[R] what each trajectory says with its special tokens written out; without a tokenizer the texts as they are."""
    return list(texts) if decode is None else [decode(tokens) for tokens in actions_of(forest)]


def finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns, run in a thread of its own: where we are called, a loop may be running (notebooks)."""
    out: list[Any] = []

    def run() -> None:
        try:
            out.append((True, asyncio.run(coroutine)))  # type: ignore[arg-type]
        except BaseException as error:
            out.append((False, error))

    thread = threading.Thread(target=run, name="gxpo-async-reward")
    thread.start()
    thread.join()
    ((ok, value),) = out
    if not ok:
        raise value
    return value


class Batch:
    """A function with TRL's signature as a `group_level.GroupReward`: it sees all rollouts of a step at once.

    prompts, completions  texts, or lists of messages where the task's prompt is one
    completion_ids        token ids
    completions_raw       texts in which special tokens are written out, the one that ended an action too
    other parameters      columns of the tasks (`info`, `answer`), a value for each rollout; None where one has none
    trainer_state         `global_step` and `max_steps`; `log_extra` and `log_metric` are there and record nothing

    It returns a number for each rollout. None: it has nothing to say of that one, which the other rewards score; one
    that all leave out is unscored. Async functions are awaited.
    """

    skips = True  # nan is no failure: see above
    decode_raw: DecodeRaw | None = None  # given by the trainer
    step, steps = 0, 0  # where the run is, told by the trainer

    def __init__(self, function: Callable[..., Any], label: str) -> None:
        self.function, self.label = function, label
        self._declared = inspect.signature(function).parameters
        self._keywords = any(p.kind is p.VAR_KEYWORD for p in self._declared.values())

    def failures(self) -> list[tuple[str, str]]:
        """None: what it leaves out is no failure."""
        return []

    def check(self, tasks: Sequence[Task]) -> None:
        """ConfigError where it asks for a column that no task has."""
        known = {name for task in tasks for name in columns_of(task)} | {*BATCH, *EXTRAS}
        for name, p in self._declared.items():
            if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) or p.default is not p.empty or name in known:
                continue
            columns = sorted(known - {*BATCH, *EXTRAS})
            there = did_you_mean(name, columns) or f"; there is {', '.join(columns) or 'none'}"
            raise ConfigError(f"reward {self.label}: asks for {name!r}, and the tasks have no such column{there}")

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> Mapping[str, Tensor] | Tensor:
        """See the class."""
        self.check(tasks)
        value = self.function(**self._arguments(forest, texts, tasks))
        if inspect.isawaitable(value):
            value = finished(_awaited(value))
        if isinstance(value, Mapping):
            return {str(name): _column(x, len(texts)) for name, x in value.items()}
        return _column(value, len(texts))

    def _arguments(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Any]:
        found = [columns_of(task) for task in tasks]
        names = dict.fromkeys(name for columns in found for name in columns)
        known: dict[str, Any] = {name: [columns.get(name) for columns in found] for name in names}
        known["prompts"] = [task.prompt if isinstance(task.prompt, str) else _listed(task.prompt) for task in tasks]
        known["completions"] = [
            text if isinstance(task.prompt, str) else [{"role": "assistant", "content": text}]
            for task, text in zip(tasks, texts, strict=True)
        ]
        if self._keywords or "completion_ids" in self._declared:
            known["completion_ids"] = actions_of(forest)
        if "completions_raw" in self._declared:
            known["completions_raw"] = raw_texts(forest, texts, self.decode_raw)
        known["trainer_state"] = SimpleNamespace(global_step=self.step, max_steps=self.steps)
        known["log_extra"] = known["log_metric"] = _unrecorded
        return known if self._keywords else {name: x for name, x in known.items() if name in self._declared}


def columns_of(task: Task) -> dict[str, Any]:
    """What a row of data held beside its prompt: `info`, and the answer as it stood there."""
    return ({} if task.answer is None else {"answer": task.answer}) | dict(task.info)


def _listed(prompt: Any) -> list[Any]:
    return [dict(m) if isinstance(m, Mapping) else m for m in prompt]


def _unrecorded(*_: Any, **__: Any) -> None:
    """TRL's `log_extra` and `log_metric`."""


async def _awaited(value: Any) -> Any:
    return await value


def _column(value: Any, n: int) -> Tensor:
    """[R] numbers, nan for None; ValueError for anything else."""
    listed = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(listed, (list, tuple)):
        raise ValueError(f"{type(value).__name__} where a list of {n} numbers was asked for, one for each completion")
    if len(listed) != n:
        raise ValueError(f"{len(listed)} numbers for {n} completions")
    out = []
    for x in listed:
        x = x.item() if hasattr(x, "item") else x
        if x is not None and not isinstance(x, (bool, int, float)):
            raise ValueError(f"{x!r} ({type(x).__name__}), not a number")
        out.append(math.nan if x is None else float(x))
    return torch.tensor(out, dtype=torch.float64)


class AsyncEach:
    """An async function of one rollout as a `group_level.GroupReward`: all rollouts of a step at the same time.

    What it raises, or does not give within `timeout` seconds, costs that rollout alone.
    """

    timeout = 5.0
    decode_raw: DecodeRaw | None = None  # given by the trainer

    def __init__(self, function: Callable[..., Any], label: str, name: str, asks: Sequence[str]) -> None:
        self.function, self.label, self.name, self.asks = function, label, name, tuple(asks)
        self._failures: list[tuple[str, str]] = []

    def failures(self) -> list[tuple[str, str]]:
        """What went wrong since it was last asked."""
        found, self._failures = self._failures, []
        return found

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> Mapping[str, Tensor]:
        """See the class."""
        finish: list[str | None] = [None] * len(texts)
        for step, r in enumerate(forest.step_trajectory.tolist()):
            finish[r] = forest.step_finish[step]
        raw = raw_texts(forest, texts, self.decode_raw) if "completion_raw" in self.asks else texts
        actions = actions_of(forest) if "tokens" in self.asks else [[] for _ in texts]
        calls = []
        for r, (text, task, tokens) in enumerate(zip(texts, tasks, actions, strict=True)):
            known = {"prompt": task.prompt, "completion": text, "answer": task.answer, "task": task,
                     "info": dict(task.info), "tokens": tokens, "finish": finish[r],
                     "completion_raw": raw[r]}  # fmt: skip
            calls.append({name: known[name] for name in self.asks})
        replies = finished(self._all(calls))
        named = [{self.name: x} if isinstance(x, float) else x for x in replies]
        shapes = Counter(tuple(x) for x in named if isinstance(x, dict))
        names = shapes.most_common(1)[0][0] if shapes else (self.name,)
        for x in named:
            if not isinstance(x, dict):
                self._failures.append(x)
            elif tuple(x) != names:
                self._failures.append(
                    ("nonsense", f"returned {', '.join(x)} where it usually returns {', '.join(names)}")
                )
        rows = [[x[k] for k in names] if isinstance(x, dict) and tuple(x) == names else [math.nan] * len(names)
                for x in named]  # fmt: skip
        block = torch.tensor(rows, dtype=torch.float64).reshape(len(rows), len(names))
        return dict(zip(names, block.unbind(1), strict=True))

    async def _all(self, calls: Sequence[Mapping[str, Any]]) -> list[Any]:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(keywords: Mapping[str, Any]) -> Any:
            async with gate:
                try:
                    value = await asyncio.wait_for(self.function(**keywords), self.timeout)
                except asyncio.TimeoutError:
                    return "timeout", f"no answer within {self.timeout:g} s"
                except Exception as error:
                    return "raised", described(error)
            try:
                return judge(value)
            except Exception as error:
                return "nonsense", one_line(f"returned {error}")

        return await asyncio.gather(*(one(keywords) for keywords in calls))


# ---------------------------------------------------------------- any reward of a whole step
def components_of(
    name: str,
    call: Callable[..., Any],
    names: tuple[str, ...] | None,
    forest: Forest,
    texts: Sequence[str],
    tasks: Sequence[Task],
    counted: Callable[[str], bool],
    more: Mapping[str, Any],
) -> tuple[dict[str, Tensor] | None, list[Failure]]:
    """Evaluate a group-level reward: its components [R] and failures; None for the components if the whole call failed.

    name     the component a plain tensor becomes
    names    what it gave before, None as long as that is unknown;   counted  whether a component has a weight
    more     arguments beside the three
    """
    n = forest.n_trajectories
    try:
        value = call(forest, texts, tasks, **more)
        columns = _named_columns(name, value, n)
        if names is not None and set(columns) != set(names):
            raise ValueError(f"{', '.join(columns)} where it usually returns {', '.join(names)}")
    except GxpoError:
        raise
    except ValueError as error:
        return None, [("nonsense", one_line(f"returned {error}"))] * n
    except Exception as error:
        return None, [("raised", described(error))] * n
    if hasattr(call, "failures"):
        return columns, list(call.failures())
    blank = torch.zeros(n, dtype=torch.bool)
    for key, column in columns.items():
        blank |= column.isnan() & counted(key)
    return columns, [("nonsense", "gave no number")] * int(blank.sum())


def _named_columns(name: str, value: Any, n: int) -> dict[str, Tensor]:
    named = value if isinstance(value, Mapping) else {name: value}
    if not named:
        raise ValueError("no values")
    out = {}
    for key, column in named.items():
        if not isinstance(key, str):
            raise ValueError(f"values named {key!r}")
        x = torch.as_tensor(column).detach().to("cpu", torch.float64)
        if x.shape != (n,):
            raise ValueError(f"{key!r} of shape {tuple(x.shape)} for {n} rollouts")
        out[key] = torch.where(x.isfinite(), x, math.nan)
    return out
