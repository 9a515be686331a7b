"""`Columns`: the rollouts of a step as token trees in struct-of-arrays form, with the meaning of each axis.

Two relations are kept apart: `parent` is what tokens are conditioned on (the forward pass, shared prefixes);
`previous` is what happened before (time, returns, advantages). Five axes, named by suffix:

N  nodes (parents before children): a prompt, an observation or (part of) an action
T  stored tokens, each once
S  steps: one per (trajectory, turn), by trajectory, then time
P  action tokens: one per (trajectory, action token of it), by trajectory, then time
R  trajectories

Storage, generation and the forward pass run on T. Credit, weights, ratios, losses and aggregation run on P and gather
by `path_token`, so they are written as if trajectories were flat and packed equals flattened by construction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from gxpo.base.errors import GxpoError, NoVerdicts
from gxpo.forest.grouped import begins_of, dense, distinct, place_in, repeated, runs_of

if TYPE_CHECKING:
    from gxpo.forest.token_bias import TokenBias

NAN = float("nan")
PROMPT, OBSERVATION, ACTION = 0, 1, 2

_LEVELS = {
    "R": ("group", "trajectory", "task", "origin"),
    "S": ("step", "turn", "state", "agent"),
    "P": ("segment", "policy", "token"),
}

COLUMNS: dict[str, tuple[str, str | None]] = {  # field -> (its axis, the axis that its values are rows of)
    **dict.fromkeys(("parent", "previous", "caller", "sampled_under"), ("N", "N")),
    **dict.fromkeys(("kind", "agent", "policy", "policy_version", "turn", "state"), ("N", None)),
    **dict.fromkeys(("token", "behaviour_logprob", "trainable", "segment"), ("T", None)),
    **{"step_trajectory": ("S", "R"), "step_action": ("S", "N"), "step_previous": ("S", "S")},
    **dict.fromkeys(("step_turn", "step_state", "step_agent", "step_reward", "unshaped_step_reward"), ("S", None)),
    **dict.fromkeys(("step_finish", "step_info", "observation_text", "action_text"), ("S", None)),
    **{"path_token": ("P", "T"), "path_step": ("P", "S"), "path_trajectory": ("P", "R")},
    **{"last_action": ("R", "N"), "prompt_node": ("R", "N")},
    **dict.fromkeys(("id", "task", "group", "origin", "sampling", "info"), ("R", None)),
    **dict.fromkeys(("outcome", "components", "success", "compared", "weight", "truncated"), ("R", None)),
    "unshaped_outcome": ("R", None),
    **dict.fromkeys(("prompt_text", "final_state", "final_observation"), ("R", None)),
}
_OPTIONAL_LISTS = {  # lists that may be left out, and the default of each row
    "info": dict,
    "prompt_text": lambda: None,
    "final_state": lambda: None,
    "final_observation": list,
    "step_finish": lambda: None,
    "step_info": dict,
    "observation_text": lambda: None,
    "action_text": lambda: None,
}


def _numbered(names: Sequence[Any]) -> Tensor:
    """Number names by first appearance, from 0; -1 for None. [n] int64."""
    index: dict[Any, int] = {name: i for i, name in enumerate(x for x in dict.fromkeys(names) if x is not None)}
    index[None] = -1
    return torch.from_numpy(np.fromiter(map(index.__getitem__, names), np.int64, len(names)))


def _without_gaps(ids: Tensor) -> Tensor:
    """Renumber ids densely, in their order; -1 stays."""
    return dense(ids) - int(bool(len(ids)) and int(ids.min()) < 0)


def _paired(first: Tensor, second: Tensor) -> Tensor:
    """Dense ids of pairs of ids, ordered by first and second; -1 where either is -1."""
    if not len(first):
        return first
    width = max(int(second.max()) + 1, 1)
    pairs = first * width + second
    if int(first.min()) < 0 or int(second.min()) < 0:
        pairs = torch.where((first < 0) | (second < 0), -1, pairs)
    return _without_gaps(pairs)


Self = TypeVar("Self", bound="Columns")


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns of a forest (see the module). Integers are int64, -1 for "none"; floats float64, nan for "unknown"."""

    # N
    parent: Tensor  # -1 root
    previous: Tensor  # action nodes: the action before it in its trajectory
    kind: Tensor  # PROMPT | OBSERVATION | ACTION
    agent: Tensor  # index into agent_names
    policy: Tensor  # index into policy_names
    policy_version: Tensor
    caller: Tensor  # the action that invoked this one
    turn: Tensor
    state: Tensor  # environment state acted in, index into state_names
    sampled_under: Tensor  # last node of the root path of another context it was sampled under
    first_token: Tensor  # [N+1]
    # T
    token: Tensor  # -1 where a step is not a vocabulary id
    behaviour_logprob: Tensor
    trainable: Tensor  # bool
    segment: Tensor  # counted from 0 within the action
    # S
    step_trajectory: Tensor
    step_turn: Tensor
    step_action: Tensor  # its last node
    step_state: Tensor
    step_agent: Tensor
    step_reward: Tensor
    step_previous: Tensor  # the step before it in its trajectory, -1 first; not the row above only under `after`
    # P
    path_token: Tensor
    path_step: Tensor
    path_trajectory: Tensor
    # R
    id: list[str]
    task: list[str]
    group: list[str]
    last_action: Tensor
    outcome: Tensor
    components: Tensor  # [R, K]
    success: Tensor
    compared: Tensor  # bool
    weight: Tensor
    truncated: Tensor  # bool
    origin: list[str]
    sampling: list[dict[str, Any]]
    prompt_node: Tensor  # node that ends the trajectory's prompt
    # names, lists that ride along, named tensors
    component_names: tuple[str, ...] = ()
    shaped_by: tuple[str, ...] = ()  # keys of the method's own rewards that outcome and step rewards hold
    agent_names: tuple[str, ...] = ()
    policy_names: tuple[str, ...] = ()
    state_names: tuple[str, ...] = ()
    info: list[dict[str, Any]] = field(default_factory=list)  # [R]
    prompt_text: list[str | None] = field(default_factory=list)  # [R]
    final_state: list[str | None] = field(default_factory=list)  # [R]
    final_observation: list[list[int]] = field(default_factory=list)  # [R]
    step_finish: list[str | None] = field(default_factory=list)  # [S]
    step_info: list[dict[str, Any]] = field(default_factory=list)  # [S]
    observation_text: list[str | None] = field(default_factory=list)  # [S]
    action_text: list[str | None] = field(default_factory=list)  # [S]
    # rewards of the task alone, where the method's own have changed them; nan: they have not (see `task_outcome`)
    unshaped_outcome: Tensor = None  # type: ignore[assignment]  # [R]
    unshaped_step_reward: Tensor = None  # type: ignore[assignment]  # [S]
    media: dict[int, tuple[str, ...]] = field(default_factory=dict)  # node -> references
    extras: dict[str, Tensor] = field(default_factory=dict)  # leading dimension T
    biases: dict[int, TokenBias] = field(default_factory=dict)  # by hash, which extras["bias"] holds for each token

    def __post_init__(self) -> None:
        # lists left out get a row each; then every column must have the rows of its axis
        for name, blank in _OPTIONAL_LISTS.items():
            rows = self.n_trajectories if COLUMNS[name][0] == "R" else self.n_steps
            if not getattr(self, name) and rows:
                object.__setattr__(self, name, [blank() for _ in range(rows)])
        for name, rows in (("unshaped_outcome", self.n_trajectories), ("unshaped_step_reward", self.n_steps)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, torch.full((rows,), NAN, dtype=torch.float64))
        for name, (axis, _) in COLUMNS.items():
            self._check(name, len(getattr(self, name)), axis)
        for name, value in self.extras.items():
            self._check(f"extras[{name!r}]", len(value), "T")
        if self.first_token.numel() != self.n_nodes + 1:
            raise ValueError(
                f"first_token has {self.first_token.numel()} values for {self.n_nodes} nodes, one more is needed"
            )
        if self.components.shape != (self.n_trajectories, len(self.component_names)):
            raise ValueError(f"components are {tuple(self.components.shape)}, their names {self.component_names}")

    def _check(self, name: str, rows: int, axis: str) -> None:
        if rows != self._size(axis):
            raise ValueError(f"{name} has {rows} rows; axis {axis} of this forest has {self._size(axis)}")

    def _size(self, axis: str) -> int:
        sizes = {"N": self.parent, "T": self.token, "S": self.step_turn, "P": self.path_token, "R": self.group}
        if axis not in sizes:
            raise ValueError(f"an axis is one of {', '.join(sizes)}, not {axis!r}")
        return len(sizes[axis])

    def replace(self: Self, **fields: Any) -> Self:
        """A copy with these fields replaced."""
        return dataclasses.replace(self, **fields)

    # ------------------------------------------------------------ sizes and columns
    @property
    def n_nodes(self) -> int:
        return self.parent.numel()

    @property
    def n_tokens(self) -> int:
        return self.token.numel()

    @property
    def n_steps(self) -> int:
        return self.step_turn.numel()

    @property
    def n_entries(self) -> int:
        return self.path_token.numel()

    @property
    def n_trajectories(self) -> int:
        return len(self.group)

    @property
    def scored(self) -> Tensor:
        """[R] bool: trajectories with a finite outcome."""
        return self.outcome.isfinite()

    @property
    def task_outcome(self) -> Tensor:
        """[R] float64: the outcome without the method's own rewards (`shaped_by`), nan = unscored."""
        return torch.where(self.unshaped_outcome.isnan(), self.outcome, self.unshaped_outcome)

    @property
    def task_step_reward(self) -> Tensor:
        """[S] float64: the step rewards without the method's own, nan = none."""
        if not any(key.startswith("reward.step.") for key in self.shaped_by):
            return self.step_reward
        return self.unshaped_step_reward

    @cached_property
    def text_actions(self) -> Tensor:
        """Actions known only as text, [S] bool: one stored token, -1, in place of their ids."""
        if self.action_text.count(None) == self.n_steps:
            return torch.zeros(self.n_steps, dtype=torch.bool)
        # the placeholder is a single token, -1, without a log-prob
        is_single_token = torch.bincount(self.path_step, minlength=self.n_steps) == 1
        is_blank = (self.token[self.path_token] < 0) & self.path_behaviour_logprob.isnan()
        has_text = torch.tensor([t is not None for t in self.action_text], dtype=torch.bool)
        return has_text & is_single_token.index_put((self.path_step,), is_single_token[self.path_step] & is_blank)

    @property
    def missing_ids(self) -> str:
        """Count the texts without token ids, in words: "2 actions, 1 prompts"; "" if there are none."""
        # an observation has ids if its turn's action follows a context node, not another action or nothing
        context = self.parent[self._first_nodes]
        has_text = torch.tensor([bool(t) for t in self.observation_text], dtype=torch.bool)
        follows_action = (context < 0) | (self.kind[context.clamp_min(0)] == ACTION) if self.n_nodes else True
        lacks_ids = has_text & follows_action
        prompts = sum(bool(t) and int(n) < 0 for t, n in zip(self.prompt_text, self.prompt_node, strict=True))
        counts = {"actions": int(self.text_actions.sum()), "observations": int(lacks_ids.sum()), "prompts": prompts}
        return ", ".join(f"{n} {noun}" for noun, n in counts.items() if n)

    @property
    def text_only(self) -> bool:
        """True if any action is known only as text: its length in tokens is unknown."""
        return bool(self.text_actions.any())

    def need_ids(self, reader: str) -> None:
        """Raise an error if `reader` needs token ids and actions, observations or prompts are text without them."""
        if missing := self.missing_ids:
            raise GxpoError(f"{reader} needs token ids, but {missing} are text only: give their ids in the records")

    def need_verdicts(self, reader: str, *, each: bool = False) -> None:
        """Raise NoVerdicts if scored rollouts lack the verdict that `reader` needs: all of them, or with `each` any."""
        has_verdict = self.success.isfinite()[self.scored]
        if has_verdict.numel() and not bool(has_verdict.all() if each else has_verdict.any()):
            raise NoVerdicts(reader)

    @cached_property
    def path_trainable(self) -> Tensor:
        """[P] bool: action tokens that are trained on."""
        return self.trainable.index_select(0, self.path_token)

    @cached_property
    def path_behaviour_logprob(self) -> Tensor:
        """[P] float64: log-probabilities under the rollout policy, nan unknown."""
        return self.behaviour_logprob.index_select(0, self.path_token)

    @cached_property
    def token_node(self) -> Tensor:
        """[T] the node of each stored token."""
        return repeated(torch.arange(self.n_nodes), self.first_token.diff())

    def lengths(self) -> Tensor:
        """[R] int64: trainable action tokens of each trajectory. An error if actions are text without ids."""
        if self.text_only:
            self.need_ids("lengths()")
        trained = self.path_trainable.to(torch.float64)
        return torch.bincount(self.path_trajectory, trained, self.n_trajectories).to(torch.int64)

    @cached_property
    def _entry_begin(self) -> Tensor:
        return begins_of(self.path_trajectory, self.n_trajectories)

    def path_of(self, r: int) -> Tensor:
        """Rows of P of trajectory r, trainable or not."""
        r = range(self.n_trajectories)[r]
        return torch.arange(int(self._entry_begin[r]), int(self._entry_begin[r + 1]))

    @cached_property
    def _step_begin(self) -> Tensor:
        return begins_of(self.step_trajectory, self.n_trajectories)

    @cached_property
    def _first_nodes(self) -> Tensor:
        """First node of each step's action, [S]."""
        # a fork inside an action splits it into nodes of one turn: walk up while the parent is of the same turn
        parent = self.parent.clamp_min(0)
        in_action = (self.kind[parent] == ACTION) & (self.turn[parent] == self.turn)
        continues_action = (self.parent >= 0) & in_action
        return last_before(self.parent, continues_action)[self.step_action]

    # ------------------------------------------------------------ ids and broadcasting
    @cached_property
    def _level_cache(self) -> dict[str, Tensor]:
        """Columns of levels already computed, by level; the forest is immutable, so they stay valid."""
        return {}

    def _column(self, level: str) -> Tensor:
        """Values of a level on its own axis, computed once."""
        if level not in self._level_cache:
            self._level_cache[level] = self._level(level)
        return self._level_cache[level]

    def _level(self, level: str) -> Tensor:
        source, _, key = level.partition(".")
        if key:
            return _numbered([row.get(key) for row in (self.info if source == "info" else self.step_info)])
        if level in ("group", "task", "origin"):
            return _numbered(getattr(self, level))
        if level in ("turn", "state", "agent"):
            return getattr(self, f"step_{level}")
        if level == "trajectory":
            return torch.arange(self.n_trajectories)
        if level == "step":
            return torch.arange(self.n_steps)
        if level == "policy":
            return self.to_path(self.policy, "N")
        return self.to_path(self.segment, "T") if level == "segment" else self.path_token

    def ids(self, *levels: str, axis: str | None = None) -> Tensor:
        """Group ids (int64) of a combination of levels on an axis, always within a group; -1 where any level is -1.

        Levels on R: group, trajectory, task, origin, and "info.KEY" (equal where `info[r][KEY]` is, -1 where it is
        missing); on S also: step, turn, state, agent, "step_info.KEY"; on P also: segment, policy, token.
        `ids("state", axis="S")` are anchor states: equal states of different groups have different ids.
        Without `axis` it is the coarsest one that has all the levels. Equal ids mean equal levels; ids are below
        their number of rows, and those of "group" alone are the same on every axis.
        """
        levels_by_axis = {"R": _LEVELS["R"], "S": _LEVELS["R"] + _LEVELS["S"], "P": sum(_LEVELS.values(), ())}
        # a key of `info` is on R as a group is, one of `step_info` on S as a step is
        if axis is None:
            keys = {"info": "group", "step_info": "step"}
            plain = {keys.get(x.split(".")[0], x) if "." in x else x for x in levels}
            axis = next((a for a, names in levels_by_axis.items() if plain <= set(names)), "P")
        if axis not in levels_by_axis:
            raise ValueError(f"axis is 'R', 'S' or 'P', not {axis!r}")
        for level in levels:
            if level not in levels_by_axis[axis] and not self._is_info_level(level, axis):
                raise ValueError(
                    f"level {level!r} does not exist on axis {axis}; there are {', '.join(levels_by_axis[axis])}"
                )
        # levels are combined on the coarsest axis that has those so far: its rows are fewer than those of P
        combined, current_axis = self._column("group"), "R"
        other_levels = [level for level in dict.fromkeys(levels) if level != "group"]
        for level in other_levels:
            level_axis = self._axis_of(level)
            finer_axis = max(current_axis, level_axis, key=list(_LEVELS).index)
            column = self._to_axis(self._column(level), level_axis, finer_axis)
            combined = _paired(self._to_axis(combined, current_axis, finer_axis), column)
            current_axis = finer_axis
        if current_axis == axis:
            return combined
        combined = self._to_axis(combined, current_axis, axis)
        return _without_gaps(combined) if other_levels else combined

    @staticmethod
    def _is_info_level(level: str, axis: str) -> bool:
        """True if the level is a key of `info`, or of `step_info` on an axis finer than R."""
        return level.startswith("info.") or (level.startswith("step_info.") and axis != "R")

    @staticmethod
    def _axis_of(level: str) -> str:
        """Axis of a level's own column."""
        if "." in level:
            return "R" if level.startswith("info.") else "S"
        return next(axis for axis, names in _LEVELS.items() if level in names)

    def _to_axis(self, column: Tensor, from_axis: str, to_axis: str) -> Tensor:
        """Broadcast a column to another, finer axis."""
        if from_axis == to_axis:
            return column
        return column.index_select(0, self.step_trajectory) if to_axis == "S" else self.to_path(column, from_axis)

    def to_path(self, x: Tensor, axis: str) -> Tensor:
        """Broadcast values of R, S, N or T to action tokens, [P]; the axis is named, never guessed from a length."""
        if axis not in ("R", "S", "N", "T"):
            raise ValueError(f"axis is 'R', 'S', 'N' or 'T', not {axis!r}")
        self._check("x", len(x), axis)
        if axis == "N":
            return x.index_select(0, self.token_node[self.path_token])
        return x.index_select(0, {"R": self.path_trajectory, "S": self.path_step, "T": self.path_token}[axis])

    def _rows(self, rows: Tensor | Sequence[int]) -> Tensor:
        """Indices of trajectories from a bool mask or from indices, checked: in range and distinct."""
        index = torch.as_tensor(rows)
        if index.dtype == torch.bool:
            self._check("the mask", index.numel(), "R")
            return index.nonzero().squeeze(1)
        index = index.to(torch.int64).reshape(-1)
        if index.numel() and (int(index.min()) < 0 or int(index.max()) >= self.n_trajectories):
            raise ValueError(f"rows {int(index.min())}..{int(index.max())} of {self.n_trajectories} trajectories")
        if index.unique().numel() != index.numel():
            raise ValueError("a trajectory is selected twice: rows must be distinct")
        return index

    def entries_of(self, rows: Tensor | Sequence[int]) -> Tensor:
        """Rows of P of these trajectories, in the order in which `select(rows)` holds them."""
        return runs_of(self._entry_begin, self._rows(rows))


