"""Play every adapter of `gxpo.environments.envs.adapters` with its real library and print a table of what came out.

    python scripts/checks/check_adapters.py                      # all of them, in environments under ~/.cache/gxpo
    python scripts/checks/check_adapters.py --only textworld minigrid --episodes 50
    python scripts/checks/check_adapters.py --python textworld=/path/to/venv/bin/python   # an installed one

Each adapter gets a virtual environment of its own, because the libraries do not agree on their requirements; what is
in it is installed by pip by package name, so pip's own configuration (index, proxy, constraints) holds. gxpo itself is
not installed there and torch is not needed. Needs Java for textworld, network for pip, some 2 GB of disk.

A row is one player in one world: share of successes, mean turns, actions a second, and whether a second process that
hashes texts differently went through exactly the same with the same seeds and actions ("replay"). "random" draws
from what is legal; "expert" is the world's own; "oracle" is written here and knows the answer. Exit status 1 if a
replay differs, an expert or oracle of a solvable world fails, or an adapter breaks.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("GXPO_CACHE") or "~/.cache/gxpo").expanduser() / "adapters"

# What pip installs for each, and the distribution whose version is shown.
LIBRARIES = {
    "textworld": (["textworld-express>=1.1.0"], "textworld-express"),
    "minigrid": (["minigrid>=3.2", "gymnasium>=1.0"], "minigrid"),
    "textarena": (["textarena>=0.7.4", "numpy>=1.26"], "textarena"),
    "verifiers-classic": (["verifiers>=0.1.14,<0.4"], "verifiers"),
    "openenv": (["websockets>=15.0", "openenv-core>=0.3"], "openenv-core"),
}
CORE = ["numpy>=1.26", "pydantic>=2.10", "rapidfuzz>=3.9", "psutil>=6.0"]  # what gxpo.environments.envs itself imports

Player = Callable[[Any, Any, random.Random], Any]  # (env, last step, generator) -> action, or (content, calls)


@dataclass
class World:
    """A world to play: the adapter's class and options, and who plays it; `solved` players must always succeed."""

    kind: str
    options: dict[str, Any]
    players: dict[str, Player]
    solved: tuple[str, ...] = ()
    name: str = field(default="")

    def __post_init__(self) -> None:
        self.name = self.name or f"{self.kind}:{self.options['id']}"


# The modules that an author of a verifiers environment would publish.
CLASSIC_SINGLE = """
    import verifiers as vf
    from datasets import Dataset

    def load_environment():
        rows = [{"question": f"What is {a} + {a + 1}?", "answer": str(2 * a + 1)} for a in range(20)]

        def correct(completion, answer):
            return float(completion[-1].content.strip() == answer)

        rubric = vf.Rubric(funcs=[correct])
        return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), system_prompt="Answer with a number.", rubric=rubric)
"""
CLASSIC_MULTI = """
    import verifiers as vf
    from datasets import Dataset

    class Guess(vf.MultiTurnEnv):
        async def env_response(self, messages, state, **named):
            guess, number = messages[-1].content.strip(), int(state["answer"])
            if guess == str(number):
                state["won"] = True
                state["final_env_response"] = [vf.UserMessage(content="right")]
                return state["final_env_response"]
            below = guess.isdigit() and int(guess) < number
            return [vf.UserMessage(content="higher" if below else "lower")]

    def load_environment():
        rows = [{"question": "Guess a number from 0 to 9.", "answer": str(k * 7 % 10)} for k in range(20)]

        def won(state):
            return float(state.get("won", False))

        return Guess(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[won]), max_turns=6)
"""
CLASSIC_TOOL = """
    import verifiers as vf
    from datasets import Dataset

    def double(x: int) -> int:
        '''Twice a number.

        Args:
            x: the number
        '''
        return 2 * x

    def load_environment():
        rows = [{"question": f"Double {a}.", "answer": str(2 * a)} for a in range(10, 30)]

        def correct(completion, answer):
            return float(completion[-1].content.strip() == answer)

        dataset = Dataset.from_list(rows)
        return vf.ToolEnv(dataset=dataset, tools=[double], rubric=vf.Rubric(funcs=[correct]), max_turns=4)
"""
MODULES = {
    "gxpo_check_single": CLASSIC_SINGLE,
    "gxpo_check_multi": CLASSIC_MULTI,
    "gxpo_check_tool": CLASSIC_TOOL,
}
SERVER = """
    import random, sys
    import uvicorn
    from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

    class Guess(Action):
        number: int

    class Hint(Observation):
        text: str = ""

    class Bounds(State):
        low: int = 0
        high: int = 9

    class Game(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self):
            super().__init__()
            self._bounds, self._number = Bounds(), 0

        def reset(self, seed=None, episode_id=None, **named):
            self._bounds, self._number = Bounds(), random.Random(seed).randrange(10)
            return Hint(text="Guess a number from 0 to 9.")

        def step(self, action, timeout_s=None, **named):
            if action.number == self._number:
                return Hint(text="right", done=True, reward=1.0)
            if action.number < self._number:
                self._bounds.low = max(self._bounds.low, action.number + 1)
                return Hint(text="higher", reward=0.0)
            self._bounds.high = min(self._bounds.high, action.number - 1)
            return Hint(text="lower", reward=0.0)

        @property
        def state(self):
            return self._bounds

    app = create_fastapi_app(Game, Guess, Hint, max_concurrent_envs=12)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="critical")
"""


