"""Trying a reward: each way of paying for the wrong thing is found, and a sound reward is left in peace."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gxpo.base.errors import ConfigError, TaskError
from gxpo.explain import check_reward
from gxpo.explain.check_reward import check, spearman
from gxpo.explain.trials import Trial
from gxpo.parts.protocols import Task

REWARDS = r"""
import os, re, time

calls = []

def last_box(completion, answer):
    found = re.findall(r"\\boxed\{([^{}]*)\}", completion)
    return float(bool(found) and found[-1] == answer)

def mentions(completion, answer):
    return float(answer in completion)

def longer(completion, answer):
    return float(answer in completion[-4:]) + len(completion) / 1e5

def polite(completion, answer):
    return 1.0 if "correct" in completion else 0.8 * (completion == answer)

def generous(completion, answer):
    return 0.5 if not completion.strip() else float(completion == answer)

def counts_calls(completion, answer):
    calls.append(1)
    return len(calls)

def raises_on_empty(completion, answer):
    return float(completion[0] == answer[0])

def divides(completion, answer):
    return float("nan") if "#" in completion else float(completion == answer)

def hangs(completion, answer):
    while len(completion) > 1000:
        time.sleep(0.01)
    return float(completion == answer)

def upside_down(completion, answer):
    return -float(completion == answer)

def needs_everything(prompt, completion, answer, task, info, tokens, finish):
    return float(completion == answer and task.answer == answer and finish == "stop" and len(tokens) == len(completion))
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rewards") / "mine.py"
    path.write_text(REWARDS)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "data.jsonl"
    path.write_text("".join(f'{{"prompt": "double of {i}?", "answer": {2 * i}}}\n' for i in range(101, 113)))
    return path


def findings(file: Path, name: str, data: Path, **more: Any) -> list[str]:
    return check(f"{file}:{name}", str(data), **{"n": 6, **more})["findings"]


@pytest.mark.slow
def test_a_sound_reward(file: Path, data: Path) -> None:
    report = check(f"{file}:last_box", str(data), n=6)
    assert report["findings"] == [] and report["form"] == "boxed" and report["deterministic"] is True
    rows = {row["kind"]: row["mean"] for row in report["rows"]}
    assert rows["reference: boxed"] == rows["reference: thought and boxed"] == rows["wrong, then right"] == 1.0
    assert rows["reference: bare"] == rows["right, then wrong"] == rows["all answers"] == rows["wrong"] == 0.0
    assert rows["right after 3200"] == 1.0 and report["tasks"] == 6 and report["failures"] == {}
    assert 0 < report["latency_ms"]["median"] <= report["latency_ms"]["p99"]
    assert json.loads(json.dumps(report)) == report
    assert findings(file, "needs_everything", data) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mentions", "pays for every answer of the tasks, one after another: 1 (wrong 0, right 1)"),
        ("mentions", "pays for a right answer beside a wrong one, in either order"),
        ("longer", "goes with length: rank correlation +1.00 over right answers behind filler"),
        ("longer", "the reference answer is not the best of 6 of 6 tasks"),
        ("polite", "pays for a text that says it is correct: 1 (wrong 0, right 0.8)"),
        ("polite", "pays for a wrong answer, then a text that says it is correct"),
        ("generous", "pays for an empty completion: 0.5 (wrong 0, right 1)"),
        ("generous", "pays for nothing but whitespace"),
        ("counts_calls", "is not deterministic: "),
        ("raises_on_empty", "IndexError: string index out of range (mine.py line 27)"),
        ("divides", "returns no finite number"),
        ("upside_down", "a right answer earns 0 at best (boxed), a wrong one 0"),
    ],
)
def test_findings(file: Path, data: Path, name: str, message: str) -> None:
    lines = findings(file, name, data)
    assert any(message in finding for finding in lines), lines
    assert all("\n" not in finding for finding in lines)


@pytest.mark.slow
def test_hangs_end_the_trial_early(file: Path, data: Path) -> None:
    report = check(f"{file}:hangs", str(data), n=6, timeout=0.2)
    assert report["failures"]["timeout"]["count"] >= 8 and report["deterministic"] is None
    assert report["findings"][0].startswith("hangs (") and "ended early" in report["findings"][1]
    unscored = {row["kind"]: row["unscored"] for row in report["rows"]}
    assert unscored["reference: bare"] == 0 and unscored["long"] == 6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reward")
def test_a_python_function_and_a_verifier_by_name(data: Path) -> None:
    report = check(lambda completion, answer: float(completion == answer), str(data), n=4)
    assert report["form"] == "bare" and report["findings"] == [] and report["reward"] == "<lambda>"
    assert check("correct", "arithmetic", n=4)["form"] == "hash"
    assert check("correct", "countdown", n=4)["findings"] == []


def test_texts_that_passed_and_right_answers_refused() -> None:
    task = Task("t", "3 + 4?", "7")
    kinds = ("reference: bare", "wrong", "symbols", "symbols", "opener", "variant: decimal", "variant: dollars")
    texts = ("7", "9", "{", ":", "Solution", "7.0", "$7$")
    trials = [Trial(kind, text, task) for kind, text in zip(kinds, texts, strict=True)]
    lists = check_reward._paid_and_refused(trials, [1.0, -1.0, 0.5, -1.0, -0.95, -1.0, 1.0], "bare")
    assert lists["paid_texts"] == [
        {"kind": "symbols", "count": 1, "tried": 2, "score": 0.5, "task": "t", "answer": "7", "text": "{"}
    ]
    assert lists["refused_variants"] == [
        {"kind": "decimal", "count": 1, "tried": 1, "score": -1.0, "task": "t", "answer": "7", "text": "7.0"}
    ]


@pytest.mark.slow
def test_a_verifier_that_a_brace_opens(tmp_path: Path) -> None:
    judge = tmp_path / "judge.py"
    judge.write_text("def f(completion, answer):\n    return float(completion in ('{', answer))\n")
    report = check(f"{judge}:f", "arithmetic", n=4)
    assert report["findings"] == ["pays for a single symbol: 1 (wrong 0, right 1), 1 of 13, first '{'"]
    assert {row["kind"] for row in report["refused_variants"]} >= {"decimal", "dollars", "full stop", "equation"}


def test_what_can_not_be_tried(file: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'last_box'"):
        check(f"{file}:last_bx", str(data))
    with pytest.raises(TaskError, match="no such file"):
        check(f"{file}:last_box", str(tmp_path / "none.jsonl"))
    same = tmp_path / "same.jsonl"
    same.write_text("".join(f'{{"prompt": "p{i}", "answer": "yes"}}\n' for i in range(8)))
    with pytest.raises(TaskError, match="one and the same answer"):
        check(f"{file}:last_box", str(same))


# ---------------------------------------------------------------- the texts


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=3, max_size=12))
def test_spearman(pairs: list[tuple[int, int]]) -> None:
    x, y = [float(a) for a, _ in pairs], [float(b) for _, b in pairs]
    correlation = spearman(x, y)
    if len(set(x)) < 2 or len(set(y)) < 2:
        assert correlation is None
    else:
        assert correlation is not None and math.isclose(correlation, stats.spearmanr(x, y).statistic, abs_tol=1e-12)


def test_a_form_that_pays_whatever_is_in_it_is_found(tmp_path: Path) -> None:
    lazy = tmp_path / "lazy.py"
    lazy.write_text("def f(completion, answer):\n    return float('#' in completion or completion == answer)\n")
    report = check(f"{lazy}:f", "arithmetic", n=4)
    assert report["form"] == "bare"
    assert "pays for a wrong answer written as 'hash': 1 (right 1)" in report["findings"]