# ---------------------------------------------------------------- along pointers
def with_end(previous: Tensor) -> Tensor:
    """`previous` with a final sentinel row that points at itself; rows without a predecessor point at it."""
    end = len(previous)
    return torch.cat([torch.where(previous >= 0, previous, end), previous.new_tensor([end])])


def sum_before(previous: Tensor, x: Tensor) -> Tensor:
    """Sum of `x` over all predecessors of each row along `previous` (-1: none); by doubling, O(n log depth)."""
    jump, end = with_end(previous), len(previous)
    total = torch.cat([x, x.new_zeros(1)])[jump]
    while int(jump.min()) < end:
        total = total + total.index_select(0, jump)
        jump = jump.index_select(0, jump)
    return total[:-1]


def sum_after(previous: Tensor, x: Tensor, discount: float = 1.0) -> Tensor:
    """Discounted sum of `x` [n] float64 over each row and all its successors, times `discount` for each hop.

    By doubling, O(n log depth): after k rounds a row holds what is less than 2^k hops away.
    """
    jump, end = with_end(previous), len(previous)
    total = torch.cat([x, x.new_zeros(1)])
    discounted, next_jump = torch.empty_like(total), torch.empty_like(jump)
    while discount and int(jump.min()) < end:
        # each round doubles the hops that a row has summed and squares the discount of one jump
        total.scatter_add_(0, jump, torch.mul(total, discount, out=discounted))
        total[end] = 0.0
        torch.index_select(jump, 0, jump, out=next_jump)
        jump, next_jump = next_jump, jump
        discount *= discount
    return total[:-1]


def last_before(previous: Tensor, going: Tensor) -> Tensor:
    """Last row reached from each row along `previous`, while the rows passed are `going`; by doubling."""
    reached = torch.where(going & (previous >= 0), previous, torch.arange(len(previous)))
    while not torch.equal(reached, next_reached := reached.index_select(0, reached)):
        reached = next_reached
    return reached


def with_ancestors(parent: Tensor, owner: Tensor, node: Tensor) -> tuple[Tensor, Tensor]:
    """Extend (owner, node) pairs to all ancestors of the nodes: each pair once, by owner, then node.

    A round goes one node up, from new pairs only: as many rounds as nodes lie between two given ones of an owner.
    """
    # a pair is one integer, owner n + node; a pair that was given is not followed again: its own walk does that
    n = max(len(parent), 1)
    initial = frontier = distinct(owner * n + node)
    levels = [initial]
    while len(frontier):
        frontier_node = frontier % n
        parent_node = parent[frontier_node]
        ancestors = distinct((frontier - frontier_node + parent_node)[parent_node >= 0])
        frontier = ancestors[place_in(initial, ancestors) < 0]
        levels.append(frontier)
    pairs = distinct(torch.cat(levels))
    return pairs // n, pairs % n