# Players.
def legal(env: Any, step: Any, rng: random.Random) -> Any:
    return rng.choice(env.legal())


def expert(env: Any, step: Any, rng: random.Random) -> Any:
    return env.expert()


def any_number(env: Any, step: Any, rng: random.Random) -> Any:
    return str(rng.randrange(10))


def _words(step: Any) -> str:
    return step.observation if isinstance(step.observation, str) else str(step.observation[-1]["content"])


def add_numbers(env: Any, step: Any, rng: random.Random) -> Any:
    return str(sum(map(int, re.findall(r"\d+", _words(step)))))


def bisect_range(env: Any, step: Any, rng: random.Random) -> Any:
    """Halve the range of numbers that is left; what it knows is kept on the environment."""
    message = _words(step)
    if "Guess" in message:
        env.bounds = [0, 9]
    elif "higher" in message:
        env.bounds[0] = env.guess + 1
    else:
        env.bounds[1] = env.guess - 1
    env.guess = sum(env.bounds) // 2
    return str(env.guess)


def call_tool(env: Any, step: Any, rng: random.Random) -> Any:
    from gxpo.parts.protocols import ToolCall

    if step.observation[-1]["role"] == "tool":
        return str(step.observation[-1]["content"]), ()
    return "", (ToolCall("double", {"x": int(re.findall(r"\d+", _words(step))[0])}, "c0"),)


def say_any(*moves: str) -> Player:
    return lambda env, step, rng: rng.choice(moves)


def worlds(library: str, address: str) -> list[World]:
    """List what is played with a library."""
    if library == "textworld":
        games = ["arithmetic", "coin", "cookingworld", "mapreader", "peckingorder", "simonsays", "sorting", "twc"]
        both = {"random": legal, "expert": expert}
        return [World("textworld", {"id": g, "max_turns": 100}, both, ("expert",)) for g in games]
    if library == "minigrid":
        levels = {"BabyAI-GoToRedBallGrey-v0": 64, "BabyAI-GoToLocal-v0": 64, "BabyAI-PickupLoc-v0": 64,
                  "BabyAI-PutNextLocal-v0": 64, "BabyAI-BossLevel-v0": 400}  # fmt: skip
        both = {"random": legal, "expert": expert}
        solvable = [World("minigrid", {"id": k, "max_turns": n}, both, ("expert",)) for k, n in levels.items()]
        ids = ("MiniGrid-Empty-5x5-v0", "MiniGrid-DoorKey-5x5-v0", "MiniGrid-LavaGapS5-v0")
        return solvable + [World("minigrid", {"id": k}, {"random": legal}) for k in ids]
    if library == "textarena":
        some = {
            "TicTacToe": ({}, legal),
            "Othello": ({}, legal),
            "ConnectFour": ({"moves": [f"[{k}]" for k in range(7)]}, say_any(*(f"[{k}]" for k in range(7)))),
            "IteratedPrisonersDilemma": ({"opponent": "[cooperate]"}, say_any("[cooperate]", "[defect]")),
            "FrozenLake": ({}, legal),
            "GuessTheNumber": ({}, say_any(*(f"[{k}]" for k in range(1, 21)))),
            "Minesweeper-v0-small": ({}, say_any(*(f"[{r} {c}]" for r in range(5) for c in range(5)))),
            "TowerOfHanoi": ({}, say_any(*(f"[{a} {b}]" for a in "ABC" for b in "ABC" if a != b))),
        }
        return [World("textarena", {"id": g, **options}, {"random": player}) for g, (options, player) in some.items()]
    if library == "verifiers-classic":
        players = {"gxpo_check_single": add_numbers, "gxpo_check_multi": bisect_range}
        solvable = [
            World("verifiers", {"id": m}, {"random": any_number, "oracle": p}, ("oracle",)) for m, p in players.items()
        ]
        return [*solvable, World("verifiers", {"id": "gxpo_check_tool"}, {"oracle": call_tool}, ("oracle",))]
    options = {"id": address, "observation_key": "text", "state_keys": ["low", "high"], "max_turns": 10}
    players: dict[str, Player] = {"random": any_number, "oracle": bisect_range}
    return [World("openenv", options, players, ("oracle",), name="openenv:guess a number")]


