"""`Trainer`: keys of a trainer's metrics and settings under the doctor's names, read from `doctor/trainers/*.yaml`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from gxpo.base import yamltext

FOLDER = Path(__file__).parents[1] / "trainers"
SAME_KEYS = {"unsloth": "trl"}  # unsloth patches TRL and writes its keys
UNKNOWN = "unknown"
LONGEST = 300  # characters of a key that may have a name: patterns of keys are not linear in its length


@dataclass(frozen=True)
class Trainer:
    """One trainer's file.

    own_keys        pattern of the beginning of keys that no other trainer writes
    least_keys      own keys that tell the trainer
    has_prefixes    `train/` and `eval/` are parts of its keys, not put before them by a tracker
    keys            key -> name in `gxpo.doctor.runlog.NAMES`; of several keys with one name the first counts
    patterns        pattern of a whole key -> name with groups
    no_reward       keys that look like the reward -> what they are
    aliases         pattern of the beginning of a key -> what stands there in `keys`
    formulas        name -> operation of `gxpo.doctor.readers.keys.OPERATIONS` and the patterns of its keys
    evaluations     pattern of a whole key with the groups `source` and `n` (samples), name; the first has precedence
    eval_prefix     the names of keys behind it are those of held-out figures
    settings        name in `gxpo.doctor.runlog.SETTINGS` -> keys, of which the first counts
    kl              flag -> key of the KL's coefficient where the flag is set
    own_settings    keys of settings that tell the trainer
    lines           source of a check, or `reward` -> the setting that logs it
    words           `short`: word of a key -> what it is short for; `sets`: name -> words of a key; `aspects` of rewards
    """

    own_keys: re.Pattern[str] = re.compile(r"(?!)")
    least_keys: int = 1
    has_prefixes: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)
    patterns: tuple[tuple[re.Pattern[str], str], ...] = ()
    no_reward: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[tuple[re.Pattern[str], str], ...] = ()
    formulas: tuple[tuple[str, str, tuple[re.Pattern[str], ...]], ...] = ()
    evaluations: tuple[tuple[re.Pattern[str], str], ...] = ()
    eval_prefix: str = ""
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kl: Mapping[str, str] = field(default_factory=dict)
    own_settings: tuple[str, ...] = ()
    lines: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, Any] = field(default_factory=dict)

    def plain(self, key: str) -> str:
        """Key as `keys` has it."""
        for pattern, replacement in self.aliases:
            key = pattern.sub(replacement, key, count=1)
        return key

    def name(self, key: str) -> str | None:
        """The doctor's name of a key; None without one."""
        if len(key) > LONGEST:
            return None
        key = self.plain(key)
        if key in self.keys:
            return self.keys[key]
        for pattern, name in self.patterns:
            if match := pattern.fullmatch(key):
                return match.expand(name)
        if self.eval_prefix and key.startswith(self.eval_prefix):
            inner = self.name(key.removeprefix(self.eval_prefix))
            return inner and f"eval/{inner}"
        return None

    def has(self, key: str) -> bool:
        """True if a key has a name, is of an evaluation, or serves to compute a figure."""
        return len(key) <= LONGEST and (
            self.name(key) is not None
            or any(pattern.fullmatch(key) for pattern, _ in self.evaluations)
            or any(pattern.fullmatch(self.plain(key)) for _, _, patterns in self.formulas for pattern in patterns)
        )


@cache
def trainers() -> Mapping[str, Trainer]:
    """All trainers by name, `unknown` (what other programs call the same) among them."""
    return {path.stem: _trainer(path) for path in sorted(FOLDER.glob("*.yaml"))}


def trainer(name: str) -> Trainer:
    """Trainer of a name; a trainer without a file has the keys of `unknown`."""
    known = trainers()
    return known.get(SAME_KEYS.get(name, name), known[UNKNOWN])


def _trainer(path: Path) -> Trainer:
    """Read one file."""
    table: dict[str, Any] = yamltext.plain(yamltext.load(path.read_text(encoding="utf-8"), path.name), path.name)

    def pairs(part: str) -> tuple[tuple[re.Pattern[str], str], ...]:
        return tuple((re.compile(pattern), name) for pattern, name in table.get(part, {}).items())

    return Trainer(
        own_keys=re.compile(table.get("own_keys", "(?!)")),
        least_keys=table.get("least_keys", 1),
        has_prefixes=table.get("has_prefixes", False),
        keys=table["keys"],
        patterns=pairs("patterns"),
        no_reward=table.get("no_reward", {}),
        aliases=pairs("aliases"),
        formulas=tuple(
            (name, operation, tuple(map(re.compile, keys)))
            for name, (operation, *keys) in table.get("formulas", {}).items()
        ),
        evaluations=tuple((re.compile(pattern), name) for pattern, name in table.get("evaluations", ())),
        eval_prefix=table.get("eval_prefix", ""),
        settings={name: tuple(keys) for name, keys in table.get("settings", {}).items()},
        kl=table.get("kl", {}),
        own_settings=tuple(table.get("own_settings", ())),
        lines=table.get("lines", {}),
        words=table.get("words", {}),
    )
