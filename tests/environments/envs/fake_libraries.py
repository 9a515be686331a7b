"""The small part of five libraries that `environments.envs.adapters` uses, written anew and as simple as it gets."""

from __future__ import annotations

import enum
import json
import logging
import random
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gxpo.parts.protocols import TimeStep


def module(name: str, **content: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(content)
    return module


# textworld-express: rooms in a row, a coin in the last; the Java side speaks JSON.
class Rooms:
    def load(self, game: str, params: str) -> str:
        return "" if params != "rooms=99" else "Too many\nrooms."

    def getSeedsTrain(self) -> list[int]:
        return [0, 1, 2]

    def getSeedsTest(self) -> list[int]:
        return [20, 21]

    def getTaskDescription(self) -> str:
        return "Take the coin."

    def getGoldActionSequence(self) -> list[str]:
        return ["move east"] * self.last + ["take coin"]

    def generateNewGameJSON(self, seed: int, fold: str, gold: bool) -> str:
        assert gold and fold in ("train", "dev", "test")
        self.last, self.room, self.won, self.lost = seed % 10 + 1, 0, False, False
        return self._answer(self._look())

    def stepJSON(self, action: str) -> str:
        if action == "take coin" and self.room == self.last:
            self.won = True
            return self._answer("You take it.")
        if action == "jump":
            self.lost = True
            return self._answer("You fall.")
        if action not in self._valid():
            return self._answer("Unknown action: I'm not sure what you mean.")
        self.room += 1
        return self._answer(self._look())

    def _look(self) -> str:
        return f"Room {self.room}. \n"

    def _valid(self) -> list[str]:
        return ["take coin"] if self.room == self.last else ["move east"]

    def _answer(self, observation: str) -> str:
        score = 1.0 if self.won else -1.0 if self.lost else self.room / (2 * self.last)
        return json.dumps(
            {"observation": observation, "look": self._look(), "inventory": "Nothing.", "validActions": self._valid(),
             "score": score, "tasksuccess": self.won, "taskfailure": self.lost}
        )  # fmt: skip


class TextWorldExpressEnv:
    started = 0

    def __init__(self) -> None:
        type(self).started += 1
        runtime = SimpleNamespace(PythonInterface=Rooms)
        self._gateway = SimpleNamespace(jvm=SimpleNamespace(textworldexpress=SimpleNamespace(runtime=runtime)))


def textworld() -> dict[str, ModuleType]:
    TextWorldExpressEnv.started = 0
    return {"textworld_express": module("textworld_express", TextWorldExpressEnv=TextWorldExpressEnv)}


# gymnasium and minigrid: a corridor that the agent walks to its end.
class Corridor:
    mission = "walk to the end"
    length = 3
    actions = staticmethod(int)
    carrying = None

    def __init__(self, max_steps: int, length: int = 3):
        self.max_steps, self.length, self.step_count = max_steps, length, 0
        self.grid = SimpleNamespace(encode=lambda: np.zeros((2, 2, 3), np.uint8), grid=[])
        self.unwrapped = self

    def reset(self, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        self.step_count, self.agent_pos, self.agent_dir = 0, (seed % 2, 0), 0
        return self._view(), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.step_count += 1
        self.agent_pos = (self.agent_pos[0] + (action == 2), 0)
        is_there = self.agent_pos[0] == self.length
        reward = 1 - 0.9 * self.step_count / self.max_steps if is_there else 0
        return self._view(), reward, is_there, self.step_count >= self.max_steps, {}

    def close(self) -> None:
        pass

    def get_frame(self, tile_size: int, agent_pov: bool) -> Any:
        """A view of two cells by two; the agent's place is how red it is."""
        assert agent_pov
        return np.full((2 * tile_size, 2 * tile_size, 3), (self.agent_pos[0], 0, 0), np.uint8)

    def _view(self) -> dict[str, Any]:
        view = np.ones((3, 3, 3), np.uint8)
        ahead = self.length - self.agent_pos[0]
        if ahead <= 2:
            view[1][2 - ahead] = (8, 1, 0)
        return {"image": view}


def minigrid() -> dict[str, ModuleType]:
    objects = ["unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent"]
    constants = module(
        "minigrid.core.constants",
        IDX_TO_OBJECT=dict(enumerate(objects)),
        IDX_TO_COLOR=dict(enumerate(["red", "green", "blue"])),
        STATE_TO_IDX={"open": 0, "closed": 1, "locked": 2},
    )

    def make(name: str, max_steps: int, disable_env_checker: bool, **options: Any) -> Corridor:
        return Corridor(max_steps, **options)

    gymnasium = module("gymnasium", registry={"MiniGrid-Corridor-v0": None, "CartPole-v1": None}, make=make)
    return {
        "gymnasium": gymnasium,
        "minigrid": module("minigrid"),
        "minigrid.core": module("minigrid.core"),
        "minigrid.core.constants": constants,
    }


# textarena: a game of one player against a number, and a pile from which two take in turn.
class Kind(enum.Enum):
    PLAYER_ACTION = 1
    GAME_BOARD = 2


class GameState:
    def __init__(self, players: int):
        self.players, self.current_player_id, self.error_count, self.done = players, 0, 0, False
        self.game_state: dict[str, Any] = {}
        self.game_info: dict[int, dict[str, Any]] = {k: {"invalid_move": False} for k in range(players)}
        self.observations: dict[int, list[Any]] = {k: [] for k in range(players)}
        self.rewards: dict[int, float] | None = None
        self.role_mapping = {0: "Player 0", 1: "Player 1"}

    def tell(self, text: str, kind: Kind = Kind.GAME_BOARD, sender: int = -1) -> None:
        for received_observation in self.observations.values():
            received_observation.append((sender, text, kind))

    def over(self, rewards: dict[int, float], reason: str) -> None:
        self.done, self.rewards = True, rewards
        for about in self.game_info.values():
            about["reason"] = reason


class SinglePlayerState(GameState):
    pass


class TwoPlayerState(GameState):
    pass


class Game:
    state: GameState

    def get_observation(self) -> tuple[int, list[Any]]:
        received_observation = self.state.observations[self.state.current_player_id]
        self.state.observations[self.state.current_player_id] = []
        return self.state.current_player_id, received_observation

    def close(self) -> tuple[Any, Any]:
        return self.state.rewards, self.state.game_info

    def invalid(self, text: str) -> tuple[bool, dict[str, Any]]:
        """The first in a row is warned of, the second loses the game."""
        state = self.state
        state.error_count += 1
        if state.error_count > 1:
            state.game_info[state.current_player_id]["invalid_move"] = True
            state.over({k: -1.0 if k == state.current_player_id else 1.0 for k in range(state.players)}, "Invalid")
        else:
            state.tell(f"invalid move: {text}")
        return state.done, {}


class HigherLower(Game):
    """Draws its number from the global generator, as the library's games do."""

    def reset(self, num_players: int, seed: int) -> None:
        assert num_players == 1
        self.state = SinglePlayerState(1)
        self.state.game_state = {"number": random.randint(0, 9), "seen": {"b", "a"}}
        self.state.tell("Guess.")

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        state = self.state
        state.tell(action, Kind.PLAYER_ACTION, 0)
        if not action.startswith("[") or not action[1:-1].isdigit():
            return self.invalid(action)
        state.error_count = 0
        number = state.game_state["number"]
        if int(action[1:-1]) == number:
            state.over({0: 1.0}, "Right.")
        else:
            state.tell("higher" if int(action[1:-1]) < number else "lower")
        return state.done, {}


class Pile(Game):
    """Five stones; each player takes one or two, and who takes the last one wins."""

    lists = True

    def reset(self, num_players: int, seed: int) -> None:
        if num_players != 2:
            raise ValueError("two players")
        self.state = TwoPlayerState(2)
        self.state.game_state = {"stones": 5}
        self._show()

    def _show(self) -> None:
        stones = self.state.game_state["stones"]
        moves = ", ".join(f"'[{k}]'" for k in (1, 2) if k <= stones)
        self.state.tell(f"{stones} stones." + (f" Available moves: {moves}" if self.lists else ""))

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        state, me = self.state, self.state.current_player_id
        state.tell(action, Kind.PLAYER_ACTION, me)
        stones = state.game_state["stones"]
        if action not in ("[1]", "[2]") or int(action[1]) > stones:
            return self.invalid(action)
        state.error_count = 0
        state.game_state["stones"] = stones - int(action[1])
        if state.game_state["stones"] == 0:
            state.over({me: 1.0, 1 - me: -1.0}, f"Player {me} wins.")
            return True, {}
        self._show()
        state.current_player_id = 1 - me
        return False, {}


class SilentPile(Pile):
    lists = False


def textarena() -> dict[str, ModuleType]:
    formats = type("ActionFormattingWrapper", (), {})
    games = {"HigherLower-v0": HigherLower, "Pile-v0": Pile, "SilentPile-v0": SilentPile}
    registry = {name: SimpleNamespace(default_wrappers=[formats]) for name in games}
    return {
        "textarena": module("textarena", make=lambda name: games[name](), ObservationType=Kind, GAME_ID=-1),
        "textarena.envs": module("textarena.envs"),
        "textarena.envs.registration": module("textarena.envs.registration", ENV_REGISTRY=registry),
    }


# verifiers, classic: an echo with tools, whose loop asks a client.
class MultiTurnEnv:
    """Asks for answers until one is "stop" or `max_turns` are over; tells how often it has heard each text."""

    max_turns = -1
    tool_defs = (SimpleNamespace(name="double", description="", parameters={"type": "object"}),)

    def __init__(self, broken: bool = False, rewrites: bool = False):
        self.rewrites = rewrites
        self.rubric = self
        self.broken = broken

    def get_dataset(self) -> list[dict[str, Any]]:
        return [{"prompt": [{"role": "user", "content": f"task {k}"}], "answer": k, "example_id": k} for k in range(3)]

    async def rollout(self, row: dict[str, Any], client: Any, model: str, sampling: dict[str, Any]) -> dict[str, Any]:
        talk = list(row["prompt"])
        for _ in range(self.max_turns):
            response = await client.get_response(list(talk), model, sampling, tools=None)
            text = response.message
            calls = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in text.tool_calls or ()]
            talk.append({"role": "assistant", "content": text.content, **({"tool_calls": calls} if calls else {})})
            if text.content == "stop":
                return {"talk": talk, "error": None, "stop_condition": "stopped", "final_env_response": None}
            if calls:
                talk += [{"role": "tool", "content": f"{c['name']} {c['arguments']}"} for c in calls]
            else:
                talk.append({"role": "user", "content": f"heard {text.content}"})
            if self.rewrites:
                talk[0] = {"role": "user", "content": "forget it"}
        return {"talk": talk, "error": None, "stop_condition": "max_turns_reached", "final_env_response": None}

    async def score_rollout(self, state: dict[str, Any]) -> None:
        if self.broken:  # the library logs and goes on
            logging.getLogger("verifiers.rubrics").error("Error calling reward function right: boom")
        state["reward"] = float(state["stop_condition"] == "stopped") * (0.0 if self.broken else 1.0)
        state["metrics"] = {"messages": float(len(state["talk"]))}


class Client:
    __abstractmethods__ = frozenset({"setup"})

    def __init__(self, config: Any):
        self.config = config


def verifiers() -> dict[str, ModuleType]:
    def load_environment(name: str, **args: Any) -> MultiTurnEnv:
        return MultiTurnEnv(**args)

    types = {name: SimpleNamespace for name in ("Response", "ResponseMessage", "ToolCall")}
    return {
        "verifiers": module("verifiers", load_environment=load_environment, MultiTurnEnv=MultiTurnEnv),
        "verifiers.clients": module("verifiers.clients", Client=Client),
        "verifiers.types": module("verifiers.types", **types),
        "some_world": module("some_world", load_environment=load_environment),
    }


# websockets: the client's end of an OpenEnv server that counts up to 3.
class Socket:
    """Refuses what is not a number, breaks at -1, does not answer at -2; one session at a time."""

    open = 0

    def __init__(self, address: str, **named: Any):
        assert address.startswith("ws://127.0.0.1:") and address.endswith("/ws") and named["proxy"] is None
        self.answers: list[dict[str, Any]] = []
        self.full = Socket.open > 0
        Socket.open += 1
        self.count = 0

    def send(self, text: str) -> None:
        message = json.loads(text)
        self.answers.append(self._error("no session", "CAPACITY_REACHED") if self.full else self._answer(message))

    def recv(self, timeout: float) -> str:
        answer = self.answers.pop(0)
        if answer.get("silent"):
            raise TimeoutError
        return json.dumps(answer)

    def close(self) -> None:
        Socket.open -= 1

    def _error(self, message: str, code: str) -> dict[str, Any]:
        return {"type": "error", "data": {"message": message, "code": code}}

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["type"] == "state":
            return {"type": "state", "data": {"count": self.count, "episode_id": "x"}}
        if message["type"] == "reset":
            self.count = message["data"]["seed"] % 2
        elif message["type"] == "step":
            by = message["data"].get("by")
            if by == -1:
                return self._error("it broke", "EXECUTION_ERROR")
            if by == -2:
                return {"silent": True}
            if not isinstance(by, int):
                return self._error("by: not a number", "VALIDATION_ERROR")
            self.count += by
        done = self.count >= 3
        data = {"observation": {"count": self.count, "note": "n"}, "reward": float(done), "done": done}
        return {"type": "observation", "data": data | ({"reward": None} if message["type"] == "reset" else {})}


def openenv() -> dict[str, ModuleType]:
    Socket.open = 0
    return {
        "websockets": module("websockets"),
        "websockets.sync": module("websockets.sync"),
        "websockets.sync.client": module("websockets.sync.client", connect=Socket),
    }


# ---------------------------------------------------------------- playing adapters
REASON = "optional; scripts/checks/check_adapters.py installs and plays it"


def using(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("library", [name], indirect=True)


def play(env: Any, seed: int, actions: list[str]) -> list[TimeStep]:
    return [env.reset(seed), *(env.step(action) for action in actions)]


def the_expert_succeeds_twice(env: Any, other: Any) -> None:
    """The same seed and actions in two instances give the same, up to the expert's success."""
    for seed in range(2):
        step, same = env.reset(seed), other.reset(seed)
        while not step.done:
            assert step == same
            action = env.expert()
            assert action is not None
            step, same = env.step(action), other.step(action)
        assert step.success is True
