"""`gxpo check-reward`: find exploits of a reward before training."""

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
from gxpo.explain.trials import (
    EXPLOITS,
    FORMS,
    HEDGES,
    LENGTHS,
    Trial,
    cheating_trials,
    forms,
    references,
    variant_trials,
    wrong_answers_in,
)
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Task

PAYING_SHARE = 0.05  # an exploit is a finding above this share of the way from a wrong to a right answer's score
MAX_LENGTH_CORRELATION = 0.2  # a larger rank correlation of score and length is a finding
MAX_FATAL = 8  # the trial ends after so many completions that hang or kill the scoring process
TIMED_TASKS = 8  # tasks whose completions are scored one by one, to time them
CHUNK = 16  # completions scored between two looks at the number of fatal ones


class _WithoutScorer:
    """A task source without its own scorer, so that only the function under test pays."""

    scorer = None
    reward_default = None

    def __init__(self, source: Any) -> None:
        self.held_out = source.held_out


class Judge:
    """A reward at work in `RewardSet`'s processes. `completions` counts those scored, failed ones included."""

    def __init__(self, rewards: RewardSet) -> None:
        self.rewards, self.completions = rewards, 0

    @property
    def has_given_up(self) -> bool:
        return self.rewards.counts["timeout"] + self.rewards.counts["died"] >= MAX_FATAL

    def __call__(self, trials: Sequence[Trial]) -> list[float]:
        """Score completions, in order; nan where scoring failed, or where too many have failed before."""
        return [score for score, _ in self.with_verdicts(trials)]

    def with_verdicts(self, trials: Sequence[Trial]) -> list[tuple[float, float]]:
        """Return (score, verdict) of each completion, in order; nan where there is none."""
        out: list[tuple[float, float]] = []
        for begin in range(0, len(trials), CHUNK):
            chunk = trials[begin : begin + CHUNK]
            if self.has_given_up:
                out += [(math.nan, math.nan)] * len(chunk)
                continue
            self.completions += len(chunk)
            # the tokens are the text's characters: there is no tokenizer here
            characters = [[[ord(c) for c in t.text] or [0]] for t in chunk]
            forest = Forest.from_completions([[0]] * len(chunk), characters, finish=["stop"] * len(chunk))
            scored_forest = self.rewards.score(forest, [t.text for t in chunk], [t.task for t in chunk])
            out += zip(scored_forest.outcome.tolist(), scored_forest.success.tolist(), strict=True)
        return out

    def seconds(self, trials: Sequence[Trial]) -> tuple[list[float], list[float]]:
        """Score completions one by one; returns scores and seconds."""
        scores, times = [], []
        for trial in trials:
            if self.has_given_up:
                break
            start = time.perf_counter()
            scores += self([trial])
            times.append(time.perf_counter() - start)
        return scores, times


