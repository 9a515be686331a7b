"""Read rollout records into a forest.

Equal context tokens in one position are stored once. Action tokens are shared by a declared fork only, never because
they happen to be equal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from pydantic import ValidationError
from torch import Tensor

from gxpo.base.errors import RecordError, did_you_mean, need
from gxpo.base.media import FIRST, from_record, refs_in
from gxpo.base.regular_files import fault_of
from gxpo.forest import token_bias
from gxpo.forest.columns import ACTION, NAN, OBSERVATION, PROMPT
from gxpo.forest.record_format.assemble import Node, Reference, Step, assemble
from gxpo.forest.record_format.schema import Fork, Record, Turn

NO_TOKEN = -1  # in place of an action that is known as text only
SHARED_FROM = 16  # tokens at the beginning of two contexts that are worth storing once


class Fail:
    """Raise a `RecordError` that names the line and the field."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __call__(self, name: str, message: str) -> NoReturn:
        raise RecordError(f"{self.where}: {name} {message}")


@dataclass(eq=False)
class _ForkPoint:
    """Fork inside a turn: the base's step, the nodes kept of its action, and the parent of the new tokens."""

    step: Step
    kept_nodes: list[Reference]
    parent: Reference | None

    @property
    def segment(self) -> int:
        """Segment of the last kept token, -1 none."""
        node, size = self.kept_nodes[-1] if self.kept_nodes else (None, 0)
        return node.segment[size - 1] if node is not None else -1


class _Names:
    """Name index: numbers by order of appearance, -1 for None."""

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
            if fault := fault_of(self.folder / name):
                raise ValueError(f"can't be read: {fault}")
            need("safetensors", "train")
            from safetensors import safe_open

            self.files[name] = safe_open(str(self.folder / name), "pt")
        return self.files[name].get_tensor(key)


