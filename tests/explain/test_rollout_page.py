"""The page of `gxpo explain`: its content, its size, and that any text stays text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests import command_line
from tests.explain.rollout_pages import HOSTILE, ParsedReply, many, numbers, page_of, record, write

from gxpo.base.errors import GxpoError
from gxpo.explain import rollout_page
from gxpo.explain.outlook import look


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


# ---------------------------------------------------------------- choosing groups


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
    parsed = ParsedReply(text)
    assert parsed.tags.count("script") == 2 and "img" not in parsed.tags
    assert text.count("</script>") == 2 and "<!--" not in text and "\u2028" not in text and "\x00" not in text
    data = parsed.data
    assert data["groups"]["name"] == [HOSTILE] and data["agents"] == [HOSTILE] and HOSTILE in data["texts"]
    assert "\ud800" in data["words"][0] and sum(map(len, data["words"])) < 2000  # the long text is one piece, repeated


def test_the_command(tmp_path: Path) -> None:
    path = write(tmp_path / "some.jsonl", [record(i, r) for i, r in enumerate([1, 0])])
    out = tmp_path / "page.html"
    code, output, error = command_line.run(["explain", path, "--methods", "grpo,rloo", "--out", out])
    assert code == 0 and "MB" in output, error
    assert "rloo" in out.read_text()


@pytest.mark.thorough
def test_ten_thousand_rollouts_fit_into_thirty_megabytes() -> None:
    source = many(1250, 8, tokens=50)
    looks = [look(m, source.forest) for m in ("grpo", "dr_grpo", "lite_ppo")]
    text = rollout_page.page_text(source, looks)
    assert len(ParsedReply(text).data["R"]["id"]) == 10_000
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


def test_page_of_a_run_holds_its_steps_and_the_curve(tmp_path):
    for step, rewards in ((1, [0, 0, 0]), (2, [0, 1, 1]), (3, [1, 1, 1])):
        rows = [record(i, r, text=f"answer {step}") for i, r in enumerate(rewards)]
        write(tmp_path / "rollouts" / f"step-{step:06}.jsonl", rows)
    metrics = [{"step": 1, "reward_mean": 0.0}, {"step": 2, "reward_mean": 0.5}, {"step": 3}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(m) + "\n" for m in metrics))
    page = ParsedReply(rollout_page.run_text(tmp_path, [1, 2, 3], {}, max_steps=2))
    overview, first, last = (json.loads(x) for x in page.scripts[:3])
    assert overview == {"steps": [1, 3], "of": 3, "curve": [[1, 0.0], [2, 0.5]]}
    assert len(first["R"]["id"]) == len(last["R"]["id"]) == 3
    assert "step 1" in page.text and "step 3" in page.text and "step 2" not in page.text
