"""Arms of `gxpo try`: KEY=VALUE of another trainer as typed, templates of commands, remedies that are settings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from gxpo.base import yamltext
from gxpo.base.errors import ConfigError, did_you_mean
from gxpo.compare.results import Arm
from gxpo.doctor.diagnosis import diagnose
from gxpo.doctor.remedies import MEASURED, UNTESTED
from gxpo.doctor.runlog import RunLog
from gxpo.training import config

BASE = "base"
MOST_ARMS = 4  # that remedies become
TEMPLATES = Path(__file__).with_name("trial_templates.yaml")
COMMA = re.compile(r",\s*(?=[A-Za-z_~+][\w.+-]*\s*=)")  # one that is followed by KEY=
# What a trial sets itself, or what would write or send.
OWN_KEYS = (
    "seed", "data_seed", "max_steps", "output_dir", "save_strategy", "save_steps", "report_to", "push_to_hub",
    "hub_token", "hub_model_id", "logging_steps", "logging_strategy", "resume_from_checkpoint", "run_name",
)  # fmt: skip
MEANING = ("reward_weights",)  # keys that change what `reward` measures
SAMPLING = ("temperature", "top_p", "top_k", "min_p")  # last words of keys that change how answers are sampled
# A remedy's line: assignments, and changes in words of a setting's own value. A bare word is a value of `method` alone:
# elsewhere it is the name of something in a script.
KEY = r"[a-z][a-z_0-9.]+"
ASSIGNMENT = re.compile(
    rf"(?P<key>{KEY})=(?P<value>'[^']*'|-?[0-9.]*[0-9](?:e-?\d+)?|True|False|none\b)|method=(?P<method>[a-z]\w*(?:\+\w+)*)"
)
CHANGE = re.compile(rf"(?P<key>{KEY}) (?P<sign>[/x]) (?P<factor>[0-9.]*[0-9])|double (?P<doubled>{KEY})")
METHOD = re.compile(r"gxpo\.adapters\.trl\.GRPOTrainer\(\.\.\., method='(?P<name>[^']+)'\)")
EARLIER = re.compile(r"from (a checkpoint )?before the \w+")


@dataclass(frozen=True)
class Remedies:
    """Changes that the findings of a run recommend.

    arms         settings, and at most one change of method
    by_hand      (sickness, line): work for a person
    needs_start  True if an arm is to begin before the run went wrong, not at its last checkpoint
    """

    arms: Sequence[Arm]
    by_hand: Sequence[tuple[str, str]] = ()
    needs_start: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)


def parse_arm(text: str, fields: Sequence[str] | None) -> Arm:
    """Parse `KEY=VALUE[,KEY=VALUE...]`; `*2` and `/10` change the script's own value.

    fields  settings that there are; None: another trainer's, taken as typed

    Raises `ConfigError` for a malformed arm, an unknown key and one that a trial sets itself.
    """
    keys: dict[str, Any] = {}
    for item in COMMA.split(text.strip()):
        key, sign, value = (part.strip() for part in item.partition("="))
        if not sign or not key or not value:
            raise ConfigError(f"--arm {text}: write KEY=VALUE, or KEY=VALUE,KEY=VALUE")
        if key in keys:
            raise ConfigError(f"--arm {text}: {key} is set twice")
        keys[key] = value if fields is None else config.parse_set([f"x={value}"])["x"].value
    # What another trainer knows is not known here: its own errors say so.
    if fields is None:
        return Arm(text.strip(), keys)
    for key in keys:
        is_method_key = "method" in keys and "." in key
        if key in OWN_KEYS:
            raise ConfigError(f"--arm {text}: {key} is set by the trial itself, alike in all arms")
        if key != "method" and not is_method_key and key not in fields:
            raise ConfigError(f"--arm {text}: TRL has no setting {key!r}{did_you_mean(key, fields)}")
    if "method" in keys:
        check_method(str(keys["method"]), {k: v for k, v in keys.items() if "." in k})
    return Arm(text.strip(), keys)


def check_method(name: str, overrides: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for an unknown method, and for one that TRL's trainer can't run."""
    from gxpo.adapters import trl_settings
    from gxpo.methods.compose import method

    composed = method(name, overrides or None)
    trl_settings.refuse(composed, trl_settings.declared_refusals(composed))


def arms_of(texts: Sequence[str], fields: Sequence[str] | None) -> list[Arm]:
    """The base, which changes nothing, and the arms; ConfigError for two alike."""
    arms = [Arm(BASE, {}, "base"), *(parse_arm(text, fields) for text in texts)]
    for i, arm in enumerate(arms):
        for earlier_arm in arms[:i]:
            if dict(arm.keys) == dict(earlier_arm.keys):
                raise ConfigError(f"arms {earlier_arm.label} and {arm.label} are the same: give each change once")
    return arms


def refuse_meaning(arms: Sequence[Arm], metric: str) -> None:
    """Raise `ConfigError` for an arm that changes what the metric measures."""
    for arm in arms:
        for key in arm.keys:
            if key in MEANING and metric in ("reward", "eval_reward"):
                raise ConfigError(
                    f"arm {arm.label} changes what {metric} is: compare by another figure, as --metric "
                    "rewards/NAME/mean"
                )