# Playing, in the environment of one library.
def make_env(world: World) -> Any:
    """Make an instance of the world for one episode."""
    from gxpo.environments import envs

    module, _, kind = envs.ADAPTERS[world.kind].partition(":")
    return getattr(importlib.import_module(module), kind)(**world.options)


def play(library: str, episodes: int, address: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each world and player; everything that was seen goes into `trace`."""
    from gxpo.parts.protocols import TimeStep

    for world in worlds(library, address):
        first = make_env(world)
        first.reset(0)  # what is imported and cached once is no episode's time
        close(first)
        for who, player in world.players.items():
            # textworld draws the expert's path anew each time: its way may differ, where it ends may not.
            is_random = (world.kind, who) == ("textworld", "expert")
            digest = hashlib.sha256()
            wins, turns, reward, seconds = 0, 0, 0.0, 0.0
            for seed in range(episodes):
                rng = random.Random(f"{world.name}/{who}/{seed}")
                start = time.perf_counter()
                env = make_env(world)
                step: TimeStep = env.reset(seed)
                while not step.done:
                    action = player(env, step, rng)
                    if not is_random:
                        digest.update(repr((action, step)).encode())
                    step = env.call(*action) if isinstance(action, tuple) else env.step(action)
                    turns, reward = turns + 1, reward + (step.reward or 0.0)
                digest.update(repr((step.success, None if is_random else step)).encode())
                wins += bool(step.success)
                close(env)
                seconds += time.perf_counter() - start
            yield {
                "library": f"{LIBRARIES[library][1]} {version(LIBRARIES[library][1])}",
                "world": world.name,
                "player": who,
                "success": wins / episodes,
                "turns": turns / episodes,
                "reward": reward / episodes,
                "actions_per_s": turns / seconds,
                "drawn": is_random,
                "trace": digest.hexdigest(),
                "failed": who in world.solved and wins < episodes,
            }


def compare_with_pool(library: str, address: str) -> str:
    """Play the first world again through worker processes; say whether observations are as in this one."""
    from gxpo.environments import envs as ours
    from gxpo.parts.protocols import Reply

    world = worlds(library, address)[0]
    who = next(iter(world.players))
    names = {f"e{seed}": seed for seed in range(4)}
    envs = {name: make_env(world) for name in names}
    step_by_name = {name: envs[name].reset(seed) for name, seed in names.items()}
    source = ours.source(world.kind, world.options)
    assert source is not None
    rng = random.Random(0)
    with ours.EnvPool(source, workers=1, timeout=60.0) as pool:
        pool_steps = pool.reset(names)
        for _ in range(5):
            differing = [pool_steps[name] for name in pool_steps if pool_steps[name] != step_by_name[name]]
            if differing:
                return f"differs: {differing[0]}"
            open_names = [name for name in pool_steps if not step_by_name[name].done]
            actions = {name: world.players[who](envs[name], step_by_name[name], rng) for name in open_names}
            pool_steps = pool.step({name: Reply(action) for name, action in actions.items()})
            step_by_name = {name: envs[name].step(action) for name, action in actions.items()}
    for env in envs.values():
        close(env)
    return "same"


def close(env: Any) -> None:
    if hasattr(env, "close"):
        env.close()


# The other side: environments, servers, and the table.
def python_of(library: str, folder: Path) -> Path:
    """Return the interpreter of the library's virtual environment, made where it is not there yet."""
    home = folder / library
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not (home / "complete").is_file():
        print(f"installing {' '.join(LIBRARIES[library][0])} ...", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *LIBRARIES[library][0], *CORE], check=True)
        (home / "complete").touch()
    return python


