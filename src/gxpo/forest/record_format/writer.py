"""Write a forest as rollout records: forks refer to the earliest trajectory with the longest common prefix, and schema
defaults are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from gxpo.base.errors import RecordError
from gxpo.base.media import to_record
from gxpo.forest.columns import OBSERVATION, Columns, blank_value
from gxpo.forest.record_format.schema import SCHEMA, Record, Turn

_TURN_DEFAULTS = {name: field.default for name, field in Turn.model_fields.items()}
_RECORD_DEFAULTS = {name: field.default for name, field in Record.model_fields.items()}
_COLUMNS = (
    "parent", "kind", "policy", "policy_version", "caller", "sampled_under", "first_token", "token", "trainable",
    "segment", "step_turn", "step_action", "step_state", "step_agent", "step_previous", "prompt_node",
)  # fmt: skip
_WITHIN_A_TURN = ("policy", "sampled_under")  # what a record can say once a turn


class Writer:
    """Incremental writer: `record` takes trajectories in order; later ones may be written as forks of earlier ones."""

    def __init__(self, forest: Columns, share: bool) -> None:
        self.forest, self.share = forest, share
        columns = {name: getattr(forest, name).tolist() for name in _COLUMNS}
        self.at = SimpleNamespace(
            **columns,
            logprob=[_known(x) for x in forest.behaviour_logprob.tolist()],
            reward=[_known(x) for x in forest.step_reward.tolist()],
            text_action=forest.text_actions.tolist(),
            begin=forest._step_begin.tolist(),
            head=forest._first_nodes.tolist(),
        )
        self._nodes = [self._step_nodes(s) for s in range(forest.n_steps)]
        self._first_user: dict[int, int] = {}  # action node -> the first trajectory that has it

    def _step_nodes(self, s: int) -> list[int]:
        nodes = [self.at.step_action[s]]
        while nodes[-1] != self.at.head[s]:
            nodes.append(self.at.parent[nodes[-1]])
        return nodes[::-1]

    def _steps(self, r: int) -> range:
        return range(self.at.begin[r], self.at.begin[r + 1])

    def _span(self, node: int) -> range:
        return range(self.at.first_token[node], self.at.first_token[node + 1])

    def _before(self, s: int) -> int:
        """The turn before step s, -1 where there is none."""
        previous = self.at.step_previous[s]
        return -1 if previous < 0 else self.at.step_turn[previous]

    # ------------------------------------------------------------ forks
    def _same(self, s: int, t: int) -> bool:
        """Whether a fork inherits step t as it is, and step s is equal to it."""
        f = self.forest
        return (
            self._nodes[s] == self._nodes[t]
            and self.at.reward[s] == self.at.reward[t]
            and self._before(s) == self._before(t)
            and self.at.step_state[s] == self.at.step_state[t]
            and self.at.step_agent[s] == self.at.step_agent[t]
            and f.step_finish[s] == f.step_finish[t]
            and f.step_info[s] == f.step_info[t]
            and f.action_text[s] == f.action_text[t]
            and f.observation_text[s] == f.observation_text[t]
        )

    def _goes_on(self, r: int, s: int, t: int) -> int | None:
        """Number of leading nodes of step t kept by a fork that continues in it as step s; None without such a fork.

        0 shares the observation alone; it is written where no turn of `r` could give its context.
        """
        f = self.forest
        if (
            self._before(s) != self._before(t)
            or (self.at.step_state[s] < 0 <= self.at.step_state[t])
            or f.observation_text[s] != f.observation_text[t]
        ):
            return None
        shared = 0
        for a, b in zip(self._nodes[s], self._nodes[t], strict=False):
            if a != b or self.at.text_action[t]:
                break
            shared += 1
        if any(len(self._span(n)) for n in self._nodes[s][:shared]):
            return shared
        mine, base = self.at.head[s], self.at.head[t]
        alike = all(getattr(self.at, name)[mine] == getattr(self.at, name)[base] for name in ("parent", "caller"))
        return 0 if alike and self._foreign(r, s) else None

    def _foreign(self, r: int, s: int) -> bool:
        """The step acts in another agent's running context."""
        parent, end = self.at.parent[self.at.head[s]], self._running(r, s)
        above = self.at.parent[parent] if parent >= 0 else -1
        return parent not in (-1, end) and above not in (-1, end)

    def _running(self, r: int, s: int) -> int:
        """End of the running context of the step's agent before it."""
        agent, before = self.at.step_agent[s], range(s - 1, self.at.begin[r] - 1, -1)
        own = (self.at.step_action[t] for t in before if self.at.step_agent[t] == agent)
        return next(own, self.at.prompt_node[r])

    def _base(self, r: int) -> tuple[int | None, int, int | None]:
        """(trajectory forked, whole turns inherited, action nodes kept of the turn that it goes on in)."""
        f, mine = self.forest, self._steps(r)
        candidates = {self._first_user[n] for s in mine for n in self._nodes[s] if n in self._first_user}
        best: tuple[int | None, int, int | None] = (None, 0, None)
        rank = (0, -1)
        for q in sorted(candidates):
            texts = f.prompt_text[r] is None and f.prompt_text[q] is not None
            if self.at.prompt_node[q] != self.at.prompt_node[r] or texts:
                continue
            theirs = self._steps(q)
            common = min(len(mine), len(theirs))
            whole = 0
            while whole < common and self._same(mine[whole], theirs[whole]):
                whole += 1
            kept = self._goes_on(r, mine[whole], theirs[whole]) if whole < common else None
            if (whole, -1 if kept is None else kept) > rank:
                best, rank = (q, whole, kept), (whole, -1 if kept is None else kept)
        return best

    def _fork(self, r: int, q: int, whole: int, kept: int | None) -> dict[str, Any]:
        if kept is None:
            return {"of": self.forest.id[q], "turn": whole - 1, "token": None}
        nodes = self._nodes[self._steps(r)[whole]][:kept]
        return {"of": self.forest.id[q], "turn": whole, "token": sum(len(self._span(n)) for n in nodes)}

    # ------------------------------------------------------------ one record
    def record(self, r: int) -> dict[str, Any]:
        f = self.forest
        base, whole, kept = self._base(r) if self.share else (None, 0, None)
        turns = []
        for i, s in enumerate(self._steps(r)):
            for n in self._nodes[s]:
                self._first_user.setdefault(n, r)
            if i >= whole:
                turns.append(self._turn(r, s, kept if i == whole else None))
        inherited = base is not None and f.prompt_text[r] == f.prompt_text[base]
        values = {
            "fork": None if base is None else self._fork(r, base, whole, kept),
            **(self._shown("prompt", self._tokens_to(self.at.prompt_node[r], r)) if base is None else {"prompt": []}),
            "prompt_text": None if inherited else f.prompt_text[r],
            "rewards": dict(zip(f.component_names, map(_known, f.components[r].tolist()), strict=True)),
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
        rest = {k: v for k, v in values.items() if v != _RECORD_DEFAULTS[k]}
        return {**head, **rest, "turns": turns, "reward": _known(float(f.outcome[r]))}

    def _turn(self, r: int, s: int, goes_on: int | None) -> dict[str, Any]:
        """A turn written as usual, or as one that a fork goes on in after `goes_on` nodes of the base."""
        f, kept, nodes = self.forest, self._nodes[s][: goes_on or 0], self._nodes[s][goes_on or 0 :]
        self._one_author(r, s, nodes)
        index = [t for n in nodes for t in self._span(n)]
        last = nodes[-1] if nodes else kept[-1]
        state, under = self.at.step_state[s], self.at.sampled_under[last] if nodes else -1
        flags, logprob = [self.at.trainable[t] for t in index], [self.at.logprob[t] for t in index]
        values: dict[str, Any] = {
            "action": [self.at.token[t] for t in index],
            "logprob": None if all(x is None for x in logprob) else logprob,
            "trainable": flags[0] if flags and len(set(flags)) == 1 else flags or True,
            "segments": self._segments(index, kept),
            "extras": self._extras(index),
            "agent": f.agent_names[self.at.step_agent[s]],
            "policy": f.policy_names[self.at.policy[last]],
            **self._versions(nodes, last),
            "state": None if state < 0 else f.state_names[state],
            "sampled_under": None if under < 0 else self._tokens_to(under, r),
            "reward": self.at.reward[s],
            "finish": f.step_finish[s],
            "info": f.step_info[s],
            "action_text": f.action_text[s],
        }
        if goes_on is None:
            before, caller = self._before(s), self.at.caller[self.at.head[s]]
            values |= self._context(r, s)
            values["observation_text"] = f.observation_text[s]
            values["after"] = None if before == self.at.step_turn[s] - 1 else before
            values["caller"] = None if caller < 0 else self._turn_of(r, caller)
        known_ids = values["logprob"] or values["segments"] or values["extras"]
        if self.at.text_action[s] and len(index) == 1 and not known_ids:
            del values["action"]
        return {k: v for k, v in values.items() if k == "action" or not _equal(v, _TURN_DEFAULTS[k])}

    def _turn_of(self, r: int, node: int) -> int:
        return next(self.at.step_turn[s] for s in self._steps(r) if node in self._nodes[s])

    def _versions(self, nodes: list[int], last: int) -> dict[str, Any]:
        """The version of a turn's own first token, and where it changes."""
        found: list[list[int]] = []
        at = 0
        for n in nodes:
            if self._span(n) and (not found or found[-1][1] != self.at.policy_version[n]):
                found.append([at, self.at.policy_version[n]])
            at += len(self._span(n))
        first = found[0][1] if found else self.at.policy_version[last]
        return {"policy_version": first, "versions": found[1:]}

    def _one_author(self, r: int, s: int, nodes: list[int]) -> None:
        for name in _WITHIN_A_TURN:
            column = getattr(self.at, name)
            if len({column[n] for n in nodes if self._span(n)}) > 1:
                raise RecordError(
                    f"trajectory {self.forest.id[r]!r}, turn {self.at.step_turn[s]}: `{name}` changes inside its "
                    "action, which only a fork can say: write it with share=True, with the trajectory that it forks"
                )

    def _context(self, r: int, s: int) -> dict[str, Any]:
        """`observation` where the action goes on from the agent's running context, else the whole `context`."""
        f, parent, end = self.forest, self.at.parent[self.at.head[s]], self._running(r, s)
        if parent == end:
            return {}
        if parent >= 0 and self.at.kind[parent] == OBSERVATION and self.at.parent[parent] == end:
            said = self._shown("observation", [self.at.token[t] for t in self._span(parent)])
            return {**said, "media": self._elsewhere(f.media.get(parent, ()), said)}
        said = self._shown("context", self._tokens_to(parent, r))
        return {**said, "media": self._elsewhere([m for n in self._path(parent) for m in f.media.get(n, ())], said)}

    @staticmethod
    def _shown(name: str, tokens: list[int]) -> dict[str, Any]:
        """Ids, with placeholders for pictures, and `media_at` if there are any."""
        ids, media_at = to_record(tokens)
        return {name: ids, "media_at": media_at} if media_at else {name: ids}

    @staticmethod
    def _elsewhere(media: Sequence[str], said: Mapping[str, Any]) -> list[str]:
        """References that `media_at` does not place."""
        placed = {ref for _, _, ref in said.get("media_at", ())}
        return [ref for ref in media if ref not in placed]

    def _path(self, node: int) -> list[int]:
        nodes = []
        while node >= 0:
            nodes.append(node)
            node = self.at.parent[node]
        return nodes[::-1]

    def _tokens_to(self, node: int, r: int) -> list[int]:
        """Token ids from the root to the end of `node`."""
        tokens = [self.at.token[t] for n in self._path(node) for t in self._span(n)]
        if tokens and min(tokens) < 0:
            raise RecordError(
                f"trajectory {self.forest.id[r]!r}: a context that can't be written as an observation or a fork holds "
                "steps that are not vocabulary ids: keep the trajectory it comes from"
            )
        return tokens

    def _segments(self, index: list[int], kept: list[int]) -> list[int] | None:
        """Where further segments begin; None where no token begins one."""
        before = next((self.at.segment[span[-1]] for n in reversed(kept) if (span := self._span(n))), -1)
        segment = [before, *(self.at.segment[t] for t in index)]
        return [i for i in range(len(index)) if segment[i + 1] != segment[i]] or None

    def _extras(self, index: list[int]) -> dict[str, Tensor]:
        rows = {name: value[index] for name, value in self.forest.extras.items()} if index else {}
        return {name: value for name, value in rows.items() if not _blank(value)}


def _known(x: float) -> float | None:
    return x if -float("inf") < x < float("inf") else None


def _blank(x: Tensor) -> bool:
    if x.is_floating_point():
        return bool(x.isnan().all())
    return bool((x == torch.tensor(blank_value(x.dtype), dtype=x.dtype)).all())


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b


def render(forest: Columns, *, share: bool = True) -> list[dict[str, Any]]:
    """Records of a forest; values that equal the schema's defaults are left out. `share=False` declares no forks."""
    writer = Writer(forest, share)
    return [writer.record(r) for r in range(forest.n_trajectories)]
