"""Records to a forest.

Context tokens that are equal and stand at one place are stored once; action tokens are shared by a declared fork only,
never because they happen to be equal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from gxpo.errors import RecordError, need
from gxpo.forest import ACTION, OBSERVATION, PROMPT, Forest
from gxpo.schema import Record, Turn
from gxpo.trees import scatter_blocks

NAN = float("nan")
NO_TOKEN = -1  # stands for an action that is known as text only

Reference = tuple["_Node", int]  # a node and a position in it: the (part of the) node that ends there


class Fail:
    """Raises a `RecordError` that names the line and the field."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __call__(self, name: str, message: str) -> NoReturn:
        raise RecordError(f"{self.where}: {name} {message}")


@dataclass(eq=False)
class _Node:
    """A run of tokens before forks cut it."""

    parent: Reference | None
    kind: int
    token: list[int]
    turn: int = -1
    agent: int = -1
    policy: int = -1
    policy_version: int = -1
    state: int = -1
    previous: Reference | None = None
    caller: Reference | None = None
    sampled_under: Reference | None = None
    logprob: list[float] = field(default_factory=list)
    trainable: list[bool] = field(default_factory=list)
    segment: list[int] = field(default_factory=list)
    extras: dict[str, Tensor] = field(default_factory=dict)
    media: tuple[str, ...] = ()
    cuts: set[int] = field(default_factory=set)  # positions at which forks leave it
    bounds: list[int] = field(default_factory=list)  # where its parts begin and end, once all forks are known
    first: int = -1  # index of its first part in the finished forest

    @property
    def size(self) -> int:
        return len(self.token)

    @property
    def end(self) -> Reference:
        return self, self.size

    def index(self, position: int) -> int:
        """The finished node that ends at `position` of this one."""
        return self.first + max(bisect_left(self.bounds, position) - 1, 0)


@dataclass(eq=False)
class _Step:
    """A turn of one trajectory; forks of it share the leading nodes."""

    nodes: list[Reference]
    turn: int
    agent: int
    policy: int
    policy_version: int
    state: int
    reward: float
    finish: str | None
    previous: int  # step within the trajectory
    caller: int | None
    info: dict[str, Any]
    observation_text: str | None
    action_text: str | None
    text_only: bool

    @property
    def length(self) -> int:
        return sum(size for _, size in self.nodes)


@dataclass(eq=False)
class _Open:
    """A turn in which a fork goes on: the base's step, what is kept of its action, and where the new tokens hang."""

    step: _Step
    kept: list[Reference]
    parent: Reference | None

    @property
    def segment(self) -> int:
        """The segment that the last kept token belongs to, -1 none."""
        node, size = self.kept[-1] if self.kept else (None, 0)
        return node.segment[size - 1] if node is not None else -1


