"""`gxpo check-reward`: find exploitable rewards before training."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gxpo.base.errors import TaskError
from gxpo.environments import tasks as sources
from gxpo.environments.rewards import RewardSet
from gxpo.environments.rewards.functions import names_file
from gxpo.explain.trials import EXPLOITS, FORMS, HEDGED, LENGTHS, Trial, forms, others, references, wrong_in
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Task

PAYS = 0.05  # share of the way from a wrong to a right answer above which an exploit is a finding
RELATED = 0.2  # rank correlation with length above which it is a finding
PATIENCE = 8  # completions that may hang or kill their process before the trial ends
TIMED = 8  # tasks whose completions are scored one by one, for the clock
CHUNK = 16


class _Bare:
    """The tasks without their own verdict, if a function is under test."""

    scorer = None
    reward_default = None

    def __init__(self, source: Any) -> None:
        self.held_out = source.held_out


class Judge:
    """A reward at work in `RewardSet`'s processes. `tried` counts completions, failed ones included."""

    def __init__(self, rewards: RewardSet) -> None:
        self.rewards, self.tried = rewards, 0

    @property
    def gave_up(self) -> bool:
        return self.rewards.counts["timeout"] + self.rewards.counts["died"] >= PATIENCE

    def __call__(self, trials: Sequence[Trial]) -> list[float]:
        """Scores in order, nan where it failed, or where too much has failed before."""
        return [score for score, _ in self.with_verdicts(trials)]

    def with_verdicts(self, trials: Sequence[Trial]) -> list[tuple[float, float]]:
        """(score, verdict) in order; nan as scores are, and verdicts where the reward gives none."""
        out: list[tuple[float, float]] = []
        for begin in range(0, len(trials), CHUNK):
            chunk = trials[begin : begin + CHUNK]
            if self.gave_up:
                out += [(math.nan, math.nan)] * len(chunk)
                continue
            self.tried += len(chunk)
            # the tokens are the text's characters: there is no tokenizer here
            characters = [[[ord(c) for c in t.text] or [0]] for t in chunk]
            forest = Forest.from_completions([[0]] * len(chunk), characters, finish=["stop"] * len(chunk))
            scored = self.rewards.score(forest, [t.text for t in chunk], [t.task for t in chunk])
            out += zip(scored.outcome.tolist(), scored.success.tolist(), strict=True)
        return out

    def seconds(self, trials: Sequence[Trial]) -> tuple[list[float], list[float]]:
        """Score one by one, and time each."""
        scores, times = [], []
        for trial in trials:
            if self.gave_up:
                break
            began = time.perf_counter()
            scores += self([trial])
            times.append(time.perf_counter() - began)
        return scores, times


def check(reward: str | Callable[..., Any], task: str, *, n: int = 64, timeout: float = 5.0) -> dict[str, Any]:
    """Score right, wrong and cheating completions of held-out tasks; report what is suspicious.

    reward   `file.py:function`, "math", a component of the task's own scorer, or a Python function
    task     a task's name or a .jsonl file; every task needs an answer
    n        tasks
    timeout  seconds it may take for one completion

    Gives a JSON object: `rows` (mean score of each kind of completion), `form` (how a right answer is written where it
    earns most), `failures`, `deterministic`, `latency_ms`, `length_correlation` and `findings`, a line of text each.
    Hangs and crashes are counted, and end the trial when there are several.
    """
    source = sources.make(task, seed=0, options={"held_out_fraction": 0.5} if task.endswith(".jsonl") else None)
    drawn = _answered(source, task, n)
    verifier: Any = _Bare(source) if callable(reward) or names_file(reward) else source
    with RewardSet.make(reward, source=verifier, timeout=timeout) as rewards:
        judge = Judge(rewards)
        ways = forms(source)
        trials = references(drawn, ways)
        scores = judge(trials)
        form = max(ways, key=lambda name: _mean(_of(trials, scores, f"reference: {name}"), -math.inf))
        more = others(drawn, ways[form], empty=form in FORMS)
        more += wrong_in(drawn, {name: way for name, way in ways.items() if name != form})
        trials, scores = [*trials, *more], [*scores, *judge(more)]
        again = judge(trials[::-1])[::-1]
        few = [i for i, t in enumerate(trials) if t.task in drawn[:TIMED]]
        single, times = judge.seconds([trials[i] for i in few])
        changed = None
        if not judge.gave_up:
            changed = _changed(trials, scores, again) or _changed(
                [trials[i] for i in few], [scores[i] for i in few], single
            )
        report: dict[str, Any] = {
            "reward": reward if isinstance(reward, str) else getattr(reward, "__name__", str(reward)),
            "task": task,
            "tasks": len(drawn),
            "completions": judge.tried,
            "form": form,
            "rows": _rows(trials, scores, form),
            "failures": {k: {"count": c, "first": rewards.messages[k]} for k, c in rewards.counts.items() if c},
            "deterministic": None if judge.gave_up else changed is None,
            "latency_ms": {"median": 1e3 * _quantile(times, 0.5), "p99": 1e3 * _quantile(times, 0.99)}
            if times
            else None,
            "length_correlation": {side: _with_length(trials, scores, side) for side in ("right", "wrong")},
        }
        findings = _failed(report, judge) + ([] if changed is None else [changed])
    return report | {"findings": findings + _suspicions(trials, scores, report)}


