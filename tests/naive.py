"""What a rollouts file says, worked out with loops and dictionaries: the oracle that forests are held against."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from gxpo.forest.forest import Forest

Json = dict[str, Any]


def none(x: float) -> float | None:
    return None if math.isnan(x) else x


def expand(records: list[Json]) -> list[Json]:
    """Every trajectory in full: its steps, and for every action token all that is known of it."""
    trajectories = _expand(records)
    for step in (s for t in trajectories for s in t["steps"]):
        del step["policy"], step["policy_version"]  # a forest keeps these for each token
    return trajectories


def _expand(records: list[Json]) -> list[Json]:
    done: dict[str, Json] = {}
    for record in records:
        fork, steps, prompt = record.get("fork"), [], record.get("prompt", [])
        text, opened = record.get("prompt_text"), None
        if fork:
            base = done[fork["of"]]
            prompt, text = base["prompt"], text or base["prompt_text"]
            steps = list(base["steps"][: fork["turn"] + (fork["token"] is None)])
            opened = base["steps"][fork["turn"]] if fork["token"] is not None else None
        for turn in record["turns"]:
            steps.append(_step(turn, steps, prompt, opened, fork))
            opened = None
        done[record["id"]] = {
            "id": record["id"],
            "group": record["group"],
            "task": record.get("task", record["group"]),
            "prompt": prompt,
            "prompt_text": text,
            "steps": steps,
            "reward": record["reward"],
            "rewards": {k: v for k, v in record.get("rewards", {}).items() if v is not None},
            "success": None if record.get("success") is None else float(record["success"]),
            **{k: record.get(k, d) for k, d in (("compared", True), ("weight", 1.0), ("origin", "policy"))},
            **{k: record.get(k, d) for k, d in (("truncated", False), ("sampling", {}), ("info", {}))},
            **{k: record.get(k, d) for k, d in (("final_state", None), ("final_observation", []))},
        }
    return [{**t, "steps": [dict(s) for s in t["steps"]]} for t in done.values()]


def _step(turn: Json, steps: list[Json], prompt: list[int], opened: Json | None, fork: Json | None) -> Json:
    kept_tokens = opened["tokens"][: fork["token"]] if opened and fork else []
    inherit = opened or {"agent": "agent", "policy": "main", "policy_version": 0, "state": None}
    authors = ("agent", "policy", "policy_version", "state")
    chosen = {k: inherit[k] if turn.get(k) is None else turn[k] for k in authors}
    agent = chosen["agent"]
    if opened:
        context, media = opened["context"], opened["media"]
        before, caller, seen_observation_text = opened["before"], opened["caller"], opened["observation_text"]
    else:
        own_step = next((s for s in reversed(steps) if s["agent"] == agent), None)
        context, media = (prompt, []) if own_step is None else (own_step["context"] + ids(own_step), own_step["media"])
        if turn.get("context") is not None:
            context, media = [], []
        context = context + (turn.get("observation") or turn.get("context") or [])
        media = media + turn.get("media", [])
        before = turn.get("after") if turn.get("after") is not None else len(steps) - 1
        caller, seen_observation_text = turn.get("caller"), turn.get("observation_text")
    action, n = turn.get("action", [-1]), len(turn.get("action", [-1]))
    trainable = turn.get("trainable", True)
    segment = kept_tokens[-1]["segment"] if kept_tokens else -1
    tokens = list(kept_tokens)
    for i in range(n):
        segment += i in (turn.get("segments") or [])
        tokens.append(
            {
                "token": action[i],
                "logprob": (turn.get("logprob") or [None] * n)[i],
                "trainable": trainable if isinstance(trainable, bool) else trainable[i],
                "segment": segment,
                "policy": (chosen["policy"], chosen["policy_version"]),
                "under": turn.get("sampled_under"),
                "extras": _extras({k: v[i] for k, v in turn.get("extras", {}).items()}),
            }
        )
    return {
        **chosen,
        **{"context": context, "media": media, "tokens": tokens, "before": before, "caller": caller},
        **{"reward": turn.get("reward"), "finish": turn.get("finish"), "info": turn.get("info", {})},
        **{"action_text": turn.get("action_text"), "observation_text": seen_observation_text},
    }


def ids(step: Json) -> list[int]:
    return [t["token"] for t in step["tokens"]]


def _extras(rows: dict[str, Tensor]) -> Json:
    """A row of each named tensor, without the places that stand for "nothing"."""
    out: Json = {}
    for name, row in rows.items():
        flat = [x for x in row.flatten().tolist() if x == x and x != -1]
        if flat:
            out[name] = flat
    return out


def view(f: Forest) -> list[Json]:
    """The same description, read off a forest's columns entry by entry."""
    out = []
    for r in range(f.n_trajectories):
        rows = (f.step_trajectory == r).nonzero().squeeze(1).tolist()
        out.append(
            {
                "id": f.id[r],
                "group": f.group[r],
                "task": f.task[r],
                "prompt": f.context(int(f.prompt_node[r])),
                "prompt_text": f.prompt_text[r],
                "steps": [_view_step(f, s) for s in rows],
                "reward": none(float(f.outcome[r])),
                "rewards": {k: x for k, x in zip(f.component_names, f.components[r].tolist(), strict=True) if x == x},
                "success": none(float(f.success[r])),
                **{k: getattr(f, k)[r].item() for k in ("compared", "weight", "truncated")},
                **{k: getattr(f, k)[r] for k in ("origin", "sampling", "info", "final_state", "final_observation")},
            }
        )
        assert f.last_action[r] == f.step_action[rows[-1]]
        assert f.step_turn[rows].tolist() == list(range(len(rows)))
    return out


def _view_step(f: Forest, s: int) -> Json:
    nodes, previous = f.step_nodes(s), int(f.step_previous[s])
    first, last = nodes[0], nodes[-1]
    assert last == f.step_action[s]
    assert f.turn[nodes].tolist() == [int(f.step_turn[s])] * len(nodes)
    assert int(f.previous[first]) == (-1 if previous < 0 else int(f.step_action[previous]))
    assert f.previous[nodes[1:]].tolist() == nodes[:-1]
    context = int(f.parent[first])
    tokens = []
    for p in (f.path_step == s).nonzero().squeeze(1).tolist():
        t = int(f.path_token[p])
        node = int(f.token_node[t])
        assert f.path_trajectory[p] == f.step_trajectory[s] and node in nodes
        under = int(f.sampled_under[node])
        tokens.append(
            {
                "token": int(f.token[t]),
                "logprob": none(float(f.behaviour_logprob[t])),
                "trainable": bool(f.trainable[t]),
                "segment": int(f.segment[t]),
                "policy": (f.policy_names[int(f.policy[node])], int(f.policy_version[node])),
                "under": None if under < 0 else f.context(under),
                "extras": _extras({k: v[t] for k, v in f.extras.items()}),
            }
        )
    assert f.action(s) == [t["token"] for t in tokens]
    path = f.path(context).tolist() if context >= 0 else []
    caller, state = int(f.caller[first]), int(f.step_state[s])
    return {
        "agent": f.agent_names[int(f.step_agent[s])],
        "state": None if state < 0 else f.state_names[state],
        "context": f.context(context),
        "media": [m for n in path for m in f.media.get(n, ())],
        "tokens": tokens,
        "before": -1 if previous < 0 else int(f.step_turn[previous]),
        "caller": None if caller < 0 else int(f.turn[caller]),
        "reward": none(float(f.step_reward[s])),
        "finish": f.step_finish[s],
        "info": f.step_info[s],
        "action_text": f.action_text[s],
        "observation_text": f.observation_text[s],
    }
