"""Ids of environment states, histories and actions, by which steps are grouped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import torch
from annotated_types import Interval
from torch import Tensor

from gxpo.algorithms.credit.base import CreditPart
from gxpo.algorithms.credit.recursion import next_in
from gxpo.base.errors import GxpoError
from gxpo.forest.grouped import dense

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest

ToldBy = Literal["id", "observation"]


class Moves(NamedTuple):
    """Steps as edges between states, ids of (group, state); [S] each.

    before     the state acted in, -1 unknown
    after      the state that its trajectory was in next, at the end its last one; -1 unknown
    following  the step of the trajectory that acted in `after`, -1 none

    Steps in an unknown state are passed over: the summary that a policy writes between two moves is no move. Time is
    the order of S, under the records' `after` too.
    """

    before: Tensor
    after: Tensor
    following: Tensor


@dataclass(frozen=True)
class StateKeyed(CreditPart):
    """Base class of advantages that compare states: how states are identified.

    state    what a state is told by: its "id" from the environment, or the text of the "observation" read in it
    similar  1: equal ones are one state. Below 1: likeness of texts from which they are (`alike`), the texts being the
             observations, or the ids where states are told by those
    """

    state: ToldBy = field(default="id", kw_only=True)
    similar: Annotated[float, Interval(gt=0, le=1)] = field(default=1.0, kw_only=True)

    requires = ("states",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.state == "observation":  # it needs no ids from the environment
            object.__setattr__(self, "requires", tuple(x for x in self.requires if x != "states"))

    def states(self, forest: Forest) -> Tensor:
        """Dense ids of (group, state), [S] int64; -1 unknown."""
        if self.state == "id" and self.similar == 1:
            return forest.ids("state", axis="S")
        return state_ids(forest, self.state, self.similar)[: forest.n_steps]

    def moves(self, forest: Forest) -> Moves:
        """Steps as edges between two states."""
        ids = state_ids(forest, self.state, self.similar)
        before, end = ids.split([forest.n_steps, forest.n_trajectories])
        following = next_in(forest.step_trajectory, before >= 0)
        after = torch.where(following >= 0, before[following.clamp_min(0)], end[forest.step_trajectory])
        return Moves(before, torch.where(before >= 0, after, -1), following)


def state_ids(forest: Forest, told_by: str = "id", similar: float = 1.0) -> Tensor:
    """Dense ids of (group, state), [S + R] int64: of the steps, then of each trajectory's last state; -1 unknown.

    told_by  "id": `step_state` and `final_state`, numbered together; "observation": texts, which the last state lacks
    similar  below 1, texts of a group that are `alike` are one state. They are tried in the order of their letters,
             those that no compared trajectory met last: who leads depends neither on the order of the trajectories nor
             on those that are not compared
    Raises GxpoError where no observation has a text.
    """
    number: dict[str | None, int] = {}
    if told_by == "observation":
        if forest.n_steps and all(text is None for text in forest.observation_text):
            raise GxpoError("credit.state=observation needs the observations' texts, and there is none: use state=id")
        names = [*forest.observation_text, *[None] * forest.n_trajectories]
        column = torch.tensor([-1 if x is None else number.setdefault(x, len(number)) for x in names])
    else:
        number.update((name, i) for i, name in enumerate(forest.state_names))
        ends = [-1 if x is None else number.setdefault(x, len(number)) for x in forest.final_state]
        column = torch.cat([forest.step_state, torch.tensor(ends, dtype=torch.int64)])
    own = torch.cat([forest.step_trajectory, torch.arange(forest.n_trajectories)])
    group = forest.ids("group", axis="R")[own]
    ids = combined(group, column)
    if similar == 1:
        return ids
    return _merged(ids, group, [str(name) for name in number], column, forest.compared[own], similar)


def _merged(ids: Tensor, group: Tensor, texts: list[str], column: Tensor, compared: Tensor, threshold: float) -> Tensor:
    """The ids with those of like texts made one; a loop over the distinct texts of each group, not over steps."""
    row = torch.zeros(int(ids.max()) + 1 if len(ids) else 0, dtype=torch.int64)
    met = torch.zeros(len(row), dtype=torch.bool)
    known = (ids >= 0).nonzero().squeeze(1)
    row[ids[known]] = known
    met[ids[known[compared[known]]]] = True
    members = defaultdict(list)
    for i, (g, text, counts) in enumerate(zip(group[row].tolist(), column[row].tolist(), met.tolist(), strict=True)):
        members[g].append((not counts, texts[text], i))
    leader = torch.arange(len(row))
    for several in map(sorted, members.values()):
        for (_, _, i), at in zip(several, alike([text for _, text, _ in several], threshold), strict=True):
            leader[i] = several[at][2]
    out = torch.full_like(ids, -1)
    out[known] = dense(leader[ids[known]])
    return out


def alike(texts: Sequence[str], threshold: float) -> list[int]:
    """Index of each text's cluster leader among `texts`: greedy clustering in the order given.

    A text joins the first leader whose likeness to it is at least `threshold`, and otherwise leads itself. Likeness is
    difflib's ratio, 2 M / T for M characters in matching blocks of T characters in all, of the text against the
    leader. Not transitive, and dependent on the order. Long texts are compared whole: difflib by default disregards
    every letter that makes up more than a hundredth of a text of 200 characters or more.

    >>> alike(["a red door", "a red floor", "the cellar"], 0.8)
    [0, 0, 2]
    """
    leaders: dict[int, SequenceMatcher[str]] = {}
    found = []
    for i, text in enumerate(texts):
        for at, matcher in leaders.items():
            matcher.set_seq1(text)
            bounds = (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)  # each at least the next
            if all(bound() >= threshold for bound in bounds):
                found.append(at)
                break
        else:
            leaders[i] = SequenceMatcher(None, "", text, autojunk=False)
            found.append(i)
    return found


def combined(*columns: Tensor) -> Tensor:
    """Dense ids of the combinations of several id columns [n], [n] int64; -1 where any of them is.

    >>> combined(torch.tensor([0, 0, 1, 1, -1]), torch.tensor([5, 5, 5, -1, 0])).tolist()
    [0, 0, 1, -1, -1]
    """
    ids = columns[0]
    for column in columns[1:]:
        if not len(ids):
            return ids
        key = torch.where((ids < 0) | (column < 0), -1, ids * (int(column.max()) + 1) + column)
        ids = dense(key) - int(int(key.min()) < 0)
    return ids


def history_ids(state: Tensor, following: Tensor, depth: int, *, whole: bool = True) -> list[Tensor]:
    """[depth + 1] columns [S]: level h has equal ids where the state and the h states before it are equal in turn.

    state      [S] dense ids, -1 unknown
    following  [S] the step after each in its trajectory, of known state; -1 none
    whole      True: -1 where fewer than h states came before. False: such a history begins the trajectory, and is equal
               to those that begin it in the same way

    Level by level: (s_{t-h}, ..., s_t) is s_t with level h - 1 of the step before.
    """
    before = torch.full_like(following, -1)
    rows = (following >= 0).nonzero().squeeze(1)
    before[following[rows]] = rows
    found = [state]
    for _ in range(depth):
        past = torch.where(before >= 0, found[-1][before.clamp_min(0)], -1)
        found.append(combined(state, past if whole else past + 1))
    return found


def action_ids(forest: Forest) -> Tensor:
    """Ids of equal actions, [S] int64: token by token, or by text for actions known only as text.

    -1 where a token has no vocabulary id: such actions are equal to none.
    """
    value = forest.token.index_select(0, forest.path_token)
    if bool(forest.text_actions.any()):
        number: dict[str | None, int] = {}
        rows = zip(forest.action_text, forest.text_actions.tolist(), strict=True)
        said = torch.tensor([-2 - number.setdefault(text, len(number)) if bare else 0 for text, bare in rows])
        value = torch.where(said[forest.path_step] < 0, said[forest.path_step], value)
    ids = sequence_ids(value, forest.path_step, forest.n_steps)
    ids[forest.path_step[value == -1]] = -1
    return ids


def sequence_ids(value: Tensor, owner: Tensor, n: int) -> Tensor:
    """Ids of equal sequences, [n] int64: equal where two owners have equal values in equal order.

    value  [m] int64, those of each owner in order
    owner  [m] ascending, below n; an owner may have none

    By halving: a round numbers neighbouring pairs, so that log2 of the longest is the number of rounds, and all rounds
    together touch 2 m values.

    >>> sequence_ids(torch.tensor([7, 7, 8, 7, 7, 8, 7]), torch.tensor([0, 0, 0, 2, 2, 2, 3]), 4).tolist()
    [2, 0, 2, 1]
    """
    ids = dense(value)
    while bool((owner[1:] == owner[:-1]).any()):
        first = torch.ones_like(owner, dtype=torch.bool)
        first[1:] = owner[1:] != owner[:-1]
        rows = torch.arange(len(owner))
        place = rows - torch.where(first, rows, 0).cummax(0).values
        left = (place % 2 == 0).nonzero().squeeze(1)
        paired = torch.zeros_like(left)  # 0: no one to its right
        inside = left + 1 < len(owner)
        right = (left + 1)[inside]
        paired[inside] = torch.where(owner[right] == owner[left[inside]], ids[right] + 1, 0)
        ids, owner = dense(ids[left] * (len(ids) + 1) + paired), owner[left]
    out = torch.zeros(n, dtype=torch.int64)
    out[owner] = ids + 1
    return out
