"""`gxpo triage`: which rollouts of a logged run to read first, by signs that need no model.

Signs as in "Signals" (trajectory triage without a model; katanemo/plano@003c36a): loops and failures of calls,
disengagement, exhaustion. A reward adds two: paid although something is odd, not paid although the answer is there.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gxpo.base.errors import RecordError
from gxpo.doctor.rollout_answers import Holder
from gxpo.doctor.rollout_texts import goes_on, markup, repeats
from gxpo.doctor.rollouts import Rollouts
from gxpo.doctor.runlog import RunLog

RUNS = 3  # identical calls in a row, calls of one tool with other arguments in a row, or cycles of two, from which on
LONG = 3.0  # times the median length of its group
EXCERPT = 160  # characters of a text's beginning and of its end that are shown
MOST_ALIKE = 3  # rollouts with the same signs among those to read first
GAVE_UP = re.compile(
    r"\b(?:I(?:'m| am)? (?:cannot|can't|can not|unable to|not able to|sorry|give up|don't know|do not know)|as an AI"
    r"|(?:it is|it's) (?:impossible|not possible) to|cannot be (?:determined|solved)"
    r"|not enough information|unable to (?:solve|answer|complete|find))",
    re.IGNORECASE,
)
EXHAUSTED = re.compile(
    r"rate limit|too many requests|context (?:length|window)|maximum (?:length|context|tokens|number of)|timed? ?out"
    r"|quota|out of memory",
    re.IGNORECASE,
)
FAILED = re.compile(r"Traceback \(most recent call last\)|\b[A-Z]\w*(?:Error|Exception)\b:|\berror:|\bfailed\b")
CALL = re.compile(r"^(?:Action:\s*)?([A-Za-z_][\w.]*)[(\[](.*)[)\]]\s*$", re.MULTILINE)
TAG = re.compile(r"<(/?)(\w{1,40})>")
NO_TOOLS = ("think", "answer", "reasoning", "code", "response")  # tags that are parts of an answer

SIGNS: Mapping[str, tuple[int, str]] = {
    "paid odd": (3, "best score of its group, though it is empty, repeats itself, gives up or was cut"),
    "paid without reference": (3, "best score of its group, without the reference answer in its text"),
    "unpaid with reference": (3, "lowest score of its group, though its last answer is the reference"),
    "unscored": (2, "no score"),
    "empty": (2, "no text"),
    "repeats": (2, "ends in a piece that repeats"),
    "same call": (2, f"the same call {RUNS} times or more in a row"),
    "cycle": (2, f"two calls or lines in turn, {RUNS} times or more"),
    "gave up": (2, "says that it can't, or does not know"),
    "markup": (2, "tokens or headings of a chat template in its text"),
    "exhausted": (1, "a limit is named: rate, context, time"),
    "failed call": (1, "an error or exception is named"),
    "drift": (1, f"one tool, other arguments, {RUNS} times or more in a row"),
    "goes on": (1, "goes on after an answer: another role, another question, a second answer"),
    "cut": (1, "cut at the limit"),
    "long": (1, f"more than {LONG:g} times the median length of its group"),
    "alone": (1, "the only one of its group with the best score, or with the lowest"),
}
ODD = ("empty", "repeats", "gave up", "cut")


@dataclass(frozen=True)
class Triage:
    """Signs of a sample of rollouts, and which to read first.

    signs   name -> [n] whether a rollout has it; only signs that could be looked for
    blind   name -> what was missing to look for it
    score   [n] sum over a rollout's signs of weight times -log2 of the share that has the sign
    order   rows to read, first to last
    """

    rollouts: Rollouts
    signs: dict[str, NDArray[np.bool_]]
    blind: dict[str, str]
    score: NDArray[np.float64]
    order: list[int]


def triage(log: RunLog, *, step: int | None = None, top: int = 12) -> Triage:
    """Look for the signs in a run's logged rollouts, of one step or of all; evaluations are left out."""
    rollouts = log.rollouts
    if rollouts is None or not len(rollouts):
        reasons = f" ({'; '.join(log.notes)})" if log.notes else ""
        raise RecordError(f"the run has no rollouts that can be read{reasons}: triage needs their texts")
    is_chosen = ~rollouts.held_out if not rollouts.held_out.all() else np.ones(len(rollouts), dtype=bool)
    if step is not None:
        is_chosen = is_chosen & (rollouts.step == step)
        if not is_chosen.any():
            steps = sorted(set(rollouts.step[~rollouts.held_out].tolist()))
            raise RecordError(f"no training rollouts of step {step} were read; there are {_shorten(steps)}")
    rollouts = rollouts.select(is_chosen)
    signs, blind = signs_of(rollouts)
    # A sign that every rollout has says nothing on which to read first: rare ones weigh more.
    score = np.zeros(len(rollouts))
    for name, has_sign in signs.items():
        if has_sign.any():
            score += SIGNS[name][0] * -math.log2(has_sign.mean()) * has_sign
    return Triage(rollouts, signs, blind, score, _order(signs, score, rollouts.step, top))