@contextmanager
def serve_openenv(python: Path, modules: Path) -> Iterator[str]:
    """Serve a tiny OpenEnv server on loopback; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [str(python), str(modules / "server.py"), str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(1200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if server.poll() is not None:
                sys.exit(f"the OpenEnv server ended with status {server.returncode}")
            time.sleep(0.1)
        else:
            sys.exit("the OpenEnv server does not come up")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def play_twice(library: str, python: Path, episodes: int, modules: Path, address: str) -> list[dict[str, Any]]:
    """Play in two processes with different hashes of texts; return the rows of both put together."""
    runs: list[list[dict[str, Any]]] = []
    for hash_seed in ("1", "2"):
        paths = os.pathsep.join([str(ROOT / "src"), str(modules)])
        environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": hash_seed, "HF_HUB_OFFLINE": "1"}
        command = [str(python), __file__, "--play", library, "--episodes", str(episodes), "--address", address]
        process = subprocess.run(command, env=environment, capture_output=True, text=True)
        if process.returncode:
            sys.exit(f"{library} broke:\n{process.stderr[-3000:]}")
        rows = [json.loads(text) for text in process.stdout.splitlines() if text.startswith("{")]
        verdict = rows.pop()["pool"]
        if verdict != "same":
            print(f"{library} through worker processes {verdict}", file=sys.stderr)
        runs.append([{**row, "failed": row["failed"] or verdict != "same"} for row in rows])
    for first, second in zip(*runs, strict=True):
        first["replay"] = "same" if first["trace"] == second["trace"] else "DIFFERS"
        if first["drawn"] and first["replay"] == "same":
            first["replay"] = "same outcomes"
    return runs[0]


def line(row: dict[str, Any]) -> str:
    figures = f"{row['success']:.2f} | {row['turns']:.1f} | {row['reward']:.2f} | {row['actions_per_s']:.0f}"
    return f"| {row['library']} | {row['world']} | {row['player']} | {figures} | {row['replay']} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=LIBRARIES, default=list(LIBRARIES), metavar="LIBRARY")
    parser.add_argument("--episodes", type=int, default=20, help="of each player in each world (default: 20)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"of the virtual environments ({FOLDER})")
    parser.add_argument("--python", action="append", default=[], metavar="LIBRARY=PATH", help="an installed one")
    parser.add_argument("--play", choices=LIBRARIES, help=argparse.SUPPRESS)
    parser.add_argument("--address", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.play:
        for row in play(arguments.play, arguments.episodes, arguments.address):
            print(json.dumps(row), flush=True)
        verdict = compare_with_pool(arguments.play, arguments.address)
        print(json.dumps({"pool": verdict}), flush=True)
        return
    python_by_library = dict(entry.split("=", 1) for entry in arguments.python)
    print("| library | world | player | success | turns | reward | actions/s | replay |")
    print("|---" * 8 + "|")
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        modules = Path(temporary)
        for name, text in {**MODULES, "server": SERVER}.items():
            (modules / f"{name}.py").write_text(textwrap.dedent(text))
        for library in arguments.only:
            python = (
                Path(python_by_library[library])
                if library in python_by_library
                else python_of(library, arguments.folder)
            )
            if library == "openenv":
                with serve_openenv(python, modules) as address:
                    library_rows = play_twice(library, python, arguments.episodes, modules, address)
            else:
                library_rows = play_twice(library, python, arguments.episodes, modules, "")
            for row in library_rows:
                print(line(row), flush=True)
                if row["failed"] or row["replay"] == "DIFFERS":
                    failures.append(f"{row['world']} ({row['player']})")
    if failures:
        sys.exit(f"failed: {', '.join(failures)}")


if __name__ == "__main__":
    main()
