"""TextWorldExpress games (Jansen and Côté 2023, arXiv:2208.01174), which run in a Java process.

The episodes of a Python process share one Java process, which ends with it. Two running `sorting` games of one seed
would share their objects in there, so each episode of that game has a Java process of its own.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
from dataclasses import dataclass
from typing import Any

from gxpo.base.errors import did_you_mean, need
from gxpo.environments.envs.actions import action_text, find_action
from gxpo.environments.envs.adapters import AdapterError, digest
from gxpo.parts.protocols import TimeStep

GAMES = ("arithmetic", "coin", "cookingworld", "mapreader", "peckingorder", "simonsays", "sorting", "twc")
FOLDS = {"train": "getSeedsTrain", "dev": "getSeedsDev", "test": "getSeedsTest"}
ALONE = ("sorting",)
UNKNOWN = "Unknown action"  # how the library's answer to what it can't carry out begins


def _start() -> Any:
    """Start a Java process of the library."""
    library = need("textworld_express", "textworld")
    if shutil.which("java") is None:
        raise AdapterError("textworld games run in Java and there is no `java` on PATH: install a Java runtime")
    try:
        return library.TextWorldExpressEnv()
    except Exception as error:
        raise AdapterError(f"the Java process of textworld-express does not start: {error}") from error


@functools.lru_cache(maxsize=1)
def _shared_process(process: int) -> Any:
    """Java process shared by the episodes of a Python process; `process` keeps a fork from using its parent's."""
    return _start()


@functools.lru_cache(maxsize=1)
def _idle_processes(process: int) -> list[Any]:
    """Java processes of episodes that are over, for the next ones."""
    return []


def _strip_lines(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()).strip()


@dataclass
class TextWorldExpress:
    """A TextWorldExpress game. Equal seeds and actions give equal observations, in every process.

    id            arithmetic, coin, cookingworld, mapreader, peckingorder, simonsays, sorting or twc
    fold          "train", "dev" or "test": 1000 games each; a seed counts modulo their number
    params        the game's parameters, such as "numLocations=3,includeDoors=0"; "" has the library's defaults
    max_turns     actions an episode may have; then it is over and truncated
    list_actions  every observation ends with what is possible; without it the policy has to know the grammar
    look          the surroundings and the inventory are described after every action, not after `reset` alone

    reward        change of the game's score, whose sum is 1 where the game is won and -1 where it is lost
    state         what can be seen, carried and done, and the score. Of two states that differ only in what is hidden
                  (a door in another room), it is the same; so it is an approximation of the state
    expert        the next action of a winning path; None once the episode has left it. The library draws the path
                  anew each time, so unlike the game it is not the same for equal seeds
    """

    id: str
    fold: str = "train"
    params: str = ""
    max_turns: int = 50
    list_actions: bool = True
    look: bool = False

    instructions = (
        "You play a text game. Each turn, reply with one action of the game between <action> and </action>, "
        "for example <action>look around</action>."
    )

    def __post_init__(self) -> None:
        if self.id not in GAMES:
            raise AdapterError(f"textworld has no game {self.id!r}{did_you_mean(self.id, GAMES)}; there are {GAMES}")
        if self.fold not in FOLDS:
            raise AdapterError(f"textworld:{self.id}: fold is one of {sorted(FOLDS)}, not {self.fold!r}")
        if self.max_turns < 1:
            raise AdapterError(f"textworld:{self.id}: max_turns must be at least 1, not {self.max_turns}")
        # an idle process of an episode that is over is used again: starting Java takes seconds
        needs_own_process = self.id in ALONE
        host = (_idle_processes(os.getpid()) or [_start()]).pop() if needs_own_process else _shared_process(os.getpid())
        self._host = host if needs_own_process else None
        self._game = host._gateway.jvm.textworldexpress.runtime.PythonInterface()
        refusal = self._game.load(self.id, self.params)
        if refusal:
            raise AdapterError(f"textworld:{self.id}: params {self.params!r} are refused: {' '.join(refusal.split())}")
        self._seeds = list(getattr(self._game, FOLDS[self.fold])())

    def reset(self, seed: int) -> TimeStep:
        game = self._seeds[seed % len(self._seeds)]
        self._answer = json.loads(self._game.generateNewGameJSON(game, self.fold, True))
        self._turns, self._score = 0, float(self._answer["score"])
        self._winning_path: list[str] | None = list(self._game.getGoldActionSequence())
        parts = [f"Task: {self._game.getTaskDescription()}", self._answer["observation"], self._answer["inventory"]]
        return self._time_step("\n\n".join(map(_strip_lines, filter(None, parts))))

    def step(self, action: str) -> TimeStep:
        self._turns += 1
        truncated = self._turns >= self.max_turns
        # an action that is not in the list is tried all the same: the game itself tells if it can't carry it out
        name = find_action(action, self.legal()) or " ".join(action_text(action).casefold().split())
        if not name:
            verdict = False if truncated else None
            wrong = {"action_error": "malformed", "truncated": truncated, "done": truncated, "success": verdict}
            return self._time_step("There is no action in this.", reward=0.0, **wrong)
        answer = json.loads(self._game.stepJSON(name))
        text = _strip_lines(answer["observation"])
        error = "illegal" if text.startswith(UNKNOWN) else None
        if error is None:  # what the game can't read changes nothing in it
            self._answer = answer
        self._follow(name, error)
        score = float(self._answer["score"])
        reward, self._score = score - self._score, score
        success = bool(self._answer["tasksuccess"])
        is_over = success or bool(self._answer["taskfailure"])
        done = is_over or truncated
        if self.look:
            around = (self._answer["look"], self._answer["inventory"])
            text = "\n\n".join([text, *(part for part in map(_strip_lines, around) if part and part != text)])
        outcome = {"done": done, "truncated": truncated and not is_over, "success": success if done else None}
        return self._time_step(text, reward=reward, action_error=error, **outcome)

    def legal(self) -> tuple[str, ...]:
        return tuple(sorted(self._answer["validActions"]))

    def expert(self) -> str | None:
        return self._winning_path[0] if self._winning_path else None

    def content(self, seed: int) -> str:
        """Name of the seed's game; the library's folds are disjoint."""
        return f"textworld:{self.id}/{self.params}/{self.fold}/{self._seeds[seed % len(self._seeds)]}"

    def close(self) -> None:
        if self._host is not None:
            _idle_processes(os.getpid()).append(self._host)
            self._host = None

    def _follow(self, name: str, error: str | None) -> None:
        """Advance along the winning path, which holds a few actions that do nothing, or give it up."""
        if self._winning_path and name == self._winning_path[0]:
            self._winning_path = self._winning_path[1:]
        elif error is None:
            self._winning_path = None

    def _time_step(self, text: str, **outcome: Any) -> TimeStep:
        answer = self._answer
        # A game without rooms (simonsays) has nothing to look at: what it says is its state.
        view = answer["look"] or answer["observation"]
        state = digest(
            view, answer["inventory"], self.legal(), answer["score"], answer["tasksuccess"], answer["taskfailure"]
        )
        if self.list_actions and not outcome.get("done"):
            text += "\n\nPossible actions: " + ", ".join(self.legal())
        return TimeStep(text, state, **outcome)