def signs_of(rollouts: Rollouts) -> tuple[dict[str, NDArray[np.bool_]], dict[str, str]]:
    """Look for each sign of `SIGNS` in rollouts: flags [n] by name, and what was missing for the others."""
    texts = [t.strip() for t in rollouts.completion]
    calls = [calls_of(t) for t in texts]
    lines = [[(line, "") for line in t.splitlines() if line.strip()] for t in texts]
    signs = {
        "empty": _flags(texts, lambda t: not t),
        "repeats": _flags(texts, repeats),
        "same call": np.array([longest_run(c) >= RUNS for c in calls], dtype=bool),
        "drift": np.array([longest_run(c, unit="tool") >= RUNS for c in calls], dtype=bool),
        "cycle": np.array([cycles(c or line) >= RUNS for c, line in zip(calls, lines, strict=True)], dtype=bool),
        "gave up": _flags(texts, lambda t: GAVE_UP.search(t) is not None),
        "exhausted": _flags(texts, lambda t: EXHAUSTED.search(t) is not None),
        "failed call": _flags(texts, lambda t: FAILED.search(t) is not None),
        "markup": markup(list(texts)),
        "goes on": goes_on(rollouts),
    }
    signs["drift"] &= ~signs["same call"]
    # A text that repeats goes on, too: one sign for it.
    signs["goes on"] &= ~signs["repeats"]
    blind: dict[str, str] = {}
    if np.isfinite(rollouts.truncated).any():
        signs["cut"] = rollouts.truncated == 1
    else:
        blind["cut"] = "whether a completion was cut is not recorded"
    _against_group(rollouts, signs, blind)
    return {name: signs[name] for name in SIGNS if name in signs}, blind


def _against_group(rollouts: Rollouts, signs: dict[str, NDArray[np.bool_]], blind: dict[str, str]) -> None:
    """Add the signs that take a rollout's group, its score or its reference."""
    if not np.isfinite(rollouts.score).any():
        blind |= dict.fromkeys(("paid odd", "alone", "paid without reference", "unpaid with reference"), "no scores")
        return
    signs["unscored"] = ~np.isfinite(rollouts.score)
    is_best, is_lowest, is_alone, is_long = (np.zeros(len(rollouts), dtype=bool) for _ in range(4))
    size = np.where(np.isfinite(rollouts.tokens), rollouts.tokens, [len(t) for t in rollouts.completion])
    for group in np.unique(rollouts.group[rollouts.group >= 0]):
        rows = np.flatnonzero(rollouts.group == group)
        is_long[rows] = (len(rows) >= 3) & (size[rows] > LONG * np.median(size[rows]))
        rows = rows[np.isfinite(rollouts.score[rows])]
        # equal scores say nothing about one of them
        if len(rows) < 2 or np.ptp(rollouts.score[rows]) <= 1e-9:
            continue
        best, lowest = (
            rollouts.score[rows] == rollouts.score[rows].max(),
            rollouts.score[rows] == rollouts.score[rows].min(),
        )
        is_best[rows], is_lowest[rows] = best, lowest
        if len(rows) >= 4:
            is_alone[rows] = (best & (best.sum() == 1)) | (lowest & (lowest.sum() == 1))
    if not (rollouts.group >= 0).any():
        blind |= dict.fromkeys(("paid odd", "alone", "long"), "groups are not recorded")
    signs |= {"long": is_long, "alone": is_alone}
    signs["paid odd"] = is_best & np.any([signs[n] for n in ODD if n in signs], axis=0)
    has_reference = np.array([x is not None for x in rollouts.reference], dtype=bool)
    if not has_reference.any():
        blind |= dict.fromkeys(("paid without reference", "unpaid with reference"), "no reference answers")
        return
    holders = [Holder(t) for t in rollouts.completion]
    holds = np.array(
        [x is not None and h.holds(x) for h, x in zip(holders, rollouts.reference, strict=True)], dtype=bool
    )
    last_answers = [None if x is None else Holder(x).last for x in rollouts.reference]
    ends = [a is not None and h.last == a for h, a in zip(holders, last_answers, strict=True)]
    signs["unpaid with reference"] = is_lowest & np.array(ends, dtype=bool)
    best_share = holds[is_best & has_reference].mean() if (is_best & has_reference).any() else 0.0
    # where paid texts rarely hold the reference, it is no text to be found in them (a program's tests, say)
    if best_share > 0.5:
        signs["paid without reference"] = is_best & has_reference & ~holds
    else:
        blind["paid without reference"] = "most paid completions do not contain their reference as a text"


