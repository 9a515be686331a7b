"""The page of `gxpo explain` in a headless Chromium: what it draws, by keys alone; hostile text runs nothing."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from tests.explain.rollout_pages import HOSTILE, record, write

from gxpo.base.media import PICTURES, label
from gxpo.explain import rollout_page, rollout_source

CHROMIUM = next((p for n in ("chromium", "chromium-browser", "google-chrome", "chrome") if (p := shutil.which(n))), "")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium on PATH to draw the page")


class DrawnPage(HTMLParser):
    """Text of the drawn page by element id, and all elements with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[tuple[str, str]] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.by_id: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {k: v or "" for k, v in attrs}
        self.elements.append((tag, attributes))
        if tag not in ("meta", "br", "img", "link", "input", "hr"):
            self.open.append((tag, attributes.get("id", "")))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        for _, name in self.open:
            if name:
                self.by_id[name] = self.by_id.get(name, "") + data

    def classes(self, name: str) -> int:
        return sum(name in a.get("class", "").split() for _, a in self.elements)


def draw_page(path: Path, methods: tuple[str, ...], keys: str, tmp_path: Path) -> DrawnPage:
    return drawn(rollout_page.explain(path, methods), keys, tmp_path)


def drawn(text: str, keys: str, tmp_path: Path) -> DrawnPage:
    page = tmp_path / "page.html"
    page.write_text(text, encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
               "--window-size=1280,900", "--virtual-time-budget=3000", "--dump-dom",
               f"file://{page}#{keys}"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]
    return DrawnPage(done.stdout.decode("utf-8", "replace").replace("\u00d7", "x"))


def test_the_arithmetic_is_reached_by_keys(tmp_path: Path) -> None:
    groups = {"first": [1, 1, 1, 1], "second": [1, 0, 0, 1]}
    rows = [record(i, r, group=g) for g, rewards in groups.items() for i, r in enumerate(rewards)]
    for i, r in enumerate(rows):
        r["id"] = f"t{i}"
    # next group, rollouts r0, r1, r2, next token
    page = draw_page(write(tmp_path / "some.jsonl", rows), ("grpo", "dr_grpo"), "press=jvvv>", tmp_path)
    why = page.by_id["why"]
    assert "r2, token 1" in why
    for line in (
        "r0: 1, r1: 0, r2: 0, r3: 1",
        "mean = (2 x 1 + 2 x 0) / 4 = 0.5",
        "std = sqrt((2 x (1 - 0.5)^2 + 2 x (0 - 0.5)^2) / (4 - 1)) = 0.57735027",
        "(0 - 0.5) / (0.57735027 + 1e-6) = -0.8660239",
        "(0 - 0.5) = -0.5",
        "1 / (8 rollouts x 2 tokens) = 0.0625",
        "clip keeps 1 of the unclipped gradient",
    ):
        assert line in why, (line, why)
    assert "task second" in page.by_id["group"] and "zero-signal" in page.by_id["groups"]
    assert page.classes("line") == 2 and page.classes("rollout") == 4 and page.classes("node") == 5
    selected = [a for _, a in page.elements if a.get("aria-selected") == "true"]
    assert [a["id"] for a in selected] == ["line1"]


def test_order_filter_method_and_help_by_keys(tmp_path: Path) -> None:
    groups = {"a": [0, 0], "b": [1, 0], "c": [1, 1]}
    rows = [record(0, r, group=g) for g, rewards in groups.items() for r in rewards]
    for i, r in enumerate(rows):
        r["id"] = f"t{i}"
    path = write(tmp_path / "some.jsonl", rows)
    # filter: with signal; method: the second; colours: weight; help
    page = draw_page(path, ("grpo", "dr_grpo"), "press=fmc?", tmp_path)
    assert page.classes("line") == 1 and "task b" in page.by_id["groups"]
    pressed = [a for t, a in page.elements if t == "button" and a.get("aria-pressed") == "true"]
    assert [a["title"].split("\n")[0] for a in pressed if a.get("title")] == ["A_i = r_i - mean_g r"]
    assert any(t == "dialog" and "open" in a for t, a in page.elements) and "next group" in page.by_id["help"]
    assert [a["value"] for t, a in page.elements if t == "option" and "selected" in a][:1] == ["weight"]


def test_hostile_texts_run_nothing(tmp_path: Path) -> None:
    rows = [record(0, 1.0, group=HOSTILE, prompt_text=HOSTILE), record(1, 0.0, group=HOSTILE)]
    for r in rows:
        r["turns"] = [{"action_text": HOSTILE + " \ud800 " + "y" * 100_000, "agent": HOSTILE, "state": HOSTILE,
                       "observation_text": HOSTILE}] * 2  # fmt: skip
    page = draw_page(write(tmp_path / "a.jsonl", rows), ("grpo", "gigpo"), "press=v>>", tmp_path)
    tags = [t for t, _ in page.elements]
    assert "img" not in tags and tags.count("script") == 2 and "iframe" not in tags
    assert not [a for _, a in page.elements if any(k.startswith("on") for k in a)]
    group_text = page.by_id["group"]
    assert (
        "<script>alert(1)</script>" in group_text
        and "<U+202E>" in group_text
        and "<U+2028>" in group_text
        and "<U+D800>" in group_text
    )
    assert "more tokens" in group_text


