"""Interchange `gxpo.rollouts/1`: JSON Lines, one trajectory a line, to and from `Forest`.

Context tokens (prompts, observations) that are equal and stand at the same place are stored once; action tokens are
shared by a declared fork only, never because they happen to be equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from gxpo.errors import RecordError, need
from gxpo.forest import ACTION, OBSERVATION, PROMPT, Forest

SCHEMA = "gxpo.rollouts/1"
Finite = Annotated[float, Field(allow_inf_nan=False)]
Ids = list[Annotated[int, Field(ge=0)]]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)


class Fork(_Strict):
    """Keeps the turns before `turn` of trajectory `of`, and the first `token` action tokens of that turn (null: all)."""

    of: str
    turn: Annotated[int, Field(ge=0)]
    token: Annotated[int, Field(ge=0)] | None = None


class Turn(_Strict):
    """An observation (appended to the agent's running context) or a whole `context`, and the action that follows."""

    agent: str | None = Field(None, description="default 'agent', or the base's in the first turn of a fork")
    policy: str | None = Field(None, description="default 'main', or the base's")
    policy_version: int | None = Field(None, description="default 0, or the base's")
    state: str | None = Field(None, description="environment state acted in; null unknown")
    observation: Ids | None = None
    context: Ids | None = None
    action: list[Annotated[int, Field(ge=-1)]] | None = Field(None, description="token ids; null where only text is known")
    logprob: list[Finite | None] | None = None
    trainable: bool | list[bool] = True
    sampled_under: Ids | None = None
    reward: Finite | None = None
    finish: str | None = None
    after: Annotated[int, Field(ge=0)] | None = None
    caller: Annotated[int, Field(ge=0)] | None = None
    segments: list[Annotated[int, Field(ge=0)]] | None = None
    media: list[str] = Field([], description="references of images and the like in the observation")
    extras: dict[str, Any] = Field({}, description="name: 'file.safetensors#key', leading dimension the action's tokens")
    observation_text: str | None = None
    action_text: str | None = None
    info: dict[str, Any] = {}


class Record(_Strict):
    """One trajectory."""

    schema_: Literal["gxpo.rollouts/1"] = Field(alias="schema")
    task: str | None = Field(None, description="default: the group")
    group: str
    id: str
    fork: Fork | None = None
    prompt: Ids = []
    prompt_text: str | None = None
    turns: list[Turn]
    reward: Finite | None = Field(None, description="the outcome; null = unscored")
    rewards: dict[str, Finite | None] = {}
    success: bool | None = None
    compared: bool = True
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    origin: str = "policy"
    truncated: bool = False
    sampling: dict[str, Any] = {}
    final_state: str | None = None
    final_observation: Ids = []
    info: dict[str, Any] = {}


# ---------------------------------------------------------------- building
@dataclass(eq=False)
class _Node:
    """A run of tokens before forks cut it; `cuts` are the positions at which it will be split."""

    parent: tuple[_Node, int] | None
    kind: int
    size: int
    turn: int = -1
    agent: int = -1
    policy: int = -1
    policy_version: int = -1
    state: int = -1
    previous: tuple[_Node, int] | None = None
    caller: tuple[_Node, int] | None = None
    sampled_under: tuple[_Node, int] | None = None
    token: list[int] = field(default_factory=list)
    logprob: list[float] = field(default_factory=list)
    trainable: list[bool] = field(default_factory=list)
    segment: list[int] = field(default_factory=list)
    extras: dict[str, Tensor] = field(default_factory=dict)
    media: tuple[str, ...] = ()
    cuts: set[int] = field(default_factory=set)
    first: int = -1  # index of its first part in the finished forest

    def index(self, end: int) -> int:
        """The finished node that ends at position `end` of this one."""
        return self.first + sum(1 for c in self.cuts if c < end)

    def bounds(self) -> list[int]:
        return [0, *sorted(self.cuts), self.size]


@dataclass(eq=False)
class _Step:
    nodes: list[tuple[_Node, int]]  # (node, how many of its tokens)
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

    @property
    def end(self) -> tuple[_Node, int]:
        return self.nodes[-1]

    @property
    def length(self) -> int:
        return sum(n for _, n in self.nodes)


class _Names:
    """Names in order of appearance."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}

    def __getitem__(self, name: str | None) -> int:
        return -1 if name is None else self.index.setdefault(name, len(self.index))


class _Builder:
    def __init__(self, share: bool, base: Path | None) -> None:
        self.share, self.base = share, base
        self.nodes: list[_Node] = []
        self.known: dict[tuple[Any, ...], _Node] = {}
        self.agents, self.policies, self.states = _Names(), _Names(), _Names()
        self.trajectories: dict[str, list[_Step]] = {}
        self.prompts: dict[str, _Node | None] = {}
        self.records: list[Record] = []

    def _context(self, parent: tuple[_Node, int] | None, kind: int, tokens: Sequence[int], agent: int, turn: int,
                 media: tuple[str, ...] = ()) -> _Node:
        key = (id(parent[0]) if parent else None, parent[1] if parent else 0, kind, agent, turn, tuple(tokens), media)
        if self.share and key in self.known:
            return self.known[key]
        node = _Node(parent, kind, len(tokens), turn, agent, token=list(tokens), media=media)
        self.nodes.append(node)
        self.known[key] = node
        return node

    def add(self, record: Record, fail: _Fail) -> None:
        if record.id in self.trajectories:
            fail("id", f"{record.id!r} stands on an earlier line too; ids are unique in a file")
        steps: list[_Step] = []
        contexts: dict[int, tuple[_Node, int] | None] = {}  # agent -> end of its running context
        root = self._context(None, PROMPT, record.prompt, -1, -1) if record.prompt else None
        open_step: _Step | None = None  # the turn that the first new tokens continue
        if record.fork is not None:
            steps, open_step, prompt = self._inherit(record, fail)
            if root is not None and root is not prompt:
                fail("prompt", "a fork has its base's prompt: leave it out")
            root = prompt
            for step in steps:
                contexts[step.agent] = step.end
        if not record.turns and (record.fork is None or open_step is not None):
            fail("turns", "is empty")
        for i, turn in enumerate(record.turns):
            continued = open_step if i == 0 else None
            step = self._turn(turn, i, steps, contexts, (root, root.size) if root else None, continued, fail)
            steps.append(step)
            contexts[step.agent] = step.end
        self.trajectories[record.id] = steps
        self.prompts[record.id] = root
        self.records.append(record)

    def _inherit(self, record: Record, fail: _Fail) -> tuple[list[_Step], _Step | None, _Node | None]:
        fork = record.fork
        assert fork is not None
        if fork.of not in self.trajectories:
            fail("fork.of", f"no trajectory {fork.of!r} stands earlier in the file")
        base = self.trajectories[fork.of]
        prompt = self.prompts[fork.of]
        if fork.turn >= len(base):
            fail("fork.turn", f"is {fork.turn}; {fork.of!r} has {len(base)} turns, counted from 0")
        if fork.token is None:
            return list(base[: fork.turn + 1]), None, prompt
        step = base[fork.turn]
        if fork.token > step.length:
            fail("fork.token", f"is {fork.token}; turn {fork.turn} of {fork.of!r} has {step.length} action tokens")
        left, kept = fork.token, []
        for node, size in step.nodes:
            if left <= 0:
                break
            take = min(size, left)
            if take < node.size:
                node.cuts.add(take)
            kept.append((node, take))
            left -= take
        part = _Step(kept, step.turn, step.agent, step.policy, step.policy_version, step.state, float("nan"), None,
                     step.previous, step.caller, {}, step.observation_text, None)
        if not kept:  # token 0: the observation alone is shared
            part.nodes = [] if step.nodes[0][0].parent is None else [step.nodes[0][0].parent]
        return list(base[: fork.turn]), part, prompt

    def _turn(self, turn: Turn, i: int, steps: list[_Step], contexts: dict[int, Any], root: Any,
              continued: _Step | None, fail: _Fail) -> _Step:
        where = f"turns[{i}]"
        if turn.action is None:
            if turn.action_text is None:
                fail(f"{where}.action", "is missing")
            if turn.logprob is not None or turn.segments is not None:
                fail(f"{where}.action", "logprob and segments need token ids")
        action = [-1] if turn.action is None else turn.action
        self._check_lengths(turn, action, where, fail)
        number = len(steps)
        if continued is not None:
            if turn.observation is not None or turn.context is not None:
                fail(f"{where}.observation", "a turn that a fork continues has no observation or context of its own")
            if turn.after is not None or turn.caller is not None:
                fail(f"{where}.after", "a turn that a fork continues has its base's `after` and `caller`")
            inherited = [n for n in continued.nodes if n[0].kind == ACTION and n[0].turn == number]
            agent = continued.agent if turn.agent is None else self.agents[turn.agent]
            policy = continued.policy if turn.policy is None else self.policies[turn.policy]
            version = continued.policy_version if turn.policy_version is None else turn.policy_version
            state = continued.state if turn.state is None else self.states[turn.state]
            previous, caller = continued.previous, continued.caller
            parent = continued.nodes[-1] if continued.nodes else None
            segment_from = _last_segment(inherited)
        else:
            if turn.observation is not None and turn.context is not None:
                fail(f"{where}.context", "give observation or context, not both")
            agent, policy = self.agents[turn.agent or "agent"], self.policies[turn.policy or "main"]
            version, state = turn.policy_version or 0, self.states[turn.state]
            inherited, segment_from = [], None
            previous, caller = number - 1 if turn.after is None else turn.after, turn.caller
            for name, value in (("after", turn.after), ("caller", turn.caller)):
                if value is not None and value >= number:
                    fail(f"{where}.{name}", f"is {value}, but this is turn {number}: it names an earlier turn")
            media = tuple(turn.media)
            if turn.context is not None:
                node = self._context(None, PROMPT, turn.context, -1, -1, media) if turn.context else None
                parent = (node, node.size) if node else None
            else:
                parent = contexts.get(agent, root)
                if turn.observation or media:
                    node = self._context(parent, OBSERVATION, turn.observation or [], agent, number, media)
                    parent = (node, node.size)
        nodes = list(inherited)
        if action or not nodes:
            node = _Node(parent, ACTION, len(action), number, agent, policy, version, state, token=list(action))
            node.previous = nodes[-1] if nodes else (steps[previous].end if previous >= 0 else None)
            node.caller = steps[caller].end if caller is not None else None
            if turn.sampled_under is not None:
                other = self._context(None, PROMPT, turn.sampled_under, -1, -1)
                node.sampled_under = (other, other.size)
            node.logprob = [float("nan")] * len(action) if turn.logprob is None else [
                float("nan") if x is None else x for x in turn.logprob]
            node.trainable = [turn.trainable] * len(action) if isinstance(turn.trainable, bool) else turn.trainable
            node.segment = self._segments(turn, len(action), segment_from, where, fail)
            node.extras = {k: self._extra(v, len(action), f"{where}.extras.{k}", fail) for k, v in turn.extras.items()}
            self.nodes.append(node)
            nodes.append((node, node.size))
        observation_text = continued.observation_text if continued is not None else turn.observation_text
        return _Step(nodes, number, agent, policy, version, state, float("nan") if turn.reward is None else turn.reward,
                     turn.finish, previous, caller, turn.info, observation_text, turn.action_text)

    @staticmethod
    def _check_lengths(turn: Turn, action: list[int], where: str, fail: _Fail) -> None:
        for name, values in (("logprob", turn.logprob), ("trainable", turn.trainable)):
            if isinstance(values, list) and len(values) != len(action):
                fail(f"{where}.{name}", f"has {len(values)} values for {len(action)} action tokens")

    @staticmethod
    def _segments(turn: Turn, size: int, before: int | None, where: str, fail: _Fail) -> list[int]:
        begins = turn.segments
        if begins is None:
            return [-1] * size
        if begins != sorted(set(begins)) or (begins and begins[-1] >= max(size, 1)):
            fail(f"{where}.segments", f"{begins} are not increasing positions within {size} action tokens")
        if before is None and size and (not begins or begins[0] != 0):
            fail(f"{where}.segments", "the first segment begins at 0")
        current, out, starts = -1 if before is None else before, [], set(begins)
        for position in range(size):
            current += position in starts
            out.append(current)
        return out

    def _extra(self, value: Any, size: int, where: str, fail: _Fail) -> Tensor:
        if isinstance(value, str):
            name, _, key = value.partition("#")
            if self.base is None or not key:
                fail(where, f"{value!r} is not a 'file.safetensors#key' beside a records file")
            need("safetensors", "train")
            from safetensors import safe_open

            try:
                with safe_open(self.base / name, "pt") as file:  # type: ignore[no-untyped-call]
                    value = file.get_tensor(key)
            except Exception as error:
                fail(where, f"{value!r} can't be read: {error}")
        if not isinstance(value, Tensor) or value.dim() < 1 or value.shape[0] != size:
            fail(where, f"is not a tensor with leading dimension {size}, the action's tokens")
        return value

    def finish(self) -> Forest:
        total = 0
        for node in self.nodes:
            node.first = total
            total += len(node.cuts) + 1
        rows: dict[str, list[int]] = {k: [] for k in ("parent", "previous", "kind", "agent", "policy", "policy_version",
                                                     "caller", "turn", "state", "sampled_under")}
        sizes: list[int] = []

        def at(ref: tuple[_Node, int] | None) -> int:
            return -1 if ref is None else ref[0].index(ref[1])

        for node in self.nodes:
            bounds = node.bounds()
            for part, (a, b) in enumerate(zip(bounds, bounds[1:], strict=False)):
                inner = node.first + part - 1
                rows["parent"].append(inner if part else at(node.parent))
                rows["previous"].append(inner if part else at(node.previous))
                rows["caller"].append(at(node.caller))
                rows["sampled_under"].append(at(node.sampled_under))
                for name in ("kind", "agent", "policy", "policy_version", "turn", "state"):
                    rows[name].append(getattr(node, name))
                sizes.append(b - a)
        first_token = torch.tensor([0, *sizes], dtype=torch.int64).cumsum(0)
        columns: dict[str, Any] = {k: torch.tensor(v, dtype=torch.int64) for k, v in rows.items()}
        columns |= {"first_token": first_token, **self._tokens()}
        columns |= self._paths(first_token.tolist())
        columns |= self._rows()
        columns |= {"agent_names": tuple(self.agents.index), "policy_names": tuple(self.policies.index),
                    "state_names": tuple(self.states.index),
                    "media": {n.first: n.media for n in self.nodes if n.media}}
        return Forest(**columns)

    def _tokens(self) -> dict[str, Any]:
        def blank(node: _Node, values: list[Any], value: Any) -> list[Any]:
            return values if node.kind == ACTION else [value] * node.size

        def column(name: str, value: Any, dtype: torch.dtype) -> Tensor:
            return torch.tensor([x for n in self.nodes for x in blank(n, getattr(n, name), value)], dtype=dtype)

        token = torch.tensor([x for n in self.nodes for x in n.token], dtype=torch.int64)
        extras: dict[str, Tensor] = {}
        starts, at = {}, 0
        for node in self.nodes:
            starts[id(node)], at = at, at + node.size
        for node in self.nodes:
            for name, value in node.extras.items():
                extras[name] = widen(extras.get(name), value, token.numel())
                target = extras[name][starts[id(node)] : starts[id(node)] + node.size]
                target[tuple(slice(0, n) for n in value.shape)] = value
        return {"token": token, "behaviour_logprob": column("logprob", float("nan"), torch.float64),
                "trainable": column("trainable", False, torch.bool), "segment": column("segment", -1, torch.int64),
                "extras": extras}

    def _paths(self, first_token: list[int]) -> dict[str, Any]:
        out: dict[str, list[Any]] = {k: [] for k in (
            "step_trajectory", "step_turn", "step_action", "step_state", "step_agent", "step_reward", "step_previous",
            "step_finish", "step_info", "observation_text", "action_text")}
        path_token, path_step, path_trajectory, last_action = [], [], [], []
        for r, steps in enumerate(self.trajectories.values()):
            begin = len(out["step_turn"])
            for step in steps:
                s = len(out["step_turn"])
                values = (r, step.turn, step.end[0].index(step.end[1]), step.state, step.agent, step.reward,
                          begin + step.previous if step.previous >= 0 else -1, step.finish, step.info,
                          step.observation_text, step.action_text)
                for name, value in zip(out, values, strict=True):
                    out[name].append(value)
                for node, size in step.nodes:
                    start = first_token[node.first]
                    path_token += range(start, start + size)
                    path_step += [s] * size
                    path_trajectory += [r] * size
            last_action.append(out["step_action"][-1] if steps else -1)
        lists = ("step_finish", "step_info", "observation_text", "action_text")
        columns: dict[str, Any] = {
            k: v if k in lists else torch.tensor(v, dtype=torch.float64 if k == "step_reward" else torch.int64)
            for k, v in out.items()}
        for name, values in (("path_token", path_token), ("path_step", path_step),
                             ("path_trajectory", path_trajectory), ("last_action", last_action)):
            columns[name] = torch.tensor(values, dtype=torch.int64)
        return columns

    def _rows(self) -> dict[str, Any]:
        names = list(dict.fromkeys(k for r in self.records for k in r.rewards))
        nan = float("nan")
        floats = {
            "outcome": [nan if r.reward is None else r.reward for r in self.records],
            "success": [nan if r.success is None else float(r.success) for r in self.records],
            "weight": [r.weight for r in self.records],
        }
        components = [[nan if (x := r.rewards.get(k)) is None else x for k in names] for r in self.records]
        return {
            **{k: torch.tensor(v, dtype=torch.float64) for k, v in floats.items()},
            "components": torch.tensor(components, dtype=torch.float64).reshape(len(self.records), len(names)),
            "component_names": tuple(names),
            "compared": torch.tensor([r.compared for r in self.records], dtype=torch.bool),
            "truncated": torch.tensor([r.truncated for r in self.records], dtype=torch.bool),
            "prompt_node": torch.tensor([-1 if p is None else p.index(p.size) for p in self.prompts.values()], dtype=torch.int64),
            "task": [r.group if r.task is None else r.task for r in self.records],
            **{k: [getattr(r, k) for r in self.records]
               for k in ("id", "group", "origin", "sampling", "info", "prompt_text", "final_state", "final_observation")},
        }


def widen(extra: Tensor | None, value: Tensor, rows: int) -> Tensor:
    """Room for `value` in a named tensor; missing places hold -1, nan or False."""
    shape = list(value.shape[1:])
    if extra is not None:
        shape = [max(a, b) for a, b in zip(extra.shape[1:], shape, strict=True)]
        if shape == list(extra.shape[1:]):
            return extra
    out = torch.full((rows, *shape), _blank_value(value.dtype), dtype=value.dtype)
    if extra is not None:
        out[tuple(slice(0, n) for n in extra.shape)] = extra
    return out


def _blank_value(dtype: torch.dtype) -> float:
    return False if dtype == torch.bool else float("nan") if dtype.is_floating_point else -1


def _last_segment(nodes: list[tuple[_Node, int]]) -> int | None:
    node = next(((n, size) for n, size in reversed(nodes) if size), None)
    return None if node is None else node[0].segment[node[1] - 1]


# ---------------------------------------------------------------- reading
class _Fail:
    """Raises with the line and the field."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __call__(self, name: str, message: str) -> NoReturn:
        raise RecordError(f"{self.where}: {name} {message}")


def parse(records: Iterable[Mapping[str, Any]], *, share: bool = True, base: Path | None = None,
          source: str = "record") -> Forest:
    """A forest from records (dicts as in the schema); nothing is returned unless every record is well-formed."""
    builder = _Builder(share, base)
    for number, raw in enumerate(records, 1):
        fail = _Fail(f"{source} {number}" if source == "record" else f"{source}:{number}")
        try:
            record = Record.model_validate(dict(raw))
        except ValidationError as error:
            first = error.errors()[0]
            place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"]).lstrip(".")
            fail(place or "record", f"{first['msg'].lower()} (got {_short(first.get('input'))})")
        builder.add(record, fail)
    return builder.finish()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def load(path: str | Path, *, share: bool = True) -> Forest:
    """Read a JSON Lines file of records."""
    path = Path(path)
    if not path.is_file():
        raise RecordError(f"{path}: no such file")
    rows = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line, parse_constant=_no_constant)
            except ValueError as error:
                raise RecordError(f"{path}:{number}: not a JSON object: {error}") from None
            if not isinstance(row, dict):
                raise RecordError(f"{path}:{number}: not a JSON object")
            rows.append(row)
    if not rows:
        raise RecordError(f"{path}: holds no records")
    return parse(rows, share=share, base=path.parent, source=str(path))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number; an unknown value is null")


