from __future__ import annotations

import json

import numpy as np
import pytest

from gxpo.base.errors import ConfigError
from gxpo_worlds.buttons import Button, Buttons, Screen, draw_screen

# A red at (4, 5), C blue at (30, 6), E yellow at (24, 25), each 16 x 16
A, C, E = (
    Button("A", "red", (4, 5, 16, 16)),
    Button("C", "blue", (30, 6, 16, 16)),
    Button("E", "yellow", (24, 25, 16, 16)),
)


def at(wanted: str, names: str, text: str = "", **options) -> Buttons:
    env = Buttons(style=options.pop("style", "bare"), **options)
    env.reset(0)
    env._level = Screen((A, C, E), tuple(wanted), tuple(names.split()), text)
    return env


def text_of(step) -> str:
    return step.observation[0]["content"][1]["text"]


def test_a_screen_by_hand():
    pixels = draw_screen(Screen((A, C, E), ("A",), ("red",), ""), "C", "42", False)
    assert pixels.shape == (64, 64, 3)
    assert pixels[5, 4].tolist() == pixels[20, 19].tolist() == [220, 40, 40]
    assert pixels[4, 4].tolist() == pixels[5, 3].tolist() == [50, 50, 56]
    # C is pressed: two pixels of white around it
    assert (pixels[6:8, 30:46] == 255).all() and pixels[8, 32].tolist() == [60, 90, 240]
    # the field is white from (3, 47), 36 x 14; "42" is 14 x 10 and black in its middle, 11 to the right and 2 down
    field = pixels[47:61, 3:39]
    black = np.argwhere((field == 0).all(axis=2))
    assert (black.min(axis=0).tolist(), black.max(axis=0).tolist()) == ([2, 11], [11, 24])
    done = draw_screen(Screen((A,), (), (), "1"), "", "", True)
    assert (done[47, 42] != pixels[47, 42]).any()


def test_a_click_by_hand():
    env = at("A", "red")
    assert text_of(env._time_step(None)) == "red"
    message = [env.step(a) for a in ("click(30,6)", "click(45,21)", "click(19,20)")]  # C, C again, A
    assert [s.state for s in message] == ["C||", "||", "A||"]
    assert [s.success for s in message] == [None, None, True] and message[-1].done and not message[-1].truncated
    assert all(s.reward is None for s in message)


@pytest.mark.parametrize("place", ["3,5", "20,5", "4,4", "4,21", "63,0", "9999,9999", "10,50"])
def test_clicks_beside_all_buttons_are_illegal(place):
    step = at("A", "red").step(f"click({place})")
    assert (step.action_error, step.state, step.done) == ("illegal", "||", False)


def test_typing_and_ok_by_hand():
    env = at("C", "C", "7", max_turns=8)
    assert text_of(env._time_step(None)) == "C 7 OK"
    message = [env.step(a) for a in ("type(3)", "type(3)", "type(7)", "type(TOOLONG)", "click(31,7)", "click(61,60)")]
    assert [s.state for s in message] == ["|3|", "|3|", "|7|", "|7|", "C|7|", "C|7|ok"]
    assert [s.action_error for s in message] == [None, "illegal", None, "illegal", None, None]
    assert [s.success for s in message] == [None] * 5 + [True]


@pytest.mark.parametrize(
    ("wanted", "text", "actions"),
    [
        ("A", "", ["click(52,54)"]),  # OK where nobody asked for it
        ("", "7", ["click(52,54)"]),  # nothing typed
        ("", "7", ["type(8)", "click(52,54)"]),
        ("", "7", ["type(7)", "click(5,6)", "click(52,54)"]),  # pressed what it was not told to
        ("A", "7", ["type(7)", "click(52,54)"]),
    ],
)
def test_what_fails(wanted, text, actions):
    env = at(wanted, "red" if wanted else "", text)
    last = [env.step(a) for a in actions][-1]
    assert (last.done, last.success, last.truncated) == (True, False, False)


def test_two_buttons_in_any_order_and_no_third():
    for order in (["click(5,6)", "click(31,7)"], ["click(31,7)", "click(5,6)"]):
        env = at("AC", "red C")
        assert [env.step(a).success for a in order] == [None, True]
    env = at("AC", "red C")
    message = [env.step(a).success for a in ("click(25,26)", "click(5,6)", "click(31,7)", "click(25,26)")]
    assert message == [None, None, None, True]  # E has to be released first


