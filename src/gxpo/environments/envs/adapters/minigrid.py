"""MiniGrid and BabyAI (Chevalier-Boisvert et al., 2019, 2023; arXiv:1810.08272, 2306.13831) as text environments."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass, field, replace
from typing import Any

from gxpo.base.drawing import scaled
from gxpo.base.errors import did_you_mean, need
from gxpo.environments.envs.actions import action_text, find_action
from gxpo.environments.envs.adapters import AdapterError, digest
from gxpo.parts.protocols import Message, TimeStep

# Our words for the library's actions, by their numbers.
ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle", "done")
EMPTY = ("unseen", "empty")
TILE, SIDE = 8, 64  # pixels of a cell, and of the picture that is made of them
FAMILIES = ("MiniGrid-", "BabyAI-")
PROGRESS = ("a_done", "b_done", "lastStepMatch")  # what an instruction remembers between steps


def _place(ahead: int, right: int) -> str:
    """Words for the position of a cell in the agent's view.

    >>> _place(2, -1), _place(1, 0), _place(0, 3)
    ('2 ahead, 1 to the left', '1 ahead', '3 to the right')
    """
    parts = [f"{ahead} ahead"] if ahead else []
    if right:
        parts.append(f"{abs(right)} to the {'right' if right > 0 else 'left'}")
    return ", ".join(parts)


def describe(view: Any, names: tuple[dict[int, str], dict[int, str], dict[int, str]]) -> str:
    """Describe the agent's view: what it carries, the walls around it, and each object by position, nearest first.

    view   [columns, rows, 3] ids of object, colour and door state; the agent is in the middle of the last row,
           looks along the rows towards the first, and what it carries is written on its own cell
    names  of objects, colours and door states
    """
    objects, colours, doors = names
    columns, rows = len(view), len(view[0])
    middle, last = columns // 2, rows - 1

    def thing(column: int, row: int) -> str:
        """Name of a cell's object, with its colour and a door's state."""
        kind, colour, state = (int(x) for x in view[column][row])
        name = objects[kind]
        if name in (*EMPTY, "wall", "lava"):
            return name
        return f"{doors[state] + ' ' if name == 'door' else ''}{colours[colour]} {name}"

    # nearest first, ties ahead before beside: the order does not depend on the library's array
    cells = sorted(
        (last - row + abs(column - middle), last - row, column - middle)
        for column in range(columns)
        for row in range(rows)
        if (column, row) != (middle, last)
    )
    cell_contents = [(thing(middle + right, last - ahead), ahead, right) for _, ahead, right in cells]
    cargo = thing(middle, last)
    lines = [f"You carry {'nothing' if cargo in EMPTY else 'a ' + cargo}."]
    # of walls only the first one in each direction matters, as it ends the way
    walls = [
        next(
            (
                f"{way} {abs(ahead or right)}"
                for name, ahead, right in cell_contents
                if name == "wall" and is_on_axis(ahead, right)
            ),
            "",
        )
        for way, is_on_axis in (
            ("ahead", lambda ahead, right: right == 0),
            ("left", lambda ahead, right: ahead == 0 and right < 0),
            ("right", lambda ahead, right: ahead == 0 and right > 0),
        )
    ]
    if any(walls):
        lines.append("Walls, in steps: " + ", ".join(filter(None, walls)) + ".")
    things = [
        f"- {name}: {_place(ahead, right)}" for name, ahead, right in cell_contents if name not in (*EMPTY, "wall")
    ]
    return "\n".join([*lines, *(["You see, in steps:", *things] if things else ["You see nothing else."])])


@dataclass
class MiniGrid:
    """A MiniGrid or BabyAI level in text. Deterministic given seed and actions.

    id         of the level, such as "BabyAI-GoToLocal-v0" or "MiniGrid-DoorKey-5x5-v0"
    max_turns  actions an episode may have; the library's reward counts against it
    options    of the level's constructor, such as {"see_through_walls": true}
    pixels     show the agent's view as a picture of 64 x 64 pixels, with the mission as text, instead of words; states,
               actions and tasks stay what they are

    reward     the library's: 1 - 0.9 t / max_turns on success after t actions, else 0 (-1 for some obstacles)
    success    the episode ended with a positive reward
    state      the whole grid, the agent's place and direction, what it carries, what boxes hold, and how far the
               mission has come. Levels whose obstacles move at random have hidden state: their random generator
    expert     BabyAI's own bot, in BabyAI's levels alone, which have instructions; None where it gives up. It knows
               what it has seen, so it explores; its authors name four levels that it can't solve
    """

    id: str
    max_turns: int = 64
    options: dict[str, Any] = field(default_factory=dict)
    pixels: bool = False

    instructions = (
        "You are an agent in a grid of cells and see what is in front of you. Each turn, reply with one action "
        f"between <action> and </action>: {', '.join(ACTIONS)}. An object is picked up, and a door or box is toggled, "
        "when it is 1 ahead; an object is dropped on the empty cell 1 ahead."
    )

    def __post_init__(self) -> None:
        gymnasium = need("gymnasium", "minigrid")
        need("minigrid", "minigrid")  # registers its levels
        levels = [name for name in gymnasium.registry if name.startswith(FAMILIES)]
        if self.id not in levels:
            raise AdapterError(f"minigrid has no level {self.id!r}{did_you_mean(self.id, levels)}")
        if not isinstance(self.pixels, bool):
            raise AdapterError(f"minigrid:{self.id}: pixels must be true or false, not {self.pixels!r}")
        if self.max_turns < 1:
            raise AdapterError(f"minigrid:{self.id}: max_turns must be at least 1, not {self.max_turns}")
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                env = gymnasium.make(self.id, max_steps=self.max_turns, disable_env_checker=True, **self.options)
        except TypeError as error:
            raise AdapterError(f"minigrid:{self.id}: options {self.options!r} are refused ({error})") from error
        self._env = env.unwrapped
        constants = need("minigrid.core.constants", "minigrid")
        states = {number: name for name, number in constants.STATE_TO_IDX.items()}
        if not self.id.startswith("BabyAI"):  # the bot follows instructions, which other levels do not have
            self.expert = None  # type: ignore[assignment, method-assign]
        self._twin: MiniGrid | None = None
        self._names = (constants.IDX_TO_OBJECT, constants.IDX_TO_COLOR, states)

    def reset(self, seed: int) -> TimeStep:
        with contextlib.redirect_stdout(io.StringIO()):  # BabyAI prints every mission that it rejects
            view, _ = self._env.reset(seed=seed)
        self._turns, self._bot, self._new_actions, self._advice = 0, None, [], None
        return TimeStep(self._observation(f"Mission: {self._env.mission}\n", view), self._state())

    def step(self, action: str) -> TimeStep:
        self._turns += 1
        self._env.step_count = self._turns - 1  # an action that can't be read takes time, too
        name = find_action(action, ACTIONS)
        if name is None:
            is_over = self._turns >= self.max_turns
            excerpt = " ".join(action_text(action).split())[:80]
            text = f"{excerpt!r} is not an action. Reply with one of: {', '.join(ACTIONS)}."
            verdict = False if is_over else None
            return TimeStep(self._with_view(text), self._state(), 0.0, is_over, verdict, "malformed", is_over)
        # our names are in the order of the library's numbers
        number = ACTIONS.index(name)
        view, reward, is_terminated, out_of_time, _ = self._env.step(self._env.actions(number))
        self._new_actions.append(number)
        done = bool(is_terminated or out_of_time)
        success = bool(is_terminated and reward > 0) if done else None
        truncated = bool(out_of_time and not is_terminated)
        return TimeStep(self._observation("", view), self._state(), float(reward), done, success, None, truncated)

    def legal(self) -> tuple[str, ...]:
        return ACTIONS

    def expert(self) -> str | None:
        """Action of BabyAI's bot; None where the bot gives up. Levels without instructions have no such method."""
        # the bot plans from the actions that it was told of, so asking twice in one state must not tell it twice
        if self._bot is not None and not self._new_actions:
            return self._advice  # asked again about the same state
        bots = need("minigrid.utils.baby_ai_bot", "minigrid")
        try:
            if self._bot is None or len(self._new_actions) > 1:  # it has to be told of every action as it happens
                self._bot, self._new_actions = bots.BabyAIBot(self._env), []
            last_action = self._env.actions(self._new_actions.pop()) if self._new_actions else None
            advice = self._bot.replan(last_action)
        except (AssertionError, ValueError, IndexError, AttributeError, TypeError, bots.DisappearedBoxError):
            self._bot = None
            return None
        self._advice = None if advice is None else ACTIONS[int(advice)]
        return self._advice

    def content(self, seed: int) -> str:
        """The initial level, mission and whole grid."""
        if self._twin is None:
            self._twin = replace(self)  # the running episode stays as it is
        return f"minigrid:{self.id}/{self._twin.reset(seed).state}"

    def close(self) -> None:
        self._env.close()

    def _observation(self, before: str, view: dict[str, Any]) -> str | tuple[Message, ...]:
        return self._with_view("") if self.pixels else before + describe(view["image"], self._names)

    def _with_view(self, text: str) -> str | tuple[Message, ...]:
        """Observation of a text; in pixels with view and mission, as a window may show the policy nothing else."""
        if not self.pixels:
            return text
        # what RGBImgPartialObsWrapper shows
        frame = self._env.get_frame(tile_size=TILE, agent_pov=True)
        parts = [
            {"type": "image", "image": scaled(frame, SIDE, SIDE)},
            {"type": "text", "text": f"{text}{text and chr(10)}Mission: {self._env.mission}"},
        ]
        return ({"role": "user", "content": parts},)

    def _state(self) -> str:
        env = self._env
        cargo = None if env.carrying is None else env.carrying.encode()
        boxes = [
            (index, inside.encode())
            for index, thing in enumerate(env.grid.grid)
            if (inside := getattr(thing, "contains", None)) is not None
        ]
        pose = [int(x) for x in env.agent_pos], int(env.agent_dir)
        return digest(env.grid.encode().tobytes(), pose, cargo, boxes, env.mission, _progress(env))


def _progress(env: Any) -> list[Any]:
    """Progress flags of the mission's instruction and of its parts, which the grid does not show."""
    flags, stack = [], [getattr(env, "instrs", None)]
    while stack:
        instruction = stack.pop()
        if instruction is not None:
            flags += [str(getattr(instruction, name, "")) for name in PROGRESS]
            stack += [getattr(instruction, name, None) for name in ("instr_a", "instr_b")]
    return flags
