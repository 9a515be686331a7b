"""Triage: signs in texts, signs against a group, and which rollouts come first; of three trainers' logs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.doctor import logs

from gxpo.base.errors import RecordError
from gxpo.doctor import read
from gxpo.explain.triage import as_data, calls_of, cycles, longest_run, signs_of, text, triage


def signs(*completions: str, **columns: Any) -> list[set[str]]:
    """Names of the signs of completions that are one group; columns as lists."""
    rows = [
        {"group": 0, "completion": c, "score": 0.0, **{k: v[i] for k, v in columns.items()}}
        for i, c in enumerate(completions)
    ]
    flags_by_name, _ = signs_of(logs.rollouts(rows))
    return [{name for name in flags_by_name if flags_by_name[name][i]} for i in range(len(rows))]


@pytest.mark.parametrize(
    ("completion", "sign"),
    [
        ("", {"empty"}),
        ("so it is 12, so it is 12, so it is 12, so it is 12, ", {"repeats"}),
        ("search[cats]\nsearch[cats]\nsearch[cats]\nnone", {"same call"}),
        ("search[a]\nsearch[b]\nsearch[c]\nb", {"drift"}),
        ("look(a)\nopen(b)\n" * 3 + "done", {"cycle"}),
        ("I'm unable to see the picture.", {"gave up"}),
        ("The tool says: rate limit reached", {"exhausted"}),
        ("ValueError: x", {"failed call"}),
        ("12 <|im_start|>user", {"markup"}),
        ("12\nQuestion: and now?", {"goes on"}),
        ("The answer is 12.", set()),
        ("Action: north\nAction: north\nAction: north\nAction: east", set()),
    ],
)
def test_signs_of_a_text(completion: str, sign: set[str]) -> None:
    assert signs(completion)[0] == sign


def test_signs_against_the_group() -> None:
    texts = ("the answer is 7", "it is 9", "I give up", "perhaps 8")
    names = signs(texts[0], *texts[1:], score=[0.0, 1.0, 1.0, 0.0], reference=["7"] * 4)
    assert names == [{"unpaid with reference"}, set(), {"gave up", "paid odd"}, set()]
    # most paid texts hold their reference: the one that does not is odd
    names = signs("7", "so 7", "7!", "nine", "8", score=[1.0, 1.0, 1.0, 1.0, 0.0], reference=["7"] * 5)
    assert names == [set(), set(), set(), {"paid without reference"}, {"alone"}]
    assert signs("a", "b", "c", "one two three four", score=[0.0, math.nan, 0.0, 0.0]) == [
        set(),
        {"unscored"},
        set(),
        {"long"},
    ]


def test_what_can_not_be_looked_for_is_said() -> None:
    _, blind = signs_of(logs.rollouts([{"group": -1, "completion": "7", "score": math.nan}]))
    assert set(blind) == {"cut", "paid odd", "alone", "paid without reference", "unpaid with reference"}
    rows = [{"group": 0, "completion": "x", "score": s, "reference": "def f"} for s in (0.0, 1.0)]
    assert "do not contain" in signs_of(logs.rollouts(rows))[1]["paid without reference"]


def test_calls_in_the_ways_that_agents_write_them() -> None:
    assert calls_of(
        '<tool_call>{"name": "f", "arguments": {"b": 2, "a": 1}}</tool_call>\n<search>two  cats</search>'
    ) == [
        ("f", '{"a": 1, "b": 2}'),
        ("search", "two cats"),
    ]
    assert calls_of("<think>f(x)</think>\nI call f(x) now") == []
    assert longest_run([("f", "1"), ("f", "1"), ("g", ""), ("f", "1")]) == 2
    assert longest_run([("f", "1"), ("f", "2"), ("f", "2"), ("f", "3")], unit="tool") == 2
    assert cycles([("a", ""), ("b", ""), ("a", ""), ("c", "")]) == 1


def test_rare_signs_come_first_and_not_all_alike() -> None:
    rows = [{"group": i, "completion": "", "score": 0.0, "step": i} for i in range(6)]
    rows += [{"group": 6, "completion": "I give up", "score": 0.0, "step": 2}]
    run = logs.log(rows=logs.rollouts(rows))
    result = triage(run, top=9)
    # one of seven: 2 log2(7) = 5.61 bits; six of seven: 2 log2(7/6) = 0.44, three of them, the last steps first
    assert result.order == [6, 5, 4, 3]
    assert result.score[6] == pytest.approx(5.6147, abs=1e-4) and result.score[0] == pytest.approx(0.4448, abs=1e-4)
    assert "gave up" in text(result, run) and "not looked for: cut" in text(result, run)
    assert triage(run, step=2).rollouts.step.tolist() == [2, 2]
    with pytest.raises(RecordError, match="no training rollouts of step 9 were read; there are 0, 1, 2, 3, 4, 5"):
        triage(run, step=9)
    with pytest.raises(RecordError, match="triage needs their texts"):
        triage(logs.log())


@pytest.mark.parametrize("trainer", ["trl", "verl", "gxpo"])
def test_logs_of_three_trainers(tmp_path: Path, trainer: str) -> None:
    texts, scores = ["it is 4", "I don't know", "5", "4"], [1.0, 1.0, 0.0, 0.0]
    prompts = ["2+2?"] * 4
    if trainer == "trl":
        columns = {"step": [3] * 4, "prompt": prompts, "completion": texts, "f": scores, "advantage": [1.0, 1, -1, -1]}
        pq.write_table(pa.table({**columns, "answer": ["4"] * 4}), tmp_path / "completions_00003.parquet")
    elif trainer == "verl":
        rows = [
            {"input": p, "output": t, "gts": "4", "score": s, "step": 3}
            for p, t, s in zip(prompts, texts, scores, strict=True)
        ]
        (tmp_path / "3.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    else:
        rows = [
            {"schema": "gxpo.rollouts/1", "group": "a", "id": f"a{i}", "prompt_text": "2+2?", "reward": s, "step": 3}
            | {"turns": [{"action": [1], "action_text": t, "finish": "stop"}], "info": {"answer": "4"}}
            for i, (t, s) in enumerate(zip(texts, scores, strict=True))
        ]
        (tmp_path / "step-000003.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    run = read(tmp_path)
    data = as_data(triage(run), run)
    assert data["source"] == ("unknown" if trainer == "gxpo" else trainer)  # records without a configuration
    assert data["steps"] == [3, 3] and data["rollouts"] == 4
    assert data["read_first"][0]["completion"] == "I don't know" and "paid odd" in data["read_first"][0]["signs"]
