"""docs/board.md says what the rows of studies/board.jsonl say."""

import json
import runpy
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def board(script):
    return script("board")


def rows_of(method, rate):
    """Held-out accuracy at the end by seed, from the file by hand."""
    rows = map(json.loads, (ROOT / "studies" / "board.jsonl").read_text().splitlines())
    return {
        row["seed"]: row["evaluations"][-1]["eval_accuracy"]
        for row in rows
        if (row["keys"]["method"], row["keys"].get("optim.lr"), row["seed"] < 1000) == (method, rate, True)
        and not {"scoring.shuffle", "update"} & set(row["keys"])
        and row["keys"]["rollout.group_size"] == 8
    }


def test_the_page_has_the_table_of_the_rows(board):
    arms, seeds = board.arms_of(board.read_list(board.LIST), board.read_store(board.STORE))
    text = board.PAGE.read_text()
    assert board.page(text, arms, seeds, board.toy_arms_of()) == text
    assert board.PICTURE.read_text() == board.picture(arms) + "\n"


def test_the_page_of_the_other_tasks_has_the_tables_of_the_rows(board):
    text = board.TASKS_PAGE.read_text()
    assert board.tasks_page(text, board.read_list(board.LIST), board.read_store(board.STORE)) == text


def test_an_arm_is_compared_with_grpo_by_seed(board):
    arms, _ = board.arms_of(board.read_list(board.LIST), board.read_store(board.STORE))
    base, rloo = rows_of("grpo", 1e-5), rows_of("rloo", 1e-5)
    estimate = board.difference(arms["rloo"], arms["grpo"])
    pairs = [rloo[s] - base[s] for s in rloo if s in base]
    assert estimate.n == len(pairs) and estimate.mean == pytest.approx(statistics.fmean(pairs))


def test_tokens_to_a_target_are_on_the_line_between_evaluations(board):
    points = [
        {"step": 0, "tokens": 0, "eval_accuracy": 0.2},
        {"step": 9, "tokens": 1000, "eval_accuracy": 0.6},
        {"step": 18, "tokens": 2000, "eval_accuracy": 0.5},
    ]
    row = {"evaluations": points}
    assert board.tokens_to_target(row, 0.3) == pytest.approx(250)
    assert board.tokens_to_target(row, 0.7) is None
    # a run that was killed after the second evaluation has two of them again
    again = {"evaluations": [*points[:2], *points]}
    assert board.tokens_to_target(again, 0.3) == pytest.approx(250) and board.end_of(again, place=-2) == 0.6


def test_runs_that_are_missing_are_shown(board):
    row = {
        "evaluations": [
            {"step": 0, "tokens": 0, "eval_accuracy": 0.2, "eval_pass_at_8": 0.5, "eval_length": 12.0},
            {"step": 9, "tokens": 1000, "eval_accuracy": 0.6, "eval_pass_at_8": 0.7, "eval_length": 10.0},
        ],
        "curves": {}, "steps": 9, "doctor": [["warning", "entropy_collapse"]],
    }  # fmt: skip
    lines = board.table({"grpo": {0: row}, "rloo": {}}, 2)
    assert lines[-1].startswith("| rloo | 0 | missing |") and lines[-2].endswith("| 0.8 (1 of 1) | 9 | 1 of 1 |")
    assert board.by_seed({"grpo": {0: row}, "rloo": {}}, 2)[2:] == [
        "| grpo | .600 | missing |",
        "| rloo | missing | missing |",
    ]


def test_the_order_of_toys_is_compared_by_rank(board):
    def arms(**ends):
        rows = {"grpo": [0.5, 0.5], **ends}
        return {
            label: {s: {"evaluations": [{"step": 0, "eval_accuracy": x}]} for s, x in enumerate(values)}
            for label, values in rows.items()
        }

    here = arms(a=[0.6, 0.6], b=[0.55, 0.55], c=[0.4, 0.4], shuffled=[0.1, 0.1], once=[0.9])
    there = arms(a=[0.7, 0.7], b=[0.3, 0.3], c=[0.6, 0.6], shuffled=[0.0, 0.0], once=[0.1, 0.1])
    lines = board.toys(here, there)
    assert lines[2] == "| a | **+.200 (+.200 to +.200)** (2) | **+.100 (+.100 to +.100)** (2) |"
    # one pair has no interval, and no part in the correlation
    assert [line for line in lines if line.startswith("| once")] == [
        "| once | **-.400 (-.400 to -.400)** (2) | needs two pairs |"
    ]
    # ranks here 4 3 2 1, there 4 2 3 1: 1 - 6 (0 + 1 + 1 + 0) / (4 * 15) = .8; without the control 3 2 1 and 3 1 2: .5
    assert lines[-3] == "Spearman's correlation of the 4 arms: +.800 (95 % +.800 to +.800)."
    assert lines[-1] == "Spearman's correlation of the 3 arms but the control: +.500 (95 % +.500 to +.500)."


def test_halving_the_range_finds_every_number_in_three_guesses():
    world = runpy.run_path(str(ROOT / "studies" / "guess.py"))["Guess"]()
    for seed in range(50):
        first, secret = map(int, world.content(seed).split("/"))
        step = world.reset(seed)
        assert (
            step.observation.startswith(f"Choose a number from {first} to {first + 6}.") and first <= secret < first + 7
        )
        ranges = []
        for _ in range(world.max_turns):
            ranges.append(step.state)
            step = world.step(f"I choose {world.expert()}.")
            if step.done:
                break
        assert step.success and step.reward == 1 and len(set(ranges)) == len(ranges)


def test_a_guess_without_a_number_costs_a_turn_and_tells_nothing():
    world = runpy.run_path(str(ROOT / "studies" / "guess.py"))["Guess"]()
    before = world.reset(3)
    step = world.step("Let me think")
    assert (step.action_error, step.state, step.done) == ("malformed", before.state, False)
    assert world.step(str(world.secret - 1)).observation.startswith(f"Too low. Choose a number from {world.secret} to ")
