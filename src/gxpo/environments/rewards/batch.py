"""Group-level adapters of user functions: TRL's batch signature, and async functions of one rollout."""

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

from gxpo.base.errors import ConfigError, GxpoError, did_you_mean, need
from gxpo.base.media import PICTURE, PICTURES
from gxpo.base.usercode import described, one_line
from gxpo.environments.rewards.base import Failure
from gxpo.environments.rewards.worker import ARGUMENTS, validate_score
from gxpo.models.picture_tokens import Codebook

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Task

BATCH = ("prompts", "completions", "completion_ids", "completions_raw")  # by which TRL's signature is recognised
DecodeRaw = Callable[[Sequence[int]], str]
EXTRAS = ("trainer_state", "log_extra", "log_metric")  # what TRL passes beside the columns
MAX_CONCURRENT = 64  # rollouts that an async function scores at the same time


def takes_batch(names: Sequence[str], label: str, *, has_keywords: bool = False) -> bool:
    """True for TRL's signature `(prompts, completions, **columns)`, False for that of one rollout.

    has_keywords  the function takes `**kwargs`

    ConfigError where the parameter names are of both or of neither.
    """
    batch_names, rollout_names = (
        [n for n in names if n in BATCH],
        [n for n in names if n in ("prompt", "completion", "completion_raw")],
    )
    if batch_names and rollout_names:
        raise ConfigError(
            f"reward {label}: asks for {batch_names[0]!r} (of a batch) and {rollout_names[0]!r} (of one rollout): "
            "use either (prompts, completions, ...) and return a list, or (prompt, completion, ...) and return a number"
        )
    # A decorator without functools.wraps hides the parameters: nothing tells what is scored.
    if not batch_names and has_keywords and not any(n in ARGUMENTS for n in names):
        raise ConfigError(
            f"reward {label}: its parameters do not say what it scores: name completions (a batch, it returns a list) "
            "or completion (one rollout, it returns a number); a decorated function keeps its own by functools.wraps"
        )
    return bool(batch_names)


def action_tokens(forest: Forest) -> list[list[int]]:
    """Token ids of each trajectory's actions, [R], all turns in one list."""
    tokens, begins = forest.token[forest.path_token].tolist(), forest._entry_begin.tolist()
    return [tokens[begin:end] for begin, end in itertools.pairwise(begins)]


def answer_tokens(forest: Forest) -> list[list[int]]:
    """Token ids of the reply that ended each trajectory's episode with tools, [R]; none where its last one has calls:
    an episode that a limit ended has no answer."""
    last_S = (forest._step_begin[1:] - 1).tolist()
    return [[] if "calls" in forest.step_info[s] else list(forest.action(s)) for s in last_S]


def raw_texts(forest: Forest, texts: Sequence[str], decode: DecodeRaw | None) -> list[str]:
    """Text of each trajectory with special tokens written out, [R]; `texts` themselves without a tokenizer."""
    return list(texts) if decode is None else [decode(tokens) for tokens in action_tokens(forest)]


def finish_reasons(forest: Forest) -> list[str | None]:
    """Reason for which each trajectory's last turn ended, [R]; None without a turn."""
    finish_R: list[str | None] = [None] * forest.n_trajectories
    for step, r in enumerate(forest.step_trajectory.tolist()):
        finish_R[r] = forest.step_finish[step]
    return finish_R


def with_pictures(forest: Forest, tokenizer: Any) -> Forest:
    """Name in `info` the picture that each trajectory's tokens make, where the tokenizer has a codebook."""
    if (codebook := Codebook.of(tokenizer)) is None:
        return forest
    pictures_R = [codebook.picture(tokens) for tokens in action_tokens(forest)]
    infos = zip(forest.info, pictures_R, strict=True)
    return forest.replace(info=[{**info, PICTURE: ref} for info, ref in infos])


def pictures_made(forest: Forest) -> list[Any]:
    """The picture that each trajectory made, [R], as an image of Pillow; None without one."""
    refs = [info.get(PICTURE) for info in forest.info]
    if not any(refs):
        return refs
    image: Any = need("PIL.Image", "vision")
    return [None if ref is None else image.fromarray(PICTURES.pixels(ref)) for ref in refs]