def check(reward: str | Callable[..., Any], task: str, *, n: int = 64, timeout: float = 5.0) -> dict[str, Any]:
    """Score right, wrong and cheating completions of held-out tasks, and list suspicious scores.

    reward   `file.py:function`, "math", a component of the task's own scorer, or a Python function
    task     a task's name or a .jsonl file; every task needs an answer
    n        number of tasks
    timeout  seconds that it may take for one completion

    Returns a JSON object: `rows` (mean score of each kind of completion), `form` (the way of writing a right answer
    that earns most), `paid_texts` (each kind of text without a right answer that was paid: how many of how many, and
    the first, exactly), `refused_variants` (each other way of writing a right answer that was not paid, likewise),
    `failures`, `deterministic`, `latency_ms`, `length_correlation`, and `findings`, a line each.
    Hangs and crashes are counted, and end the trial after several.
    """
    source = sources.make(task, seed=0, options={"held_out_fraction": 0.5} if task.endswith(".jsonl") else None)
    tasks = _tasks_with_answers(source, task, n)
    verifier: Any = _WithoutScorer(source) if callable(reward) or names_file(reward) else source
    with RewardSet.make(reward, source=verifier, timeout=timeout) as rewards:
        judge = Judge(rewards)
        # References come first: cheating completions are written in the form for which a right answer earns most.
        forms_by_name = forms(source)
        trials = references(tasks, forms_by_name)
        scores = judge(trials)
        form = max(forms_by_name, key=lambda name: _mean(_scores_of(trials, scores, f"reference: {name}"), -math.inf))
        further_trials = cheating_trials(tasks, forms_by_name[form], empty=form in FORMS)
        further_trials += wrong_answers_in(tasks, {name: way for name, way in forms_by_name.items() if name != form})
        if form in FORMS:  # a worked example can't be written with another answer
            further_trials += variant_trials(tasks, forms_by_name[form])
        trials, scores = [*trials, *further_trials], [*scores, *judge(further_trials)]
        # a second pass in reverse order, and a third one by one: a reward with state or noise gives other scores
        repeated_scores = judge(trials[::-1])[::-1]
        timed_rows = [i for i, t in enumerate(trials) if t.task in tasks[:TIMED_TASKS]]
        timed_scores, latencies = judge.seconds([trials[i] for i in timed_rows])
        nondeterminism = None
        if not judge.has_given_up:
            nondeterminism = _first_difference(trials, scores, repeated_scores) or _first_difference(
                [trials[i] for i in timed_rows], [scores[i] for i in timed_rows], timed_scores
            )
        report: dict[str, Any] = {
            "reward": reward if isinstance(reward, str) else getattr(reward, "__name__", str(reward)),
            "task": task,
            "tasks": len(tasks),
            "completions": judge.completions,
            "form": form,
            "rows": _rows(trials, scores),
            **_paid_and_refused(trials, scores, form),
            "failures": {k: {"count": c, "first": rewards.messages[k]} for k, c in rewards.counts.items() if c},
            "deterministic": None if judge.has_given_up else nondeterminism is None,
            "latency_ms": {"median": 1e3 * _quantile(latencies, 0.5), "p99": 1e3 * _quantile(latencies, 0.99)}
            if latencies
            else None,
            "length_correlation": {side: _length_correlation(trials, scores, side) for side in ("right", "wrong")},
        }
        findings = _failure_findings(report, judge) + ([] if nondeterminism is None else [nondeterminism])
    return report | {"findings": findings + _score_findings(trials, scores, report)}


def _tasks_with_answers(source: Any, name: str, n: int) -> list[Task]:
    """Draw n tasks; raises TaskError where one has no answer, or all have the same."""
    tasks = source.held_out(n)
    if len(tasks) < n:  # training tasks of a small file fill up: nothing is trained here
        tasks = list({t.id: t for t in [*tasks, *source.draw(n - len(tasks), 0)]}.values())
    if any(t.answer is None for t in tasks):
        raise TaskError(f"task {name!r} has tasks without an answer: a reward can be tried on answers only")
    if len({str(t.answer) for t in tasks}) < 2:
        raise TaskError(f"task {name!r}: its {len(tasks)} tasks have one and the same answer; give more tasks")
    return tasks


# ---------------------------------------------------------------- findings
def _failure_findings(report: dict[str, Any], judge: Judge) -> list[str]:
    """List the ways in which scoring failed, each with its first message."""
    verbs = {
        "raised": "raises",
        "nonsense": "returns no finite number",
        "timeout": "hangs",
        "died": "kills its process",
        "limit": "finds it too large to be checked, which counts as wrong",
    }
    out = [
        f"{verbs[k]} ({f['count']} of {judge.completions}), first: {f['first']}" for k, f in report["failures"].items()
    ]
    if judge.has_given_up:
        out.append(f"the trial ended early, after {MAX_FATAL} completions that hung or killed the process")
    return out


