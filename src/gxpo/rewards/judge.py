"""LLM-judge reward from `scoring.options.judge`, and its judges (`gxpo.judges`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.judges import Failure, FunctionJudge, Judge, JudgeFailure, LocalJudge, Messages, Server, ask_all
from gxpo.rewards import group_level
from gxpo.rewards.first_error import FirstError
from gxpo.rewards.functions import load
from gxpo.rewards.judged import RUBRIC, Pairwise, Rubric

__all__ = ["Failure", "FunctionJudge", "Judge", "JudgeFailure", "LocalJudge", "Messages", "Server", "ask_all", "judged"]


@dataclass(frozen=True)
class JudgeOptions:
    """Options of the reward "judge" (`scoring.options.judge`): a function (`ask`) or a `server`, and how to ask.

    ask     `my_judge.py:ask`, a function of messages that returns a text; called from `workers` threads, no time limit
    server  address of an OpenAI-compatible server, and `model` as it calls it
    mode    "rubric" (`Rubric`), "pairwise" (`Pairwise`) or "first_error" (`correct_prefix.FirstError`)

    The others are fields of those and of `Server`.
    """

    ask: str | None = None
    server: str | None = None
    model: str = ""
    key_from: str | None = None
    temperature: float = 0.0
    max_tokens: int = 256
    timeout: float = 60.0
    retries: int = 3
    mode: str = "rubric"
    rubric: str = RUBRIC
    low: float = 0.0
    high: float = 10.0
    pairs: Literal["all", "first"] = "all"
    steps: str = r"\n+"
    workers: int = 8


def judged(options: Mapping[str, Any]) -> Callable[..., dict[str, Tensor]]:
    """Build the reward "judge"."""
    o: JudgeOptions = group_level.made(JudgeOptions, options, "judge")
    if (o.ask is None) == (o.server is None):
        raise ConfigError(
            "reward 'judge': say who judges, with either scoring.options.judge.ask=my_judge.py:ask or "
            "scoring.options.judge.server=http://localhost:8000/v1"
        )
    judge: Judge
    if o.ask is not None:
        judge = FunctionJudge(load(o.ask))
    else:
        limits: dict[str, Any] = {"timeout": o.timeout, "retries": o.retries}
        judge = Server(str(o.server), o.model, o.key_from, o.temperature, o.max_tokens, **limits)
    if o.mode == "rubric":
        return Rubric(judge, o.rubric, o.low, o.high, o.workers)
    if o.mode == "pairwise":
        return Pairwise(judge, o.rubric, o.pairs, o.workers)
    if o.mode == "first_error":
        return FirstError(judge, o.steps, o.workers)
    raise ConfigError(f"scoring.options.judge.mode is 'first_error', 'rubric' or 'pairwise', not {o.mode!r}")