def keyword_arguments(
    task: Task, text: str, tokens: Sequence[int], finish: str | None, raw: str, picture: Any = None
) -> dict[str, Any]:
    """Values of all parameters that a function of one rollout may declare (`worker.ARGUMENTS`)."""
    return {"prompt": task.prompt, "completion": text, "answer": task.answer, "task": task,
            "info": dict(task.info), "tokens": tokens, "finish": finish, "completion_raw": raw,
            "picture": picture}  # fmt: skip


def run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a thread of its own and return its value: a notebook's thread has a running loop."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((True, asyncio.run(coroutine)))  # type: ignore[arg-type]
        # Exceptions too are carried to the caller's thread.
        except BaseException as error:
            outcome.append((False, error))

    thread = threading.Thread(target=run, name="gxpo-async-reward")
    thread.start()
    thread.join()
    ((ok, value),) = outcome
    if not ok:
        raise value
    return value


class Batch:
    """A function with TRL's signature as a `base.GroupReward`: it sees all rollouts of a step at once.

    prompts, completions  texts, or lists of messages where the task's prompt is one
    completion_ids        token ids
    completions_raw       texts in which special tokens are written out, the one that ended an action too
    other parameters      columns of the tasks (`info`, `answer`), a value for each rollout; None where one has none
    trainer_state         `global_step` and `max_steps`; `log_extra` and `log_metric` are there and record nothing

    It returns a number for each rollout, or None for one that it skips: the other rewards score that one, and a rollout
    that all skip is unscored. Async functions are awaited.
    """

    skips = True  # nan is a rollout that it skips, no failure
    decode_raw: DecodeRaw | None = None  # given by the trainer
    step, steps = 0, 0  # the step that is scored and how many there are, set by the trainer

    def __init__(self, function: Callable[..., Any], label: str) -> None:
        self.function, self.label = function, label
        self._parameters = inspect.signature(function).parameters
        self._takes_keywords = any(p.kind is p.VAR_KEYWORD for p in self._parameters.values())

    def failures(self) -> list[tuple[str, str]]:
        """Return no failures: a rollout that it skips is none."""
        return []

    def check(self, tasks: Sequence[Task]) -> None:
        """ConfigError where it declares a column that no task has."""
        available = {name for task in tasks for name in columns_of(task)} | {*BATCH, *EXTRAS}
        for name, p in self._parameters.items():
            if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) or p.default is not p.empty or name in available:
                continue
            columns = sorted(available - {*BATCH, *EXTRAS})
            hint = did_you_mean(name, columns) or f"; there is {', '.join(columns) or 'none'}"
            raise ConfigError(f"reward {self.label}: asks for {name!r}, and the tasks have no such column{hint}")

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> Mapping[str, Tensor] | Tensor:
        """Score all rollouts of a step: [R] for a list, or by name for a mapping of lists."""
        self.check(tasks)
        value = self.function(**self._arguments(forest, texts, tasks))
        if inspect.isawaitable(value):
            value = run_coroutine(_await(value))
        if isinstance(value, Mapping):
            return {str(name): _column(x, len(texts)) for name, x in value.items()}
        return _column(value, len(texts))

    def _arguments(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Any]:
        """Keyword arguments of the function: columns of the tasks, then what TRL passes beside them."""
        task_columns = [columns_of(task) for task in tasks]
        names = dict.fromkeys(name for columns in task_columns for name in columns)
        arguments: dict[str, Any] = {name: [columns.get(name) for columns in task_columns] for name in names}
        # TRL gives prompts and completions as messages where the data set has them, and as texts otherwise.
        arguments["prompts"] = [
            task.prompt if isinstance(task.prompt, str) else _prompt_messages(task.prompt) for task in tasks
        ]
        arguments["completions"] = [
            text if isinstance(task.prompt, str) else [{"role": "assistant", "content": text}]
            for task, text in zip(tasks, texts, strict=True)
        ]
        # Ids and raw texts are made only for functions that read them.
        if self._takes_keywords or "completion_ids" in self._parameters:
            arguments["completion_ids"] = action_tokens(forest)
        if "completions_raw" in self._parameters:
            arguments["completions_raw"] = raw_texts(forest, texts, self.decode_raw)
        # TRL passes these to every function; a function written for it may read them.
        arguments["trainer_state"] = SimpleNamespace(global_step=self.step, max_steps=self.steps)
        arguments["log_extra"] = arguments["log_metric"] = _discard
        return (
            arguments
            if self._takes_keywords
            else {name: x for name, x in arguments.items() if name in self._parameters}
        )


