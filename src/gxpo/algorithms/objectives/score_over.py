"""Turn factors of a trajectory's score (DMPO, SDPO, REFUEL): the whole answer, or the turns from a fork on.

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
    """Position of every turn in its trajectory and group, [S] each.

    place    of the turn in its trajectory, from 0;   count  turns of that trajectory
    parting  turn in which the group parts;   rest  least number of turns that a member has from there on
    """

    place: Tensor
    count: Tensor
    parting: Tensor
    rest: Tensor


def turns(turns_S: Turns, gamma: float) -> Tensor:
    """gamma^t (1 - gamma^(T - t)) / (1 - gamma^T), t the place, T the count; (T - t) / T where gamma is 1.

    Early turns count most, and the sum does not grow with T. Source: DMPO, arXiv 2406.14868.

    >>> place, three = torch.arange(3), torch.tensor([3, 3, 3])
    >>> [round(x, 6) for x in turns(Turns(place, three, place, place), 0.7).tolist()]
    [1.0, 0.543379, 0.223744]
    """
    t, total = turns_S.place.to(torch.float64), turns_S.count.to(torch.float64)
    if gamma == 1:
        return (total - t) / total
    return gamma**t * (1 - gamma ** (total - t)) / (1 - gamma**total)


def suffix(turns_S: Turns, gamma: float) -> Tensor:
    """1 from the turn on in which the group parts."""
    return (turns_S.place >= turns_S.parting).to(torch.float64)


def segment(turns_S: Turns, gamma: float) -> Tensor:
    """1 for as many turns from there on as every member has: segments of equal length (SDPO, arXiv 2501.01821)."""
    return ((turns_S.place >= turns_S.parting) & (turns_S.place < turns_S.parting + turns_S.rest)).to(torch.float64)


def parting(turns_S: Turns, gamma: float) -> Tensor:
    """1 for the one turn in which the group parts (REFUEL, arXiv 2410.04612)."""
    return (turns_S.place == turns_S.parting).to(torch.float64)


FACTORS: Mapping[str, Callable[[Turns, float], Tensor]] = {f.__name__: f for f in (turns, suffix, segment, parting)}


def factors(forest: Forest, over: Over, gamma: float = 1.0) -> Tensor | None:
    """Factor of each token's log-ratio in its trajectory's score, [P] float64; None for "answer", where it is 1."""
    return None if over == "answer" else FACTORS[over](turns_of(forest), gamma)[forest.path_step]


def turns_of(forest: Forest) -> Turns:
    """Find the place of every turn, and the turn in which each group parts.

    A group whose members begin alike parts, where one of them ends there, in that one's last turn; a group of one
    parts in turn 0. Forks are declared in a group of which two share an action, and in one whose rollouts note
    the `tree` that they grew in (`sampling.rollouts.tree.grow_forest`).
    """
    owner = forest.step_trajectory
    turns_R = torch.bincount(owner, minlength=forest.n_trajectories)
    place_S = torch.arange(forest.n_steps) - (turns_R.cumsum(0) - turns_R)[owner]
    members: dict[int, list[int]] = {}
    for r, g in enumerate(forest.ids("group", axis="R").tolist()):
        if turns_R[r]:
            members.setdefault(g, []).append(r)
    # one group at a time, over its trajectories that have turns
    actions_R, nodes_R = _actions(forest), _nodes(forest)
    parting_R, rest_R = torch.zeros_like(turns_R), turns_R.clone()
    for rows in members.values():
        shortest = min(len(actions_R[r]) for r in rows)
        # members that share a node have declared their fork: what they do after it differs even if the tokens are equal
        shares_node = len({nodes_R[r][0] for r in rows}) < len(rows)
        acts_R = nodes_R if shares_node else actions_R
        differing_turns = (t for t in range(shortest - 1) if any(acts_R[r][t] != acts_R[rows[0]][t] for r in rows))
        parting_turn = next(differing_turns, shortest - 1) if len(rows) > 1 else 0
        # a tree whose members were written out in full says in `info` where each of them was forked
        if not shares_node and all("tree" in forest.info[r] for r in rows):
            parting_turn = min(
                parting_turn, _first_fork([forest.info[r] for r in rows], [len(actions_R[r]) for r in rows])
            )
        parting_R[rows], rest_R[rows] = parting_turn, shortest - parting_turn
    return Turns(place_S, turns_R[owner], parting_R[owner], rest_R[owner])


def _actions(forest: Forest) -> list[list[list[int]]]:
    """Token ids of every trajectory's actions, turn by turn."""
    actions_S: list[list[int]] = [[] for _ in range(forest.n_steps)]
    for step, token in zip(forest.path_step.tolist(), forest.token[forest.path_token].tolist(), strict=True):
        actions_S[step].append(token)
    actions_R: list[list[list[int]]] = [[] for _ in range(forest.n_trajectories)]
    for action, owner in zip(actions_S, forest.step_trajectory.tolist(), strict=True):
        actions_R[owner].append(action)
    return actions_R


def _nodes(forest: Forest) -> list[list[int]]:
    """Node of every action of a trajectory, turn by turn; trajectories share those before a declared fork."""
    nodes_R: list[list[int]] = [[] for _ in range(forest.n_trajectories)]
    for node, owner in zip(forest.step_action.tolist(), forest.step_trajectory.tolist(), strict=True):
        nodes_R[owner].append(node)
    return nodes_R


def _first_fork(infos: Sequence[Mapping[str, Any]], counts: Sequence[int]) -> int:
    """Turn of the earliest fork among the attempts of a tree; 0 where two of them begin at the prompt.

    counts  turns of each attempt, of which the last `calls` (in its info) were generated for it alone
    """
    # one attempt may be the trunk, which begins at the prompt and leaves no other
    forks = [n - info.get("calls", n) for info, n in zip(infos, counts, strict=True) if info.get("path")]
    return min(forks) if len(forks) >= len(infos) - 1 and forks else 0
