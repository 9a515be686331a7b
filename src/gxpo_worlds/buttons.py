"""Buttons: a toy screen of coloured buttons with letters, a text field and OK; click and type as instructed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gxpo.base.drawing import BLACK, COLOURS, WHITE, Box, canvas, fill, frame, write_in
from gxpo.base.errors import ConfigError
from gxpo_worlds.grid import LEVEL, stream
from gxpo_worlds.screen import ScreenWorld

if TYPE_CHECKING:
    from gxpo.base.media import Pixels

SIDE = 64  # pixels of the screen
CELLS = [(2 + 20 * column, 2 + 21 * row) for row in range(2) for column in range(3)]  # 20 x 21 pixels each
BUTTON, SPARE = 16, 4  # pixels of a button's side, and by how much it may be off its cell's corner
FIELD, OK = (3, 47, 36, 14), (42, 47, 20, 14)
LETTERS = "ACEFHLPTU"  # that 3 x 5 pixels tell apart well
LONGEST = 4  # characters in the field
SCREEN, IDLE, CLICKED = (50, 50, 56), (185, 185, 190), (120, 220, 130)
CALLED = ("colour", "letter")
MOST = 4  # actions that an instruction asks for

CLICK = re.compile(r"click\(\s*([0-9]{1,4})\s*,\s*([0-9]{1,4})\s*\)", re.IGNORECASE)
TYPE = re.compile(r"""type\(\s*(["']?)([A-Za-z0-9]{1,32})\1\s*\)""", re.IGNORECASE)
STATE = re.compile(rf"([A-Z]*)\|([A-Z0-9]{{0,{LONGEST}}})\|(|ok)")

Action = tuple[int, int] | str  # a place that is clicked, or a text that is typed


@dataclass(frozen=True)
class Button:
    """A coloured square with a letter."""

    letter: str
    colour: str
    box: Box


@dataclass(frozen=True)
class Screen:
    """Level: the buttons of a screen and an instruction.

    targets  letters of the buttons to be pressed
    names    the instruction's words for them, a colour or a letter each
    text     to be typed before OK is clicked; "": OK is not to be clicked
    """

    buttons: tuple[Button, ...]
    targets: tuple[str, ...]
    names: tuple[str, ...]
    text: str


def draw_screen(screen: Screen, pressed: str, text: str, is_clicked: bool) -> Pixels:
    """Draw a screen, pixels [64, 64, 3]; pressed buttons have a white edge.

    pressed     letters of the pressed buttons
    text        in the field
    is_clicked  True if OK was clicked
    """
    pixels = canvas(SIDE, SIDE, SCREEN)
    for button in screen.buttons:
        colour = COLOURS[button.colour]
        fill(pixels, button.box, colour)
        write_in(pixels, button.letter, button.box, BLACK if sum(colour) > 450 else WHITE, 2)
        if button.letter in pressed:
            frame(pixels, button.box, WHITE, 2)
    fill(pixels, FIELD, WHITE)
    write_in(pixels, text, FIELD, BLACK, 2)
    fill(pixels, OK, CLICKED if is_clicked else IDLE)
    write_in(pixels, "OK", OK, BLACK, 2)
    return pixels


@dataclass(kw_only=True)
class Buttons(ScreenWorld[Screen, Action]):
    """Buttons: "Click the red button and the button C, type 7, then click OK." on a screen of 64 x 64 pixels.

    `click(x,y)`  in pixels of the screen from its top left corner: presses a button or releases it; OK ends the episode
    `type(TEXT)`  puts up to 4 letters and digits into the field, in place of what is there

    Without OK in the instruction, the episode succeeds as soon as the buttons that are named are pressed and no others;
    OK fails it. With it, when OK is clicked and buttons and text are as they should be, in whatever order they
    came to be so. Clicks beside all buttons are illegal.

    steps    numbers of actions that instructions ask for, some of 1 to 4
    buttons  on the screen, 2 to 6
    called   how instructions name a button: by its "colour", its "letter", or each half of the time

    `level(seed)` is the number of actions asked for; `answer(seed)`, where that is one, the click into the middle.

    The state is `LETTERS|TEXT|`: what is pressed and what is typed; `ok` at its end: OK was clicked.
    """

    max_turns: int = 6
    steps: Sequence[int] = (1, 2, 3, 4)
    buttons: int = 3
    called: Sequence[str] = ("colour", "letter")

    name: ClassVar[str] = "buttons"
    first: ClassVar[str] = "||"
    example: ClassVar[str] = "click(20,30)"

    def _check(self) -> None:
        step_counts = range(1, MOST + 1)
        if not isinstance(self.steps, list | tuple) or not self.steps or any(s not in step_counts for s in self.steps):
            raise ConfigError(f"buttons: steps must name some of 1, 2, 3, 4, not {self.steps!r}")
        if not isinstance(self.called, list | tuple) or not self.called or any(c not in CALLED for c in self.called):
            raise ConfigError(f"buttons: called must name some of colour, letter, not {self.called!r}")
        if type(self.buttons) is not int or not 2 <= self.buttons <= len(CELLS):
            raise ConfigError(f"buttons: buttons must be a whole number from 2 to {len(CELLS)}, not {self.buttons!r}")
        if max(self.steps) > self.max_turns:
            raise ConfigError(f"buttons: steps={max(self.steps)} can't be done in max_turns={self.max_turns}")

    def _rules(self) -> str:
        return (
            f"You see a screen of {SIDE} x {SIDE} pixels: buttons, a white text field, and OK. Do what you are told.\n"
            "click(x,y) clicks x pixels from the left, y from the top; a button that is pressed has a white edge and "
            "is released by another click. type(TEXT) fills the field. OK ends it all: click it only if told to."
        )

    def _make(self, seed: int) -> Screen:
        random = stream(LEVEL, seed)
        steps = self.steps[int(random.integers(len(self.steps)))]
        # text and OK are two steps, and at most two buttons are named: of two steps, either
        with_text = steps > 2 or (steps == 2 and random.random() < 0.5)
        pressed = steps - 2 if with_text else steps
        letters = [LETTERS[k] for k in random.permutation(len(LETTERS))[: self.buttons]]
        colours = [str(c) for c in random.permutation(list(COLOURS))[: self.buttons]]
        boxes = [self._place(CELLS[k], random) for k in random.permutation(len(CELLS))[: self.buttons]]
        buttons = tuple(Button(*properties) for properties in zip(letters, colours, boxes, strict=True))
        called = [CALLED[int(random.random() < 0.5)] for _ in range(pressed)]
        # drawn before the option is looked at: the same seed has the same buttons under every option
        called = [kind if kind in self.called else self.called[0] for kind in called]
        names = tuple(getattr(b, kind) for b, kind in zip(buttons, called, strict=False))
        text = str(random.integers(10)) if with_text else ""
        return Screen(buttons, tuple(letters[:pressed]), names, text)

    @staticmethod
    def _place(cell: tuple[int, int], random: np.random.Generator) -> Box:
        right, down = (int(k) for k in random.integers(SPARE + 1, size=2))
        return cell[0] + right, cell[1] + down, BUTTON, BUTTON

    def content(self, seed: int) -> str:
        screen = self._make(seed)
        buttons = sorted(f"{b.letter} {b.colour} {b.box[0]},{b.box[1]}" for b in screen.buttons)
        return "; ".join([" ".join([*screen.names, screen.text]), *buttons])

    def level(self, seed: int) -> int:
        """Difficulty of an instance: the number of actions that its instruction asks for."""
        screen = self._make(seed)
        return len(screen.targets) + 2 * bool(screen.text)

    def answer(self, seed: int) -> str | None:
        """Click into the middle of the target, of an instance that takes one click; None for others."""
        screen = self._make(seed)
        return _click(screen.buttons[0].box) if len(screen.targets) == 1 and not screen.text else None

    def _read(self, text: str) -> Action | None:
        if match := CLICK.fullmatch(text):
            return int(match[1]), int(match[2])
        match = TYPE.fullmatch(text)
        return None if match is None else match[2].upper()

    def _result(self, state: str, action: Action) -> str | None:
        pressed, text, _ = state.split("|")
        # typing replaces the text, so the same text again changes nothing
        if isinstance(action, str):
            return None if action == text or len(action) > LONGEST else f"{pressed}|{action}|"
        if _within(OK, action):
            return f"{state}ok"
        for button in self._level.buttons:
            if _within(button.box, action):
                return f"{''.join(sorted(set(pressed) ^ {button.letter}))}|{text}|"
        return None

    def _verdict(self, state: str) -> bool | None:
        pressed, text, click = state.split("|")
        right = set(pressed) == set(self._level.targets)
        # with OK only its click ends the episode; without, the buttons do, and OK is a mistake
        if self._level.text:
            return right and text == self._level.text if click else None
        return False if click else right or None

    def _picture(self, state: str) -> Pixels:
        pressed, text, click = state.split("|")
        return draw_screen(self._level, pressed, text, bool(click))

    def _question(self, state: str) -> str:
        names, text = self._level.names, self._level.text
        if self.style == "bare":
            return " ".join([*names, *([text, "OK"] if text else [])])
        called = [f"the button {name}" if name in LETTERS else f"the {name} button" for name in names]
        todo = [f"click {' and '.join(called)}"] if called else []
        todo += [f"type {text}", "then click OK"] if text else []
        instruction = ", ".join(todo)
        return f"{instruction[0].upper()}{instruction[1:]}."

    def _legal(self, state: str) -> list[str]:
        """Clicks into the middle of every button and of OK, and every digit."""
        clicks = [_click(button.box) for button in self._level.buttons]
        return [*clicks, _click(OK), *(f"type({d})" for d in "0123456789" if d != state.split("|")[1])]

    def _best(self, state: str) -> str:
        """Release wrong buttons, press missing ones, type, click OK, in this order."""
        pressed, text, _ = state.split("|")
        targets = set(self._level.targets)
        wrong = [b for b in self._level.buttons if (b.letter in pressed) != (b.letter in targets)]
        if wrong:
            return _click(min(wrong, key=lambda b: b.letter in targets).box)
        return f"type({self._level.text})" if text != self._level.text else _click(OK)

    def _is_state(self, state: str) -> bool:
        match = STATE.fullmatch(state)
        letters = {button.letter for button in self._level.buttons}
        return match is not None and "".join(sorted(letters & set(match[1]))) == match[1]


def _within(box: Box, place: tuple[int, int]) -> bool:
    x, y, width, height = box
    return x <= place[0] < x + width and y <= place[1] < y + height


def _click(box: Box) -> str:
    """Click into the middle of a box."""
    return f"click({box[0] + box[2] // 2},{box[1] + box[3] // 2})"