def columns_of(task: Task) -> dict[str, Any]:
    """Columns of a task's row of data beside its prompt: `info`, and the answer unchanged."""
    return ({} if task.answer is None else {"answer": task.answer}) | dict(task.info)


def _prompt_messages(prompt: Any) -> list[Any]:
    """Copy of a chat prompt, so that a function that edits it changes no task."""
    return [dict(m) if isinstance(m, Mapping) else m for m in prompt]


def _discard(*_: Any, **__: Any) -> None:
    """Accept and drop the values of TRL's `log_extra` and `log_metric`."""


async def _await(value: Any) -> Any:
    """Make a coroutine of any awaitable, as `asyncio.run` needs one."""
    return await value


def _column(value: Any, n: int) -> Tensor:
    """Reward column [R] of a returned list, nan for None; ValueError for anything but numbers."""
    numbers = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(numbers, (list, tuple)):
        raise ValueError(f"{type(value).__name__} where a list of {n} numbers is needed, one for each completion")
    if len(numbers) != n:
        raise ValueError(f"{len(numbers)} numbers for {n} completions")
    reward_R = []
    for x in numbers:
        # Numbers of numpy and torch, as functions of others return them.
        x = x.item() if hasattr(x, "item") else x
        if x is not None and not isinstance(x, (bool, int, float)):
            raise ValueError(f"{x!r} ({type(x).__name__}), not a number")
        # None is TRL's way to leave a rollout unscored.
        reward_R.append(math.nan if x is None else float(x))
    return torch.tensor(reward_R, dtype=torch.float64)