def notes_on_sampling(arms: Sequence[Arm], metric: str) -> list[str]:
    """Note on arms that sample in another way: hotter answers score less, whatever was learnt."""
    labels = [arm.label for arm in arms if {key.rsplit(".", 1)[-1] for key in arm.keys} & set(SAMPLING)]
    if not labels or "eval" in metric:
        return []
    return [
        f"{', '.join(labels)}: {metric} is of answers that are sampled otherwise than the base's, so a difference is "
        "not what was learnt alone: compare held-out answers at one temperature"
    ]


# ---------------------------------------------------------------- commands
@cache
def templates() -> Mapping[str, Mapping[str, str]]:
    """Templates of commands by trainer: `command`, `override` (how KEY and VALUE are written), `ran` (what was run)."""
    return yamltext.plain(yamltext.load(TEMPLATES.read_text(encoding="utf-8"), TEMPLATES.name), TEMPLATES.name)


def command_of(template: str, keys: Mapping[str, Any], *, override: str, steps: int, seed: int, out: Path) -> list[str]:
    """Words of a command: {overrides} becomes one word or two for each key, {steps}, {seed} and {out} are filled in.

    >>> options = {"override": "{key}={value}", "steps": 9, "seed": 1, "out": Path("o")}
    >>> command_of("bash run.sh {overrides} seed={seed}", {"lr": "1e-6"}, **options)
    ['bash', 'run.sh', 'lr=1e-6', 'seed=1']
    """
    words: list[str] = []
    for word in shlex.split(template):
        if word == "{overrides}":
            words += [w.format(key=k, value=v) for k, v in keys.items() for w in override.split(" ")]
        else:
            words.append(word.replace("{steps}", str(steps)).replace("{seed}", str(seed)).replace("{out}", str(out)))
    return words


def check_template(template: str) -> None:
    """Raise `ConfigError` where a command has no place for the arm or the seed."""
    words = shlex.split(template)
    if "{overrides}" not in words:
        raise ConfigError("--command has no {overrides}, a word of its own where the arm's settings go")
    if "{seed}" not in template:
        raise ConfigError("--command has no {seed}: runs of base and arm are paired by it")


# ---------------------------------------------------------------- remedies
def remedies_of(log: RunLog, fields: Sequence[str] | None) -> Remedies:
    """Turn the remedies of a run's findings into arms: settings first, then one change of method, four at most."""
    arms: dict[str, Arm] = {}
    methods: dict[str, Arm] = {}
    by_hand: list[tuple[str, str]] = []
    sources: dict[str, str] = {}
    needs_start = False
    for finding in diagnose(log).findings:
        if finding.severity == "note":
            continue
        for line in finding.remedy:
            text = MEASURED.sub("", line).removesuffix(f" {UNTESTED}")
            arm = remedy_arm(text.partition(": ")[2] if text.startswith(tuple(f"{i}: " for i in finding.ids)) else text)
            is_known = arm is not None and (fields is None or all(k == "method" or k in fields for k in arm.keys))
            is_known = is_known and arm is not None and not any(k in OWN_KEYS for k in arm.keys)
            if arm is None or not is_known:
                by_hand.append((finding.ids[0], text))
                continue
            (methods if "method" in arm.keys else arms).setdefault(arm.label, arm)
            sources.setdefault(arm.label, finding.ids[0])
            needs_start = needs_start or EARLIER.search(text) is not None
    remedy_arms = [*list(arms.values())[: MOST_ARMS - bool(methods)], *list(methods.values())[:1]]
    return Remedies(remedy_arms, by_hand, needs_start, sources)


def remedy_arm(line: str) -> Arm | None:
    """The arm of a remedy in settings of TRL or gxpo; None for work that no setting does.

    >>> remedy_arm("learning_rate / 10 with warmup_steps=10, from a checkpoint before the collapse").keys
    {'learning_rate': '/10', 'warmup_steps': 10}
    >>> remedy_arm("double max_completion_length").label
    'max_completion_length=*2'
    >>> remedy_arm("score the argument `completions`, one number for each") is None
    True
    """
    if method := METHOD.match(line):
        return Arm(f"method={method['name']}", {"method": method["name"]})
    # Only a line that begins with a setting is one: in others a setting is an aside.
    if not (ASSIGNMENT.match(line) or CHANGE.match(line)):
        return None
    head = re.split(r", or |;| once | until | to see | to rule out ", line)[0]
    keys: dict[str, Any] = {}
    for change in CHANGE.finditer(head):
        sign = "/" if change["sign"] == "/" else "*"
        keys[change["doubled"] or change["key"]] = "*2" if change["doubled"] else f"{sign}{change['factor']}"
    for item in ASSIGNMENT.finditer(head):
        value = item["method"] or config.parse_set([f"x={item['value']}"])["x"].value
        keys.setdefault(item["key"] or "method", value)
    # `a=b` where b is another setting of the script has no value to take.
    if not keys or len(re.findall(r"[a-z_.]{4,}=", head)) > sum(1 for _ in ASSIGNMENT.finditer(head)):
        return None
    return Arm(",".join(f"{k}={v}" for k, v in keys.items()), keys)
