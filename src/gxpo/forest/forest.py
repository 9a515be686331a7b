"""`Forest`: all rollouts of a step as a token tree, from completions, records or padded tensors.

Its columns and axes are in `gxpo.forest.columns`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
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
    scatter_blocks,
    sum_after,
    sum_before,
    with_ancestors,
)
from gxpo.forest.grouped import begins_of, dense, mean_at

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
        names = [str(i) for i in range(len(prompts))] if groups is None else [str(g) for g in groups]
        task_names = names if tasks is None else [str(t) for t in tasks]
        for what, given in (("groups", names), ("tasks", task_names)):
            if len(given) != len(prompts):
                raise ValueError(f"{what} has {len(given)} names for {len(prompts)} prompts")
        flat = _sequences(completions)
        counts = [len(group) for group in completions]
        n = len(flat)
        if ids is not None and len(set(ids)) != n:
            raise ValueError(f"ids must be {n} distinct names, one per completion")
        prompt_nodes: dict[tuple[int, ...], int] = {}
        parent, action_nodes, prompt_node = [], [], []
        runs: list[Sequence[int]] = []  # of each node
        row = 0
        for prompt, count in zip(prompts, counts, strict=True):
            key = tuple(map(int, prompt))
            if key and key not in prompt_nodes:
                prompt_nodes[key] = len(parent)
                parent.append(-1)
                runs.append(key)
            for _ in range(count):
                prompt_node.append(prompt_nodes.get(key, -1))
                action_nodes.append(len(parent))
                parent.append(prompt_nodes.get(key, -1))
                runs.append(flat[row])
                row += 1
        first = torch.tensor([0, *map(len, runs)], dtype=torch.int64).cumsum(0)
        n_nodes, n_tokens = len(parent), int(first[-1])
        actions = torch.tensor(action_nodes, dtype=torch.int64)
        is_action = torch.zeros(n_nodes, dtype=torch.bool)
        is_action[actions] = True
        on_action = torch.repeat_interleave(is_action, first.diff())
        path_token = on_action.nonzero().squeeze(1)
        owner = torch.repeat_interleave(torch.arange(n), first.diff()[actions])
        behaviour = torch.full((n_tokens,), NAN, dtype=torch.float64)
        if logprobs is not None:
            given = _sequences(logprobs)
            if list(map(len, given)) != list(map(len, flat)):
                raise ValueError("logprobs must have one value for each token of each completion")
            behaviour[path_token] = _joined(given, np.float64, len(path_token))  # None becomes nan
        extras: dict[str, Tensor] = {}
        if support is not None:
            if [len(flat[i]) if s is None else len(s) for i, s in enumerate(support)] != [len(c) for c in flat]:
                raise ValueError("support must have one row for each token of each completion, or be None for it")
            blocks = [(int(first[node]), s) for node, s in zip(action_nodes, support, strict=True) if s is not None]
            if blocks:
                extras["support"] = scatter_blocks(blocks, n_tokens)
        mark = torch.where(is_action, 0, -1)
        none = torch.full((n_nodes,), -1)
        group_of = [name for name, count in zip(names, counts, strict=True) for _ in range(count)]
        return cls(
            parent=torch.tensor(parent, dtype=torch.int64),
            previous=none,
            kind=torch.where(is_action, ACTION, PROMPT),
            agent=mark,
            policy=mark,
            policy_version=torch.where(is_action, policy_version, -1),
            caller=none,
            turn=mark,
            state=none,
            sampled_under=none,
            first_token=first,
            token=_joined(runs, np.int64, n_tokens),
            behaviour_logprob=behaviour,
            trainable=on_action,
            segment=torch.full((n_tokens,), -1),
            step_trajectory=torch.arange(n),
            step_turn=torch.zeros(n, dtype=torch.int64),
            step_action=actions,
            step_state=torch.full((n,), -1),
            step_agent=torch.zeros(n, dtype=torch.int64),
            step_reward=torch.full((n,), NAN, dtype=torch.float64),
            step_previous=torch.full((n,), -1),
            path_token=path_token,
            path_step=owner,
            path_trajectory=owner,
            id=[f"t{i}" for i in range(n)] if ids is None else list(ids),
            task=[name for name, count in zip(task_names, counts, strict=True) for _ in range(count)],
            group=group_of,
            last_action=actions,
            outcome=_column(rewards, counts, NAN, torch.float64, "rewards"),
            components=torch.empty(n, 0, dtype=torch.float64),
            success=_column(success, counts, NAN, torch.float64, "success"),
            compared=torch.ones(n, dtype=torch.bool),
            weight=torch.ones(n, dtype=torch.float64),
            truncated=_column(truncated, counts, False, torch.bool, "truncated"),
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
    def from_records(cls, records: Iterable[Mapping[str, Any]], *, share: bool = True) -> Forest:
        """Forest from rollout records (`gxpo schema`); `share=False` stores every context token per use."""
        from gxpo.forest.record_format.reader import columns_of

        return cls(**columns_of(((f"record {n}", record) for n, record in enumerate(records, 1)), share))

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
        """Subset of trajectories (bool mask, or distinct indices in the wanted order) with only the nodes they need."""
        index = self._rows(rows)
        whole = torch.equal(index, torch.arange(self.n_trajectories))
        return self if whole else reshape.select(self, index)

    def kept(self, rows: Tensor | Sequence[int]) -> dict[str, Tensor]:
        """Rows of every axis ("N", "T", "S", "P", "R") that `select(rows)` keeps, in its order."""
        return reshape.kept(self, self._rows(rows))

    def with_rewards(
        self,
        outcome: Tensor,
        *,
        components: Mapping[str, Tensor] | None = None,
        success: Tensor | None = None,
    ) -> Forest:
        """A copy with new scores: `outcome` [R] (nan = unscored), named `components` [R], `success` [R].

        They are the task's: a method's own rewards are not in them (`shaped_by` is empty; see `Method.shaped`)."""
        named = components or {}
        columns = [x.to(torch.float64) for x in named.values()]
        return self.replace(
            outcome=outcome.to(torch.float64),
            shaped_by=(),
            unshaped_outcome=None,
            component_names=tuple(named),
            components=torch.stack(columns, 1) if columns else torch.empty(self.n_trajectories, 0, dtype=torch.float64),
            success=self.success if success is None else success.to(torch.float64),
        )

    # ------------------------------------------------------------ time
    def returns(self, discount: float) -> Tensor:
        """[S] float64: return(s) = step_reward(s) + discount * sum of return(t) over the steps t that follow s.

        What follows is the next turn, or under `after` each turn that names s. A trajectory without any step reward has
        its outcome on its last turn; a missing step reward is 0 where the trajectory has another. Unscored trajectories
        have 0.
        """
        known = self.step_reward.isfinite()
        paid = torch.bincount(self.step_trajectory, known.to(torch.float64), self.n_trajectories) > 0
        value = torch.where(known, self.step_reward, 0.0)
        unpaid = (~paid & (self._step_begin.diff() > 0) & self.scored).nonzero().squeeze(1)
        value[self._step_begin[unpaid + 1] - 1] = self.outcome[unpaid]
        if not bool(self.scored.all()):
            value[~self.scored[self.step_trajectory]] = 0.0
        return sum_after(self.step_previous, value, discount)

    # ------------------------------------------------------------ trees
    @cached_property
    def visits(self) -> tuple[Tensor, Tensor]:
        """Unique (trajectory, node) pairs: every node that a trajectory's actions are or are conditioned on."""
        return with_ancestors(self.parent, self.step_trajectory, self.step_action)

    @cached_property
    def _node_group(self) -> Tensor:
        """[N] the group of all trajectories through a node; -1 several or none."""
        r, node = self.visits
        group = self._column("group")[r]
        low = torch.full((self.n_nodes,), -1).scatter_reduce_(0, node, group, "amin", include_self=False)
        high = torch.full((self.n_nodes,), -1).scatter_reduce_(0, node, group, "amax", include_self=False)
        return torch.where(low == high, low, -1)

    def subtree_mean(self, x: Tensor, axis: str = "N") -> Tensor:
        """[N] float64: mean of `x` [R] over a group's scored trajectories through each node that are in the baseline.

        nan where there is none, and on nodes that trajectories of several groups go through (equal prompts are stored
        once). With `axis` "S" or "P": the same at the last node of each step, or at the node of each action token,
        always of the trajectory's own group.
        """
        self._check("x", len(x), "R")
        group = self._column("group")
        asked = {
            "N": lambda: (torch.arange(self.n_nodes), self._node_group),
            "S": lambda: (self.step_action, group[self.step_trajectory]),
            "P": lambda: (self.token_node[self.path_token], group[self.path_trajectory]),
        }
        if axis not in asked:
            raise ValueError(f"axis is 'N', 'S' or 'P', not {axis!r}")
        r, node = self.visits
        keep = (self.scored & self.compared)[r]
        return mean_at((node[keep], group[r[keep]]), x[r[keep]], asked[axis]())

    def siblings(self) -> Tensor:
        """[N] dense ids of action nodes with the same parent within one group.

        -1 for context nodes, actions without a parent, and nodes that trajectories of several groups go through.
        """
        out = torch.full((self.n_nodes,), -1)
        branch = (self.kind == ACTION) & (self.parent >= 0) & (self._node_group >= 0)
        key = self.parent * (self.n_trajectories + 1) + self._node_group
        out[branch] = dense(key[branch])
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
        """Nodes of a step's action in order; several where forks split it."""
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
    """One value per completion, given flat or nested as the completions are."""
    values = values.tolist() if isinstance(values, Tensor) else list(values)
    if any(isinstance(v, list | tuple) for v in values):
        if [len(v) if isinstance(v, list | tuple) else -1 for v in values] != list(counts):
            raise ValueError(f"{name} is nested otherwise than the completions, which are {list(counts)} by prompt")
        values = [v for group in values for v in group]
    if len(values) != sum(counts):
        raise ValueError(f"{name} has {len(values)} values; there are {sum(counts)} completions")
    return values