class AsyncEach:
    """An async function of one rollout as a `base.GroupReward`: all rollouts of a step at the same time.

    An exception, or no reply within `timeout` seconds, costs that rollout alone.
    """

    timeout = 5.0
    decode_raw: DecodeRaw | None = None  # given by the trainer

    def __init__(self, function: Callable[..., Any], label: str, name: str, asks: Sequence[str]) -> None:
        self.function, self.label, self.name, self.argument_names = function, label, name, tuple(asks)
        self._failures: list[tuple[str, str]] = []

    def failures(self) -> list[tuple[str, str]]:
        """Return and clear the failures since the last call."""
        collected, self._failures = self._failures, []
        return collected

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> Mapping[str, Tensor]:
        """Score all rollouts of a step concurrently: components [R] by name, nan where one failed."""
        raw_texts_R = raw_texts(forest, texts, self.decode_raw) if "completion_raw" in self.argument_names else texts
        tokens_R = action_tokens(forest) if "tokens" in self.argument_names else [[] for _ in texts]
        pictures_R = pictures_made(forest) if "picture" in self.argument_names else [None] * len(texts)
        rows = zip(tasks, texts, tokens_R, finish_reasons(forest), raw_texts_R, pictures_R, strict=True)
        available_R = [keyword_arguments(*row) for row in rows]
        calls = [{name: available[name] for name in self.argument_names} for available in available_R]
        replies = run_coroutine(self._call_all(calls))
        # The names that most replies have are the reward's; a reply with others is a failure of its rollout.
        values_R = [{self.name: x} if isinstance(x, float) else x for x in replies]
        name_counts = Counter(tuple(x) for x in values_R if isinstance(x, dict))
        names = name_counts.most_common(1)[0][0] if name_counts else (self.name,)
        for x in values_R:
            if not isinstance(x, dict):
                self._failures.append(x)
            elif tuple(x) != names:
                self._failures.append(
                    ("nonsense", f"returned {', '.join(x)} where it usually returns {', '.join(names)}")
                )
        value_rows = [[x[k] for k in names] if isinstance(x, dict) and tuple(x) == names else [math.nan] * len(names)
                for x in values_R]  # fmt: skip
        value_RK = torch.tensor(value_rows, dtype=torch.float64).reshape(len(value_rows), len(names))
        return dict(zip(names, value_RK.unbind(1), strict=True))

    async def _call_all(self, calls: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Replies to all calls, at most `MAX_CONCURRENT` at a time: values, or a failure."""
        semaphore = asyncio.Semaphore(MAX_CONCURRENT)

        async def call_one(keywords: Mapping[str, Any]) -> Any:
            async with semaphore:
                try:
                    # Each call has its own time, which begins when it is its turn.
                    value = await asyncio.wait_for(self.function(**keywords), self.timeout)
                except asyncio.TimeoutError:
                    return "timeout", f"no answer within {self.timeout:g} s"
                except Exception as error:
                    return "raised", described(error)
            # Validated outside of the limit on concurrency: it waits for nothing.
            try:
                return validate_score(value)
            except Exception as error:
                return "nonsense", one_line(f"returned {error}")

        return await asyncio.gather(*(call_one(keywords) for keywords in calls))


# ---------------------------------------------------------------- any reward of a whole step
def evaluate_group_reward(
    name: str,
    call: Callable[..., Any],
    known_names: tuple[str, ...] | None,
    forest: Forest,
    texts: Sequence[str],
    tasks: Sequence[Task],
    has_weight: Callable[[str], bool],
    extra_arguments: Mapping[str, Any],
) -> tuple[dict[str, Tensor] | None, list[Failure]]:
    """Evaluate a group-level reward: its components [R] and failures; None for the components if the whole call failed.

    name             the component a plain tensor becomes
    known_names      names of the components it gave before, None as long as they are unknown
    has_weight       tells whether a component is counted
    extra_arguments  arguments beside the three
    """
    n = forest.n_trajectories
    try:
        value = call(forest, texts, tasks, **extra_arguments)
        component_R = _named_columns(name, value, n)
        if known_names is not None and set(component_R) != set(known_names):
            raise ValueError(f"{', '.join(component_R)} where it usually returns {', '.join(known_names)}")
    # A GxpoError is about the set-up and ends the run; anything else costs the step's rollouts their score.
    except GxpoError:
        raise
    except ValueError as error:
        return None, [("nonsense", one_line(f"returned {error}"))] * n
    except Exception as error:
        return None, [("raised", described(error))] * n
    # A reward that counts its own failures knows more than its nan tell.
    if hasattr(call, "failures"):
        return component_R, list(call.failures())
    # A reward that reports no failures of its own fails where a component that counts has no number.
    is_unscored_R = torch.zeros(n, dtype=torch.bool)
    for key, value_R in component_R.items():
        is_unscored_R |= value_R.isnan() & has_weight(key)
    return component_R, [("nonsense", "gave no number")] * int(is_unscored_R.sum())


def _named_columns(name: str, value: Any, n: int) -> dict[str, Tensor]:
    """Components [R] float64 on the CPU from a returned tensor or mapping, nan where not finite; else ValueError."""
    values_by_name = value if isinstance(value, Mapping) else {name: value}
    if not values_by_name:
        raise ValueError("no values")
    component_R = {}
    for key, values in values_by_name.items():
        if not isinstance(key, str):
            raise ValueError(f"values named {key!r}")
        # Detached and in float64: a user's tensor may carry a gradient, or be on a GPU.
        value_R = torch.as_tensor(values).detach().to("cpu", torch.float64)
        if value_R.shape != (n,):
            raise ValueError(f"{key!r} of shape {tuple(value_R.shape)} for {n} rollouts")
        # An infinite reward would make every advantage of its group nan.
        component_R[key] = torch.where(value_R.isfinite(), value_R, math.nan)
    return component_R