class _Names:
    """Names in order of appearance."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}

    def __getitem__(self, name: str | None) -> int:
        return -1 if name is None else self.index.setdefault(name, len(self.index))


class _TensorFiles:
    """Named tensors in .safetensors files of one folder; each file is opened once."""

    def __init__(self, folder: Path | None) -> None:
        self.folder, self.files = folder, {}

    def read(self, reference: str) -> Tensor:
        name, _, key = reference.partition("#")
        if self.folder is None or not key or Path(name).name != name:
            raise ValueError("is not a 'file.safetensors#key' of a file beside the records")
        if name not in self.files:
            need("safetensors", "train")
            from safetensors import safe_open

            self.files[name] = safe_open(str(self.folder / name), "pt")
        return self.files[name].get_tensor(key)


class Reader:
    """Takes records one by one with `add`; `finish` gives the forest."""

    def __init__(self, share: bool, folder: Path | None) -> None:
        self.share, self.tensors = share, _TensorFiles(folder)
        self.nodes: list[_Node] = []
        self.known: dict[tuple[Any, ...], _Node] = {}
        self.agents, self.policies, self.states = _Names(), _Names(), _Names()
        self.trajectories: dict[str, list[_Step]] = {}
        self.prompts: dict[str, _Node | None] = {}
        self.records: dict[str, Record] = {}
        self.extra_kinds: dict[str, tuple[torch.dtype, int]] = {}

    # ------------------------------------------------------------ one record
    def add(self, record: Record, fail: Fail) -> None:
        if record.id in self.trajectories:
            fail("id", f"{record.id!r} stands on an earlier line too; ids are unique in a file")
        steps: list[_Step] = []
        opened: _Open | None = None
        if record.fork is None:
            prompt = self._context(None, PROMPT, record.prompt, -1, -1) if record.prompt else None
        else:
            steps, opened = self._inherit(record, fail)
            prompt = self.prompts[record.fork.of]
            if record.prompt and (opened is not None or prompt is None or record.prompt != prompt.token):
                fail("prompt", f"is the one of {record.fork.of!r}, which this trajectory forks: leave it out")
            if record.prompt_text is None:
                record.prompt_text = self.records[record.fork.of].prompt_text
        if not record.turns and (record.fork is None or opened is not None):
            fail("turns", "is empty: a trajectory has a turn")
        root = prompt.end if prompt else None
        running = {step.agent: step.nodes[-1] for step in steps}  # agent -> end of its running context
        for i, turn in enumerate(record.turns):
            where = f"turns[{i}]"
            if turn.action is None and turn.action_text is None:
                fail(f"{where}.action", "is missing: give token ids, or `action_text` where only text is known")
            if opened is not None and i == 0:
                step = self._go_on(turn, opened, steps, where, fail)
            else:
                step = self._fresh(turn, steps, running, root, where, fail)
            steps.append(step)
            running[step.agent] = step.nodes[-1]
        self.trajectories[record.id], self.prompts[record.id], self.records[record.id] = steps, prompt, record

    def _context(
        self,
        parent: Reference | None,
        kind: int,
        tokens: Sequence[int],
        agent: int,
        turn: int,
        media: Sequence[str] = (),
    ) -> _Node:
        place = (id(parent[0]), parent[1]) if parent else None
        key = (place, kind, agent, turn, tuple(tokens), tuple(media))
        if self.share and key in self.known:
            return self.known[key]
        node = _Node(parent, kind, list(tokens), turn, agent, media=tuple(media))
        self.nodes.append(node)
        self.known[key] = node
        return node

    def _inherit(self, record: Record, fail: Fail) -> tuple[list[_Step], _Open | None]:
        """Steps that a fork keeps whole, and the one that it goes on in."""
        fork = record.fork
        assert fork is not None
        if fork.of not in self.trajectories:
            fail("fork.of", f"no trajectory {fork.of!r} stands earlier in the file")
        base = self.trajectories[fork.of]
        if fork.turn >= len(base):
            fail("fork.turn", f"is {fork.turn}; {fork.of!r} has {len(base)} turns, counted from 0")
        if fork.token is None:
            return base[: fork.turn + 1], None
        step = base[fork.turn]
        if fork.token and step.text_only:
            fail("fork.token", f"is {fork.token}; turn {fork.turn} of {fork.of!r} is known as text only: 0 or null")
        if fork.token > step.length:
            fail("fork.token", f"is {fork.token}; turn {fork.turn} of {fork.of!r} has {step.length} action tokens")
        left, kept = fork.token, []
        for node, size in step.nodes:
            take = min(size, left)
            if not take:
                break
            if take < node.size:
                node.cuts.add(take)
            kept.append((node, take))
            left -= take
        return base[: fork.turn], _Open(step, kept, kept[-1] if kept else step.nodes[0][0].parent)

    def _go_on(self, turn: Turn, opened: _Open, steps: list[_Step], where: str, fail: Fail) -> _Step:
        """The first turn of a fork inside (or at either end of) an action."""
        for name in ("observation", "context", "media", "observation_text", "after", "caller"):
            if getattr(turn, name) not in (None, []):
                fail(f"{where}.{name}", "is the base's where a fork goes on in a turn: leave it out")
        base = opened.step
        step = _Step(
            nodes=opened.kept,
            turn=len(steps),
            agent=base.agent if turn.agent is None else self.agents[turn.agent],
            policy=base.policy if turn.policy is None else self.policies[turn.policy],
            policy_version=base.policy_version if turn.policy_version is None else turn.policy_version,
            state=base.state if turn.state is None else self.states[turn.state],
            reward=NAN if turn.reward is None else turn.reward,
            finish=turn.finish,
            previous=base.previous,
            caller=base.caller,
            info=turn.info,
            observation_text=base.observation_text,
            action_text=turn.action_text,
            text_only=turn.action is None,
        )
        self._act(turn, step, opened.parent, opened.segment, steps, where, fail)
        return step

    def _fresh(
        self,
        turn: Turn,
        steps: list[_Step],
        running: dict[int, Reference],
        root: Reference | None,
        where: str,
        fail: Fail,
    ) -> _Step:
        """A turn written as usual."""
        number = len(steps)
        if turn.observation is not None and turn.context is not None:
            fail(f"{where}.context", "stands beside `observation`: give one of them")
        for name, value in (("after", turn.after), ("caller", turn.caller)):
            if value is not None and value >= number:
                fail(f"{where}.{name}", f"is {value}, but this is turn {number}: it names an earlier turn")
        agent = self.agents["agent" if turn.agent is None else turn.agent]
        if turn.context is not None:
            filled = turn.context or turn.media
            parent = self._context(None, PROMPT, turn.context, -1, -1, turn.media).end if filled else None
        else:
            parent = running.get(agent, root)
            if turn.observation or turn.media:
                parent = self._context(parent, OBSERVATION, turn.observation or [], agent, number, turn.media).end
        step = _Step(
            nodes=[],
            turn=number,
            agent=agent,
            policy=self.policies["main" if turn.policy is None else turn.policy],
            policy_version=0 if turn.policy_version is None else turn.policy_version,
            state=self.states[turn.state],
            reward=NAN if turn.reward is None else turn.reward,
            finish=turn.finish,
            previous=number - 1 if turn.after is None else turn.after,
            caller=turn.caller,
            info=turn.info,
            observation_text=turn.observation_text,
            action_text=turn.action_text,
            text_only=turn.action is None,
        )
        self._act(turn, step, parent, -1, steps, where, fail)
        return step

    def _act(
        self,
        turn: Turn,
        step: _Step,
        parent: Reference | None,
        segment: int,
        steps: list[_Step],
        where: str,
        fail: Fail,
    ) -> None:
        """Append the node of the turn's own action tokens to the step."""
        action = [NO_TOKEN] if turn.action is None else turn.action
        size, goes_on = len(action), bool(step.nodes)
        for name, values in (("logprob", turn.logprob), ("trainable", turn.trainable)):
            if isinstance(values, list) and (turn.action is None or len(values) != size):
                fail(
                    f"{where}.{name}",
                    f"has {len(values)} values for {size if turn.action is not None else 'no'} action tokens",
                )
        segments = self._segments(turn, size, goes_on, segment, where, fail)
        extras = {k: self._extra(v, size, k, f"{where}.extras.{k}", fail) for k, v in turn.extras.items()}
        if goes_on and not action:
            return
        previous = step.nodes[-1] if goes_on else steps[step.previous].nodes[-1] if step.previous >= 0 else None
        node = _Node(
            parent, ACTION, action, step.turn, step.agent, step.policy, step.policy_version, step.state, previous,
            caller=None if step.caller is None else steps[step.caller].nodes[-1],
            logprob=[NAN] * size if turn.logprob is None else [NAN if x is None else x for x in turn.logprob],
            trainable=[turn.trainable] * size if isinstance(turn.trainable, bool) else turn.trainable,
            segment=segments,
            extras=extras,
        )  # fmt: skip
        if turn.sampled_under is not None:
            node.sampled_under = self._context(None, PROMPT, turn.sampled_under, -1, -1).end
        self.nodes.append(node)
        step.nodes = [*step.nodes, node.end]

    @staticmethod
    def _segments(turn: Turn, size: int, goes_on: bool, before: int, where: str, fail: Fail) -> list[int]:
        begins = turn.segments
        if begins is None:
            return [before] * size
        if turn.action is None:
            fail(f"{where}.segments", "need token ids, and the action is text only")
        if begins != sorted(set(begins)) or (begins and begins[-1] >= size):
            fail(f"{where}.segments", f"{begins} are not increasing positions within {size} action tokens")
        if goes_on and begins and before < 0:
            fail(f"{where}.segments", "the base's turn has no segments, so a fork inside it has none: leave it out")
        if not goes_on and size and begins[:1] != [0]:
            fail(f"{where}.segments", f"{begins}: the first segment begins at 0")
        starts, current, out = set(begins), before, []
        for position in range(size):
            current += position in starts
            out.append(current)
        return out

    def _extra(self, value: Any, size: int, name: str, where: str, fail: Fail) -> Tensor:
        if isinstance(value, str):
            reference = value
            try:
                value = self.tensors.read(reference)
            except Exception as error:  # safetensors raises its own types for absent and damaged files
                fail(where, f"{reference!r} {error}")
        if not isinstance(value, Tensor) or value.dim() < 1 or value.shape[0] != size:
            fail(where, f"is not a tensor with leading dimension {size}, the action's tokens")
        kind = (value.dtype, value.dim())
        if self.extra_kinds.setdefault(name, kind) != kind:
            fail(where, f"is {kind[0]} with {kind[1]} dimensions; earlier {name!r} are {self.extra_kinds[name]}")
        return value

    # ------------------------------------------------------------ the finished columns
    def finish(self) -> Forest:
        total = 0
        for node in self.nodes:
            node.first, node.bounds = total, [0, *sorted(node.cuts), node.size]
            total += len(node.cuts) + 1
        columns: dict[str, Any] = {**self._node_columns(), **self._token_columns()}
        columns |= self._step_columns(columns["first_token"].tolist())
        return Forest(
            **columns,
            **self._row_columns(),
            agent_names=tuple(self.agents.index),
            policy_names=tuple(self.policies.index),
            state_names=tuple(self.states.index),
            media={n.first: n.media for n in self.nodes if n.media},
        )

    def _node_columns(self) -> dict[str, Tensor]:
        plain = ("kind", "agent", "policy", "policy_version", "turn", "state")
        rows: dict[str, list[int]] = {k: [] for k in (*plain, "parent", "previous", "caller", "sampled_under")}
        sizes: list[int] = []
        for node in self.nodes:
            parts = len(node.bounds) - 1
            inner = list(range(node.first, node.first + parts - 1))
            rows["parent"] += [_at(node.parent), *inner]
            rows["previous"] += [_at(node.previous), *inner]
            rows["caller"] += [_at(node.caller)] * parts
            rows["sampled_under"] += [_at(node.sampled_under)] * parts
            for name in plain:
                rows[name] += [getattr(node, name)] * parts
            sizes += [b - a for a, b in zip(node.bounds, node.bounds[1:], strict=False)]
        first_token = torch.tensor([0, *sizes], dtype=torch.int64).cumsum(0)
        return {"first_token": first_token, **{k: torch.tensor(v, dtype=torch.int64) for k, v in rows.items()}}

    def _token_columns(self) -> dict[str, Any]:
        def column(name: str, absent: Any, dtype: torch.dtype) -> Tensor:
            parts = (getattr(n, name) if n.kind == ACTION else [absent] * n.size for n in self.nodes)
            return torch.tensor([x for part in parts for x in part], dtype=dtype)

        token = torch.tensor([x for n in self.nodes for x in n.token], dtype=torch.int64)
        found: dict[str, list[tuple[int, Tensor]]] = {}
        at = 0
        for node in self.nodes:
            for name, value in node.extras.items():
                found.setdefault(name, []).append((at, value))
            at += node.size
        return {
            "token": token,
            "behaviour_logprob": column("logprob", NAN, torch.float64),
            "trainable": column("trainable", False, torch.bool),
            "segment": column("segment", -1, torch.int64),
            "extras": {name: scatter_blocks(blocks, token.numel()) for name, blocks in found.items()},
        }

    def _step_columns(self, first_token: list[int]) -> dict[str, Any]:
        steps = [(r, begin, step) for r, begin, step in self._all_steps()]
        path_token: list[int] = []
        for _, _, step in steps:
            for node, size in step.nodes:
                start = first_token[node.first]
                path_token += range(start, start + size)
        lengths = torch.tensor([step.length for _, _, step in steps], dtype=torch.int64)
        integers = {
            "step_trajectory": [r for r, _, _ in steps],
            "step_turn": [s.turn for _, _, s in steps],
            "step_action": [_at(s.nodes[-1]) for _, _, s in steps],
            "step_state": [s.state for _, _, s in steps],
            "step_agent": [s.agent for _, _, s in steps],
            "step_previous": [begin + s.previous if s.previous >= 0 else -1 for _, begin, s in steps],
            "last_action": [_at(steps[-1].nodes[-1]) for steps in self.trajectories.values()],
            "path_token": path_token,
        }
        columns: dict[str, Any] = {k: torch.tensor(v, dtype=torch.int64) for k, v in integers.items()}
        columns["step_reward"] = torch.tensor([s.reward for _, _, s in steps], dtype=torch.float64)
        columns["path_step"] = torch.repeat_interleave(torch.arange(len(steps)), lengths)
        columns["path_trajectory"] = columns["step_trajectory"][columns["path_step"]]
        for name, source in (
            ("step_finish", "finish"),
            ("step_info", "info"),
            ("observation_text", None),
            ("action_text", None),
        ):
            columns[name] = [getattr(s, source or name) for _, _, s in steps]
        return columns

    def _all_steps(self) -> list[tuple[int, int, _Step]]:
        """(trajectory, index of its first step, step) in order."""
        out: list[tuple[int, int, _Step]] = []
        for r, steps in enumerate(self.trajectories.values()):
            begin = len(out)
            out += [(r, begin, step) for step in steps]
        return out

    def _row_columns(self) -> dict[str, Any]:
        records = list(self.records.values())
        names = list(dict.fromkeys(k for r in records for k in r.rewards))
        components = [[NAN if (x := r.rewards.get(k)) is None else x for k in names] for r in records]
        floats = {
            "outcome": [NAN if r.reward is None else r.reward for r in records],
            "success": [NAN if r.success is None else float(r.success) for r in records],
            "weight": [r.weight for r in records],
        }
        prompts = [-1 if p is None else _at(p.end) for p in self.prompts.values()]
        lists = ("id", "group", "origin", "sampling", "info", "prompt_text", "final_state", "final_observation")
        return {
            **{k: torch.tensor(v, dtype=torch.float64) for k, v in floats.items()},
            **{k: [getattr(r, k) for r in records] for k in lists},
            "task": [r.group if r.task is None else r.task for r in records],
            "components": torch.tensor(components, dtype=torch.float64).reshape(len(records), len(names)),
            "component_names": tuple(names),
            "compared": torch.tensor([r.compared for r in records], dtype=torch.bool),
            "truncated": torch.tensor([r.truncated for r in records], dtype=torch.bool),
            "prompt_node": torch.tensor(prompts, dtype=torch.int64),
        }


def _at(reference: Reference | None) -> int:
    return -1 if reference is None else reference[0].index(reference[1])
