"""Parse the arms of a comparison: `METHOD:KEY=VALUE,...`, a YAML file, or either after `LABEL=`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError
from gxpo.compare.results import Arm
from gxpo.parts.definition import SettingValue
from gxpo.training import config

DEFAULT_BASE, SHUFFLED = "grpo", "shuffled"
_LABELLED = re.compile(r"(?P<label>[^=:/,]+)=(?P<rest>.+)", re.DOTALL)
_COMMA = re.compile(r",(?=\s*[A-Za-z_][\w.]*\s*=)")  # one that is followed by KEY=, so lists need no quotes
# Keys in which arms may not differ: runs would no longer be pairs of equal task, start and seed.
SHARED = ("model", "task", "seed", "out", "init_from")


def split_arms(text: str) -> list[str]:
    """Split arms at the commas between them; a comma before KEY= belongs to the arm whose keys it is among.

    >>> split_arms("grpo, dr_grpo:credit.eps=1e-4,optim.betas=[0.9, 0.95],rloo")
    ['grpo', 'dr_grpo:credit.eps=1e-4,optim.betas=[0.9, 0.95]', 'rloo']
    """
    arms: list[str] = []
    for piece in re.split(r",(?![^\[{]*[\]}])", text):
        if arms and ":" in arms[-1] and re.match(r"\s*[A-Za-z_][\w.]*\s*=", piece):
            arms[-1] += f",{piece}"
        else:
            arms.append(piece.strip())
    return [arm for arm in arms if arm]


def parse_arm(text: str, setting: Mapping[str, Any]) -> Arm:
    """Parse one arm.

    text     `grpo`, `dr_grpo+gspo`, `grpo@trl`, `grpo:credit.scale=none,optim.lr=1e-3`, `mine.yaml`, `mine=FILE.yaml`
    setting  keys that all arms share; a file may repeat them with the same values

    Raises `ConfigError` for a malformed arm, and for one that changes the task, the model or the seed.
    """
    # LABEL=SPEC; a dot before the sign makes it a key, as in `credit.scale=none`.
    label, spec = text.strip(), text.strip()
    if (labelled := _LABELLED.fullmatch(spec)) and not _is_key(labelled["label"]):
        label, spec = labelled["label"].strip(), labelled["rest"].strip()
    # A file's name is its label, unless the user gave one.
    if spec.endswith((".yaml", ".yml")):
        label = Path(spec).stem if label == spec else label
        keys = {k: s.value for k, s in config.read(spec).items()}
    else:
        method, _, key_text = spec.partition(":")
        if method.endswith(".py"):
            raise ConfigError(
                f"arm {text!r} is a part of a method: say of which one and where, as grpo:credit={spec}, "
                f"grpo:weight.mine={spec} or grpo:objective={spec}"
            )
        # Commas inside of brackets belong to a list.
        set_keys = config.parse_set([x for x in _COMMA.split(key_text) if x.strip()]) if key_text else {}
        keys = {"method": method.strip(), **{k: s.value for k, s in set_keys.items()}}
    if not str(keys.setdefault("method", setting.get("method", DEFAULT_BASE))).strip() or not label:
        raise ConfigError(f"arm {text!r}: write METHOD, METHOD:KEY=VALUE,..., FILE.yaml, or LABEL= before one of them")
    # A file of one's own states model and task, too: allowed if equal, and then no difference of the arm.
    for key in SHARED:
        if key in keys and keys[key] != setting.get(key, keys[key]):
            raise ConfigError(
                f"arm {label}: {key}={keys[key]} is not the comparison's ({setting.get(key)}): arms share {key}; "
                "compare on each by itself"
            )
    # A key with the setting's own value makes no difference, and would hide that two arms are the same.
    return Arm(label, {k: v for k, v in keys.items() if k not in SHARED and setting.get(k, ...) != v})


def _is_key(name: str) -> bool:
    """Return True if `name=...` sets a key, as in `credit.scale=none`, rather than a label."""
    return "." in name


def make_arms(
    texts: Sequence[str], setting: Mapping[str, Any], *, base: str | None = None, controls: bool = True
) -> list[Arm]:
    """Build the arms in order: the base, the requested ones, the control.

    base      what the others are compared with; None: `grpo`, added if it is not among the arms
    controls  whether to add the base with rewards shuffled in the batch, which must not gain

    Raises `ConfigError` for two arms of one label or of the same keys, and for a single arm.
    """
    arms = [parse_arm(text, setting) for text in texts]
    # An arm that equals the base by label or by keys is the base, and not trained twice.
    base_spec = parse_arm(base or DEFAULT_BASE, setting)
    base_arms = [replace(a, kind="base") for a in arms if a.label == base_spec.label or _has_equal_keys(a, base_spec)][
        :1
    ]
    if base is None and not base_arms and not controls and arms:
        base_arms = [replace(arms[0], kind="base")]  # without controls, the first arm is the base
    base_arm = base_arms[0] if base_arms else replace(base_spec, kind="base")
    other_arms = [a for a in arms if a.label != base_arm.label]
    if len(other_arms) < len(arms) - len(base_arms):
        raise ConfigError(f"arm {base_arm.label} is given twice")
    result = [base_arm, *other_arms]
    if controls:
        result.append(Arm(SHUFFLED, {**base_arm.keys, "scoring.shuffle": True}, "control"))
    if len(result) == 1:
        raise ConfigError(f"{base_arm.label} alone is nothing to compare: give another method")
    # Labels are compared as directories, which two labels may share although they differ in a letter.
    for i, arm in enumerate(result):
        for earlier_arm in result[:i]:
            if folder(arm.label) == folder(earlier_arm.label):
                raise ConfigError(f"two arms are called {arm.label}: give one a name of its own, NAME={arm.label}")
            if _has_equal_keys(arm, earlier_arm):
                raise ConfigError(f"arms {earlier_arm.label} and {arm.label} are the same: {dict(arm.keys)}")
    return result


def _has_equal_keys(first: Arm, second: Arm) -> bool:
    return dict(first.keys) == dict(second.keys)


def folder(label: str) -> str:
    """Name of the directory of an arm or setting.

    >>> folder("grpo:credit.scale=none,optim.lr=1e-3")
    'grpo_credit.scale=none,optim.lr=1e-3'
    """
    return re.sub(r"[^\w.,=+@-]", "_", label).strip("._") or "arm"


def with_origin(keys: Mapping[str, Any], origin: str) -> dict[str, SettingValue]:
    """Mark each key with its origin, as `gxpo.training.config.resolve` takes them."""
    return {k: SettingValue(v, origin) for k, v in keys.items()}
