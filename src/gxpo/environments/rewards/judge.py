"""LLM-judge reward from `scoring.options.judge`: single judges, panels and evolving rubrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gxpo.base.errors import ConfigError, one_of
from gxpo.base.judges import (
    VISION_HINT,
    Failure,
    FunctionJudge,
    Judge,
    JudgeFailure,
    Messages,
    Server,
    ask_all,
)
from gxpo.environments.local_judge import LocalJudge
from gxpo.environments.rewards.base import from_options
from gxpo.environments.rewards.functions import load
from gxpo.environments.rewards.judged import RUBRIC, Debate, FirstError, Pairwise, Rubric
from gxpo.environments.rewards.listener import Listener
from gxpo.environments.rewards.panel import Panel, combination
from gxpo.environments.rewards.rubric_versions import EvolvingRubric

__all__ = [
    "Failure",
    "FunctionJudge",
    "Judge",
    "JudgeFailure",
    "LocalJudge",
    "Messages",
    "Server",
    "ask_all",
    "judge_reward",
]

JUDGE_KEYS = ("teacher", "function", "server")  # exactly one names the judge
MODES = ("rubric", "pairwise", "first_error", "confidence", "debate")


@dataclass(frozen=True)
class JudgeOptions:
    """Options of the reward "judge" (`scoring.options.judge`): the judge, and the questions to it.

    teacher   name of a model of the section `teacher`; default: the one there whose role is judge
    function  `my_judge.py:ask`, a function of messages that returns a text; called from `workers` threads, without a
              time limit
    server    address of an OpenAI-compatible server, and `model` as it calls it; `vision`: that model reads pictures
    mode      "rubric" (`Rubric`), "pairwise" (`Pairwise`), "first_error" (`FirstError`), "confidence" (`Listener`) or
              "debate" (`Debate`)
    panel     several judges: a list of these options, each with a `name`; options that one leaves out are those stated
              beside the list
    combine   of a panel: see `panel.combination`; `margin` of "lexicographic"
    held_out  a list like `panel` of judges that are recorded and never paid (`panel.Panel`), in every
              `held_out_every`-th step; `pass_mark`: the score from which an answer counts as credited
    refresh   {every: K, samples: N} and one of teacher, function, server: a model rewrites the rubric
              (`EvolvingRubric`)

    The others are fields of those and of `Server`.
    """

    teacher: str | Judge | None = None
    function: str | None = None
    server: str | None = None
    model: str = ""
    key_from: str | None = None
    temperature: float = 0.0
    max_tokens: int = 256
    timeout: float = 60.0
    retries: int = 3
    vision: bool = False
    mode: str = "rubric"
    rubric: str = RUBRIC
    low: float = 0.0
    high: float = 10.0
    compare: str = "all"
    contestants: str = "texts"
    answers: str = "all"
    tie: float = 0.5
    steps: str = r"\n+"
    cue: str = "\nThe answer is "
    answer_pattern: str = ""
    workers: int = 8
    panel: Sequence[Mapping[str, Any]] = ()
    combine: str = "mean"
    margin: float = 1.0
    held_out: Sequence[Mapping[str, Any]] = ()
    held_out_every: int = 1
    pass_mark: float = 0.5
    refresh: Mapping[str, Any] = field(default_factory=dict)


PANEL_KEYS = (
    "panel",
    "combine",
    "margin",
    "held_out",
    "held_out_every",
    "pass_mark",
    "refresh",
)  # of the whole reward, not of one member


def judge_reward(options: Mapping[str, Any]) -> Callable[..., Mapping[str, Tensor]]:
    """Build the reward "judge" from `scoring.options.judge`; ConfigError for options that do not fit together."""
    o: JudgeOptions = from_options(JudgeOptions, options, "judge")
    member_defaults = {k: v for k, v in options.items() if k not in PANEL_KEYS}
    if o.held_out_every < 1:
        raise ConfigError(f"scoring.options.judge.held_out_every is {o.held_out_every}; it is at least 1")
    if not o.panel and not o.held_out:
        return _evolving(o) if o.refresh else _single_judge(o, "judge")
    if o.refresh:
        raise ConfigError(
            "scoring.options.judge.refresh rewrites the rubric of a single judge: leave panel and held_out out"
        )
    combine = combination(o.combine, o.margin) if o.panel else None
    members = _members(member_defaults, o.panel, "panel") if o.panel else {"judge": _single_judge(o, "judge")}
    return Panel(members, combine, _members(member_defaults, o.held_out, "held_out"), o.pass_mark, o.held_out_every)


def _members(defaults: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], key: str) -> dict[str, Any]:
    """Judged rewards of a panel, by the names in its entries; `defaults` are options that an entry leaves out."""
    members: dict[str, Any] = {}
    for entry in entries:
        if not isinstance(entry, Mapping) or not str(entry.get("name", "")).isidentifier():
            raise ConfigError(
                f"scoring.options.judge.{key}: {entry!r} needs a name of letters, digits and _, as in "
                f"{{name: strict, rubric: ...}}"
            )
        overrides = {k: v for k, v in entry.items() if k != "name"}
        # An entry that names its own judge must not inherit another judge's address beside it.
        names_judge = any(overrides.get(w) is not None for w in JUDGE_KEYS)
        base = {k: v for k, v in defaults.items() if not names_judge or k not in (*JUDGE_KEYS, "vision")}
        name = str(entry["name"])
        if name in members:
            raise ConfigError(f"scoring.options.judge.{key} has two judges named {name!r}: rename one")
        if wrong := [k for k in overrides if k in PANEL_KEYS]:
            raise ConfigError(
                f"scoring.options.judge.{key}: {name} can't have {wrong[0]}: set it in scoring.options.judge"
            )
        o: JudgeOptions = from_options(JudgeOptions, {**base, **overrides}, f"judge.{key}")
        members[name] = _single_judge(o, f"judge.{key} {name}")
    return members


def judge_of(options: Mapping[str, Any], where: str) -> Judge:
    """Judge named by one of the options `teacher`, `function` and `server`; ConfigError unless exactly one is set."""
    # Each of them names a judge by itself: with two it would be unclear who judges.
    judge_keys = [w for w in JUDGE_KEYS if options.get(w) is not None]
    if len(judge_keys) != 1:
        raise ConfigError(
            f"reward 'judge': name the judge, with one of scoring.options.{where}.function=my_judge.py:ask, .server="
            "http://localhost:8000/v1 and .teacher=NAME, a model of the section teacher"
        )
    if options.get("vision") and options.get("server") is None:
        raise ConfigError(f"scoring.options.{where}.vision {VISION_HINT}")
    if (teacher := options.get("teacher")) is not None:
        if isinstance(teacher, str):
            raise ConfigError(
                f"scoring.options.{where}.teacher={teacher} names no model of the section teacher: add one there"
            )
        return teacher
    if options.get("function") is not None:
        return FunctionJudge(load(options["function"]))
    fields = ("key_from", "temperature", "max_tokens", "timeout", "retries", "vision")
    return Server(str(options["server"]), options.get("model", ""), **{k: options[k] for k in fields if k in options})


def _single_judge(o: JudgeOptions, where: str) -> Any:
    """Reward of a single judge."""
    one_of(f"scoring.options.{where}.mode", o.mode, MODES)
    if o.answers != "all" and o.mode not in ("rubric", "first_error"):
        raise ConfigError(
            f"scoring.options.{where}.answers={o.answers} is of the modes rubric and first_error, not {o.mode}"
        )
    judge = judge_of({f.name: getattr(o, f.name) for f in dataclasses.fields(o)}, where)
    if o.mode == "pairwise":
        return Pairwise(judge, o.rubric, o.compare, o.workers, o.contestants)
    if o.mode == "first_error":
        return FirstError(judge, o.steps, o.workers, o.answers)
    if o.mode == "debate":
        return Debate(judge, o.rubric, o.workers, o.tie)
    if o.mode == "confidence":
        return Listener(judge, o.cue, o.answer_pattern)
    return Rubric(judge, o.rubric, o.low, o.high, o.workers, o.answers)


def _evolving(o: JudgeOptions) -> EvolvingRubric:
    """Reward of a judge whose rubric a model rewrites (`scoring.options.judge.refresh`)."""
    known_keys = {
        "every",
        "samples",
        "model",
        "key_from",
        "temperature",
        "max_tokens",
        "timeout",
        "retries",
        *JUDGE_KEYS,
    }
    if wrong := [k for k in o.refresh if k not in known_keys]:
        raise ConfigError(
            f"scoring.options.judge.refresh has no {wrong[0]!r}; there is {', '.join(sorted(known_keys))}"
        )
    if o.mode != "rubric":
        raise ConfigError(
            f"scoring.options.judge.refresh rewrites a rubric, and mode={o.mode} pays no scores: set mode=rubric"
        )
    # The judge's own model rewrites the rubric unless `refresh` names another one.
    judge_options = (
        o.refresh
        if any(o.refresh.get(w) is not None for w in JUDGE_KEYS)
        else {w: getattr(o, w) for w in (*JUDGE_KEYS, "model")}
    )
    every, samples = o.refresh.get("every", 10), o.refresh.get("samples", 20)
    return EvolvingRubric(
        _single_judge(o, "judge"),
        judge_of({**judge_options, **_writer_options(o.refresh)}, "judge.refresh"),
        every,
        samples,
    )


def _writer_options(refresh: Mapping[str, Any]) -> dict[str, Any]:
    """Server options of the model that rewrites the rubric; its replies are longer than a judge's."""
    fields = ("model", "key_from", "temperature", "max_tokens", "timeout", "retries")
    return {"max_tokens": 1024} | {k: refresh[k] for k in fields if k in refresh}