def calls_of(text: str) -> list[tuple[str, str]]:
    """List (tool, arguments) of the calls in a text, in order.

    Calls are JSON in <tool_call>, name(...) or name[...] alone on a line, and <name>...</name>.

    >>> calls_of("search[cats]\\nsearch[dogs]"), calls_of('<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>')
    ([('search', 'cats'), ('search', 'dogs')], [('f', '{"x": 1}')])
    """
    places = [(m.start(), (m[1], " ".join(m[2].split()))) for m in CALL.finditer(text)]
    # tags are paired one by one: a pattern that looks for the closing one takes quadratic time
    opening: re.Match[str] | None = None
    for m in TAG.finditer(text):
        if opening is not None and m[1] and m[2] == opening[2]:
            content = text[opening.end() : m.start()]
            call = _json_call(content) if m[2] == "tool_call" else (m[2], " ".join(content.split()))
            places.append((opening.start(), call))
        opening = m if not m[1] and m[2] not in NO_TOOLS else None
    return [call for _, call in sorted(places)]


def _json_call(text: str) -> tuple[str, str]:
    """(name, arguments) of a call in JSON, its keys sorted; of another text ("", the text)."""
    try:
        value = json.loads(text)
        return str(value["name"]), json.dumps(value.get("arguments"), sort_keys=True)
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return "", " ".join(text.split())


def longest_run(calls: Sequence[tuple[str, str]], *, unit: str = "call") -> int:
    """Length of the longest run of equal calls with arguments; of="tool": of one tool, each call unlike the one before.

    Calls without arguments (moves in a world) are no repetition: three steps north are three steps.
    """
    longest = run = 0
    for i, (tool, arguments) in enumerate(calls):
        previous_call = calls[i - 1] if i else None
        if not arguments:
            run = 0
        elif unit == "tool":
            run = (
                run + 1 if previous_call and previous_call[0] == tool and previous_call[1] not in ("", arguments) else 1
            )
        else:
            run = run + 1 if previous_call == (tool, arguments) else 1
        longest = max(longest, run)
    return longest


def cycles(calls: Sequence[tuple[str, str]]) -> int:
    """Largest number of times that two different calls follow each other in turn: A B A B A B is 3.

    >>> cycles([("a", ""), ("b", "")] * 3), cycles([("a", "")] * 6)
    (3, 0)
    """
    longest = run = 0
    for i in range(1, len(calls)):
        is_turn = calls[i] != calls[i - 1]
        run = (run + 1 if i >= 2 and calls[i] == calls[i - 2] else 2) if is_turn else 0
        longest = max(longest, run)
    return longest // 2 if longest > 2 else 0