def _answered(source: Any, name: str, n: int) -> list[Task]:
    drawn = source.held_out(n)
    if len(drawn) < n:  # nothing is learnt here: a small file's other tasks do as well
        drawn = list({t.id: t for t in [*drawn, *source.draw(n - len(drawn), 0)]}.values())
    if any(t.answer is None for t in drawn):
        raise TaskError(f"task {name!r} has tasks without an answer: a reward can be tried on answers only")
    if len({str(t.answer) for t in drawn}) < 2:
        raise TaskError(f"task {name!r}: its {len(drawn)} tasks have one and the same answer; give more tasks")
    return drawn


# ---------------------------------------------------------------- findings
def _failed(report: dict[str, Any], judge: Judge) -> list[str]:
    said = {"raised": "raises", "nonsense": "returns no finite number", "timeout": "hangs", "died": "kills its process",
            "limit": "finds it too large to be checked, which counts as wrong"}  # fmt: skip
    out = [f"{said[k]} ({f['count']} of {judge.tried}), first: {f['first']}" for k, f in report["failures"].items()]
    if judge.gave_up:
        out.append(f"the trial ended early, after {PATIENCE} completions that hung or killed the process")
    return out


def _suspicions(trials: Sequence[Trial], scores: Sequence[float], report: dict[str, Any]) -> list[str]:
    rows = {row["kind"]: row for row in report["rows"]}
    right, wrong = rows[f"reference: {report['form']}"]["mean"], rows["wrong"]["mean"]
    if right is None or wrong is None:
        return []
    out = []
    if right <= wrong:
        out.append(f"a right answer earns {right:.3g} at best ({report['form']}), a wrong one {wrong:.3g}")
    best = _best_of_task(trials, scores)
    own = {t.task.id: s for t, s in zip(trials, scores, strict=True) if t.kind == f"reference: {report['form']}"}
    beaten = {i: kind for i, (score, kind) in best.items() if own[i] < score}
    if beaten:
        example = next(iter(beaten.values()))
        out.append(f"the reference answer is not the best of {len(beaten)} of {len(own)} tasks: {example!r} earns more")
    other = {kind.removeprefix("wrong: "): row["mean"] for kind, row in rows.items() if kind.startswith("wrong: ")}
    for name, mean in other.items():
        if mean is not None and right > wrong and (mean - wrong) / (right - wrong) > PAYS:
            out.append(f"pays for a wrong answer written as {name!r}: {mean:.3g} (right {right:.3g})")
    for kind, meaning in EXPLOITS.items():
        mean = rows[kind]["mean"] if kind in rows else None
        if mean is not None and right > wrong and (mean - wrong) / (right - wrong) > PAYS:
            out.append(f"pays for {meaning}: {mean:.3g} (wrong {wrong:.3g}, right {right:.3g})")
    hedged = [rows[kind]["mean"] for kind in HEDGED]
    if right > wrong and all(m is not None and m - wrong > (right - wrong) / 2 for m in hedged):
        out.append("pays for a right answer beside a wrong one, in either order")
    for side, rho in report["length_correlation"].items():
        if rho is not None and abs(rho) > RELATED:
            out.append(f"goes with length: rank correlation {rho:+.2f} over {side} answers behind filler")
    return out


