"""Which turns a trajectory's score is over (DMPO, SDPO, REFUEL): factors of its turns, by name.

A group *parts* in the turn before which its members fork, where forks are declared, and also where both then act alike;
else in the first turn in which they act differently. What comes before is the same for all, and cancels in a difference
of sums, not in one of means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest

Over = Literal["answer", "turns", "suffix", "segment", "parting"]


class Turns(NamedTuple):
    """Of each turn, [S] each: its place in its trajectory from 0, how many turns that has, in which turn the group
    parts, and the least number of turns that a member of the group has from there on."""

    place: Tensor
    count: Tensor
    parting: Tensor
    rest: Tensor


def turns(of: Turns, gamma: float) -> Tensor:
    """gamma^t (1 - gamma^(T - t)) / (1 - gamma^T), t the place, T the count; (T - t) / T where gamma is 1.

    Early turns count most, and the sum does not grow with T. Source: DMPO, arXiv 2406.14868.

    >>> place, three = torch.arange(3), torch.tensor([3, 3, 3])
    >>> [round(x, 6) for x in turns(Turns(place, three, place, place), 0.7).tolist()]
    [1.0, 0.543379, 0.223744]
    """
    t, total = of.place.to(torch.float64), of.count.to(torch.float64)
    if gamma == 1:
        return (total - t) / total
    return gamma**t * (1 - gamma ** (total - t)) / (1 - gamma**total)


def suffix(of: Turns, gamma: float) -> Tensor:
    """1 from the turn on in which the group parts."""
    return (of.place >= of.parting).to(torch.float64)


def segment(of: Turns, gamma: float) -> Tensor:
    """1 for as many turns from there on as every member has: segments of equal length (SDPO, arXiv 2501.01821)."""
    return ((of.place >= of.parting) & (of.place < of.parting + of.rest)).to(torch.float64)


def parting(of: Turns, gamma: float) -> Tensor:
    """1 for the one turn in which the group parts (REFUEL, arXiv 2410.04612)."""
    return (of.place == of.parting).to(torch.float64)


FACTORS: Mapping[str, Callable[[Turns, float], Tensor]] = {f.__name__: f for f in (turns, suffix, segment, parting)}


def factors(forest: Forest, over: Over, gamma: float = 1.0) -> Tensor | None:
    """What each token's log-ratio is multiplied by in its trajectory's score, [P] float64; None for "answer": 1."""
    return None if over == "answer" else FACTORS[over](turns_of(forest), gamma)[forest.path_step]


def turns_of(forest: Forest) -> Turns:
    """Every turn's place in its trajectory and its group. A group whose members begin alike parts, where one of them
    ends there, in that one's last turn; a group of one parts in turn 0. Forks are declared in a group of which two
    share an action, and in one whose rollouts note the `tree` that they grew in
    (`sampling.rollouts.tree.grown_forest`)."""
    owner = forest.step_trajectory
    count = torch.bincount(owner, minlength=forest.n_trajectories)
    place = torch.arange(forest.n_steps) - (count.cumsum(0) - count)[owner]
    members: dict[int, list[int]] = {}
    for r, g in enumerate(forest.ids("group", axis="R").tolist()):
        if count[r]:
            members.setdefault(g, []).append(r)
    done, nodes = _actions(forest), _nodes(forest)
    parted, rest = torch.zeros_like(count), count.clone()
    for rows in members.values():
        least = min(len(done[r]) for r in rows)
        shared = len({nodes[r][0] for r in rows}) < len(rows)
        acts = nodes if shared else done
        apart = (t for t in range(least - 1) if any(acts[r][t] != acts[rows[0]][t] for r in rows))
        at = next(apart, least - 1) if len(rows) > 1 else 0
        if not shared and all("tree" in forest.info[r] for r in rows):
            at = min(at, _first_fork([forest.info[r] for r in rows], [len(done[r]) for r in rows]))
        parted[rows], rest[rows] = at, least - at
    return Turns(place, count[owner], parted[owner], rest[owner])


def _actions(forest: Forest) -> list[list[list[int]]]:
    """Token ids of every trajectory's actions, turn by turn."""
    actions: list[list[int]] = [[] for _ in range(forest.n_steps)]
    for step, token in zip(forest.path_step.tolist(), forest.token[forest.path_token].tolist(), strict=True):
        actions[step].append(token)
    done: list[list[list[int]]] = [[] for _ in range(forest.n_trajectories)]
    for action, owner in zip(actions, forest.step_trajectory.tolist(), strict=True):
        done[owner].append(action)
    return done


def _nodes(forest: Forest) -> list[list[int]]:
    """Node of every action of a trajectory, turn by turn; trajectories share those before a declared fork."""
    nodes: list[list[int]] = [[] for _ in range(forest.n_trajectories)]
    for node, owner in zip(forest.step_action.tolist(), forest.step_trajectory.tolist(), strict=True):
        nodes[owner].append(node)
    return nodes


def _first_fork(infos: Sequence[Mapping[str, Any]], counts: Sequence[int]) -> int:
    """Turn in which the first of some attempts of a tree leaves another, 0 where two begin at the prompt; `counts`: of
    their turns, of which `calls` were generated for each alone."""
    forks = [n - info.get("calls", n) for info, n in zip(infos, counts, strict=True) if info.get("path")]
    return min(forks) if len(forks) >= len(infos) - 1 and forks else 0