class Reader:
    """Incremental reader: `add` takes one record at a time, `finish` gives the columns of the forest."""

    def __init__(self, share: bool, folder: Path | None) -> None:
        self.share, self.tensors = share, _TensorFiles(folder)
        self.nodes: list[Node] = []
        self.context_nodes: dict[tuple[Any, ...], Node] = {}
        self.whole_contexts: list[tuple[tuple[int, ...], Node]] = []  # in lexicographic order
        self.agents, self.policies, self.states = _Names(), _Names(), _Names()
        self.trajectories: dict[str, list[Step]] = {}
        self.prompts: dict[str, Node | None] = {}
        self.records: dict[str, Record] = {}
        self.extra_kinds: dict[str, tuple[torch.dtype, int]] = {}
        self.biases: dict[int, token_bias.TokenBias] = {}

    # ------------------------------------------------------------ one record
    def add(self, record: Record, fail: Fail) -> None:
        """Add one record: its prompt (or the base's, of a fork), then its turns in order."""
        if record.id in self.trajectories:
            fail(
                "id", f"{record.id!r} is the id of an earlier record too: give every record of a file an id of its own"
            )
        steps: list[Step] = []
        fork_point: _ForkPoint | None = None
        if record.fork is None:
            token_ids = _with_media(record.prompt, record.media_at, "media_at", fail)
            prompt = self._context(None, PROMPT, token_ids, -1, -1) if token_ids else None
            if prompt is not None and self.share:
                self._note_whole(tuple(token_ids), prompt)
        else:
            # a fork keeps steps of its base and has the base's prompt; it may state that prompt, but no other
            steps, fork_point = self._inherited_steps(record, fail)
            prompt = self.prompts[record.fork.of]
            prompt_ids = _with_media(record.prompt, record.media_at, "media_at", fail)
            if prompt_ids and (fork_point is not None or prompt is None or prompt_ids != prompt.token):
                fail("prompt", f"is the one of {record.fork.of!r}, which this trajectory forks: leave it out")
            if record.prompt_text is None:
                record.prompt_text = self.records[record.fork.of].prompt_text
        if not record.turns and (record.fork is None or fork_point is not None):
            fail("turns", "is empty: a trajectory needs at least one turn")
        # turns: each action goes on from the running context of its agent, which begins at the prompt
        root = prompt.end if prompt else None
        context_end = {step.agent: step.nodes[-1] for step in steps}  # by agent
        for i, turn in enumerate(record.turns):
            where = f"turns[{i}]"
            if turn.action is None and turn.action_text is None:
                fail(f"{where}.action", "is missing: give token ids, or `action_text` where only text is known")
            if fork_point is not None and i == 0:
                step = self._continue_turn(turn, fork_point, steps, where, fail)
            else:
                step = self._new_turn(turn, steps, context_end, root, where, fail)
            steps.append(step)
            context_end[step.agent] = step.nodes[-1]
        self.trajectories[record.id], self.prompts[record.id], self.records[record.id] = steps, prompt, record

    def _context(
        self,
        parent: Reference | None,
        kind: int,
        tokens: Sequence[int],
        agent: int,
        turn: int,
        media: Sequence[str] = (),
    ) -> Node:
        """Context node with these tokens under `parent`: a new one, or, with `share`, an equal one that there is."""
        if tokens and max(tokens) >= FIRST:
            media = (*dict.fromkeys((*refs_in(tokens), *media)),)
        place = (id(parent[0]), parent[1]) if parent else None
        key = (place, kind, agent, turn, tuple(tokens), tuple(media))
        if self.share and key in self.context_nodes:
            return self.context_nodes[key]
        node = Node(parent, kind, list(tokens), turn, agent, media=tuple(media))
        self.nodes.append(node)
        self.context_nodes[key] = node
        return node

    def _whole_context(self, tokens: list[int], media: Sequence[str]) -> Node:
        """Context of a turn that is given whole: what it shares with the beginning of another one is stored once."""
        is_known = (None, PROMPT, -1, -1, tuple(tokens), tuple(media)) in self.context_nodes
        if not self.share or is_known or media or len(tokens) < SHARED_FROM or max(tokens) >= FIRST:
            return self._context(None, PROMPT, tokens, -1, -1, media)
        # of all contexts the nearest in lexicographic order share most
        key, n_shared, base, base_size = tuple(tokens), 0, None, 0
        place = bisect_left(self.whole_contexts, key, key=lambda entry: entry[0])
        for other, node in self.whole_contexts[max(place - 1, 0) : place + 1]:
            n_same = next(
                (i for i, (a, b) in enumerate(zip(key, other, strict=False)) if a != b), min(len(key), len(other))
            )
            if n_same > n_shared:
                n_shared, base, base_size = n_same, node, len(other)
        if base is None or n_shared < SHARED_FROM or n_shared == len(tokens):
            node = self._context(None, PROMPT, tokens, -1, -1)
        else:
            # the base may itself go on from another context: the node in which the shared part ends is cut there
            start = base_size - base.size
            while n_shared <= start and base.parent is not None:
                base, size = base.parent
                start -= size
            if n_shared - start < base.size:
                base.cuts = (base.cuts or set()) | {n_shared - start}
            node = self._context((base, n_shared - start), PROMPT, tokens[n_shared:], -1, -1)
            self.context_nodes[(None, PROMPT, -1, -1, key, ())] = node
        self._note_whole(key, node)
        return node

    def _note_whole(self, tokens: tuple[int, ...], node: Node) -> None:
        """Note a node that ends a whole context, from which others may go on."""
        place = bisect_left(self.whole_contexts, tokens, key=lambda entry: entry[0])
        if self.whole_contexts[place : place + 1] != [(tokens, node)] and max(tokens) < FIRST:
            self.whole_contexts.insert(place, (tokens, node))

    def _inherited_steps(self, record: Record, fail: Fail) -> tuple[list[Step], _ForkPoint | None]:
        """Steps that a fork inherits whole, and the point inside a turn at which it leaves, if there is one."""
        fork = record.fork
        assert fork is not None
        if fork.of not in self.trajectories:
            fail("fork.of", f"is {fork.of!r}, which is no earlier record: write the forked trajectory before its forks")
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
        # walk the nodes of the base's action up to the token; the node in which it lies is cut there later
        remaining, kept_nodes = fork.token, []
        for node, size in step.nodes:
            size_kept = min(size, remaining)
            if not size_kept:
                break
            if size_kept < node.size:
                node.cuts = node.cuts or set()
                node.cuts.add(size_kept)
            kept_nodes.append((node, size_kept))
            remaining -= size_kept
        return base[: fork.turn], _ForkPoint(
            step, kept_nodes, kept_nodes[-1] if kept_nodes else step.nodes[0][0].parent
        )

    def _continue_turn(self, turn: Turn, fork_point: _ForkPoint, steps: list[Step], where: str, fail: Fail) -> Step:
        """First turn of a fork that leaves its base inside an action, or at either end of one."""
        for name in ("observation", "context", "media", "media_at", "observation_text", "after", "caller"):
            if getattr(turn, name) not in (None, []):
                fail(f"{where}.{name}", "is taken from the base where a fork continues a turn: leave it out")
        # who acts, by which policy and in which state: the base's, unless the fork states another
        base = fork_point.step
        step = Step(
            nodes=fork_point.kept_nodes,
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
        self._add_action(turn, step, fork_point.parent, fork_point.segment, steps, where, fail)
        return step

    def _new_turn(
        self,
        turn: Turn,
        steps: list[Step],
        context_end: dict[int, Reference],
        root: Reference | None,
        where: str,
        fail: Fail,
    ) -> Step:
        """Turn with an observation or a whole context of its own."""
        number = len(steps)
        if turn.observation is not None and turn.context is not None:
            fail(f"{where}.context", "is given together with `observation`: give one of them")
        for name, value in (("after", turn.after), ("caller", turn.caller)):
            if value is not None and value >= number:
                fail(f"{where}.{name}", f"is {value}, but this is turn {number}: give the number of an earlier turn")
        # a whole context starts a root of its own; an observation extends the agent's running context
        agent = self.agents["agent" if turn.agent is None else turn.agent]
        if turn.context is not None:
            token_ids = _with_media(turn.context, turn.media_at, f"{where}.media_at", fail)
            has_context = token_ids or turn.media
            parent = self._whole_context(token_ids, turn.media).end if has_context else None
        else:
            parent = context_end.get(agent, root)
            if turn.observation or turn.media:
                token_ids = _with_media(turn.observation or [], turn.media_at, f"{where}.media_at", fail)
                parent = self._context(parent, OBSERVATION, token_ids, agent, number, turn.media).end
        step = Step(
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
        self._add_action(turn, step, parent, -1, steps, where, fail)
        return step

    def _add_action(
        self,
        turn: Turn,
        step: Step,
        parent: Reference | None,
        segment: int,
        steps: list[Step],
        where: str,
        fail: Fail,
    ) -> None:
        """Append the nodes of the turn's own action tokens to the step: one for each policy version."""
        # checks: values for each token must be as many as the tokens, of which text alone has none
        action = [NO_TOKEN] if turn.action is None else turn.action
        size, goes_on = len(action), bool(step.nodes)
        for name, values in (("logprob", turn.logprob), ("trainable", turn.trainable)):
            if isinstance(values, list) and (turn.action is None or len(values) != size):
                fail(
                    f"{where}.{name}",
                    f"has {len(values)} values for {size if turn.action is not None else 'no'} action tokens",
                )
        segments = self._segments(turn, size, goes_on, segment, where, fail)
        extras = {k: self._extra_tensor(v, size, k, f"{where}.extras.{k}", fail) for k, v in turn.extras.items()}
        self._add_biases(turn, extras.get(token_bias.BIAS), where, fail)
        if goes_on and not action:
            return  # a fork at the end of an action that adds no token of its own
        # `previous` is what happened before in time, which `after` may set; the parent is the context
        previous = step.nodes[-1] if goes_on else steps[step.previous].nodes[-1] if step.previous >= 0 else None
        logprob = [NAN] * size if turn.logprob is None else [NAN if x is None else x for x in turn.logprob]
        trainable = [turn.trainable] * size if isinstance(turn.trainable, bool) else turn.trainable
        context = None
        if turn.sampled_under is not None:
            context = self._context(None, PROMPT, turn.sampled_under, -1, -1).end
        for begin, end, version in self._version_spans(turn, size, step.policy_version, where, fail):
            node = Node(
                parent, ACTION, action[begin:end], step.turn, step.agent, step.policy, version, step.state, previous,
                caller=None if step.caller is None else steps[step.caller].nodes[-1],
                sampled_under=context,
                logprob=logprob[begin:end],
                trainable=trainable[begin:end],
                segment=segments[begin:end],
                extras={name: value[begin:end] for name, value in extras.items()},
            )  # fmt: skip
            self.nodes.append(node)
            parent = previous = node.end
            step.nodes = [*step.nodes, node.end]

    @staticmethod
    def _version_spans(turn: Turn, size: int, first: int, where: str, fail: Fail) -> list[tuple[int, int, int]]:
        """Spans of an action of one policy version each: (begin, end, version)."""
        starts = [at for at, _ in turn.versions]
        if starts != sorted(set(starts)) or (starts and not 0 < starts[0] <= starts[-1] < size):
            fail(f"{where}.versions", f"is {turn.versions}: tokens must increase, within the {size} action tokens")
        spans = [(0, first), *((at, version) for at, version in turn.versions)]
        return [(a, b, version) for (a, version), b in zip(spans, [*starts, size], strict=True)]

    @staticmethod
    def _segments(turn: Turn, size: int, goes_on: bool, before: int, where: str, fail: Fail) -> list[int]:
        """Segment of each action token, counted on from `before`, the base's last one; -1 none."""
        begins = turn.segments
        if begins is None:
            return [before] * size
        if turn.action is None:
            fail(f"{where}.segments", "is given for an action that is text only: give its token ids, or leave it out")
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

    def _extra_tensor(self, value: Any, size: int, name: str, where: str, fail: Fail) -> Tensor:
        """Named tensor of an action, read from its file if the record names one."""
        if isinstance(value, str):
            reference = value
            try:
                value = self.tensors.read(reference)
            except Exception as error:  # safetensors raises its own types for absent and damaged files
                fail(where, f"{short(reference)} {error}")
        if not isinstance(value, Tensor) or value.dim() < 1 or value.shape[0] != size:
            fail(where, f"is not a tensor with leading dimension {size}, the action's tokens")
        # all of one name are rows of one column
        kind = (value.dtype, value.dim())
        if self.extra_kinds.setdefault(name, kind) != kind:
            fail(where, f"is {kind[0]} with {kind[1]} dimensions; earlier {name!r} are {self.extra_kinds[name]}")
        return value

    def _add_biases(self, turn: Turn, bias_T: Tensor | None, where: str, fail: Fail) -> None:
        """Add the turn's biases; each that its tokens name must be there."""
        try:
            self.biases |= token_bias.from_records(turn.biases)
        except ValueError as error:
            fail(f"{where}.biases", str(error))
        for key in [] if bias_T is None else bias_T.unique().tolist():
            if key >= 0 and key not in self.biases:
                fail(f"{where}.biases", f"lacks {key}, which extras.bias names")

    def finish(self) -> dict[str, Any]:
        """Columns of the forest of all records added."""
        columns = assemble(self.nodes, list(self.trajectories.values()))
        names = {"agent": self.agents, "policy": self.policies, "state": self.states}
        return {
            **columns,
            **self._row_columns(),
            **{f"{kind}_names": tuple(names_of_kind.index) for kind, names_of_kind in names.items()},
            "biases": self.biases,
        }

    def _row_columns(self) -> dict[str, Any]:
        records = list(self.records.values())
        names = list(dict.fromkeys(k for r in records for k in r.rewards))
        components = [[NAN if (x := r.rewards.get(k)) is None else x for k in names] for r in records]
        floats = {
            "outcome": [NAN if r.reward is None else r.reward for r in records],
            "success": [NAN if r.success is None else float(r.success) for r in records],
            "weight": [r.weight for r in records],
        }
        prompts = [-1 if p is None else p.end[0].index(p.size) for p in self.prompts.values()]
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


def _with_media(tokens: Sequence[int], media_at: Sequence[Any], name: str, fail: Fail) -> list[int]:
    """Token ids with the placeholders at `media_at` replaced by the rows of pictures."""
    if not media_at:
        return list(tokens)
    try:
        return from_record(tokens, media_at)
    except (ValueError, TypeError) as error:
        fail(name, str(error))


def columns_of(
    rows: Iterable[tuple[str, Mapping[str, Any]]], share: bool = True, folder: Path | None = None
) -> dict[str, Any]:
    """Columns of the forest of these (where, record)s, `where` naming the record in errors.

    share   False: every context token is stored per use
    folder  of the .safetensors files that `extras` name
    """
    reader = Reader(share, folder)
    for where, raw in rows:
        fail = Fail(where)
        if not isinstance(raw, Mapping):
            raise RecordError(f"{where}: a record is a mapping, not {short(raw)}")
        try:
            record = Record.model_validate(dict(raw))
        except ValidationError as error:
            _explain(error, fail)
        reader.add(record, fail)
    return reader.finish()


def _explain(error: ValidationError, fail: Fail) -> NoReturn:
    """Raise the first of pydantic's errors as a field and a message that says what to change."""
    first = error.errors()[0]
    # pydantic puts the cases of a union (`trainable`) into the path: they are no keys of the record
    location = [p for p in first["loc"] if p not in ("bool", "list[bool]")]
    field = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in location).lstrip(".")
    if first["type"] == "extra_forbidden":
        model = Turn if "turns" in location[:-1] else Fork if "fork" in location[:-1] else Record
        valid_keys = [f.alias or name for name, f in model.model_fields.items()]
        fail(field, f"is not a known key{did_you_mean(str(location[-1]), valid_keys)}; other keys go under `info`")
    if first["type"] == "missing":
        fail(field, "is missing")
    union = " or a list of them, one per action token" if "trainable" in location[:3] else ""
    fail(field, f"{first['msg'].lower()}{union} (got {short(first.get('input'))})")


def short(value: Any) -> str:
    """Representation of a value for an error, at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
