"""Cost of every advantage estimator by number of turns: each against itself at the next smaller size.

Advantages are computed as in the trainer, on a synthetic forest without cached results and with random signals. One
thread; seconds are processor time, which other processes disturb little.
"""

from __future__ import annotations

import ctypes
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch import Tensor

from gxpo.algorithms.signals import Signals
from gxpo.base.errors import GxpoError
from gxpo.bench.machine import forget_peak, resident
from gxpo.forest.forest import COLUMNS, Forest
from gxpo.forest.record_format.schema import SCHEMA
from gxpo.methods.compose import method
from gxpo.methods.method import Method
from gxpo.parts import registry

# ---------------------------------------------------------------- forests
# Forests of any size with all columns that a part may read, made without a loop over turns.
TURNS, GROUP, TREES, STATES = 10, 10, 2, 10  # of a trajectory; trajectories, trees and anchor states of a group
PROMPT, OBSERVED, WRITTEN = 8, 2, 4  # tokens of a prompt, an observation, an action
PER_GROUP = TURNS * GROUP


def synthetic_forest(turns: int, *, forks: bool = False, seed: int = 0) -> Forest:
    """Synthetic forest of `turns` turns: groups of 10 trajectories of 10 turns, 10 anchor states in each group.

    forks  the five trajectories of a tree share their first five turns; without, groups share their prompt alone

    Outcomes, verdicts and named rewards are random, half of the turns have a step reward, every action token is a
    segment, every token has a label and a value of the state before it. GxpoError where `turns` is no multiple of 100,
    which is one group.
    """
    if turns % PER_GROUP:
        raise GxpoError(f"{turns} turns are no whole groups: take a multiple of {PER_GROUP}")
    groups, draw = turns // PER_GROUP, torch.Generator().manual_seed(seed)

    def uniform(n: int) -> Tensor:
        return torch.rand(n, generator=draw, dtype=torch.float64)

    # One group goes through the reader of records; its columns are repeated, and then filled with random values.
    columns = tile_columns(Forest.from_records(_group(forks)), groups)
    kind, step_action = columns["kind"], columns["step_action"]
    state = torch.randint(STATES, kind.shape, generator=draw) + STATES * _copy_index(kind, groups)
    reward_S = uniform(len(kind))[step_action]
    tokens = len(columns["token"])
    success = (uniform(groups * GROUP) < 0.5).to(torch.float64)
    return Forest(
        **columns
        | {
            "state": torch.where(columns["state"] >= 0, state, -1),
            "step_state": state[step_action],
            "state_names": tuple(f"s{i}" for i in range(STATES * groups)),
            "token": torch.randint(1, 1000, columns["token"].shape, generator=draw),
            "behaviour_logprob": -uniform(len(columns["token"])),
            "step_reward": torch.where(reward_S < 0.5, reward_S, torch.nan),
            "outcome": uniform(groups * GROUP).round(decimals=1),
            "success": success,
            "components": torch.stack([success, (uniform(groups * GROUP) < 0.9).to(torch.float64)], 1),
            "component_names": ("correct", "format"),
            "extras": {"label": torch.arange(tokens) % 5, "state_value": uniform(tokens)},
        }
    )


def tile_columns(forest: Forest, times: int) -> dict[str, Any]:
    """Fields of the forest repeated `times` times, every copy in its own groups."""
    out: dict[str, Any] = {}
    for name, (_, target_axis) in COLUMNS.items():
        column = getattr(forest, name)
        if isinstance(column, list):
            is_label = name in ("id", "task", "group")
            out[name] = [f"{i}/{x}" for i in range(times) for x in column] if is_label else column * times
            continue
        copies = column.repeat(times, *(1 for _ in column.shape[1:]))
        # A column of indices points into its own copy; -1 stays -1.
        if target_axis is not None:
            shifted = copies + forest._size(target_axis) * _copy_index(copies, times)
            copies = torch.where(copies >= 0, shifted, -1)
        out[name] = copies
    sizes = forest.first_token.diff().repeat(times)
    out["first_token"] = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    return out | {name: getattr(forest, name) for name in ("component_names", "agent_names", "policy_names")}