def _column(values: Any, counts: Sequence[int], absent: Any, dtype: torch.dtype, name: str) -> Tensor:
    given = [None] * sum(counts) if values is None else _flat(values, counts, name)
    return torch.tensor([absent if v is None else v for v in given], dtype=dtype)


def _sequences(nested: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """The sequences of all groups; arrays and tensors as lists."""
    every = (c for group in nested for c in group)
    return [c if isinstance(c, list | tuple) else c.tolist() if hasattr(c, "tolist") else list(c) for c in every]


def _joined(sequences: Sequence[Sequence[Any]], dtype: type, n: int) -> Tensor:
    """All their values, `n` in number, in one column."""
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
        """Pack a forest. An error if text without token ids would leave gaps in the positions."""
        forest.need_ids("pack()")
        sizes, parent, node = forest.first_token.diff(), forest.parent, forest.token_node
        begin = sum_before(parent, sizes)
        tree = last_before(parent, torch.ones_like(parent, dtype=torch.bool))
        filled = last_before(parent, sizes == 0)  # the node itself, or its nearest ancestor that holds a token
        last = torch.where(sizes[filled] > 0, forest.first_token[filled + 1] - 1, -1)
        above = torch.where(parent >= 0, last[parent.clamp_min(0)], -1)
        index = torch.arange(forest.n_tokens)
        offset = index - forest.first_token[node]
        predecessor = torch.where(offset > 0, index - 1, above[node])
        return cls(forest.token, begin[node] + offset, predecessor, node, tree, parent, begin)

    def ancestors(self, nodes: Tensor) -> Tensor:
        """[k, k] bool over distinct `nodes`: the column's node is the row's or one of its ancestors."""
        size = self.parent.numel()
        place = torch.full((size,), -1)
        place[nodes] = torch.arange(nodes.numel())
        out = torch.eye(nodes.numel(), dtype=torch.bool)
        row, current = torch.arange(nodes.numel()), self.parent[nodes]
        while bool((alive := current >= 0).any()):
            row, current = row[alive], current[alive]
            inside = place[current] >= 0
            out[row[inside], place[current][inside]] = True
            current = self.parent[current]
        return out

    def mask(self, tokens: Tensor) -> Tensor:
        """[n, n] bool tree attention mask: the row's token may attend to the column's."""
        nodes, node = torch.unique(self.node_of_token[tokens], return_inverse=True)
        above = self.ancestors(nodes)[node][:, node]
        position = self.position[tokens]
        return above & (position[None, :] <= position[:, None])
