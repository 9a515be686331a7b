"""Arms from the command line: `METHOD:KEY=VALUE,...`, a file of one's own, or `LABEL=` before either."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError
from gxpo.compare.results import Arm
from gxpo.parts.definition import Stated
from gxpo.training import config

BASE, SHUFFLED = "grpo", "shuffled"
_LABELLED = re.compile(r"(?P<label>[^=:/,]+)=(?P<rest>.+)", re.DOTALL)
_COMMA = re.compile(r",(?=\s*[A-Za-z_][\w.]*\s*=)")  # one that is followed by KEY=, so lists need no quotes
SHARED = (
    "model",
    "task",
    "seed",
    "out",
    "init_from",
)  # what arms may not differ in: then it would be another comparison


def parse_arm(text: str, setting: Mapping[str, Any]) -> Arm:
    """One arm.

    text     `grpo`, `dr_grpo+gspo`, `grpo@trl`, `grpo:credit.scale=none,optim.lr=1e-3`, `mine.yaml`, `mine=FILE.yaml`
    setting  keys that all arms share; a file may state them again, but not otherwise

    Raises `ConfigError` for a malformed arm, and for one that changes the task, the model or the seed.
    """
    label, spec = text.strip(), text.strip()
    if (named := _LABELLED.fullmatch(spec)) and not _is_key(named["label"]):
        label, spec = named["label"].strip(), named["rest"].strip()
    if spec.endswith((".yaml", ".yml")):
        label = Path(spec).stem if label == spec else label
        keys = {k: s.value for k, s in config.read(spec).items()}
    else:
        method, _, rest = spec.partition(":")
        stated = config.parse_set([x for x in _COMMA.split(rest) if x.strip()]) if rest else {}
        keys = {"method": method.strip(), **{k: s.value for k, s in stated.items()}}
    if not str(keys.setdefault("method", setting.get("method", BASE))).strip() or not label:
        raise ConfigError(f"arm {text!r}: write METHOD, METHOD:KEY=VALUE,..., FILE.yaml, or LABEL= before one of them")
    for key in SHARED:
        if key in keys and keys[key] != setting.get(key, keys[key]):
            raise ConfigError(
                f"arm {label}: {key}={keys[key]} is not the comparison's ({setting.get(key)}): arms share {key}; "
                "compare on each by itself"
            )
    return Arm(label, {k: v for k, v in keys.items() if k not in SHARED and setting.get(k, ...) != v})


def _is_key(name: str) -> bool:
    """Whether `name=...` states a key, as in `credit.scale=none`, rather than a label."""
    return "." in name


def make_arms(
    texts: Sequence[str], setting: Mapping[str, Any], *, base: str | None = None, controls: bool = True
) -> list[Arm]:
    """The arms in order: base, those asked for, the control.

    base      what the others are compared with; without it `grpo`, which is added where it was not asked for
    controls  whether the base with rewards shuffled in the batch runs beside; it must not gain

    Raises `ConfigError` where two arms have one label or are the same, and where there is one alone.
    """
    arms = [parse_arm(text, setting) for text in texts]
    first = parse_arm(base or BASE, setting)
    found = [replace(a, kind="base") for a in arms if a.label == first.label or _same(a, first)][:1]
    if base is None and not found and not controls and arms:
        found = [replace(arms[0], kind="base")]  # without controls the first is what the others are compared with
    chosen = found[0] if found else replace(first, kind="base")
    others = [a for a in arms if a.label != chosen.label]
    if len(others) < len(arms) - len(found):
        raise ConfigError(f"arm {chosen.label} is given twice")
    out = [chosen, *others]
    if controls:
        out.append(Arm(SHUFFLED, {**chosen.keys, "scoring.shuffle": True}, "control"))
    if len(out) == 1:
        raise ConfigError(f"{chosen.label} alone is nothing to compare: give another method")
    for i, arm in enumerate(out):
        for other in out[:i]:
            if folder(arm.label) == folder(other.label):
                raise ConfigError(f"two arms are called {arm.label}: give one a name of its own, NAME={arm.label}")
            if _same(arm, other):
                raise ConfigError(f"arms {other.label} and {arm.label} are the same: {dict(arm.keys)}")
    return out


def _same(one: Arm, other: Arm) -> bool:
    return dict(one.keys) == dict(other.keys)


def folder(label: str) -> str:
    """The label as the name of a directory.

    >>> folder("grpo:credit.scale=none,optim.lr=1e-3")
    'grpo_credit.scale=none,optim.lr=1e-3'
    """
    return re.sub(r"[^\w.,=+@-]", "_", label).strip("._") or "arm"


def stated(keys: Mapping[str, Any], origin: str) -> dict[str, Stated]:
    """Keys as `gxpo.training.config.resolve` takes them."""
    return {k: Stated(v, origin) for k, v in keys.items()}
