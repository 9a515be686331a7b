"""The page of `gxpo explain`: what it reads, what it holds, and that any text stays text."""

from __future__ import annotations

import base64
import json
import math
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from gxpo.explain.words import Words, pseudo_tokens
from tests import command_line

from gxpo.base.errors import GxpoError
from gxpo.explain import rollout_page
from gxpo.explain.group_figures import chosen, figures
from gxpo.explain.outlook import look
from gxpo.explain.rollout_columns import of_tokens, packed
from gxpo.explain.rollout_source import Source, read
from gxpo.forest.forest import Forest

HOSTILE = (
    "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> \u2028 \u202eabc \x00\x07 \\ \"' &amp; ${7*7}"
)


def record(i: int, reward: float | None, text: str = "7", group: str = "g0", **more: object) -> dict:
    turn = {"action": [4, 5], "action_text": text, "logprob": [-0.5, -0.25]}
    return {"schema": "gxpo.rollouts/1", "group": group, "task": f"task {group}", "id": f"t{i}", "prompt": [1, 2],
            "prompt_text": "what?", "turns": [turn], "reward": reward, **more}  # fmt: skip


def write(path: Path, records: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


class Parsed(HTMLParser):
    """Elements of a page, and the text of its script elements."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "script":
            self.scripts.append("")
        assert not [k for k, _ in attrs if k.startswith("on") or k in ("src", "href")]

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data
        else:
            self.text += data

    @property
    def data(self) -> dict:
        return json.loads(self.scripts[0])


def page_of(path: Path, methods: tuple[str, ...] = (), step: int | None = None) -> Parsed:
    text = rollout_page.explain(path, methods, step)
    text.encode("utf-8")
    return Parsed(text)


def numbers(x: dict, n: int) -> list[float]:
    if "c" in x:
        return [x["c"]] * n
    kind = {"f4": "<f4", "f8": "<f8", "u1": "u1", "i1": "i1", "u2": "<u2", "i2": "<i2", "i4": "<i4"}[x["k"]]
    found = np.frombuffer(base64.b64decode(x["d"]), dtype=kind)
    return (np.frombuffer(base64.b64decode(x["v"]), dtype="<f8")[found] if "v" in x else found).tolist()


# ---------------------------------------------------------------- content
def test_records_and_their_arithmetic(tmp_path: Path) -> None:
    path = write(tmp_path / "some.jsonl", [record(i, r) for i, r in enumerate([1, 0, 0, 1])])
    data = page_of(path).data
    (method,) = data["methods"]
    (part,) = method["summands"]
    # (0 - 0.5) / (sqrt(4 * 0.25 / 3) + 1e-6) = -0.866023904
    assert numbers(part["compared"]["result"], 4) == pytest.approx(
        [0.866023904, -0.866023904, -0.866023904, 0.866023904], abs=5e-10
    )
    assert method["name"] == "grpo" and method["credit"]["a"] == "R" and numbers(data["R"]["reward"], 4) == [1, 0, 0, 1]
    assert data["groups"]["name"] == ["g0"] and data["groups"]["task"] == ["task g0"]


def test_methods_beside_each_other_and_what_one_lacks(tmp_path: Path) -> None:
    path = write(tmp_path / "some.jsonl", [record(i, r) for i, r in enumerate([1, 0, 0, 1])])
    page = page_of(path, ("grpo", "dr_grpo", "gigpo", "gtpo"))
    by_name = {m["name"]: m for m in page.data["methods"]}
    assert numbers(by_name["dr_grpo"]["credit"], 4) == [0.5, -0.5, -0.5, 0.5]
    assert "states: no turn says" in by_name["gigpo"]["missing"] and "'entropy'" in by_name["gtpo"]["missing"]
    assert "gigpo can't be shown" in page.text
    # both in units of their root mean square: no difference
    assert page.data["groups"]["disagreement"][0]["of"] == ["grpo", "dr_grpo"]
    assert numbers(page.data["groups"]["disagreement"][0], 1) == pytest.approx([0.0], abs=1e-6)


def test_a_run_has_its_own_method_and_the_step_that_is_asked_for(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step in (2, 10):
        write(
            run / "rollouts" / f"step-{step:06d}.jsonl",
            [record(i, r, info={"advantage": 0.5 - r}) for i, r in enumerate([1.0, 0.0])],
        )
    (run / "config.yaml").write_text("method: dr_grpo\nmodel: tiny\ntask: arithmetic\ncredit: {shift: 0.25}\n")
    page = page_of(run)
    assert page.data["methods"][0]["name"] == "dr_grpo" and "dr_grpo on arithmetic, step 10" in page.text
    assert numbers(page.data["methods"][0]["credit"], 2) == [0.25, -0.75]  # 1 - 0.5 - 0.25
    assert numbers(page.data["R"]["recorded"], 2) == [-0.5, 0.5]
    assert page.data["words"] == ["<bos>", "<eos>", "\n", " "]  # ids 1, 2, 4, 5 of the tiny model
    assert "step 2" in page_of(run, step=2).text
    with pytest.raises(GxpoError, match="no rollouts of step 3; there are 2, 10"):
        page_of(run, step=3)


def test_files_that_a_configuration_names_are_not_run(tmp_path: Path) -> None:
    write(tmp_path / "rollouts" / "step-000001.jsonl", [record(i, r) for i, r in enumerate([1.0, 0.0])])
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef credit(forest, signals, step): ...\n")
    (tmp_path / "config.yaml").write_text(f"method: grpo\ncredit: {tmp_path / 'mine.py'}:credit\n")
    page = page_of(tmp_path)
    assert not (tmp_path / "ran").exists()
    assert page.data["methods"][0]["name"] == "grpo" and "is not run here" in page.text


def test_errors_are_one_line(tmp_path: Path) -> None:
    cut = json.dumps(record(0, 1.0)) + "\n{"
    for name, text, said in (
        ("a.jsonl", "", "is empty"),
        ("b.txt", "hello\n", "no rollouts that can be read"),
        ("c.jsonl", cut, "line 2 is not JSON"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(GxpoError, match=said) as error:
            read(tmp_path / name)
        assert "\n" not in str(error.value)
    with pytest.raises(GxpoError, match="no such file"):
        read(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(GxpoError, match="holds no rollouts: give"):
        read(tmp_path / "empty")
    path = write(tmp_path / "d.jsonl", [record(0, 1.0)])
    with pytest.raises(GxpoError, match="did you mean 'grpo'"):
        page_of(path, ("grpoo",))


def test_a_verl_dump_is_grouped_by_prompt(tmp_path: Path) -> None:
    rows = [{"input": p, "output": f"so {i} it is", "gts": "4", "score": s, "step": 7}
            for i, (p, s) in enumerate([("2+2", 1.0), ("2+2", 0.0), ("3+3", 0.0), ("3+3", 0.0)])]  # fmt: skip
    path = tmp_path / "7.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    page = page_of(path, ("dr_grpo",))
    assert numbers(page.data["methods"][0]["credit"], 4) == [0.5, -0.5, 0.0, 0.0]
    assert numbers(page.data["groups"]["zero_signal"]["dr_grpo"], 2) == [0, 1]
    assert page.data["groups"]["task"] == ["2+2", "3+3"]
    assert {"so", " 0", " it", " is"} <= set(page.data["words"])
    assert "token ids (words stand for tokens)" in page.text and "rows with equal prompts are one group" in page.text


def test_residues_of_equal_rewards_are_flagged(tmp_path: Path) -> None:
    columns = {
        "step": [3] * 8,
        "prompt": ["a?"] * 4 + ["b?"] * 4,
        "completion": list("wxyzwxyz"),
        "near": [0.95] * 4 + [1.0, 0.0, 0.0, 1.0],
        "advantage": [6e-4] * 4 + [0.866, -0.866, -0.866, 0.866],
    }
    path = tmp_path / "completions" / "completions_00003.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table(columns), path)
    page = page_of(tmp_path)
    assert numbers(page.data["groups"]["residue"], 2) == [6e-4, 0.0]
    assert "equal rewards, recorded advantage up to 6.0e-04" in page.text
    assert numbers(page.data["R"]["recorded"], 8)[4] == 0.866


def test_text_actions_become_words(tmp_path: Path) -> None:
    rows = [record(0, 1.0), record(1, 0.0)]
    for r in rows:
        r["turns"] = [{"action_text": "The answer is 7"}]
    page = page_of(write(tmp_path / "some.jsonl", rows))
    assert [w for w in page.data["words"] if "an" in w] == [" answer"]
    assert "token ids of 2 actions" in page.text
    assert pseudo_tokens("a b" + "x" * 50 + "\n ") == ["a", " b" + "x" * 23, "x" * 24, "xxx", "\n "]


# ---------------------------------------------------------------- choosing groups
def many(groups: int, size: int, tokens: int = 2) -> Source:
    rng = np.random.default_rng(0)
    rewards = (rng.random((groups, size)) < rng.random((groups, 1))).astype(float)
    ids = rng.integers(0, 5000, (groups, size, tokens)).tolist()
    logprobs = (-rng.random((groups, size, tokens))).tolist()
    forest = Forest.from_completions([[i] for i in range(groups)], ids, rewards.ravel(), logprobs=logprobs,
                                     success=rewards.ravel())  # fmt: skip
    return Source(forest, "many", [], [], Words.of(forest, lambda i: f" word{i}"), np.full(groups * size, np.nan))


def test_groups_are_chosen_whole_from_all_kinds() -> None:
    source = many(400, 4)
    looks = [look(m, source.forest) for m in ("grpo", "dr_grpo")]
    found = figures(source.forest, looks, source.recorded)
    taken = chosen(found, rollouts=80)
    assert len(taken) == 20 and taken.tolist() == sorted(set(taken.tolist()))
    silent = found.zero_signal["grpo"][taken]
    assert 3 <= silent.sum() <= 10 and found.spread[taken].max() == 1
    differ = found.disagreement["grpo", "dr_grpo"]
    assert np.argmax(differ) in taken
    assert chosen(found).tolist() == list(range(400))
    page = Parsed(rollout_page.written(source, looks, rollouts=80))
    assert len(page.data["groups"]["name"]) == 20 and "20 of 400 groups are shown (80 of 1,600 rollouts)" in page.text
    assert re.search(r"left out: \d+ zero-signal under grpo, \d+ others", page.text)


def test_the_spread_over_a_long_list_is_even() -> None:
    found = figures(many(64, 2).forest, [], np.full(128, np.nan))
    found.low[:], found.high[:] = 0.0, 0.0
    taken = chosen(found, rollouts=16)
    assert len(taken) == 8 and taken.min() < 16 and taken.max() >= 48


def test_columns_are_packed_on_the_coarsest_axis() -> None:
    forest = many(2, 2).forest
    assert of_tokens(forest, torch.tensor([1.0, 1, 2, 2, 3, 3, 4, 4]))["a"] == "R"
    assert of_tokens(forest, torch.arange(8.0))["a"] == "P"
    assert packed(np.array([7, 7])) == {"c": 7} and packed(np.array([math.nan, math.nan]))["k"] == "f8"
    few = packed(np.array([0.5, math.nan, 0.5, 0.5, math.nan, 0.5, 0.5, 0.5]))
    assert few["k"] == "u1" and str(numbers(few, 8)[:3]) == "[0.5, nan, 0.5]"
    assert packed(np.array([1, 300]))["k"] == "u2" and packed(np.array([-1, 3]))["k"] == "i1"


# ---------------------------------------------------------------- text stays text
def test_hostile_texts_are_data(tmp_path: Path) -> None:
    long = "x" * 100_000
    rows = [
        record(0, 1.0, HOSTILE, group=HOSTILE, prompt_text=HOSTILE, rewards={HOSTILE: 1.0}),
        record(1, 0.0, long, group=HOSTILE),
    ]
    for r in rows:
        r["turns"] = [{"action_text": r["turns"][0]["action_text"], "state": HOSTILE, "agent": HOSTILE,
                       "observation_text": HOSTILE}]  # fmt: skip
    rows[0]["turns"][0]["action_text"] = "\ud800 half " + HOSTILE
    run = tmp_path / "<img src=x>"
    path = write(run / "a.jsonl", rows)
    text = rollout_page.explain(path)
    parsed = Parsed(text)
    assert parsed.tags.count("script") == 2 and "img" not in parsed.tags
    assert text.count("</script>") == 2 and "<!--" not in text and "\u2028" not in text and "\x00" not in text
    data = parsed.data
    assert data["groups"]["name"] == [HOSTILE] and data["agents"] == [HOSTILE] and HOSTILE in data["texts"]
    assert "\ud800" in data["words"][0] and sum(map(len, data["words"])) < 2000  # the long text is one piece, repeated


def test_the_command(tmp_path: Path) -> None:
    path = write(tmp_path / "some.jsonl", [record(i, r) for i, r in enumerate([1, 0])])
    out = tmp_path / "page.html"
    code, said, error = command_line.run(["explain", path, "--methods", "grpo,rloo", "--out", out])
    assert code == 0 and "MB" in said, error
    assert "rloo" in out.read_text()


@pytest.mark.thorough
def test_ten_thousand_rollouts_fit_into_thirty_megabytes() -> None:
    source = many(1250, 8, tokens=50)
    looks = [look(m, source.forest) for m in ("grpo", "dr_grpo", "lite_ppo")]
    text = rollout_page.written(source, looks)
    assert len(Parsed(text).data["R"]["id"]) == 10_000
    assert len(text.encode()) < 30e6


def test_rollouts_whose_actions_are_empty_have_a_page(tmp_path: Path) -> None:
    for name, turns in {
        "empty": [{"action": []}],
        "after": [{"observation": [1, 2], "action": []}],
        "text": [{"action": None, "action_text": ""}],
        "two": [{"action": []}, {"observation": [3], "action": []}],
    }.items():
        path = tmp_path / f"{name}.jsonl"
        record = {"schema": "gxpo.rollouts/1", "group": "g", "turns": turns}
        path.write_text("".join(json.dumps({**record, "id": str(i), "reward": i}) + "\n" for i in (0, 1)))
        code, out, err = command_line.run(["explain", path, "--out", tmp_path / f"{name}.html"])
        assert (code, err) == (0, "") and "open it in a browser" in out, (name, err)
    path.write_text(path.read_text() + '{"a":' * 100_000 + "1" + "}" * 100_000 + "\n")
    code, _, err = command_line.run(["explain", path])
    assert code == 2 and "line 3 is not JSON" in err


def test_a_pipe_in_the_place_of_a_file_is_an_error_and_nothing_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rollouts.jsonl")
    with pytest.raises(GxpoError, match=r"rollouts\.jsonl: is a pipe, not a regular file"):
        read(tmp_path / "rollouts.jsonl")
