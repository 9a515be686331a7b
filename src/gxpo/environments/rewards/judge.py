"""LLM-judge reward from `scoring.options.judge`, and its judges (`gxpo.base.judges`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gxpo.base.errors import ConfigError, one_of
from gxpo.base.judges import SEES, Failure, FunctionJudge, Judge, JudgeFailure, Messages, Server, ask_all
from gxpo.environments.local_judge import LocalJudge
from gxpo.environments.rewards import group_level
from gxpo.environments.rewards.functions import load
from gxpo.environments.rewards.judged import RUBRIC, Debate, FirstError, Pairwise, Rubric
from gxpo.environments.rewards.listener import Listener
from gxpo.environments.rewards.panel import Panel, combination
from gxpo.environments.rewards.rubric_versions import EvolvingRubric

__all__ = ["Failure", "FunctionJudge", "Judge", "JudgeFailure", "LocalJudge", "Messages", "Server", "ask_all", "judged"]

WHO = ("by", "ask", "server")  # exactly one says who judges
MODES = ("rubric", "pairwise", "first_error", "confidence", "debate")


@dataclass(frozen=True)
class JudgeOptions:
    """Options of the reward "judge" (`scoring.options.judge`): who judges, and how he is asked.

    by        name of a model of the section `teacher`; default: the one there whose role is judge
    ask       `my_judge.py:ask`, a function of messages that returns a text; called from `workers` threads, without a
              time limit
    server    address of an OpenAI-compatible server, and `model` as it calls it; `sees`: that model reads pictures
    mode      "rubric" (`Rubric`), "pairwise" (`Pairwise`), "first_error" (`FirstError`), "confidence" (`Listener`) or
              "debate" (`Debate`)
    panel     several judges: a list of these options, each with a `name`; what one leaves out is as stated here
    combine   of a panel: see `panel.combination`; `margin` of "lexicographic"
    held_out  a list like `panel` of judges that are recorded and never paid (`panel.Panel`), in every
              `held_out_every`-th step; `pass_mark`: the score from which an answer counts as credited
    refresh   {every: K, samples: N} and one of by, ask, server: a model rewrites the rubric (`EvolvingRubric`)

    The others are fields of those and of `Server`.
    """

    by: str | Judge | None = None
    ask: str | None = None
    server: str | None = None
    model: str = ""
    key_from: str | None = None
    temperature: float = 0.0
    max_tokens: int = 256
    timeout: float = 60.0
    retries: int = 3
    sees: bool = False
    mode: str = "rubric"
    rubric: str = RUBRIC
    low: float = 0.0
    high: float = 10.0
    compare: str = "all"
    contestants: str = "texts"
    only: str = "all"
    tie: float = 0.5
    steps: str = r"\n+"
    cue: str = "\nThe answer is "
    until: str = ""
    workers: int = 8
    panel: Sequence[Mapping[str, Any]] = ()
    combine: str = "mean"
    margin: float = 1.0
    held_out: Sequence[Mapping[str, Any]] = ()
    held_out_every: int = 1
    pass_mark: float = 0.5
    refresh: Mapping[str, Any] = field(default_factory=dict)


OF_ALL = ("panel", "combine", "margin", "held_out", "held_out_every", "pass_mark", "refresh")  # not of one member


def judged(options: Mapping[str, Any]) -> Callable[..., Mapping[str, Tensor]]:
    """Build the reward "judge"."""
    o: JudgeOptions = group_level.made(JudgeOptions, options, "judge")
    own = {k: v for k, v in options.items() if k not in OF_ALL}
    if o.held_out_every < 1:
        raise ConfigError(f"scoring.options.judge.held_out_every is {o.held_out_every}; it is at least 1")
    if not o.panel and not o.held_out:
        return _evolving(o) if o.refresh else _one(o, "judge")
    if o.refresh:
        raise ConfigError(
            "scoring.options.judge.refresh rewrites the rubric of a single judge: leave panel and held_out out"
        )
    combine = combination(o.combine, o.margin) if o.panel else None
    members = _members(own, o.panel, "panel") if o.panel else {"judge": _one(o, "judge")}
    return Panel(members, combine, _members(own, o.held_out, "held_out"), o.pass_mark, o.held_out_every)


def _members(own: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], key: str) -> dict[str, Any]:
    """Judged rewards of a panel by name."""
    found: dict[str, Any] = {}
    for entry in entries:
        if not isinstance(entry, Mapping) or not str(entry.get("name", "")).isidentifier():
            raise ConfigError(
                f"scoring.options.judge.{key}: {entry!r} needs a name of letters, digits and _, as in "
                f"{{name: strict, rubric: ...}}"
            )
        mine = {k: v for k, v in entry.items() if k != "name"}
        named = any(mine.get(w) is not None for w in WHO)
        base = {k: v for k, v in own.items() if not named or k not in (*WHO, "sees")}
        name = str(entry["name"])
        if name in found:
            raise ConfigError(f"scoring.options.judge.{key} has two judges named {name!r}: rename one")
        if wrong := [k for k in mine if k in OF_ALL]:
            raise ConfigError(f"scoring.options.judge.{key}: {name} can't have {wrong[0]}: state it for the whole")
        o: JudgeOptions = group_level.made(JudgeOptions, {**base, **mine}, f"judge.{key}")
        found[name] = _one(o, f"judge.{key} {name}")
    return found


def judge_of(options: Mapping[str, Any], where: str) -> Judge:
    """Judge that one of `by`, `ask` and `server` among the options names; ConfigError unless exactly one does."""
    named = [w for w in WHO if options.get(w) is not None]
    if len(named) != 1:
        raise ConfigError(
            f"reward 'judge': say who judges, with one of scoring.options.{where}.ask=my_judge.py:ask, .server="
            "http://localhost:8000/v1 and .by=NAME, a model of the section teacher"
        )
    if options.get("sees") and options.get("server") is None:
        raise ConfigError(f"scoring.options.{where}.sees {SEES}")
    if (by := options.get("by")) is not None:
        if isinstance(by, str):
            raise ConfigError(
                f"scoring.options.{where}.by={by} names a model of the section teacher, and there is no such"
            )
        return by
    if options.get("ask") is not None:
        return FunctionJudge(load(options["ask"]))
    fields = ("key_from", "temperature", "max_tokens", "timeout", "retries", "sees")
    return Server(str(options["server"]), options.get("model", ""), **{k: options[k] for k in fields if k in options})


def _one(o: JudgeOptions, where: str) -> Any:
    """Reward of a single judge."""
    one_of(f"scoring.options.{where}.mode", o.mode, MODES)
    if o.only != "all" and o.mode not in ("rubric", "first_error"):
        raise ConfigError(f"scoring.options.{where}.only={o.only} is of the modes rubric and first_error, not {o.mode}")
    judge = judge_of({f.name: getattr(o, f.name) for f in dataclasses.fields(o)}, where)
    if o.mode == "pairwise":
        return Pairwise(judge, o.rubric, o.compare, o.workers, o.contestants)
    if o.mode == "first_error":
        return FirstError(judge, o.steps, o.workers, o.only)
    if o.mode == "debate":
        return Debate(judge, o.rubric, o.workers, o.tie)
    if o.mode == "confidence":
        return Listener(judge, o.cue, o.until)
    return Rubric(judge, o.rubric, o.low, o.high, o.workers, o.only)


def _evolving(o: JudgeOptions) -> EvolvingRubric:
    """Reward of a judge whose rubric is rewritten."""
    known = {"every", "samples", "model", "key_from", "temperature", "max_tokens", "timeout", "retries", *WHO}
    if wrong := [k for k in o.refresh if k not in known]:
        raise ConfigError(f"scoring.options.judge.refresh has no {wrong[0]!r}; there is {', '.join(sorted(known))}")
    if o.mode != "rubric":
        raise ConfigError(
            f"scoring.options.judge.refresh rewrites a rubric, and mode={o.mode} pays no scores: set mode=rubric"
        )
    who = o.refresh if any(o.refresh.get(w) is not None for w in WHO) else {w: getattr(o, w) for w in (*WHO, "model")}
    every, samples = o.refresh.get("every", 10), o.refresh.get("samples", 20)
    return EvolvingRubric(_one(o, "judge"), judge_of({**who, **_limits(o.refresh)}, "judge.refresh"), every, samples)


def _limits(given: Mapping[str, Any]) -> dict[str, Any]:
    fields = ("model", "key_from", "temperature", "max_tokens", "timeout", "retries")
    return {"max_tokens": 1024} | {k: given[k] for k in fields if k in given}
