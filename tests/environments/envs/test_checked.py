"""What counts as a TimeStep, and its way through JSON."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.environments.envs.small_worlds import ODD

from gxpo.base.media import PICTURES, png
from gxpo.environments.envs.checked import Nonsense, check_step, checked_about, checked_answer, from_fields, to_json
from gxpo.parts.protocols import TimeStep

texts = st.text(max_size=8)
messages = st.lists(st.fixed_dictionaries({"role": texts, "content": texts}), max_size=3).map(tuple)
steps = st.builds(
    TimeStep,
    texts | messages,
    st.none() | texts,
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none() | st.booleans(),
    st.sampled_from([None, "malformed", "illegal"]),
    st.just(False),
    st.dictionaries(texts, st.none() | st.integers() | texts | st.lists(st.booleans()), max_size=2),
)


PLAIN = check_step(TimeStep("n"))


def test_half_of_a_surrogate_pair_is_no_text() -> None:
    assert json.loads(to_json({"observation": "\U0001f600"})) == {"observation": "\U0001f600"}
    with pytest.raises(Nonsense, match="surrogates not allowed"):
        to_json({"observation": "a \ud800"})


@given(steps)
def test_a_time_step_comes_back_as_it_was(step: TimeStep) -> None:
    assert from_fields(json.loads(to_json(check_step(step)))) == step


@pytest.mark.parametrize("name", ODD)
def test_what_is_not_one_is_refused(name: str) -> None:
    with pytest.raises(Nonsense):
        to_json(check_step(ODD[name]))


def test_an_answer_holds_what_its_operation_gives() -> None:
    step = json.loads(to_json(check_step(TimeStep("n", "s", 0.5, info={"a": [1]}))))
    right = {
        "step": step, "reset": step | {"reward": None}, "restore": None, "close": None, "snapshot": "s", "content": "c",
        "expert": None, "answer": "4", "level": 2, "legal": ["a"],
    }  # fmt: skip
    for operation, value in right.items():
        assert checked_answer(operation, ["ok", value]) == ("ok", value)
        assert checked_answer(operation, ["raised", "step:\n no"]) == ("raised", "step: no")
    assert checked_answer("expert", ["ok", "go"]) == ("ok", "go")


@pytest.mark.parametrize(
    ("operation", "answer"),
    [
        *[("step", answer) for answer in (None, 3, [], ["ok"], {"ok": 1}, ["fine", None], [["ok"], None])],
        *[("step", ["ok", value]) for value in (None, "n", [], {}, {"observation": "n"}, PLAIN | {"more": 1})],
        *[("step", ["ok", PLAIN | {"reward": value}]) for value in (math.inf, math.nan, "1", 10**400)],
        *[("step", ["ok", PLAIN | {"done": 1}]), ("reset", ["ok", PLAIN | {"done": True}])],
        *[("close", ["ok", 1]), ("restore", ["ok", "s"]), ("snapshot", ["ok", None]), ("content", ["ok", 3])],
        *[("legal", ["ok", value]) for value in (None, "go", [1])],
        *[("step", ["raised", None]), ("step", ["nonsense", ["a"]]), ("expert", ["ok", 3])],
        *[("level", ["ok", value]) for value in (None, "2", 0.5, True)],
    ],
)
def test_another_answer_is_none(operation: str, answer: object) -> None:
    with pytest.raises((Nonsense, TypeError, ValueError, KeyError, OverflowError)):
        checked_answer(operation, answer)


@pytest.mark.parametrize(
    "changed",
    [
        {"max_turns": "3"},
        {"max_turns": True},
        {"tools": [1]},
        {"tools": None},
        {"provides": "all"},
        {"more": 1},
        {"blocking": 1},
    ],
)
def test_what_a_process_says_of_a_class_is_checked(changed: dict[str, Any]) -> None:
    about = {"instructions": "", "max_turns": 3, "tools": [], "provides": ["states"], "blocking": False}
    assert checked_about(["loaded", about]) == ("loaded", about)
    with pytest.raises((Nonsense, TypeError)):
        checked_about(["loaded", about | changed])


def test_numpys_scalars_count() -> None:
    odd: Any = TimeStep
    step = odd("n", reward=np.float32(0.5), done=np.bool_(True), success=np.bool_(False), info={"a": np.arange(2)})
    again = from_fields(json.loads(to_json(check_step(step))))
    assert again == TimeStep("n", reward=0.5, done=True, success=False, info={"a": [0, 1]})
    assert from_fields(check_step(odd("n", reward=3))).reward == 3.0


def test_truncated_is_over() -> None:
    assert check_step(TimeStep("n", truncated=True))["done"] is True


def test_reset_neither_ends_nor_pays() -> None:
    assert check_step(TimeStep("n"), first=True)["done"] is False
    for step in (TimeStep("n", done=True), TimeStep("n", truncated=True), TimeStep("n", reward=0.0)):
        with pytest.raises(Nonsense, match="reset"):
            check_step(step, first=True)


def test_messages_say_what_was_returned() -> None:
    with pytest.raises(Nonsense, match="returned None, not a TimeStep"):
        check_step(None)
    with pytest.raises(Nonsense, match="reward is nan, not a finite number"):
        check_step(TimeStep("n", reward=math.nan))
    with pytest.raises(Nonsense, match="state is a int, not a text"):
        check_step(ODD["state number"])


# ---------------------------------------------------------------- pictures
RED = np.array([[[255, 0, 0], [1, 2, 3]]], dtype=np.uint8)  # 1 x 2


def shown(picture: Any) -> TimeStep:
    parts = [{"type": "image", "image": picture}, {"type": "text", "text": "colour?"}]
    return TimeStep(({"role": "user", "content": parts}, {"role": "user", "content": "n"}))


def test_a_picture_travels_in_json_and_arrives_as_its_reference() -> None:
    text = to_json(check_step(shown(RED)))
    arrived, again = from_fields(json.loads(text)), from_fields(json.loads(text))
    assert arrived == again != from_fields(json.loads(to_json(check_step(shown(RED[:, ::-1])))))
    image, message = arrived.observation[0]["content"]
    assert message == {"type": "text", "text": "colour?"} and arrived.observation[1] == {"role": "user", "content": "n"}
    pixels = PICTURES.pixels(image["image"])
    assert pixels.tolist() == [[[255, 0, 0], [1, 2, 3]]] and pixels.dtype == np.uint8
    assert image["image"] == "sha256:" + hashlib.sha256(png(RED)).hexdigest() + ".png"
    assert check_step(arrived) == check_step(shown(RED))  # a reference travels as its picture, too
    assert checked_answer("step", ["ok", json.loads(text)]) == ("ok", json.loads(text))


def test_what_the_sender_has_is_left_alone() -> None:
    step = shown(RED)
    check_step(step)
    assert step.observation[0]["content"][0]["image"] is RED


def test_a_file_travels_as_its_pixels(tmp_path) -> None:
    np.save(tmp_path / "red.npy", RED)
    (tmp_path / "red.png").write_bytes(png(RED))
    for name in ("red.npy", "red.png"):
        assert check_step(shown(str(tmp_path / name))) == check_step(shown(RED))


@pytest.mark.parametrize(
    ("picture", "match"),
    [
        (RED.astype(float), r"uint8 \[height, width, 3\].*float64"),
        (RED[:, :, :2], "uint8"),
        (None, "NoneType"),
        ("https://a.b/c.png", "never fetched"),
        ("data:image/png;base64," + "A" * 400, "no picture"),
        ("sha256:" + "0" * 64 + ".png", "is not in"),
    ],
)
def test_what_is_no_picture_is_refused(picture: Any, match: str) -> None:
    with pytest.raises(Nonsense, match=match):
        check_step(shown(picture))
