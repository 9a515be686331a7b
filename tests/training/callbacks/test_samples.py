"""Table of sample rollouts: columns, the choice of rollouts, texts of prompts and completions."""

import pytest
from tests.training.callbacks.parity import REWARD, SMALL

import gxpo
from gxpo.training.callbacks import Callback, samples


def record(group, reward, **keys):
    turn = {"action": [5, 6], "action_text": f"{group}{reward}", "finish": "stop"}
    return {"group": group, "id": f"{group}/{reward}", "reward": reward, "prompt_text": group, "turns": [turn], **keys}


@pytest.mark.slow
def test_a_table_has_the_best_and_worst_rollout_of_a_group(tmp_path):
    tables = []

    class Reading(Callback):
        def on_samples(self, samples, run):
            tables.append(samples)

    run = gxpo.train(
        reward=REWARD,
        steps=3,
        out=tmp_path / "run",
        callbacks=[Reading()],
        set=SMALL | {"logging.samples": 2, "eval.every": 0},
    )
    assert [len(table) for table in tables] == [2, 2, 2, 2]  # before, step 2, after, step 3
    best, worst = tables[-1]
    assert best["prompt"] == worst["prompt"] and best["reward"] == 1.0 and worst["reward"] == 0.0
    assert best["advantage"] > 0 > worst["advantage"] and best["tokens"] == 2
    left, right = best["prompt"].rstrip("=").split("+")
    assert best["answer"] == str(int(left) + int(right))
    assert best["completion"].removesuffix(" [cut]") in {r["turns"][0]["action_text"] for r in run.samples}


def test_groups_whose_outcomes_differ_come_first():
    records = [record("a", 1.0), record("a", 1.0), record("b", 0.0), record("b", 3.0), record("b", 2.0)]
    chosen = samples.contrasts(records)
    assert [r["id"] for r in chosen] == ["b/3.0", "b/0.0", "a/1.0"]
    assert [row["completion"] for row in samples.rows(records, step=4, set="train", max_rows=2)] == ["b3.0", "b0.0"]


def test_an_unscored_rollout_is_chosen_only_if_all_are_unscored():
    assert [r["id"] for r in samples.contrasts([record("a", None), record("a", -1.0)])] == ["a/-1.0"]
    assert [r["id"] for r in samples.contrasts([record("a", None)])] == ["a/None"]


def test_a_row_has_every_column_and_counts_tokens_of_all_turns():
    turns = [{"action": [1, 2, 3], "action_text": "go"}, {"action": [4], "action_text": "stop"}]
    line = record("g", 1.0, turns=turns, success=True, task="t/1", info={"advantage": 0.5, "answer": 42})
    (row,) = samples.rows([line], step=3, set="eval", max_rows=9)
    assert tuple(row) == samples.COLUMNS
    assert row == {
        "step": 3, "set": "eval", "task": "t/1", "prompt": "g", "completion": "go\nstop", "reward": 1.0,
        "success": True, "advantage": 0.5, "answer": "42", "tokens": 4,
    }  # fmt: skip


def test_a_completion_shows_later_observations_and_cut_actions():
    turns = [
        {"observation_text": "prompt", "action": [1], "action_text": "left", "finish": "length"},
        {"observation_text": "a wall", "action": [2, 3]},
    ]
    assert samples.completion_of({"turns": turns}) == "left [cut]\n[observed] a wall\ntokens [2, 3]"
    assert samples.completion_of({"turns": turns}, ending="") == "left\n[observed] a wall\ntokens [2, 3]"


def test_a_fork_names_the_turn_that_it_continues():
    assert samples.prompt_of({"fork": {"of": "g/0", "turn": 2}}) == "(goes on from turn 2 of g/0)"
    assert samples.prompt_of({"prompt": [7, 8]}) == "tokens [7, 8]"


def test_tables_are_one_for_each_set():
    chosen = [*samples.rows([record("a", 1.0)], step=1, set="eval", max_rows=1)]
    chosen += samples.rows([record("b", 0.0)], step=1, set="train", max_rows=1)
    tables = samples.tables(chosen, lambda columns, data: (columns, data))
    assert list(tables) == ["samples/eval", "samples/train"]
    columns, data = tables["samples/train"]
    assert columns == list(samples.COLUMNS) and [row[3:5] for row in data] == [["b", "b0.0"]]