def _order(
    signs: Mapping[str, NDArray[np.bool_]], score: NDArray[np.float64], step: NDArray[np.int64], top: int
) -> list[int]:
    """Rows by score, at most `MOST_ALIKE` with the same signs; of equal scores the last step's come first."""
    counts: dict[tuple[str, ...], int] = {}
    out: list[int] = []
    for row in np.lexsort((-step, -score)).tolist():
        names = tuple(n for n in signs if signs[n][row])
        counts[names] = counts.get(names, 0) + 1
        if score[row] > 0 and counts[names] <= MOST_ALIKE:
            out.append(row)
        if len(out) == top:
            break
    return out


def as_data(result: Triage, log: RunLog) -> dict[str, Any]:
    """Return the result for JSON: counts of signs, and the rollouts to read with their whole texts."""
    rollouts = result.rollouts
    return {
        "source": log.source,
        "rollouts": len(rollouts),
        "of": rollouts.total,
        "steps": [int(rollouts.step.min()), int(rollouts.step.max())],
        "signs": [
            {
                "sign": name,
                "meaning": SIGNS[name][1],
                "rollouts": int(flags.sum()),
                "share": float(flags.mean()),
                "first_step": int(rollouts.step[flags].min()) if flags.any() else None,
            }
            for name, flags in result.signs.items()
        ],
        "not_looked_for": result.blind,
        "read_first": [
            {
                "where": rollouts.where[i],
                "step": int(rollouts.step[i]),
                "group": int(rollouts.group[i]),
                "score": _finite(rollouts.score[i]),
                "signs": [n for n in result.signs if result.signs[n][i]],
                "weight": float(result.score[i]),
                "prompt": rollouts.prompt[i],
                "completion": rollouts.completion[i],
                "reference": rollouts.reference[i],
            }
            for i in result.order
        ],
    }


def text(result: Triage, log: RunLog) -> str:
    """Format the result for a terminal."""
    data = as_data(result, log)
    first, last = data["steps"]
    size = f"{data['rollouts']:,} rollouts" + (f" of {data['of']:,}" if data["of"] > data["rollouts"] else "")
    steps = "" if first < 0 else f", step {first}" if first == last else f", steps {first} to {last}"
    out = [f"{log.source} run: {size}{steps}", "", f"{'sign':<24}{'rollouts':>9}{'share':>8}{'first step':>12}"]
    # Signs that were seen, the commonest first; the others in one line, and what could not be looked for.
    for row in sorted(data["signs"], key=lambda row: -row["rollouts"]):
        if row["rollouts"]:
            first_step = "-" if row["first_step"] < 0 else row["first_step"]
            out.append(f"{row['sign']:<24}{row['rollouts']:>9}{row['share']:>8.1%}{first_step:>12}  {row['meaning']}")
    if absent := [row["sign"] for row in data["signs"] if not row["rollouts"]]:
        out.append(f"none: {', '.join(absent)}")
    out += [f"not looked for: {name}: {reason}" for name, reason in result.blind.items()]
    # Then the rollouts, each with the beginning and the end of its text.
    out += ["", "read first:" if result.order else "no rollout has a sign that the others have not"]
    for number, row in enumerate(data["read_first"], 1):
        score = "unscored" if row["score"] is None else f"score {row['score']:.3g}"
        answer = "" if row["reference"] is None else f", reference {shorten(row['reference'], 40)!r}"
        out.append(f"{number:>3}. {row['where']}  step {row['step']}, {score}{answer}: {', '.join(row['signs'])}")
        out.append(f"     {shorten(row['completion'])!r}")
    return "\n".join(out)


def shorten(text: str, size: int = EXCERPT) -> str:
    """Return the beginning and the end of a text.

    >>> shorten("abcdefghij", 2)
    'ab ... ij'
    """
    return text if len(text) <= 2 * size + 5 else f"{text[:size]} ... {text[-size:]}"


def _flags(texts: Sequence[str], has_sign: Callable[[str], bool]) -> NDArray[np.bool_]:
    return np.array([has_sign(t) for t in texts], dtype=bool)


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _shorten(steps: Sequence[int]) -> str:
    texts = [str(s) for s in steps]
    return ", ".join(texts if len(texts) <= 12 else [*texts[:5], "...", *texts[-5:]])
