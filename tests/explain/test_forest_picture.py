"""Forests as drawings: what is drawn, and where."""

import xml.etree.ElementTree as tree
from pathlib import Path

from gxpo.explain.forest_picture import picture
from gxpo.forest.forest import Forest

SVG = "{http://www.w3.org/2000/svg}"
ROOT = Path(__file__).parents[2]


def parse_picture(forest, **more):
    """Boxes (x, y, width, dashed), texts, and how many lines there are of each kind."""
    root = tree.fromstring(picture(forest, **more))
    boxes = [
        (float(r.get("x")), float(r.get("y")), float(r.get("width")), "still" in r.get("class"))
        for r in root.iter(f"{SVG}rect")
        if r.get("class")
    ]
    lines = [p.get("class") or "line" for p in root.iter(f"{SVG}path") if not p.get("style")]
    return boxes, [t.text for t in root.iter(f"{SVG}text")], {k: lines.count(k) for k in set(lines)}


def record(name, turns, **more):
    return {
        "schema": "gxpo.rollouts/1",
        "group": "g",
        "id": name,
        "prompt": [1, 2, 3],
        "turns": turns,
        "reward": 1.0,
    } | more


def test_a_group_is_one_prompt_and_a_row_for_each_attempt():
    boxes, texts, lines = parse_picture(
        Forest.from_records([record("a", [{"action": [4] * 5}]), record("b", [{"action": [5]}], reward=None)])
    )
    prompt, first, second = sorted(boxes, key=lambda box: box[:2])
    assert lines == {"line": 2} and sorted(texts[:3]) == ["1", "3", "5"] and texts[3:] == ["r=1", "not scored"]
    assert prompt[0] + prompt[2] < first[0] == second[0]  # actions begin to the right of their prompt
    assert prompt[1] == first[1] < second[1]  # and each has a row
    assert (first[2], second[2]) == (45, 18)  # nine pixels a token, at least two


def test_untrained_actions_are_dashed_earlier_ones_have_arrows():
    turns = [
        {"agent": "planner", "action": [4, 4]},
        {"agent": "executor", "context": [8, 8], "action": [9], "trainable": False},
    ]
    boxes, texts, lines = parse_picture(Forest.from_records([record("a", turns, origin="replay")]))
    assert [dashed for *_, dashed in boxes].count(True) == 1
    assert lines == {"line": 2, "before": 1}  # the second action's context is a tree of its own
    assert texts[-1] == "r=1 (replay)"


def test_a_context_that_an_action_was_sampled_under_is_shown():
    boxes, _, lines = parse_picture(
        Forest.from_records([record("a", [{"action": [4], "sampled_under": [1, 2, 3, 9]}])])
    )
    assert len(boxes) == 3 and lines == {"line": 1, "under": 1}


def test_a_fork_inside_an_action_is_drawn_once_up_to_the_fork():
    fork = record("b", [{"action": [7, 7]}], fork={"of": "a", "turn": 0, "token": 3})
    del fork["prompt"]
    boxes, texts, lines = parse_picture(
        Forest.from_records([record("a", [{"action": [4] * 5}]), fork]), notes=["x", "y<z"]
    )
    assert sorted(texts) == ["2", "2", "3", "3", "x", "y<z"] and lines == {"line": 3}
    _, shared, one, other = sorted(boxes, key=lambda box: box[:2])
    assert shared[0] < one[0] == other[0] and one[1] != other[1]


def test_pages_show_pictures_that_are_there():
    text = "".join((ROOT / "docs" / name).read_text() for name in ("concepts.md", "step.md", "board.md"))
    linked = {
        line.split("](pictures/")[1].split(")")[0]
        for line in text.replace("![", "\n![").splitlines()
        if "](pictures/" in line
    }
    files = {p.name for p in (ROOT / "docs/pictures").glob("*.svg")}
    assert linked == files and len(linked) >= 14