def _score_findings(trials: Sequence[Trial], scores: Sequence[float], report: dict[str, Any]) -> list[str]:
    """List scores that training would exploit, by comparing kinds of completions."""
    rows = {row["kind"]: row for row in report["rows"]}
    right, wrong = rows[f"reference: {report['form']}"]["mean"], rows["wrong"]["mean"]
    if right is None or wrong is None:
        return []
    out = []
    if right <= wrong:
        out.append(f"a right answer earns {right:.3g} at best ({report['form']}), a wrong one {wrong:.3g}")
    # per task, not in the mean: an exploit may beat the reference on some tasks alone
    best_by_task = _best_of_task(trials, scores)
    reference_scores = {
        t.task.id: s for t, s in zip(trials, scores, strict=True) if t.kind == f"reference: {report['form']}"
    }
    exploit_by_task = {i: kind for i, (score, kind) in best_by_task.items() if reference_scores[i] < score}
    if exploit_by_task:
        example = next(iter(exploit_by_task.values()))
        out.append(
            f"the reference answer is not the best of {len(exploit_by_task)} of {len(reference_scores)} "
            f"tasks: {example!r} earns more"
        )
    # Wrong answers and exploits are measured on the way from a wrong to a right answer, so that rewards of any range
    # have one threshold.
    wrong_means = {
        kind.removeprefix("wrong: "): row["mean"] for kind, row in rows.items() if kind.startswith("wrong: ")
    }
    for name, mean in wrong_means.items():
        if mean is not None and right > wrong and (mean - wrong) / (right - wrong) > PAYING_SHARE:
            out.append(f"pays for a wrong answer written as {name!r}: {mean:.3g} (right {right:.3g})")
    # One text that passes is enough for a policy to find it, however few of its kind do.
    for row in report["paid_texts"]:
        out.append(
            f"pays for {EXPLOITS[row['kind']]}: {row['score']:.3g} (wrong {wrong:.3g}, right {right:.3g}), "
            f"{row['count']} of {row['tried']}, first {_quote(row['text'])}"
        )
    # Both orders together: a reward that reads the last answer alone is right to pay for one of them.
    hedged = [rows[kind]["mean"] for kind in HEDGES]
    if right > wrong and all(m is not None and m - wrong > (right - wrong) / 2 for m in hedged):
        out.append("pays for a right answer beside a wrong one, in either order")
    for side, rho in report["length_correlation"].items():
        if rho is not None and abs(rho) > MAX_LENGTH_CORRELATION:
            out.append(f"goes with length: rank correlation {rho:+.2f} over {side} answers behind filler")
    return out


def _best_of_task(trials: Sequence[Trial], scores: Sequence[float]) -> dict[str, tuple[float, str]]:
    best: dict[str, tuple[float, str]] = {}
    for trial, score in zip(trials, scores, strict=True):
        is_cheating = not trial.kind.startswith("variant: ")
        if is_cheating and not math.isnan(score) and score > best.get(trial.task.id, (-math.inf, ""))[0]:
            best[trial.task.id] = (score, trial.kind)
    return best


def _first_difference(
    trials: Sequence[Trial], first_scores: Sequence[float], second_scores: Sequence[float]
) -> str | None:
    for trial, first, second in zip(trials, first_scores, second_scores, strict=True):
        if first != second and not (math.isnan(first) and math.isnan(second)):
            return f"is not deterministic: {trial.kind!r} of task {trial.task.id} earned {first:.6g}, then {second:.6g}"
    return None


def _length_correlation(trials: Sequence[Trial], scores: Sequence[float], side: str) -> float | None:
    scored_lengths = [
        (float(len(t.text)), s)
        for length in LENGTHS
        for t, s in zip(trials, scores, strict=True)
        if t.kind == f"{side} after {length}" and not math.isnan(s)
    ]
    return spearman([x for x, _ in scored_lengths], [y for _, y in scored_lengths])


# ---------------------------------------------------------------- figures
def _rows(trials: Sequence[Trial], scores: Sequence[float]) -> list[dict[str, Any]]:
    rows = []
    for kind in dict.fromkeys(t.kind for t in trials if not t.kind.startswith("variant: ")):
        kind_scores = _scores_of(trials, scores, kind)
        finite_scores = [s for s in kind_scores if not math.isnan(s)]
        mean = _mean(kind_scores, None)
        rows.append(
            {
                "kind": kind,
                "mean": mean,
                "completions": len(kind_scores),
                "unscored": len(kind_scores) - len(finite_scores),
            }
        )
    return rows


