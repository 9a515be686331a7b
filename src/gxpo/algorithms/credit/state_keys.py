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

StateSource = Literal["id", "observation"]


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

    state    identity of a state: its "id" from the environment, or the text of the "observation" read in it
    min_similarity  1: equal ones are one state. Below 1: least likeness of texts of one state (`cluster_leaders`), the
             texts being the observations, or the ids
    """

    state: StateSource = field(default="id", kw_only=True)
    min_similarity: Annotated[float, Interval(gt=0, le=1)] = field(default=1.0, kw_only=True)

    requires = ("states",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.state == "observation":  # it needs no ids from the environment
            object.__setattr__(self, "requires", tuple(x for x in self.requires if x != "states"))

    def states(self, forest: Forest) -> Tensor:
        """Dense ids of (group, state), [S] int64; -1 unknown."""
        if self.state == "id" and self.min_similarity == 1:
            return forest.ids("state", axis="S")
        return state_ids(forest, self.state, self.min_similarity)[: forest.n_steps]

    def moves(self, forest: Forest) -> Moves:
        """Steps as edges between two states."""
        ids = state_ids(forest, self.state, self.min_similarity)
        state_S, final_state_R = ids.split([forest.n_steps, forest.n_trajectories])
        # Steps in an unknown state are passed over, so `following` may skip turns.
        following = next_in(forest.step_trajectory, state_S >= 0)
        next_state_S = torch.where(
            following >= 0, state_S[following.clamp_min(0)], final_state_R[forest.step_trajectory]
        )
        return Moves(state_S, torch.where(state_S >= 0, next_state_S, -1), following)


def state_ids(forest: Forest, source: str = "id", min_similarity: float = 1.0) -> Tensor:
    """Dense ids of (group, state), [S + R] int64: of the steps, then of each trajectory's last state; -1 unknown.

    source   "id": `step_state` and `final_state`, numbered together; "observation": texts, which the last state lacks
    min_similarity  below 1, texts of a group with one leader (`cluster_leaders`) are one state. They are tried in
             alphabetical order, those that no compared trajectory met last: leaders depend neither on the order of the
             trajectories nor on those that are not compared
    Raises GxpoError where no observation has a text.
    """
    number: dict[str | None, int] = {}
    if source == "observation":
        if forest.n_steps and all(text is None for text in forest.observation_text):
            raise GxpoError("credit.state=observation needs the observations' texts, and there is none: use state=id")
        names = [*forest.observation_text, *[None] * forest.n_trajectories]
        name_id = torch.tensor([-1 if x is None else number.setdefault(x, len(number)) for x in names])
    else:
        # Last states are numbered with those of the steps: a trajectory may end where another one acts.
        number.update((name, i) for i, name in enumerate(forest.state_names))
        final_ids = [-1 if x is None else number.setdefault(x, len(number)) for x in forest.final_state]
        name_id = torch.cat([forest.step_state, torch.tensor(final_ids, dtype=torch.int64)])
    # The last state of each trajectory is one more row, behind all steps.
    owner = torch.cat([forest.step_trajectory, torch.arange(forest.n_trajectories)])
    group = forest.ids("group", axis="R")[owner]
    ids = combined(group, name_id)
    if min_similarity == 1:
        return ids
    return _merge_similar(ids, group, [str(name) for name in number], name_id, forest.compared[owner], min_similarity)


def _merge_similar(
    ids: Tensor, group: Tensor, texts: list[str], name_id: Tensor, compared: Tensor, threshold: float
) -> Tensor:
    """Merge the ids of like texts, in a loop over the distinct texts of each group, not over steps."""
    row_of_id = torch.zeros(int(ids.max()) + 1 if len(ids) else 0, dtype=torch.int64)
    is_compared_id = torch.zeros(len(row_of_id), dtype=torch.bool)
    known_rows = (ids >= 0).nonzero().squeeze(1)
    # One step stands for each id; an id is compared if any compared trajectory met it.
    row_of_id[ids[known_rows]] = known_rows
    is_compared_id[ids[known_rows[compared[known_rows]]]] = True
    members = defaultdict(list)
    for i, (g, text, is_compared) in enumerate(
        zip(group[row_of_id].tolist(), name_id[row_of_id].tolist(), is_compared_id.tolist(), strict=True)
    ):
        # Sorted: compared texts first, then by letters, so that no order of trajectories decides who leads.
        members[g].append((not is_compared, texts[text], i))
    leader = torch.arange(len(row_of_id))
    for texts_of_group in map(sorted, members.values()):
        for (_, _, i), leader_index in zip(
            texts_of_group, cluster_leaders([text for _, text, _ in texts_of_group], threshold), strict=True
        ):
            leader[i] = texts_of_group[leader_index][2]
    out = torch.full_like(ids, -1)
    out[known_rows] = dense(leader[ids[known_rows]])
    return out


def cluster_leaders(texts: Sequence[str], threshold: float) -> list[int]:
    """Index of each text's cluster leader among `texts`: greedy clustering in the order given.

    A text joins the first leader whose likeness to it is at least `threshold`, and otherwise leads itself. Likeness is
    difflib's ratio, 2 M / T for M characters in matching blocks of T characters in all, of the text against the
    leader. Not transitive, and dependent on the order. Long texts are compared whole: difflib by default disregards
    every letter that makes up more than a hundredth of a text of 200 characters or more.

    >>> cluster_leaders(["a red door", "a red floor", "the cellar"], 0.8)
    [0, 0, 2]
    """
    leaders: dict[int, SequenceMatcher[str]] = {}
    leader_of_text = []
    for i, text in enumerate(texts):
        for leader, matcher in leaders.items():
            # difflib caches what it computes of seq2, so the leader is that.
            matcher.set_seq1(text)
            # Cheap upper bounds go first: most pairs are told apart without the slow ratio.
            bounds = (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)  # each at least the next
            if all(bound() >= threshold for bound in bounds):
                leader_of_text.append(leader)
                break
        else:
            leaders[i] = SequenceMatcher(None, "", text, autojunk=False)
            leader_of_text.append(i)
    return leader_of_text


def combined(*columns: Tensor) -> Tensor:
    """Dense ids of the combinations of several id columns [n], [n] int64; -1 where any of them is.

    >>> combined(torch.tensor([0, 0, 1, 1, -1]), torch.tensor([5, 5, 5, -1, 0])).tolist()
    [0, 0, 1, -1, -1]
    """
    ids = columns[0]
    for column in columns[1:]:
        if not len(ids):
            return ids
        # Dense after every column, so that the product of ids can't overflow.
        key = torch.where((ids < 0) | (column < 0), -1, ids * (int(column.max()) + 1) + column)
        ids = dense(key) - int(int(key.min()) < 0)
    return ids


def history_ids(state: Tensor, following: Tensor, depth: int, *, needs_full_history: bool = True) -> list[Tensor]:
    """Ids of state histories: level h of [depth + 1] columns [S] is equal where the last h + 1 states are.

    state      [S] dense ids, -1 unknown
    following  [S] the step after each in its trajectory, of known state; -1 none
    needs_full_history  True: -1 where fewer than h states came before. False: such a history begins the trajectory, and
               is equal to those that begin it in the same way

    Level by level: (s_{t-h}, ..., s_t) is s_t with level h - 1 of the step before.
    """
    previous_step = torch.full_like(following, -1)
    rows = (following >= 0).nonzero().squeeze(1)
    # `following` turned around: the step before each.
    previous_step[following[rows]] = rows
    levels = [state]
    for _ in range(depth):
        # Level h is the state combined with level h - 1 of the step before.
        earlier_level = torch.where(previous_step >= 0, levels[-1][previous_step.clamp_min(0)], -1)
        # + 1 makes "no step before" (-1) an id of its own, equal for all that begin there.
        levels.append(combined(state, earlier_level if needs_full_history else earlier_level + 1))
    return levels


def action_ids(forest: Forest) -> Tensor:
    """Ids of equal actions, [S] int64: token by token, or by text for actions known only as text.

    -1 where a token has no vocabulary id: such actions are equal to none.
    """
    value_P = forest.token.index_select(0, forest.path_token)
    if bool(forest.text_actions.any()):
        id_by_text: dict[str | None, int] = {}
        # Actions known as text alone have one placeholder token: their text's number, below -1, takes its place.
        rows = zip(forest.action_text, forest.text_actions.tolist(), strict=True)
        text_id_S = torch.tensor(
            [-2 - id_by_text.setdefault(text, len(id_by_text)) if is_text_only else 0 for text, is_text_only in rows]
        )
        value_P = torch.where(text_id_S[forest.path_step] < 0, text_id_S[forest.path_step], value_P)
    ids = sequence_ids(value_P, forest.path_step, forest.n_steps)
    # Tokens without a vocabulary id (-1) may be anything: equal to none.
    ids[forest.path_step[value_P == -1]] = -1
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
        # The place of a value among its owner's: even ones are joined with their right neighbour.
        is_first = torch.ones_like(owner, dtype=torch.bool)
        is_first[1:] = owner[1:] != owner[:-1]
        rows = torch.arange(len(owner))
        position = rows - torch.where(is_first, rows, 0).cummax(0).values
        even = (position % 2 == 0).nonzero().squeeze(1)
        odd_id = torch.zeros_like(even)  # 0: no one to its right
        has_right = even + 1 < len(owner)
        odd = (even + 1)[has_right]
        # A pair is its two ids as one number; a last value without a partner has 0 beside it.
        odd_id[has_right] = torch.where(owner[odd] == owner[even[has_right]], ids[odd] + 1, 0)
        ids, owner = dense(ids[even] * (len(ids) + 1) + odd_id), owner[even]
    out = torch.zeros(n, dtype=torch.int64)
    out[owner] = ids + 1
    return out
