"""Export of rollouts as logs of inspect (inspect.aisi.org.uk), which its viewer and its scanners read.

Log schema version 2, read in inspect_ai/log/_log.py and model/_chat_message.py of inspect_ai 0.3.285: a JSON file for
each step. A sample is a group, its epochs are the group's rollouts. inspect_ai is not needed to write it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError
from gxpo.explain.rollout_columns import observations
from gxpo.explain.rollout_source import Source, files_of, read
from gxpo.forest.forest import Forest
from gxpo.training.config import versions

SCHEMA_VERSION = 2
STOP_REASONS = {"stop": "stop", "eos": "stop", "length": "max_tokens"}  # finish -> inspect's; others: unknown
TIME = "%Y-%m-%dT%H-%M-%S+00-00"  # begins the names of the files that inspect lists


def export(path: Path, directory: Path, step: int | None = None) -> list[Path]:
    """Write the rollouts of a run, or of a file of rollouts, as a log for each step; returns the files.

    step  of that step alone; default: of every step that was written

    The directory appears whole or not at all, and must not exist or be empty. Raises ConfigError, RecordError.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{directory} is there already and not empty: give another directory")
    paths = files_of(path, step)
    partial = directory.with_name(f".{directory.name}-{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        names = [_write(read(file), file, partial) for file in paths]
        if directory.exists():
            directory.rmdir()
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return [directory / name for name in names]


def _write(source: Source, file: Path, folder: Path) -> str:
    """Write the log of one step, and return the name of its file, by which inspect lists it."""
    log = log_of(source, file)
    task = re.sub(r"[^A-Za-z0-9-]+", "-", log["eval"]["task"]).strip("-") or "rollouts"
    created = datetime.fromisoformat(log["eval"]["created"]).strftime(TIME)
    name = f"{created}_{task}_{log['eval']['task_id']}.json"
    text = json.dumps(_finite(log), ensure_ascii=False, allow_nan=False)
    (folder / name).write_text(text, encoding="utf-8", errors="replace")
    return name


def log_of(source: Source, path: Path) -> dict[str, Any]:
    """Build the log of one step: an `EvalLog` of inspect as plain values."""
    forest = source.forest
    group_R = forest.ids("group", axis="R").tolist()
    samples: list[dict[str, Any]] = []
    epoch_by_group: dict[int, int] = {}
    inputs = observations(forest, source.words.texts, source.words.token)
    for r, group in enumerate(group_R):
        epoch_by_group[group] = epoch_by_group.get(group, 0) + 1
        samples.append(_sample(source, r, epoch_by_group[group], inputs))
    # inspect tells logs apart by these ids: the same file gives the same
    key = hashlib.sha256(f"{path.resolve()}".encode()).hexdigest()
    created = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc).isoformat(timespec="seconds")
    groups = list(dict.fromkeys(forest.group))
    return {
        "version": SCHEMA_VERSION,
        "status": "success",
        "eval": {
            "eval_id": key[:22], "run_id": key[22:44], "task_id": key[:16], "created": created,
            "task": source.title, "model": source.model or "unknown", "tags": ["gxpo", "rollouts"],
            "dataset": {"name": source.title, "samples": len(groups), "sample_ids": groups, "shuffled": False},
            "config": {"epochs": max(epoch_by_group.values(), default=1)},
            "packages": versions(),
            "metadata": {"file": str(path), "facts": source.facts, "not_in_the_file": source.lacks,
                         "method": None if source.method is None else source.method.name},
        },
        "plan": {"name": "rollouts", "steps": []},
        "results": _results(samples),
        "stats": {"started_at": created, "completed_at": created},
        "samples": samples,
    }  # fmt: skip