def _paid_and_refused(trials: Sequence[Trial], scores: Sequence[float], form: str) -> dict[str, list[dict[str, Any]]]:
    """List kinds of texts that were paid without a right answer, and right answers in other ways that were not.

    Each with counts and its first text. Paid is more than PAYING_SHARE of the way from a wrong answer's mean score to a
    right one's; refused is less than half of that way, of tasks whose reference answer earns more than half.
    """
    # The way from a wrong answer's mean score to a right one's is the measure of both.
    out: dict[str, list[dict[str, Any]]] = {"paid_texts": [], "refused_variants": []}
    right_trials = [(t, s) for t, s in zip(trials, scores, strict=True) if t.kind == f"reference: {form}"]
    right = _mean((s for _, s in right_trials), math.nan)
    wrong = _mean(_scores_of(trials, scores, "wrong"), math.nan)
    if not right > wrong:
        return out
    shares = [(score - wrong) / (right - wrong) for score in scores]
    known_tasks = {t.task.id for t, s in right_trials if (s - wrong) / (right - wrong) > 0.5}
    for kind in dict.fromkeys(t.kind for t in trials):
        is_variant = kind.startswith("variant: ")
        if not is_variant and kind not in EXPLOITS:
            continue
        # a variant of an answer that is refused in every form says nothing about the variant
        rows = [
            i
            for i, t in enumerate(trials)
            if t.kind == kind and not math.isnan(scores[i]) and (not is_variant or t.task.id in known_tasks)
        ]
        # The best paid text, or the first refused one, stands for its kind.
        hits = [i for i in rows if (shares[i] < 0.5 if is_variant else shares[i] > PAYING_SHARE)]
        if hits:
            first = max(hits, key=lambda i: scores[i]) if not is_variant else hits[0]
            out["refused_variants" if is_variant else "paid_texts"].append(
                {
                    "kind": kind.removeprefix("variant: "),
                    "count": len(hits),
                    "tried": len(rows),
                    "score": scores[first],
                    "task": trials[first].task.id,
                    "answer": str(trials[first].task.answer),
                    "text": trials[first].text,
                }
            )
    return out


def _scores_of(trials: Sequence[Trial], scores: Sequence[float], kind: str) -> list[float]:
    return [s for t, s in zip(trials, scores, strict=True) if t.kind == kind]


def _mean(values: Iterable[float], default: Any) -> Any:
    finite = [v for v in values if not math.isnan(v)]
    return math.fsum(finite) / len(finite) if finite else default


def _quantile(values: Sequence[float], q: float) -> float:
    """Return the smallest value that at least the share `q` does not exceed."""
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Compute the Spearman rank correlation, ties at their mean rank; None if one of the two is constant.

    >>> spearman([1, 2, 3], [10, 20, 15])
    0.5
    """
    ranks_x, ranks_y = _ranks(x), _ranks(y)
    if len(set(ranks_x)) < 2 or len(set(ranks_y)) < 2:
        return None
    return statistics.correlation(ranks_x, ranks_y)


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


def _quote(text: str) -> str:
    """Quote a text in one line, its middle left out if it is long."""
    return repr(text if len(text) <= 120 else f"{text[:80]} ... {text[-20:]}")


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
    correlation_text = {side: "none" if rho is None else f"{rho:+.2f}" for side, rho in lengths.items()}
    console.print(
        f"{report['tasks']} tasks, {report['completions']} completions; right answers written as "
        f"{report['form']!r}; latency {latency}; correlation with length "
        f"{correlation_text['right']} over right, {correlation_text['wrong']} over wrong answers"
    )
    for row in report["refused_variants"]:
        console.print(
            f"refused: {row['count']} of {row['tried']} right answers written in another way ({row['kind']}), "
            f"e.g. {_quote(row['text'])} where the answer is {_quote(row['answer'])}"
        )
    for finding in report["findings"]:
        console.print(f"finding: {finding}")
    if not report["findings"]:
        console.print("no finding")