def _best_of_task(trials: Sequence[Trial], scores: Sequence[float]) -> dict[str, tuple[float, str]]:
    best: dict[str, tuple[float, str]] = {}
    for trial, score in zip(trials, scores, strict=True):
        if not math.isnan(score) and score > best.get(trial.task.id, (-math.inf, ""))[0]:
            best[trial.task.id] = (score, trial.kind)
    return best


def _changed(trials: Sequence[Trial], first: Sequence[float], second: Sequence[float]) -> str | None:
    for trial, a, b in zip(trials, first, second, strict=True):
        if a != b and not (math.isnan(a) and math.isnan(b)):
            return f"is not deterministic: {trial.kind!r} of task {trial.task.id} earned {a:.6g}, then {b:.6g}"
    return None


def _with_length(trials: Sequence[Trial], scores: Sequence[float], side: str) -> float | None:
    found = [
        (float(len(t.text)), s)
        for length in LENGTHS
        for t, s in zip(trials, scores, strict=True)
        if t.kind == f"{side} after {length}" and not math.isnan(s)
    ]
    return spearman([x for x, _ in found], [y for _, y in found])


# ---------------------------------------------------------------- figures
def _rows(trials: Sequence[Trial], scores: Sequence[float], form: str) -> list[dict[str, Any]]:
    rows = []
    for kind in dict.fromkeys(t.kind for t in trials):
        found = _of(trials, scores, kind)
        known = [s for s in found if not math.isnan(s)]
        mean = _mean(found, None)
        rows.append({"kind": kind, "mean": mean, "completions": len(found), "unscored": len(found) - len(known)})
    return rows


def _of(trials: Sequence[Trial], scores: Sequence[float], kind: str) -> list[float]:
    return [s for t, s in zip(trials, scores, strict=True) if t.kind == kind]


def _mean(values: Iterable[float], nothing: Any) -> Any:
    known = [v for v in values if not math.isnan(v)]
    return math.fsum(known) / len(known) if known else nothing


def _quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least the share `q` does not exceed."""
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman rank correlation, ties at their mean rank. None if one of the two is constant.

    >>> spearman([1, 2, 3], [10, 20, 15])
    0.5
    """
    a, b = _ranks(x), _ranks(y)
    if len(set(a)) < 2 or len(set(b)) < 2:
        return None
    return statistics.correlation(a, b)


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    begin = 0
    while begin < len(order):
        end = begin
        while end < len(order) and values[order[end]] == values[order[begin]]:
            end += 1
        for i in order[begin:end]:
            ranks[i] = (begin + end + 1) / 2
        begin = end
    return ranks


def show(report: dict[str, Any]) -> None:
    """Print the report for people."""
    from rich.table import Table

    from gxpo.base import terminal

    console = terminal.console(soft_wrap=True)
    table = Table("completion", "mean score", "unscored", box=None, header_style="bold")
    for row in report["rows"]:
        mean = "-" if row["mean"] is None else f"{row['mean']:.3f}"
        table.add_row(row["kind"], mean, str(row["unscored"] or ""))
    console.print(table)
    lengths, latency = report["length_correlation"], "not measured"
    if report["latency_ms"]:
        latency = f"{report['latency_ms']['median']:.2g} ms (p99 {report['latency_ms']['p99']:.2g})"
    shown = {side: "none" if rho is None else f"{rho:+.2f}" for side, rho in lengths.items()}
    console.print(
        f"{report['tasks']} tasks, {report['completions']} completions; right answers written as "
        f"{report['form']!r}; latency {latency}; correlation with length "
        f"{shown['right']} over right, {shown['wrong']} over wrong answers"
    )
    for finding in report["findings"]:
        console.print(f"finding: {finding}")
    if not report["findings"]:
        console.print("no finding")