def dump(forest: Forest, path: str | Path) -> None:
    """Write a JSON Lines file; named tensors go to a .safetensors file beside it. Whole or not at all."""
    path = Path(path)
    records, tensors = forest.to_records(), {}
    for record in records:
        for i, turn in enumerate(record["turns"]):
            for name, value in turn.get("extras", {}).items():
                key = f"{record['id']}.{i}.{name}"
                tensors[key] = value.contiguous()
                turn["extras"][name] = f"{path.stem}.safetensors#{key}"
    if tensors:
        need("safetensors", "train")
        from safetensors.torch import save_file

        side = path.with_suffix(".safetensors.part")
        save_file(tensors, side)
        side.replace(path.with_suffix(".safetensors"))
    part = path.with_name(path.name + ".part")
    part.write_text("".join(json.dumps(r, allow_nan=False) + "\n" for r in records), encoding="utf-8")
    part.replace(path)


# ---------------------------------------------------------------- writing
_TURN_DEFAULTS = {k: f.default for k, f in Turn.model_fields.items()}
_RECORD_DEFAULTS = {k: f.default for k, f in Record.model_fields.items()}


def _known(x: Tensor) -> list[float | None]:
    return [None if v != v else v for v in x.tolist()]


class _Writer:
    def __init__(self, forest: Forest, share: bool) -> None:
        self.f, self.share = forest, share
        counts = torch.bincount(forest.step_trajectory, minlength=forest.n_trajectories)
        self.begin = [0, *counts.cumsum(0).tolist()]
        self.step_nodes = [forest.step_nodes(s) for s in range(forest.n_steps)]
        self.first_user: dict[int, int] = {}  # action node -> the first trajectory that has it

    def steps(self, r: int) -> range:
        return range(self.begin[r], self.begin[r + 1])

    def _same(self, s: int, t: int) -> bool:
        """Steps that a whole-turn fork inherits unchanged."""
        f = self.f
        reward = (f.step_reward[s], f.step_reward[t])
        equal = bool(reward[0] == reward[1]) or bool(reward[0].isnan() & reward[1].isnan())
        return (self.step_nodes[s] == self.step_nodes[t] and equal and f.step_finish[s] == f.step_finish[t]
                and f.step_info[s] == f.step_info[t] and f.action_text[s] == f.action_text[t]
                and f.observation_text[s] == f.observation_text[t]
                and self._before(s) == self._before(t))

    def _before(self, s: int) -> int:
        """The turn before step s, -1 where there is none."""
        previous = int(self.f.step_previous[s])
        return -1 if previous < 0 else int(self.f.step_turn[previous])

    def _base(self, r: int) -> tuple[dict[str, Any] | None, int, int]:
        """(fork, whole turns inherited, action nodes inherited of the next turn)."""
        mine = self.steps(r)
        candidates = {self.first_user[n] for s in mine for n in self.step_nodes[s] if n in self.first_user}
        best: tuple[int, int, int] = (0, 0, 0)
        for q in sorted(candidates):
            whole = 0
            theirs = self.steps(q)
            while whole < min(len(mine), len(theirs)) and self._same(mine[whole], theirs[whole]):
                whole += 1
            shared = 0
            if whole < min(len(mine), len(theirs)):
                a, b = self.step_nodes[mine[whole]], self.step_nodes[theirs[whole]]
                while shared < min(len(a), len(b)) and a[shared] == b[shared]:
                    shared += 1
                if self.f.observation_text[mine[whole]] != self.f.observation_text[theirs[whole]]:
                    shared = 0
            if (whole, shared) > best[:2]:
                best = (whole, shared, q)
        whole, shared, q = best
        if not whole and not shared:
            return None, 0, 0
        if shared:
            sizes = self.f.first_token.diff()[self.step_nodes[mine[whole]][:shared]]
            return {"of": self.f.id[q], "turn": whole, "token": int(sizes.sum())}, whole, shared
        return {"of": self.f.id[q], "turn": whole - 1, "token": None}, whole, 0

    def record(self, r: int) -> dict[str, Any]:
        f = self.f
        fork, whole, shared = self._base(r) if self.share else (None, 0, 0)
        for s in self.steps(r):
            for n in self.step_nodes[s]:
                self.first_user.setdefault(n, r)
        contexts: dict[int, int] = {}
        turns = []
        for i, s in enumerate(self.steps(r)):
            if i >= whole:
                turns.append(self._turn(r, s, contexts, shared if i == whole else 0))
            contexts[int(f.step_agent[s])] = int(f.step_action[s])
        prompt = f.context(int(f.prompt_node[r])) if fork is None else []
        values = {
            "prompt": prompt, "prompt_text": f.prompt_text[r] if f.prompt_text else None, "fork": fork,
            "rewards": {k: x for k, x in zip(f.component_names, f.components[r].tolist(), strict=True) if x == x},
            "success": None if f.success[r].isnan() else bool(f.success[r] >= 1), "compared": bool(f.compared[r]),
            "weight": float(f.weight[r]), "origin": f.origin[r], "truncated": bool(f.truncated[r]),
            "sampling": f.sampling[r], "final_state": f.final_state[r] if f.final_state else None,
            "final_observation": f.final_observation[r] if f.final_observation else [],
            "info": f.info[r] if f.info else {},
        }
        head = {"schema": SCHEMA, "task": f.task[r], "group": f.group[r], "id": f.id[r]}
        rest = {k: v for k, v in values.items() if v != _RECORD_DEFAULTS[k]}
        reward = None if f.outcome[r].isnan() else float(f.outcome[r])
        return {**head, **rest, "turns": turns, "reward": reward}

    def _turn(self, r: int, s: int, contexts: dict[int, int], shared: int) -> dict[str, Any]:
        f, nodes = self.f, self.step_nodes[s][shared:]
        spans = [range(int(f.first_token[n]), int(f.first_token[n + 1])) for n in nodes]
        index = torch.tensor([t for span in spans for t in span], dtype=torch.int64)
        token = f.token[index].tolist()
        head = self.step_nodes[s][0]
        last = self.step_nodes[s][-1]
        text_only = token == [-1] and f.action_text[s] is not None
        values: dict[str, Any] = {
            "action": None if text_only else token,
            "logprob": None if bool(f.behaviour_logprob[index].isnan().all()) else _known(f.behaviour_logprob[index]),
            "trainable": _compact(f.trainable[index].tolist()),
            "reward": None if f.step_reward[s].isnan() else float(f.step_reward[s]),
            "finish": f.step_finish[s], "info": f.step_info[s], "action_text": f.action_text[s],
            "segments": self._segments(index, self.step_nodes[s][:shared]),
            "extras": {k: v[index] for k, v in f.extras.items() if not _blank(v[index])},
            "agent": f.agent_names[int(f.agent[last])], "policy": f.policy_names[int(f.policy[last])],
            "policy_version": int(f.policy_version[last]),
            "state": None if f.step_state[s] < 0 else f.state_names[int(f.step_state[s])],
            "sampled_under": None if f.sampled_under[last] < 0 else f.context(int(f.sampled_under[last])),
        }
        if not shared:
            values |= self._context(r, s, head, contexts)
            values |= {"observation_text": f.observation_text[s],
                       "after": None if self._before(s) == int(f.step_turn[s]) - 1 else self._before(s),
                       "caller": None if f.caller[head] < 0 else int(f.turn[int(f.caller[head])])}
        out = {k: v for k, v in values.items() if k == "action" or not _equal(v, _TURN_DEFAULTS[k])}
        if text_only:
            del out["action"]
        return out

    def _context(self, r: int, s: int, head: int, contexts: dict[int, int]) -> dict[str, Any]:
        """`observation` where the action goes on from the agent's running context, else the whole `context`."""
        f, agent = self.f, int(self.f.step_agent[s])
        running, parent = contexts.get(agent, int(f.prompt_node[r])), int(f.parent[head])
        if parent == running:
            return {"observation": None}
        is_observation = parent >= 0 and int(f.kind[parent]) == OBSERVATION
        media = list(f.media.get(parent, ())) if parent >= 0 else []
        if is_observation and int(f.parent[parent]) == running:
            return {"observation": f.token[int(f.first_token[parent]) : int(f.first_token[parent + 1])].tolist(),
                    "media": media}
        return {"context": f.context(parent), "media": media}

    def _segments(self, index: Tensor, before: list[int]) -> list[int] | None:
        segment = self.f.segment[index].tolist()
        if not segment or segment[0] < 0:
            return None
        filled = [n for n in before if self.f.first_token[n + 1] > self.f.first_token[n]]
        last = int(self.f.segment[self.f.first_token[filled[-1] + 1] - 1]) if filled else -1
        return [i for i, x in enumerate(segment) if x != (segment[i - 1] if i else last)]


def _blank(x: Tensor) -> bool:
    return bool(x.isnan().all() if x.is_floating_point() else (x == _blank_value(x.dtype)).all())


def _compact(flags: list[bool]) -> bool | list[bool]:
    return flags[0] if flags and len(set(flags)) == 1 else flags or True


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b


def render(forest: Forest, *, share: bool = True) -> list[dict[str, Any]]:
    """Records of a forest; values that equal the schema's defaults are left out."""
    writer = _Writer(forest, share)
    return [writer.record(r) for r in range(forest.n_trajectories)]