def test_turns_name_agents_states_and_returns(tmp_path: Path) -> None:
    def walk(i: int, states: str, reward: float) -> dict:
        turns = [{"action": [4], "logprob": [-1.0], "state": s, "agent": "solver" if k % 2 == 0 else "checker"}
                 for k, s in enumerate(states)]  # fmt: skip
        return {**record(i, reward), "turns": turns}

    path = write(tmp_path / "a.jsonl", [walk(0, "AB", 1.0), walk(1, "AAB", 0.0)])
    page = draw_page(path, ("gigpo",), "press=v", tmp_path)
    group_text, why = page.by_id["group"], page.by_id["why"]
    assert "solver, turn 0" in group_text and "checker, turn 1" in group_text
    assert "state met also by r1 turn 0, r1 turn 1" in group_text and "return 0.95" in group_text
    assert "r0 turn 0: 0.95, r1 turn 0: 0, r1 turn 1: 0" in why
    assert "return of r0 turn 0 = 0 + 0.95 x 1 (the return of turn 1) = 0.95" in why
    assert "0.70710578 + 1.1546984 = 1.8618042" in why


def test_forks_share_their_boxes(tmp_path: Path) -> None:
    first = {**record(0, 1.0), "turns": [{"action": [4, 5, 6, 7], "logprob": [-0.5] * 4}]}
    fork = {
        **record(1, 0.0),
        "fork": {"of": "t0", "turn": 0, "token": 3},
        "turns": [{"action": [9], "logprob": [-2.0]}],
    }
    for key in ("prompt", "prompt_text"):
        fork.pop(key)
    page = draw_page(write(tmp_path / "a.jsonl", [first, fork]), ("dr_grpo",), "press=vv>>", tmp_path)
    # prompt, the three shared tokens, one token each
    assert page.classes("node") == 4 and page.by_id["group"].count("mean 0.5") >= 1
    assert "r1, token 2" in page.by_id["why"] and "(0 - 0.5) = -0.5" in page.by_id["why"]
    assert page.by_id["said"].startswith("r1, token 2, <6>, dr_grpo -0.500")


def test_page_of_a_run_shows_the_step_and_the_words_of_its_address(tmp_path: Path) -> None:
    for step, last in ((1, 0), (2, 1)):
        rows = [record(i, 0, group="flat") for i in range(2)]
        rows += [record(2 + i, r, group="mixed") for i, r in enumerate((0, last))]
        write(tmp_path / "rollouts" / f"step-{step:06}.jsonl", rows)
    text = rollout_page.run_text(tmp_path, [1, 2], {})
    page = drawn(text, "step=2", tmp_path)
    assert "step 2" in page.by_id["head-2"]
    assert [a.get("hidden") for _, a in page.elements if a.get("id") in ("head-1", "head-2")] == ["", None]
    assert page.by_id["group"].startswith("task mixed")  # the group of the largest spread, and a rollout of it
    assert page.by_id["why"].startswith("r0, token 0")
    assert page.classes("line") == 2
    assert drawn(text, "step=1&q=WHAT", tmp_path).classes("line") == 2
    nothing = drawn(text, "step=1&q=xyz", tmp_path)
    assert nothing.classes("line") == 0 and "no text has xyz" in nothing.by_id["groups"]


def test_another_runs_rollouts_are_drawn_beside(tmp_path: Path) -> None:
    here = write(tmp_path / "here.jsonl", [record(0, 1.0, group="a"), record(1, 0.0, group="b")])
    other = write(tmp_path / "other.jsonl", [record(0, 0.25, text=HOSTILE, group="a")])
    source = rollout_source.read(here)
    looks = rollout_page.looks_of(source, {"grpo": {"method": "grpo"}})
    text = rollout_page.page_text(source, looks, beside=rollout_source.read(other))
    page = drawn(text, "g=0", tmp_path)
    assert "1 rollout, mean reward 0.25; here 1, +0.750" in page.by_id["group"]
    assert "beside 0.25" in page.by_id["groups"] and "beside none" in page.by_id["groups"]
    assert [t for t, _ in page.elements].count("script") == 2
    assert "No rollout of this task in" in drawn(text, "g=1", tmp_path).by_id["group"]


def test_a_made_picture_stands_beside_its_patches_row_by_row(tmp_path: Path) -> None:
    ref = PICTURES.put(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    rows = [record(0, 1.0, info={"picture": ref}), record(1, 0.0)]
    for i, row in enumerate(rows):
        row["id"], row["turns"] = f"t{i}", [{"action": [0, 15, 3, 1, 75], "logprob": [-0.5] * 5}]
    source = rollout_source.read(write(tmp_path / "some.jsonl", rows))
    reader = rollout_source.reader_of("tokens:digits", None)
    assert reader.side == 4 and reader.decode(15) == "k15"
    source = replace(source, words=rollout_source.Words.of(source.forest, reader.decode), side=2)
    page = drawn(rollout_page.page_text(source, rollout_page.looks_of(source, {})), "", tmp_path)
    pictures = [a for t, a in page.elements if t == "img"]
    assert [a["alt"] for a in pictures] == [label(ref)] and pictures[0]["src"].startswith("data:image/png")
    assert "k0  k15\nk3  k1\n<end>" in page.by_id["r0"]
    assert "k15" in page.by_id["r1"] and page.classes("made") == 1
