"""`Forest`: all rollouts of a step as a token tree, from completions, records or padded tensors.

Its columns and axes are in `gxpo.forest.columns`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gxpo.base.media import FIRST, refs_in
from gxpo.forest import reshape
from gxpo.forest.columns import (
    ACTION,
    COLUMNS,
    NAN,
    OBSERVATION,
    PROMPT,
    Columns,
    last_before,
    sum_after,
    sum_before,
    with_ancestors,
)
from gxpo.forest.grouped import begins_of, dense

__all__ = ["ACTION", "COLUMNS", "OBSERVATION", "PROMPT", "Forest", "Packed"]


class Forest(Columns):
    """All rollouts of a step as a token tree; `gxpo.forest.columns` describes its columns."""

    # ------------------------------------------------------------ construction
    @classmethod
    def from_completions(
        cls,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[Sequence[int]]],
        rewards: Sequence[Any] | Tensor | None = None,
        *,
        groups: Sequence[str] | None = None,
        tasks: Sequence[str] | None = None,
        logprobs: Sequence[Sequence[Sequence[float]]] | None = None,
        success: Sequence[Any] | Tensor | None = None,
        truncated: Sequence[Any] | Tensor | None = None,
        finish: Sequence[str | None] | None = None,
        support: Sequence[Tensor | None] | None = None,
        sampling: Mapping[str, Any] | None = None,
        policy_version: int = 0,
        origin: str = "policy",
        ids: Sequence[str] | None = None,
        info: Sequence[Mapping[str, Any]] | None = None,
    ) -> Forest:
        """Forest of single-turn groups: `completions[i]` are the samples of `prompts[i]`, token ids throughout.

        A group per prompt: `groups` and `tasks` name them (default "0", "1", ...; a task is its group), and prompts
        that are given one name are one group. Equal prompts are stored once; they are not one group for that. The other
        columns hold one value per completion, flat in order or nested as `completions`: `rewards` (None or nan =
        unscored), `success`, `truncated`; flat only: `finish`, `ids`, `info`, `support` ([tokens, K] allowed ids padded
        with -1, or None). `logprobs` has a value (None unknown) for each token of `completions`. ValueError where
        lengths differ.
        """
        if len(prompts) != len(completions):
            raise ValueError(f"{len(prompts)} prompts and {len(completions)} groups of completions")
        group_names = [str(i) for i in range(len(prompts))] if groups is None else [str(g) for g in groups]
        task_names = group_names if tasks is None else [str(t) for t in tasks]
        for argument, labels in (("groups", group_names), ("tasks", task_names)):
            if len(labels) != len(prompts):
                raise ValueError(f"{argument} has {len(labels)} names for {len(prompts)} prompts")
        completion_tokens = _sequences(completions)
        group_sizes = [len(group) for group in completions]
        n = len(completion_tokens)
        if ids is not None and len(set(ids)) != n:
            raise ValueError(f"ids must be {n} distinct names, one per completion")
        # nodes: one for each distinct prompt that holds a token, one for each completion, parents first
        prompt_nodes: dict[tuple[int, ...], int] = {}
        parent, action_nodes, prompt_node = [], [], []
        node_tokens: list[Sequence[int]] = []
        row = 0
        for prompt, count in zip(prompts, group_sizes, strict=True):
            prompt_ids = tuple(map(int, prompt))
            if prompt_ids and prompt_ids not in prompt_nodes:
                prompt_nodes[prompt_ids] = len(parent)
                parent.append(-1)
                node_tokens.append(prompt_ids)
            for _ in range(count):
                prompt_node.append(prompt_nodes.get(prompt_ids, -1))
                action_nodes.append(len(parent))
                parent.append(prompt_nodes.get(prompt_ids, -1))
                node_tokens.append(completion_tokens[row])
                row += 1
        # tokens: those of actions are the paths, one trajectory a completion
        node_begin = torch.tensor([0, *map(len, node_tokens)], dtype=torch.int64).cumsum(0)
        n_nodes, n_tokens = len(parent), int(node_begin[-1])
        action_node_R = torch.tensor(action_nodes, dtype=torch.int64)
        is_action_N = torch.zeros(n_nodes, dtype=torch.bool)
        is_action_N[action_node_R] = True
        in_action_T = torch.repeat_interleave(is_action_N, node_begin.diff())
        path_token = in_action_T.nonzero().squeeze(1)
        trajectory_P = torch.repeat_interleave(torch.arange(n), node_begin.diff()[action_node_R])
        behaviour_T = torch.full((n_tokens,), NAN, dtype=torch.float64)
        if logprobs is not None:
            logprob_rows = _sequences(logprobs)
            if list(map(len, logprob_rows)) != list(map(len, completion_tokens)):
                raise ValueError("logprobs must have one value for each token of each completion")
            behaviour_T[path_token] = _concatenate(logprob_rows, np.float64, len(path_token))  # None becomes nan
        extras: dict[str, Tensor] = {}
        if support is not None:
            lengths = list(map(len, completion_tokens))
            if [lengths[i] if s is None else len(s) for i, s in enumerate(support)] != lengths:
                raise ValueError("support must have one row for each token of each completion, or be None for it")
            blocks = [
                (int(node_begin[node]), s) for node, s in zip(action_nodes, support, strict=True) if s is not None
            ]
            if blocks:
                extras["support"] = reshape.scatter_blocks(blocks, n_tokens)
        # one agent, one policy and one turn: index 0 on actions, -1 on prompts
        agent_N = torch.where(is_action_N, 0, -1)
        minus_one_N = torch.full((n_nodes,), -1)
        group_R = [name for name, count in zip(group_names, group_sizes, strict=True) for _ in range(count)]
        return cls(
            parent=torch.tensor(parent, dtype=torch.int64),
            previous=minus_one_N,
            kind=torch.where(is_action_N, ACTION, PROMPT),
            agent=agent_N,
            policy=agent_N,
            policy_version=torch.where(is_action_N, policy_version, -1),
            caller=minus_one_N,
            turn=agent_N,
            state=minus_one_N,
            sampled_under=minus_one_N,
            first_token=node_begin,
            token=_concatenate(node_tokens, np.int64, n_tokens),
            behaviour_logprob=behaviour_T,
            trainable=in_action_T,
            segment=torch.full((n_tokens,), -1),
            step_trajectory=torch.arange(n),
            step_turn=torch.zeros(n, dtype=torch.int64),
            step_action=action_node_R,
            step_state=torch.full((n,), -1),
            step_agent=torch.zeros(n, dtype=torch.int64),
            step_reward=torch.full((n,), NAN, dtype=torch.float64),
            step_previous=torch.full((n,), -1),
            path_token=path_token,
            path_step=trajectory_P,
            path_trajectory=trajectory_P,
            id=[f"t{i}" for i in range(n)] if ids is None else list(ids),
            task=[name for name, count in zip(task_names, group_sizes, strict=True) for _ in range(count)],
            group=group_R,
            last_action=action_node_R,
            outcome=_column(rewards, group_sizes, NAN, torch.float64, "rewards"),
            components=torch.empty(n, 0, dtype=torch.float64),
            success=_column(success, group_sizes, NAN, torch.float64, "success"),
            compared=torch.ones(n, dtype=torch.bool),
            weight=torch.ones(n, dtype=torch.float64),
            truncated=_column(truncated, group_sizes, False, torch.bool, "truncated"),
            origin=[origin] * n,
            sampling=[dict(sampling or {}) for _ in range(n)],
            prompt_node=torch.tensor(prompt_node, dtype=torch.int64),
            agent_names=("agent",),
            policy_names=("main",),
            media={node: refs_in(prompt) for prompt, node in prompt_nodes.items() if max(prompt) >= FIRST},
            info=[dict(i) for i in info] if info is not None else [{} for _ in range(n)],
            prompt_text=[None] * n,
            final_state=[None] * n,
            final_observation=[[] for _ in range(n)],
            step_finish=list(finish) if finish is not None else [None] * n,
            step_info=[{} for _ in range(n)],
            observation_text=[None] * n,
            action_text=[None] * n,
            extras=extras,
        )

    @classmethod
    def from_records(
        cls, records: Iterable[Mapping[str, Any]], *, share: bool = True, folder: Path | None = None
    ) -> Forest:
        """Forest from rollout records (`gxpo schema`); `share=False` stores every context token per use.

        folder  of the .safetensors files that `extras` name
        """
        from gxpo.forest.record_format.reader import columns_of

        rows = ((f"record {n}", record) for n, record in enumerate(records, 1))
        return cls(**columns_of(rows, share, folder))

    def to_records(self, *, share: bool = True) -> list[dict[str, Any]]:
        """Rollout records, the inverse of `from_records`; `share=False` writes forked trajectories out in full."""
        from gxpo.forest.record_format.writer import render

        return render(self, share=share)

    @classmethod
    def from_padded(cls, *args: Any, success: Tensor | Sequence[float | None] | None = None, **kwargs: Any) -> Forest:
        """Forest from padded tensors as in TRL and verl; see `gxpo.forest.record_format.padded.padded_records`.

        success [B]: the verdicts, 1 right and 0 wrong (None or nan = unknown), which methods that count successes read.
        """
        from gxpo.forest.record_format.padded import padded_records

        records = padded_records(*args, **kwargs)
        if success is not None and len(success) != len(records):
            raise ValueError(f"group, rewards and success need one value for each of the {len(records)} rows")
        return cls.from_records(records).replace(
            success=_column(success, [len(records)], NAN, torch.float64, "success")
        )

    @classmethod
    def concat(cls, forests: Sequence[Forest]) -> Forest:
        """Concatenate forests: all trajectories, in order; nothing is shared between the forests."""
        return reshape.concat(forests) if forests else cls.from_records([])

    def flatten(self) -> Forest:
        """The trajectories without sharing: each has its own nodes. S, P and R keep all but their token indices."""
        return reshape.flatten(self)

    def in_context(self, which: str) -> Forest:
        """The trajectories under the context that they are trained in ("trained": unchanged), or the one they were
        sampled in ("sampled", where a node has `sampled_under`). S, P and R do not change."""
        if which not in ("trained", "sampled"):
            raise ValueError(f"a context is 'trained' or 'sampled', not {which!r}")
        return reshape.in_sampled_context(self) if which == "sampled" else self

    def select(self, rows: Tensor | Sequence[int]) -> Forest:
        """Subset of trajectories (a bool mask, or distinct indices in any order) with only the nodes that they need."""
        index = self._rows(rows)
        is_everything = torch.equal(index, torch.arange(self.n_trajectories))
        return self if is_everything else reshape.select(self, index)

    def kept_rows(self, rows: Tensor | Sequence[int]) -> dict[str, Tensor]:
        """Rows of every axis ("N", "T", "S", "P", "R") that `select(rows)` keeps, in its order."""
        return reshape.kept_rows(self, self._rows(rows))

    def with_rewards(
        self,
        outcome: Tensor,
        *,
        components: Mapping[str, Tensor] | None = None,
        success: Tensor | None = None,
    ) -> Forest:
        """A copy with new scores: `outcome` [R] (nan = unscored), named `components` [R], `success` [R].

        They are the task's: a method's own rewards are not in them (`shaped_by` is empty; see `Method.shaped`)."""
        components_by_name = components or {}
        columns = [x.to(torch.float64) for x in components_by_name.values()]
        return self.replace(
            outcome=outcome.to(torch.float64),
            shaped_by=(),
            unshaped_outcome=None,
            component_names=tuple(components_by_name),
            components=torch.stack(columns, 1) if columns else torch.empty(self.n_trajectories, 0, dtype=torch.float64),
            success=self.success if success is None else success.to(torch.float64),
        )

    # ------------------------------------------------------------ time
    def returns(self, discount: float) -> Tensor:
        """Discounted returns, [S] float64: return(s) = step_reward(s) + discount * sum of return(t), t following s.

        Following s is the next turn, or under `after` each turn that names s. A trajectory without any step reward has
        its outcome on its last turn; a missing step reward is 0 where the trajectory has another. Unscored trajectories
        have 0.
        """
        # a trajectory without step rewards is paid by its outcome, once, on its last turn
        has_reward = self.step_reward.isfinite()
        has_any_reward = torch.bincount(self.step_trajectory, has_reward.to(torch.float64), self.n_trajectories) > 0
        value = torch.where(has_reward, self.step_reward, 0.0)
        outcome_only = (~has_any_reward & (self._step_begin.diff() > 0) & self.scored).nonzero().squeeze(1)
        value[self._step_begin[outcome_only + 1] - 1] = self.outcome[outcome_only]
        if not bool(self.scored.all()):
            value[~self.scored[self.step_trajectory]] = 0.0
        return sum_after(self.step_previous, value, discount)

    # ------------------------------------------------------------ trees
    @cached_property
    def visits(self) -> tuple[Tensor, Tensor]:
        """Distinct (trajectory, node) pairs: a trajectory's action nodes and all nodes that they are conditioned on."""
        return with_ancestors(self.parent, self.step_trajectory, self.step_action)

    @cached_property
    def _node_group(self) -> Tensor:
        """Group of all trajectories through each node, [N]; -1 where there are several groups or none."""
        # one group only: its smallest id is its largest
        r, node = self.visits
        group = self._column("group")[r]
        lowest = torch.full((self.n_nodes,), -1).scatter_reduce_(0, node, group, "amin", include_self=False)
        highest = torch.full((self.n_nodes,), -1).scatter_reduce_(0, node, group, "amax", include_self=False)
        return torch.where(lowest == highest, lowest, -1)

    def subtree_mean(self, x: Tensor, axis: str = "N") -> Tensor:
        """Mean of `x` [R] over a group's scored and compared trajectories through each node, [N] float64.

        nan where there is none, and on nodes that trajectories of several groups go through (equal prompts are stored
        once). With `axis` "S" or "P": the same at the last node of each step, or at the node of each action token,
        always of the trajectory's own group.
        """
        self._check("x", len(x), "R")
        group = self._column("group")
        # (node, group) pairs whose mean is asked for: equal prompts are one node, of several groups
        queries = {
            "N": lambda: (torch.arange(self.n_nodes), self._node_group),
            "S": lambda: (self.step_action, group[self.step_trajectory]),
            "P": lambda: (self.token_node[self.path_token], group[self.path_trajectory]),
        }
        if axis not in queries:
            raise ValueError(f"axis is 'N', 'S' or 'P', not {axis!r}")
        r, node = self.visits
        in_baseline = (self.scored & self.compared)[r]
        return _mean_at((node[in_baseline], group[r[in_baseline]]), x[r[in_baseline]], queries[axis]())

    def siblings(self) -> Tensor:
        """Sibling ids, [N]: dense ids of action nodes that have the same parent within one group.

        -1 for context nodes, actions without a parent, and nodes that trajectories of several groups go through.
        """
        out = torch.full((self.n_nodes,), -1)
        is_branch = (self.kind == ACTION) & (self.parent >= 0) & (self._node_group >= 0)
        key = self.parent * (self.n_trajectories + 1) + self._node_group
        out[is_branch] = dense(key[is_branch])
        return out

    def path(self, node: int) -> Tensor:
        """Nodes from the root to `node`, in order."""
        nodes = [node]
        while (up := int(self.parent[nodes[-1]])) >= 0:
            nodes.append(up)
        return torch.tensor(nodes[::-1])

    def context(self, node: int) -> list[int]:
        """Token ids from the root to the end of `node`."""
        tokens: list[int] = []
        for n in self.path(node).tolist() if node >= 0 else ():
            tokens += self.token[int(self.first_token[n]) : int(self.first_token[n + 1])].tolist()
        return tokens

    def step_nodes(self, step: int) -> list[int]:
        """Nodes of a step's action, in order; several where forks split it."""
        nodes, head = [int(self.step_action[step])], int(self._first_nodes[step])
        while nodes[-1] != head:
            nodes.append(int(self.parent[nodes[-1]]))
        return nodes[::-1]

    @cached_property
    def _step_entry_begin(self) -> Tensor:
        return begins_of(self.path_step, self.n_steps)

    def action(self, step: int) -> list[int]:
        """Token ids of the whole action of a step."""
        entries = slice(int(self._step_entry_begin[step]), int(self._step_entry_begin[step + 1]))
        return self.token[self.path_token[entries]].tolist()

    def pack(self) -> Packed:
        """Pack the forest for a forward pass: unique tokens once, position ids, and a tree attention mask."""
        return Packed.of(self)