NO_ACTIONS = [
    "", "click", "click(1)", "click(1,2,3)", "click(-1,2)", "click(a,b)", "type()", "type(a b)", "type(7", "press(A)",
    "7", "click(1.5,2)", "type(\u0667)",
]  # fmt: skip


@pytest.mark.parametrize("text", NO_ACTIONS)
def test_what_is_no_action(text):
    step = at("A", "red").step(text)
    assert (step.action_error, step.state) == ("malformed", "||")


def test_how_actions_may_be_written():
    for action in ('type("ab1")', "TYPE( ab1 )", "<action>type('AB1')</action>", "type(AB1)"):
        assert at("A", "red").step(action).state == "|AB1|"
    assert at("A", "red").step("Click( 5 , 6 )").state == "A||"


def test_the_expert_undoes_and_does():
    env = at("A", "red", "7", max_turns=9)
    env.step("click(25,26)")
    env.step("type(9)")
    done = []
    while (action := env.expert()) is not None:
        done.append(action)
        last = env.step(action)
    # E is released, A is pressed (middles at 8 to the right and below of their corners), then the text, then OK
    assert done == ["click(32,33)", "click(12,13)", "type(7)", "click(52,54)"] and last.success is True


def test_instructions_in_words():
    message = lambda *a: text_of(at(*a, style="chat")._time_step(None))  # noqa: E731
    assert message("A", "red") == "Click the red button."
    assert message("AC", "red C") == "Click the red button and the button C."
    assert message("", "", "7") == "Type 7, then click OK."
    assert message("CA", "C red", "7") == "Click the button C and the red button, type 7, then click OK."


def test_what_seeds_make():
    kinds = {n: Buttons(steps=[n], buttons=4) for n in (1, 2, 3, 4)}
    for seed in range(60):
        for steps, env in kinds.items():
            screen = env._make(seed)
            assert len(screen.targets) + 2 * bool(screen.text) == steps
            boxes = np.zeros((64, 64), int)
            for button in screen.buttons:
                x, y, width, height = button.box
                boxes[y : y + height, x : x + width] += 1
            assert boxes.max() == 1 and boxes.sum() == 4 * 256 and not boxes[47:].any()
            letters, colours = ({getattr(b, name) for b in screen.buttons} for name in ("letter", "colour"))
            assert len(letters) == len(colours) == 4
            called = {b.letter: (b.letter, b.colour) for b in screen.buttons}
            assert all(name in called[letter] for name, letter in zip(screen.names, screen.targets, strict=True))
    env = Buttons()
    assert len({env.content(seed) for seed in range(300)}) == 300


def test_a_state_that_is_no_state_of_this_screen_is_no_snapshot():
    env = Buttons()
    env.reset(3)
    letters = sorted(b.letter for b in env._level.buttons)
    for state, sound in (
        (f"{letters[0]}{letters[1]}|7|", True),
        (f"{letters[1]}{letters[0]}|7|", False),
        ("|7", False),
    ):
        if sound:
            env.restore(json.dumps({"seed": 3, "turn": 1, "state": state}))
        else:
            with pytest.raises(Exception, match="no snapshot"):
                env.restore(json.dumps({"seed": 3, "turn": 1, "state": state}))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"steps": []}, "steps must name some of 1, 2, 3, 4"),
        ({"steps": [5]}, "steps must name some"),
        ({"steps": 3}, "steps must name some"),
        ({"buttons": 7}, "from 2 to 6, not 7"),
        ({"buttons": 1}, "from 2 to 6, not 1"),
        ({"max_turns": 3}, "steps=4 can't be done in max_turns=3"),
    ],
)
def test_options_that_make_no_sense(options, match):
    with pytest.raises(ConfigError, match=match) as caught:
        Buttons(**options)
    assert "\n" not in str(caught.value)


def test_the_level_counts_actions_and_one_click_has_an_answer():
    env = Buttons(style="bare", steps=[1, 2, 3], max_turns=3)
    for seed in range(40):
        env.reset(seed)
        taken = []
        while (action := env.expert()) is not None:
            taken.append(action)
            env.step(action)
        assert env.level(seed) == len(taken)
        assert env.answer(seed) == (taken[0] if len(taken) == 1 else None)