def _copy_index(column: Tensor, times: int) -> Tensor:
    return torch.repeat_interleave(torch.arange(times), len(column) // max(times, 1))


def _group(forks: bool) -> list[dict[str, Any]]:
    """Records of one group."""
    return [_record(i, forks and i % (GROUP // TREES) > 0) for i in range(GROUP)]


def _record(i: int, forked: bool) -> dict[str, Any]:
    # Trajectories of a tree follow each other, and the first of them is the one that is forked from.
    tree = i // (GROUP // TREES)
    shared_turns = TURNS // 2 if forked else 0
    action = {"action": [0] * WRITTEN, "logprob": [0.0] * WRITTEN, "segments": list(range(WRITTEN)), "state": ""}
    start: dict[str, Any] = {"prompt": [0] * PROMPT}
    if forked:
        start = {"fork": {"of": f"t{tree * (GROUP // TREES)}", "turn": shared_turns - 1, "token": None}}
    return {
        "schema": SCHEMA,
        "group": "g",
        "id": f"t{i}",
        "turns": [{"observation": [i] * OBSERVED, **action} for _ in range(TURNS - shared_turns)],
        "reward": 0.0,
        "rewards": {"correct": 0.0, "format": 0.0},
        "info": {"tree": tree, "sample": f"{tree}", "denoising_step": tree},
        **start,
    }


# ---------------------------------------------------------------- credit
SIZES, QUICK = (10**3, 10**4, 10**5, 10**6), (10**3, 10**4, 10**5)  # turns
ROUNDS, QUICK_ROUNDS = 5, 3
OPTIONS: dict[str, dict[str, Any]] = {"dual": {"cost": "format", "cost_limit": 0.5}}  # without which a part can't be
PER_ROUND = 30_000  # fewest turns of a round: small forests are processed several times


@dataclasses.dataclass(frozen=True)
class Work:
    """One advantage estimator on one forest."""

    method: Method
    forest: Forest
    signals: Signals

    @classmethod
    def of(cls, part: Any, forest: Forest) -> Work:
        return cls(dataclasses.replace(method("grpo"), credit=part), forest, signals_for(part, forest))

    def seconds(self) -> float:
        """Time of one call, without caches of earlier calls."""
        fresh = self.forest.replace()
        start = time.process_time()
        self.method.advantages(fresh, self.signals)
        return time.process_time() - start

    def round(self) -> float:
        """Mean time of a call over a round, in seconds."""
        calls = max(1, PER_ROUND // self.forest.n_steps)
        return sum(self.seconds() for _ in range(calls)) / calls

    def memory(self) -> float:
        """Peak memory of a call in MiB, less the memory before it."""
        _trim_heap()
        forget_peak()
        start_mib = resident("VmRSS")
        self.seconds()
        return max(0.0, resident("VmHWM") - start_mib)


def signals_for(part: Any, forest: Forest, seed: int = 0) -> Signals:
    """A random column for every signal that the part reads."""
    # Axes by the parts that provide signals, so that the random column has the shape of the real one.
    axes = {name: axis for provider in registry.SIGNALS.values() for name, axis in provider().axes.items()}
    draw = torch.Generator().manual_seed(seed)

    def column(name: str) -> Tensor:
        rows = forest._size(Signals({}, axes).axis(name))
        if name == "answer_cluster":  # four answers a group
            return forest.ids("group", axis="R") * 4 + torch.randint(4, (rows,), generator=draw)
        shape = (rows, 8) if name == "embedding" else (rows,)
        return torch.rand(shape, generator=draw, dtype=torch.float64)

    return Signals({name: column(name) for name in part.needs}, axes)


def yardstick(work: Work) -> float:
    """Seconds to sum as many float64 as the forest has action tokens, by trajectory."""
    forest = work.forest
    x = torch.ones(forest.n_entries, dtype=torch.float64)
    calls = max(1, PER_ROUND // forest.n_steps)
    start = time.process_time()
    for _ in range(calls):
        torch.zeros(forest.n_trajectories, dtype=torch.float64).scatter_add_(0, forest.path_trajectory, x)
    return (time.process_time() - start) / calls


def rows(threads: int, quick: bool, notify: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for every part and size, on one thread whatever `threads` is.

    ratio   of the time per turn at the next smaller size to the time per turn at this one: 1 is linear, below 1 grows
            faster than the turns do. At the smallest size: seconds of `yardstick` / seconds of the part
    ms, ns_per_turn   medians over the rounds, in which the sizes take turns;   memory_mb   see `Work.memory`
    """
    sizes, rounds = (QUICK, QUICK_ROUNDS) if quick else (SIZES, ROUNDS)
    rows_by_part: dict[str, list[dict[str, Any]]] = {}
    with _one_thread():
        for forks in (False, True):
            # Parts that need forks are measured on a forest that has some, all others without.
            parts = {name: kind for name, kind in registry.CREDITS.items() if ("forks" in kind.requires) == forks}
            forests = [synthetic_forest(n, forks=forks) for n in sizes] if parts else []
            for name, kind in parts.items():
                notify(f"credit {name}: {', '.join(map(_short_count, sizes))} turns")
                rows_by_part[name] = _part_rows(
                    name, [Work.of(kind(**OPTIONS.get(name, {})), forest) for forest in forests], rounds
                )
    return [row for name in registry.CREDITS for row in rows_by_part[name]]


def _part_rows(name: str, works: list[Work], rounds: int) -> list[dict[str, Any]]:
    # A first round of each, since allocations and caches are made in it.
    for work in works:
        work.round()
    memory = [work.memory() for work in works]
    yardsticks, times = [], []
    # The sizes take turns within a round, so that a slow phase of the machine hits all of them.
    for _ in range(rounds):
        yardsticks.append(yardstick(works[0]))
        times.append([work.round() for work in works])
    out = []
    for place, work in enumerate(works):
        turns = work.forest.n_steps
        seconds = median(round[place] for round in times)
        ratios = [_ratio(works, round, base, place) for round, base in zip(times, yardsticks, strict=True)]
        against = f"{name}/{_short_count(works[place - 1].forest.n_steps)}, per turn" if place else "sums by trajectory"
        figures: Mapping[str, Any] = {"ratio": median(ratios), "spread": [min(ratios), max(ratios)], "against": against}
        per_turn = {"turns": turns, "seconds": seconds, "ms": 1e3 * seconds, "ns_per_turn": 1e9 * seconds / turns}
        out.append({"name": f"{name}/{_short_count(turns)}", **figures, **per_turn, "memory_mb": memory[place]})
    return out


def _ratio(works: list[Work], seconds: list[float], base: float, place: int) -> float:
    if not place:
        return base / seconds[0]
    previous_seconds_per_turn, seconds_per_turn = (seconds[i] / works[i].forest.n_steps for i in (place - 1, place))
    return previous_seconds_per_turn / seconds_per_turn


def _trim_heap() -> None:
    """Return freed memory to the system (glibc), so that its reuse is counted."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _short_count(turns: int) -> str:
    """1e5 for 100000."""
    return f"{turns:.0e}".replace("e+0", "e")


@contextmanager
def _one_thread() -> Iterator[None]:
    previous_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(previous_threads)
