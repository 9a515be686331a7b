"""The method in TRL's checkpoints and model cards: its keys, and the state of its parts."""

from __future__ import annotations

import json
from pathlib import Path

from gxpo.adapters import asks
from gxpo.base.errors import CheckpointError, need
from gxpo.methods.method import Method
from gxpo.parts.definition import show

STATE, TENSORS = "gxpo_method.json", "gxpo_method.safetensors"


def keys_of(method: Method) -> dict[str, str]:
    """Keys that differ from gxpo's defaults, in words."""
    return {key: show(stated.value) for key, stated in method.keys.items() if stated.origin != "default"}


def save(folder: Path, method: Method) -> None:
    """Write the method's keys and state into a TRL checkpoint."""
    content = {"method": method.name, "keys": keys_of(method), "state": method.state_dict()}
    (folder / STATE).write_text(json.dumps(content, indent=1), encoding="utf-8")
    if tensors := method.tensors():
        need("safetensors.torch", "trl").save_file(tensors, folder / TENSORS)


def load(folder: Path, method: Method) -> None:
    """Restore the method's state. CheckpointError for a checkpoint of another method.

    A checkpoint that was made without gxpo is one to start from, unless the method remembers earlier steps.
    """
    path = folder / STATE
    if not path.exists():
        if kept := ", ".join(asks.remembers(method)):
            raise CheckpointError(
                f"{path} is missing, and {kept} can't go on without it: resume from another checkpoint"
            )
        return
    content = json.loads(path.read_text(encoding="utf-8"))
    if "keys" not in content:  # written by gxpo 0.1: the state alone
        content = {"keys": keys_of(method), "method": method.name, "state": content}
    own, saved = keys_of(method), content["keys"]
    differs = [key for key in {**saved, **own} if saved.get(key) != own.get(key)]
    if differs:
        said = ", ".join(
            f"{key}={saved.get(key, 'default')} there and {own.get(key, 'default')} here" for key in differs
        )
        raise CheckpointError(
            f"{folder} was trained with method {content['method']}, this trainer has {method.name} ({said}): make the "
            "trainer with the same method, or start another run from its weights"
        )
    if (folder / TENSORS).exists():
        method.load_tensors(need("safetensors.torch", "trl").load_file(folder / TENSORS))
    method.load_state_dict(content["state"])


def section(method: Method) -> str:
    """Markdown section of a model card."""
    lines = [f"- `{key}`: {value}" for key, value in keys_of(method).items()]
    return "\n".join(["", "## Method", "", f"Credit, weights and objective: gxpo, `{method.name}`.", "", *lines, ""])
