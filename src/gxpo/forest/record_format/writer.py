"""Write a forest as rollout records.

A fork refers to the earliest trajectory with the longest common prefix; values that are the schema's defaults are left
out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from gxpo.base.errors import RecordError
from gxpo.base.media import to_record
from gxpo.forest.columns import OBSERVATION, PROMPT, Columns
from gxpo.forest.record_format.schema import SCHEMA, Record, Turn
from gxpo.forest.reshape import blank_value
from gxpo.forest.token_bias import BIAS, to_records

_TURN_DEFAULTS = {name: field.default for name, field in Turn.model_fields.items()}
_RECORD_DEFAULTS = {name: field.default for name, field in Record.model_fields.items()}
_COLUMNS = (
    "parent", "kind", "policy", "policy_version", "caller", "sampled_under", "first_token", "token", "trainable",
    "segment", "step_turn", "step_action", "step_state", "step_agent", "step_previous", "prompt_node",
)  # fmt: skip
_ONCE_A_TURN = ("policy", "sampled_under")  # a record has one value a turn


class Writer:
    """Incremental writer: `record` takes trajectories in order; later ones may be written as forks of earlier ones."""

    def __init__(self, forest: Columns, share: bool) -> None:
        # columns as Python lists: records are made value by value, which tensors are slow at
        self.forest, self.share = forest, share
        columns = {name: getattr(forest, name).tolist() for name in _COLUMNS}
        self.cols = SimpleNamespace(
            **columns,
            logprob=[_finite_or_none(x) for x in forest.behaviour_logprob.tolist()],
            reward=[_finite_or_none(x) for x in forest.step_reward.tolist()],
            text_action=forest.text_actions.tolist(),
            begin=forest._step_begin.tolist(),
            head=forest._first_nodes.tolist(),
        )
        self._nodes = [self._step_nodes(s) for s in range(forest.n_steps)]
        self._first_user: dict[int, int] = {}  # action node -> the first trajectory that has it

    def _step_nodes(self, s: int) -> list[int]:
        nodes = [self.cols.step_action[s]]
        while nodes[-1] != self.cols.head[s]:
            nodes.append(self.cols.parent[nodes[-1]])
        return nodes[::-1]

    def _steps(self, r: int) -> range:
        return range(self.cols.begin[r], self.cols.begin[r + 1])

    def _span(self, node: int) -> range:
        return range(self.cols.first_token[node], self.cols.first_token[node + 1])

    def _previous_turn(self, s: int) -> int:
        """Number of the turn before step s, -1 if there is none."""
        previous = self.cols.step_previous[s]
        return -1 if previous < 0 else self.cols.step_turn[previous]

    # ------------------------------------------------------------ forks
    def _is_inherited(self, s: int, t: int) -> bool:
        """True if step s is equal to step t in all that a fork inherits."""
        f = self.forest
        return (
            self._nodes[s] == self._nodes[t]
            and self.cols.reward[s] == self.cols.reward[t]
            and self._previous_turn(s) == self._previous_turn(t)
            and self.cols.step_state[s] == self.cols.step_state[t]
            and self.cols.step_agent[s] == self.cols.step_agent[t]
            and f.step_finish[s] == f.step_finish[t]
            and f.step_info[s] == f.step_info[t]
            and f.action_text[s] == f.action_text[t]
            and f.observation_text[s] == f.observation_text[t]
        )

    def _shared_nodes(self, r: int, s: int, t: int) -> int | None:
        """Number of leading nodes of step t kept by a fork that continues in it as step s; None without such a fork.

        0 shares the observation alone; it is written where no turn of `r` could give its context.
        """
        f = self.forest
        if (
            self._previous_turn(s) != self._previous_turn(t)
            or (self.cols.step_state[s] < 0 <= self.cols.step_state[t])
            or f.observation_text[s] != f.observation_text[t]
        ):
            return None
        # leading nodes in common; an action known as text alone can't be continued inside
        shared = 0
        for a, b in zip(self._nodes[s], self._nodes[t], strict=False):
            if a != b or self.cols.text_action[t]:
                break
            shared += 1
        if any(len(self._span(n)) for n in self._nodes[s][:shared]):
            return shared
        mine, base = self.cols.head[s], self.cols.head[t]
        alike = all(getattr(self.cols, name)[mine] == getattr(self.cols, name)[base] for name in ("parent", "caller"))
        return 0 if alike and self._is_in_other_context(r, s) else None

    def _is_in_other_context(self, r: int, s: int) -> bool:
        """True if the step acts in another agent's running context."""
        # its parent, or its observation's, is neither a root nor the end of the agent's own context
        parent, end = self.cols.parent[self.cols.head[s]], self._context_end(r, s)
        if parent >= 0 and self.cols.kind[parent] == PROMPT:
            return False  # a whole context, whose beginning others may share
        above = self.cols.parent[parent] if parent >= 0 else -1
        return parent not in (-1, end) and above not in (-1, end)

    def _context_end(self, r: int, s: int) -> int:
        """End of the running context of the step's agent before it."""
        agent, earlier_steps = self.cols.step_agent[s], range(s - 1, self.cols.begin[r] - 1, -1)
        agent_actions = (self.cols.step_action[t] for t in earlier_steps if self.cols.step_agent[t] == agent)
        return next(agent_actions, self.cols.prompt_node[r])

    def _best_base(self, r: int) -> tuple[int | None, int, int | None]:
        """Best trajectory to fork: (trajectory, whole turns inherited, nodes kept of the turn that is continued)."""
        # only earlier trajectories that share an action node: equal tokens alone make no fork
        f, mine = self.forest, self._steps(r)
        candidates = {self._first_user[n] for s in mine for n in self._nodes[s] if n in self._first_user}
        best: tuple[int | None, int, int | None] = (None, 0, None)
        rank = (0, -1)
        for q in sorted(candidates):
            # a fork without a prompt text would read as having the base's
            hides_text = f.prompt_text[r] is None and f.prompt_text[q] is not None
            if self.cols.prompt_node[q] != self.cols.prompt_node[r] or hides_text:
                continue
            theirs = self._steps(q)
            common = min(len(mine), len(theirs))
            whole_turns = 0
            while whole_turns < common and self._is_inherited(mine[whole_turns], theirs[whole_turns]):
                whole_turns += 1
            shared_nodes = (
                self._shared_nodes(r, mine[whole_turns], theirs[whole_turns]) if whole_turns < common else None
            )
            if (whole_turns, -1 if shared_nodes is None else shared_nodes) > rank:
                best, rank = (q, whole_turns, shared_nodes), (whole_turns, -1 if shared_nodes is None else shared_nodes)
        return best

    def _fork(self, r: int, q: int, whole_turns: int, shared_nodes: int | None) -> dict[str, Any]:
        if shared_nodes is None:
            return {"of": self.forest.id[q], "turn": whole_turns - 1, "token": None}
        nodes = self._nodes[self._steps(r)[whole_turns]][:shared_nodes]
        return {"of": self.forest.id[q], "turn": whole_turns, "token": sum(len(self._span(n)) for n in nodes)}

    # ------------------------------------------------------------ one record
    def record(self, r: int) -> dict[str, Any]:
        """Record of trajectory `r`; those before it have been written."""
        f = self.forest
        base, whole_turns, shared_nodes = self._best_base(r) if self.share else (None, 0, None)
        # turns that a fork inherits are not written again
        turns = []
        for i, s in enumerate(self._steps(r)):
            for n in self._nodes[s]:
                self._first_user.setdefault(n, r)
            if i >= whole_turns:
                turns.append(self._turn(r, s, shared_nodes if i == whole_turns else None))
        # the reader gives a fork its base's prompt text
        inherited = base is not None and f.prompt_text[r] == f.prompt_text[base]
        values = {
            "fork": None if base is None else self._fork(r, base, whole_turns, shared_nodes),
            **(
                self._token_fields("prompt", self._tokens_to(self.cols.prompt_node[r], r))
                if base is None
                else {"prompt": []}
            ),
            "prompt_text": None if inherited else f.prompt_text[r],
            "rewards": dict(zip(f.component_names, map(_finite_or_none, f.components[r].tolist()), strict=True)),
            "success": None if f.success[r].isnan() else bool(f.success[r] >= 1),
            "compared": bool(f.compared[r]),
            "weight": float(f.weight[r]),
            "origin": f.origin[r],
            "truncated": bool(f.truncated[r]),
            "sampling": f.sampling[r],
            "final_state": f.final_state[r],
            "final_observation": f.final_observation[r],
            "info": f.info[r],
        }
        head = {"schema": SCHEMA, "task": f.task[r], "group": f.group[r], "id": f.id[r]}
        non_defaults = {k: v for k, v in values.items() if v != _RECORD_DEFAULTS[k]}
        return {**head, **non_defaults, "turns": turns, "reward": _finite_or_none(float(f.outcome[r]))}

    def _turn(self, r: int, s: int, shared_nodes: int | None) -> dict[str, Any]:
        """Turn of a record; of a fork that continues a turn, only what follows `shared_nodes` nodes of the base's."""
        f, kept_nodes, nodes = self.forest, self._nodes[s][: shared_nodes or 0], self._nodes[s][shared_nodes or 0 :]
        self._check_one_author(r, s, nodes)
        index = [t for n in nodes for t in self._span(n)]
        last = nodes[-1] if nodes else kept_nodes[-1]
        state, context = self.cols.step_state[s], self.cols.sampled_under[last] if nodes else -1
        extras = self._extras(index)
        flags, logprob = [self.cols.trainable[t] for t in index], [self.cols.logprob[t] for t in index]
        values: dict[str, Any] = {
            "action": [self.cols.token[t] for t in index],
            "logprob": None if all(x is None for x in logprob) else logprob,
            "trainable": flags[0] if flags and len(set(flags)) == 1 else flags or True,
            "segments": self._segments(index, kept_nodes),
            "extras": extras,
            "biases": to_records(f.biases, extras[BIAS].tolist()) if BIAS in extras else {},
            "agent": f.agent_names[self.cols.step_agent[s]],
            "policy": f.policy_names[self.cols.policy[last]],
            **self._versions(nodes, last),
            "state": None if state < 0 else f.state_names[state],
            "sampled_under": None if context < 0 else self._tokens_to(context, r),
            "reward": self.cols.reward[s],
            "finish": f.step_finish[s],
            "info": f.step_info[s],
            "action_text": f.action_text[s],
        }
        # of a turn that is continued the context is the base's, and so are its time and caller
        if shared_nodes is None:
            previous_turn, caller = self._previous_turn(s), self.cols.caller[self.cols.head[s]]
            values |= self._context(r, s)
            values["observation_text"] = f.observation_text[s]
            values["after"] = None if previous_turn == self.cols.step_turn[s] - 1 else previous_turn
            values["caller"] = None if caller < 0 else self._turn_of(r, caller)
        # the placeholder of an action that is text only is no token id
        known_ids = values["logprob"] or values["segments"] or values["extras"]
        if self.cols.text_action[s] and len(index) == 1 and not known_ids:
            del values["action"]
        return {k: v for k, v in values.items() if k == "action" or not _equal(v, _TURN_DEFAULTS[k])}

    def _turn_of(self, r: int, node: int) -> int:
        return next(self.cols.step_turn[s] for s in self._steps(r) if node in self._nodes[s])

    def _versions(self, nodes: list[int], last: int) -> dict[str, Any]:
        """Policy version of a turn's own first token, and the positions at which it changes."""
        versions: list[list[int]] = []
        position = 0
        for n in nodes:
            if self._span(n) and (not versions or versions[-1][1] != self.cols.policy_version[n]):
                versions.append([position, self.cols.policy_version[n]])
            position += len(self._span(n))
        first = versions[0][1] if versions else self.cols.policy_version[last]
        return {"policy_version": first, "versions": versions[1:]}

    def _check_one_author(self, r: int, s: int, nodes: list[int]) -> None:
        for name in _ONCE_A_TURN:
            column = getattr(self.cols, name)
            if len({column[n] for n in nodes if self._span(n)}) > 1:
                raise RecordError(
                    f"trajectory {self.forest.id[r]!r}, turn {self.cols.step_turn[s]}: `{name}` changes inside its "
                    "action, which only a fork can express: write it with share=True, with the trajectory that it forks"
                )

    def _context(self, r: int, s: int) -> dict[str, Any]:
        """Context fields: `observation` if the action follows the agent's running context, else the whole `context`."""
        f, parent, end = self.forest, self.cols.parent[self.cols.head[s]], self._context_end(r, s)
        if parent == end:
            return {}
        if parent >= 0 and self.cols.kind[parent] == OBSERVATION and self.cols.parent[parent] == end:
            fields = self._token_fields("observation", [self.cols.token[t] for t in self._span(parent)])
            return {**fields, "media": self._unplaced_media(f.media.get(parent, ()), fields)}
        fields = self._token_fields("context", self._tokens_to(parent, r))
        return {
            **fields,
            "media": self._unplaced_media([m for n in self._path(parent) for m in f.media.get(n, ())], fields),
        }

    @staticmethod
    def _token_fields(name: str, tokens: list[int]) -> dict[str, Any]:
        """Field `name` with token ids, pictures as placeholders, and `media_at` if there are any."""
        ids, media_at = to_record(tokens)
        return {name: ids, "media_at": media_at} if media_at else {name: ids}

    @staticmethod
    def _unplaced_media(media: Sequence[str], fields: Mapping[str, Any]) -> list[str]:
        """Media references that `media_at` does not place."""
        placed = {ref for _, _, ref in fields.get("media_at", ())}
        return [ref for ref in media if ref not in placed]

    def _path(self, node: int) -> list[int]:
        nodes = []
        while node >= 0:
            nodes.append(node)
            node = self.cols.parent[node]
        return nodes[::-1]

    def _tokens_to(self, node: int, r: int) -> list[int]:
        """Token ids from the root to the end of `node`."""
        tokens = [self.cols.token[t] for n in self._path(node) for t in self._span(n)]
        if tokens and min(tokens) < 0:
            raise RecordError(
                f"trajectory {self.forest.id[r]!r}: a context that can't be written as an observation or a fork holds "
                "steps that are not vocabulary ids: keep the trajectory it comes from"
            )
        return tokens

    def _segments(self, index: list[int], kept_nodes: list[int]) -> list[int] | None:
        """Positions at which further segments begin; None if no token begins one."""
        before = next((self.cols.segment[span[-1]] for n in reversed(kept_nodes) if (span := self._span(n))), -1)
        segment = [before, *(self.cols.segment[t] for t in index)]
        return [i for i in range(len(index)) if segment[i + 1] != segment[i]] or None

    def _extras(self, index: list[int]) -> dict[str, Tensor]:
        rows = {name: value[index] for name, value in self.forest.extras.items()} if index else {}
        return {name: value for name, value in rows.items() if not _is_blank(value)}


def _finite_or_none(x: float) -> float | None:
    return x if -float("inf") < x < float("inf") else None


def _is_blank(x: Tensor) -> bool:
    if x.is_floating_point():
        return bool(x.isnan().all())
    return bool((x == torch.tensor(blank_value(x.dtype), dtype=x.dtype)).all())


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b


def render(forest: Columns, *, share: bool = True) -> list[dict[str, Any]]:
    """Records of a forest; values that equal the schema's defaults are left out. `share=False` declares no forks."""
    writer = Writer(forest, share)
    return [writer.record(r) for r in range(forest.n_trajectories)]