def _results(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Compute the mean of every score over the samples that have it."""
    scores = []
    for name in dict.fromkeys(name for sample in samples for name in sample["scores"]):
        values = [float(s["scores"][name]["value"]) for s in samples if name in s["scores"]]
        scores.append(
            {
                "name": name, "scorer": name, "scored_samples": len(values),
                "unscored_samples": len(samples) - len(values),
                "metrics": {"mean": {"name": "mean", "value": math.fsum(values) / len(values)}},
            }
        )  # fmt: skip
    return {"total_samples": len(samples), "completed_samples": len(samples), "scores": scores}


def _sample(source: Source, r: int, epoch: int, inputs: Sequence[str | None]) -> dict[str, Any]:
    """Build one rollout's sample: its conversation, its rewards by name, and all else under `metadata`."""
    forest, model = source.forest, source.model or "unknown"
    steps = list(range(int(forest._step_begin[r]), int(forest._step_begin[r + 1])))
    prompt = _prompt(source, r)
    messages, turns = [{"role": "user", "content": prompt, "source": "input"}], []
    for s in steps:
        # what the agent was shown after its last action; of the first turn that is the prompt
        if inputs[s] is not None and s != steps[0]:
            messages += _observation_messages(
                inputs[s] or "", turns[-1]["info"] if turns else {}, f"{forest.id[r]}-{len(turns)}"
            )
        turns.append(_turn(forest, s))
        messages.append(_action_message(source, s, f"{forest.id[r]}-{len(turns)}", model))
    # null rewards are scores that could not be computed: no score, and their names in the metadata
    rewards = {name: float(x) for name, x in zip(forest.component_names, forest.components[r].tolist(), strict=True)}
    rewards |= {"reward": float(forest.outcome[r]), "success": float(forest.success[r])}
    info = dict(forest.info[r])
    limit = forest.sampling[r].get("max_new_tokens")
    token_limit = (
        float(limit) if turns and turns[-1]["finish"] == "length" and isinstance(limit, (int, float)) else None
    )
    last_answer = next((m for m in reversed(messages) if m["role"] == "assistant"), None)
    stop = STOP_REASONS.get(turns[-1]["finish"] or "", "unknown") if turns else "unknown"
    choices = [] if last_answer is None else [{"message": last_answer, "stop_reason": stop}]
    answer = info.get("answer")
    return {
        "id": forest.group[r],
        "epoch": epoch,
        "input": prompt,
        "target": "" if answer is None else answer if isinstance(answer, str) else json.dumps(answer, default=str),
        "messages": messages,
        "output": {"model": model, "choices": choices},
        "scores": {name: {"value": x} for name, x in rewards.items() if not math.isnan(x)},
        "metadata": {
            "rollout": forest.id[r], "task": forest.task[r], "advantage": float(source.recorded_advantage[r]),
            "unscored": [name for name, x in rewards.items() if math.isnan(x)],
            "compared": bool(forest.compared[r]), "weight": float(forest.weight[r]), "origin": forest.origin[r],
            "truncated": bool(forest.truncated[r]), "final_state": forest.final_state[r],
            "final_observation": forest.final_observation[r], "sampling": forest.sampling[r], "info": info,
            "turns": turns,
        },
        **({} if token_limit is None else {"limit": {"type": "token", "limit": token_limit}}),
    }  # fmt: skip


def _prompt(source: Source, r: int) -> str:
    """Return a rollout's prompt as text; rollouts that start at one node share the text of the first that has it."""
    forest = source.forest
    node = int(forest.prompt_node[r])
    sharing = [q for q, n in enumerate(forest.prompt_node.tolist()) if n == node and node >= 0]
    texts = (forest.prompt_text[q] for q in [r, *sharing])
    return next((text for text in texts if text is not None), "")


def _turn(forest: Forest, s: int) -> dict[str, Any]:
    """Return what was recorded of a turn beside its texts."""
    state = int(forest.step_state[s])
    return {
        "turn": int(forest.step_turn[s]),
        "agent": forest.agent_names[int(forest.step_agent[s])],
        "state": forest.state_names[state] if state >= 0 else None,
        "reward": float(forest.step_reward[s]),
        "finish": forest.step_finish[s],
        "tokens": len(forest.action(s)),
        "info": dict(forest.step_info[s]),
    }


def _calls(info: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the tool calls that a turn noted, as inspect has them."""
    calls = []
    for i, call in enumerate(info["calls"] if isinstance(info.get("calls"), list) else []):
        if not isinstance(call, Mapping):
            continue
        arguments = call.get("arguments")
        calls.append(
            {
                "id": f"{key}-{i}", "type": "function", "function": str(call.get("name", "")),
                "arguments": dict(arguments) if isinstance(arguments, Mapping) else {"arguments": arguments},
            }
        )  # fmt: skip
    return calls


def _action_message(source: Source, s: int, key: str, model: str) -> dict[str, Any]:
    """Return the assistant's message of a turn."""
    forest, words = source.forest, source.words
    text = forest.action_text[s]
    if text is None:
        entries = (forest.path_step == s).nonzero().squeeze(1)
        token = words.token[forest.path_token[entries].numpy()]
        text = "".join(words.texts[w] for w in token.tolist())
    calls = _calls(forest.step_info[s], key)
    agent = forest.agent_names[int(forest.step_agent[s])]
    return {
        "role": "assistant", "content": text, "source": "generate", "model": model, "metadata": {"agent": agent},
        **({"tool_calls": calls} if calls else {}),
    }  # fmt: skip


def _observation_messages(text: str, info: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the message of an observation: of a tool, where the turn before called one, else of the user."""
    calls = _calls(info, key)
    if not calls:
        return [{"role": "user", "content": text}]
    # one observation answers all calls of the turn: it stands at the first of them
    return [{"role": "tool", "content": text, "tool_call_id": calls[0]["id"], "function": calls[0]["function"]}]


def _finite(value: Any) -> Any:
    """Replace numbers that JSON does not have by null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _finite(x) for k, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(x) for x in value]
    return value if isinstance(value, (str, int, type(None))) else str(value)