def _flat(values: Any, counts: Sequence[int], name: str) -> list[Any]:
    """Flatten one value per completion, given flat or nested as the completions are."""
    values = values.tolist() if isinstance(values, Tensor) else list(values)
    if any(isinstance(v, list | tuple) for v in values):
        if [len(v) if isinstance(v, list | tuple) else -1 for v in values] != list(counts):
            raise ValueError(f"{name} must be nested as the completions are: {list(counts)} values by prompt")
        values = [v for group in values for v in group]
    if len(values) != sum(counts):
        raise ValueError(f"{name} has {len(values)} values; there are {sum(counts)} completions")
    return values


def _column(values: Any, counts: Sequence[int], absent: Any, dtype: torch.dtype, name: str) -> Tensor:
    """Column [R] of values given flat or nested, `absent` for None."""
    values_by_row = [None] * sum(counts) if values is None else _flat(values, counts, name)
    return torch.tensor([absent if v is None else v for v in values_by_row], dtype=dtype)


def _sequences(nested: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Concatenate the groups' sequences, arrays and tensors converted to lists."""
    sequences = (c for group in nested for c in group)
    return [c if isinstance(c, list | tuple) else c.tolist() if hasattr(c, "tolist") else list(c) for c in sequences]


def _concatenate(sequences: Sequence[Sequence[Any]], dtype: type, n: int) -> Tensor:
    """Concatenate sequences of `n` values in all into one column."""
    return torch.from_numpy(np.fromiter(chain.from_iterable(sequences), dtype, n))


# ---------------------------------------------------------------- for the forward pass
@dataclass(frozen=True, eq=False)
class Packed:
    """A forest packed for a forward pass: unique tokens once, positions by depth, tree attention mask.

    Columns over stored tokens (T) and nodes (N) of a forest.

    position [T]     depth of the token on its root path
    predecessor [T]  the token whose hidden state predicts it; -1 for the first token of a root path
    node_of_token [T], tree [N] (root of each node), parent [N], begin [N] (position of the node's first token)
    """

    token: Tensor
    position: Tensor
    predecessor: Tensor
    node_of_token: Tensor
    tree: Tensor
    parent: Tensor
    begin: Tensor

    @classmethod
    def of(cls, forest: Columns) -> Packed:
        """Pack a forest. Raises GxpoError if text without token ids would leave gaps in the positions."""
        forest.need_ids("pack()")
        sizes, parent, node = forest.first_token.diff(), forest.parent, forest.token_node
        begin = sum_before(parent, sizes)
        tree = last_before(parent, torch.ones_like(parent, dtype=torch.bool))
        # a node may be empty: the token before a node's first is the last of its nearest ancestor that holds one
        last_filled = last_before(parent, sizes == 0)
        last_token = torch.where(sizes[last_filled] > 0, forest.first_token[last_filled + 1] - 1, -1)
        token_above = torch.where(parent >= 0, last_token[parent.clamp_min(0)], -1)
        index = torch.arange(forest.n_tokens)
        offset = index - forest.first_token[node]
        predecessor = torch.where(offset > 0, index - 1, token_above[node])
        return cls(forest.token, begin[node] + offset, predecessor, node, tree, parent, begin)

    def ancestors(self, nodes: Tensor) -> Tensor:
        """Ancestor matrix of distinct `nodes`, [k, k] bool: the column's node is the row's or one of its ancestors."""
        size = self.parent.numel()
        row_of_node = torch.full((size,), -1)
        row_of_node[nodes] = torch.arange(nodes.numel())
        is_ancestor = torch.eye(nodes.numel(), dtype=torch.bool)
        # all rows walk up together, one parent a round, until each has passed its root
        row, current = torch.arange(nodes.numel()), self.parent[nodes]
        while bool((has_parent := current >= 0).any()):
            row, current = row[has_parent], current[has_parent]
            is_asked = row_of_node[current] >= 0
            is_ancestor[row[is_asked], row_of_node[current][is_asked]] = True
            current = self.parent[current]
        return is_ancestor

    def mask(self, tokens: Tensor) -> Tensor:
        """Tree attention mask, [n, n] bool: the row's token may attend to the column's."""
        nodes, node = torch.unique(self.node_of_token[tokens], return_inverse=True)
        above = self.ancestors(nodes)[node][:, node]
        position = self.position[tokens]
        return above & (position[None, :] <= position[:, None])


def _mean_at(keys: tuple[Tensor, Tensor], x: Tensor, queries: tuple[Tensor, Tensor]) -> Tensor:
    """Mean of `x` over the rows that have each queried pair of keys (>= -1), float64; nan where there are none."""
    # rows and queries are numbered together, so that a queried pair without rows gets a number too
    second = torch.cat([keys[1], queries[1]])
    width = int(second.max()) + 2 if len(second) else 2
    pairs = torch.cat([keys[0], queries[0]]) * width + second + 1
    key_ids, query_ids = dense(pairs).split([len(x), len(queries[0])])
    n = len(pairs)
    total = torch.zeros(n, dtype=torch.float64).scatter_add_(0, key_ids, x.to(torch.float64))
    return (total / torch.bincount(key_ids, minlength=n))[query_ids]
