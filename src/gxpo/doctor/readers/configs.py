"""Readers of configurations: settings of trainers under the names of `gxpo.doctor.runlog.SETTINGS`.

Settings that are one key are in `doctor/trainers/*.yaml`: of several keys the first that is there counts. Nested keys
are joined by dots, and a key counts whatever stands before it ("grpo.learning_rate", "config.trainer.steps").
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gxpo.base.errors import GxpoError
from gxpo.doctor.readers.keys import SAME_KEYS, trainers
from gxpo.doctor.readers.keys import trainer as trainer_of
from gxpo.doctor.readers.table import Table, flat, setting

LARGEST = 2_000_000  # characters of a file that may be a configuration

_MODEL = ("architectures", "model_type", "_from_model_config", "tokenizer_class", "quantization_config")
_DTYPES = {"fp32": "float32", "float": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}
_VALUE = re.compile(r"^([^.]+)\.value(?![^.])")
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")

_COMMAND = re.compile(
    r"verl\.trainer|\btrl grpo\b|openrlhf\.cli|skyrl\S*\.(?:main|entrypoints)|--(?:learning_rate|num_generations|"
    r"max_completion_length|rollout-max-response-len|rollout-batch-size)\b"
)
_OPTION = re.compile(r"--([A-Za-z][\w.-]*)(?:[= ]+(?!--)('[^']*'|\"[^\"]*\"|[^\s\\]+))?")
_OVERRIDE = re.compile(r"(?<![\w.-])\+{0,2}([a-z_]\w*(?:\.\w+)+)=('[^']*'|\"[^\"]*\"|[^\s\\]+)")
_COMMANDS = ("verl.trainer", "trl grpo", "openrlhf.cli", "skyrl", "--")  # one of them is in every match of _COMMAND
_ARGUMENTS = re.compile(r"\b(?:GRPOConfig|TrainingArguments|UnslothGRPOConfig)\($")
_ARGUMENT = re.compile(r"^\s*(\w+)=(.*)$")
_DOTTED = re.compile(r"^\s*(?:\S+:\s+)?(\w+) \.{3,} (\S.*)$")  # Megatron's arguments, which slime prints
_TREE = re.compile(r"^\s*\{'actor_rollout_ref': \{|^\s*\{'(?:actor|algorithm|data|critic)\w*': \{")
_LARGEST = 400_000  # characters of a printed tree


def from_text(text: str) -> Table | None:
    """Parse a configuration in YAML, JSON or TOML; None if the text is none or sets nothing that is known."""
    if len(text) > LARGEST or "\0" in text[:4096]:
        return None
    document: Any = None
    if text.lstrip()[:1] in "{[":
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            return None
    elif text.lstrip()[:1] == "[" or re.search(r"^[^\S\n]*\[[\w.]+\][^\S\n]*$", text, re.M):
        document = _toml(text)
    if document is None:
        if ":" not in text:
            return None
        from gxpo.base import yamltext

        try:
            document = yamltext.plain(yamltext.load(text, "configuration"), "configuration")
        except GxpoError:
            return None
        except Exception:  # ruamel raises its own errors and, on odd texts, any other
            return None
    return from_settings(flat(document))


def _toml(text: str) -> Any:
    """Parse TOML; None if it is none, or before Python 3.11."""
    try:
        import tomllib  # Python 3.11
    except ImportError:
        return None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        return None


def from_settings(settings: Mapping[str, Any]) -> Table | None:
    """Make a configuration of flat settings; None if they are of no known trainer."""
    # a model's config.json has keys of sampling and of precision, but they are not the run's; ms-swift's args.json has
    # the model's type among settings of training
    if any(key in settings for key in _MODEL) and max(_own_counts(settings).values()) < 2:
        return None
    # wandb's config.yaml has each value under "value"; beside a `credit` the key `credit.value` is another setting
    settings = {
        key if key.partition(".")[0] in settings else _VALUE.sub(r"\1", key): setting
        for key, setting in settings.items()
        if not key.startswith(("_wandb", "wandb_version"))
    }
    settings = {key: _resolve(setting, settings) for key, setting in settings.items()}
    settings = {key: setting for key, setting in settings.items() if not str(setting).startswith("${")}
    if not any(_own_counts(settings).values()) and "peft_type" not in settings:
        return None
    return Table("config", settings=dict(settings))


def _resolve(setting: Any, settings: Mapping[str, Any]) -> Any:
    """Follow a reference to another setting of the file ("${policy.max_total_sequence_length}"); others stay."""
    for _ in range(5):
        match = _REFERENCE.fullmatch(setting) if isinstance(setting, str) else None
        if match is None or match[1] not in settings:
            break
        setting = settings[match[1]]
    return setting


def trainer(settings: Mapping[str, Any]) -> str | None:
    """Name the trainer of a configuration by its keys; None without any of them, or if two have as many."""
    counts = _own_counts(settings)
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] and list(counts.values()).count(counts[best]) == 1 else None


def _own_counts(settings: Mapping[str, Any]) -> dict[str, int]:
    """Number of the settings that tell each trainer."""
    return {
        name: sum(value(settings, key) is not None for key in trainer.own_settings)
        for name, trainer in trainers().items()
    }


def value(settings: Mapping[str, Any], key: str) -> Any:
    """Look up a setting by its key, or by the shortest key that ends in it after a dot; None without one."""
    if key in settings:
        return settings[key]
    longer = sorted((k for k in settings if k.endswith(f".{key}")), key=len)
    return settings[longer[0]] if longer else None


def translate(settings: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Rename settings of a trainer (`source`; unsloth's are TRL's) to the names of `SETTINGS`."""
    trainer = trainer_of(source)
    setting_by_name: dict[str, Any] = {}
    for name, keys in trainer.settings.items():
        setting = next((v for key in keys if (v := value(settings, key)) is not None), None)
        if setting is not None and not isinstance(setting, dict):
            setting_by_name[name] = _clean(name, setting)
    if trainer.kl:
        setting_by_name["beta"] = _kl_coefficient(settings, trainer.kl)
    special = _SPECIAL.get(SAME_KEYS.get(source, source))
    if special is not None:
        special(settings, setting_by_name)
    return {name: v for name, v in setting_by_name.items() if v is not None}


def _kl_coefficient(settings: Mapping[str, Any], kl: Mapping[str, str]) -> Any:
    """Coefficient of the KL: that of the first flag that is set, 0 if the first is not; None where no flag is known."""
    flags = {flag: value(settings, flag) for flag in kl}
    if (active_flag := next((flag for flag in flags if flags[flag]), None)) is not None:
        return _clean("beta", value(settings, kl[active_flag]))
    return None if flags[next(iter(kl))] is None else 0.0


_TEXTS = ("schedule", "dtype", "loss_type", "method", "scale")


def _clean(name: str, value: Any) -> Any:
    """Normalise a setting: numbers from texts ("1e-6" is a text in YAML 1.2's JSON and in printed arguments)."""
    if name == "dtype":
        text = str(value).lower().removeprefix("torch.").removeprefix("dtype.")
        return None if text == "auto" else _DTYPES.get(text, text)
    if name in _TEXTS or isinstance(value, (bool, list)):
        return value
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    # counts that were written as floats; a rate of 1.0 stays one
    return int(value) if isinstance(value, float) and value.is_integer() and name not in ("lr", "beta") else value


def _trl(settings: Mapping[str, Any], out: dict[str, Any]) -> None:
    """Add TRL's settings that take several keys: scale, steps of the warm-up, LoRA."""
    scale = value(settings, "scale_rewards")
    if scale is not None:
        out["scale"] = {"true": "group", "false": "none"}.get(str(scale).lower(), str(scale))
    steps = out.get("max_steps")
    if isinstance(steps, (int, float)) and steps <= 0:
        del out["max_steps"]  # -1: as many as num_train_epochs takes
    warmup, ratio = out.get("warmup_steps"), value(settings, "warmup_ratio")
    if not warmup and isinstance(ratio, (int, float)) and ratio > 0:
        out["warmup_steps"] = math.ceil(ratio * out["max_steps"]) if "max_steps" in out else None
    elif isinstance(warmup, float) and 0 < warmup < 1:  # transformers 5: a share
        out["warmup_steps"] = math.ceil(warmup * out["max_steps"]) if "max_steps" in out else None
    if any(value(settings, key) for key in ("use_peft", "peft_config", "lora_r", "peft_type")):
        out["lora"] = True
    if value(settings, "use_peft") is False:
        out["lora"] = False
    if str(value(settings, "multi_objective_aggregation")) == "normalize_then_sum":
        out["scale"] = "batch"  # of the sum; frac_reward_zero_std is of the whole batch then


def _verl(settings: Mapping[str, Any], out: dict[str, Any]) -> None:
    """Add verl's settings that take several keys: scale, steps of the warm-up, LoRA."""
    divided = value(settings, "algorithm.norm_adv_by_std_in_grpo")
    if divided is not None and str(value(settings, "algorithm.adv_estimator")) == "grpo":
        out["scale"] = "group" if divided else "none"
    warmup = out.get("warmup_steps")
    if isinstance(warmup, (int, float)) and warmup < 0:  # -1: by lr_warmup_steps_ratio
        ratio = value(settings, "actor.optim.lr_warmup_steps_ratio")
        steps = out.get("max_steps")
        is_known = isinstance(ratio, (int, float)) and (ratio == 0 or steps)
        out["warmup_steps"] = math.ceil(ratio * (steps or 0)) if is_known else None
    ranks = [value(settings, key) for key in ("model.lora_rank", "model.lora.rank")]
    if any(isinstance(r, (int, float)) for r in ranks):
        out["lora"] = any(isinstance(r, (int, float)) and r > 0 for r in ranks)


def _gxpo(settings: Mapping[str, Any], out: dict[str, Any]) -> None:
    """Add gxpo's settings that take several keys: scale, LoRA, the keys of the credit; and its update."""
    scale = value(settings, "credit.scale")
    if scale is not None:
        out["scale"] = {"std": "group", "true": "group", "batch_std": "batch"}.get(str(scale).lower(), str(scale))
    # with a KL in the reward, credit is made of a score that no record has
    if settings.get("credit") and settings.get("objective.kl.place") != "reward":
        credit = {k: v for k, v in settings.items() if k == "credit" or k.startswith("credit.")}
        # runs from before `group_by` had that name
        out["credit"] = {re.sub(r"\.among$", ".group_by", k): v for k, v in credit.items()}
    out["update"] = settings.get("update")  # the key itself: a longer one that ends in it is another's
    rank = value(settings, "learner.lora_rank")
    if isinstance(rank, (int, float)):
        out["lora"] = rank > 0


def _nemo_rl(settings: Mapping[str, Any], out: dict[str, Any]) -> None:
    """Take the learning rate of the backend that trains, and say what advantages are divided by."""
    if value(settings, "policy.megatron_cfg.enabled") is True:
        rate = value(settings, "policy.megatron_cfg.optimizer.lr")
        out["lr"] = None if rate is None else _clean("lr", rate)
    if isinstance(out.get("scale"), bool):
        out["scale"] = "group" if out["scale"] else "none"


_SPECIAL: dict[str, Callable[[Mapping[str, Any], dict[str, Any]], None]] = {
    "trl": _trl,
    "verl": _verl,
    "gxpo": _gxpo,
    "nemo-rl": _nemo_rl,
}


@dataclass
class PrintedSettings:
    """Collector of printed settings: command lines, transformers' arguments, verl's tree of its configuration."""

    open: str = ""  # "command", "arguments" or "tree" while one goes on
    settings: dict[str, Any] = field(default_factory=dict)
    _tree: list[str] = field(default_factory=list)
    _depth: int = 0
    _size: int = 0

    def take(self, line: str) -> bool:
        """Read a line; True if it belongs to settings."""
        if self.open == "tree" or _TREE.match(line):
            return self._branch(line)
        if self.open == "arguments":
            pair = _ARGUMENT.match(line)
            if pair is not None:
                self.settings.setdefault(pair[1], setting(pair[2].rstrip().removesuffix(",")))
                return True
            self.open = ""
            return line.strip() == ")"
        if " ..." in line and (argument := _DOTTED.match(line)) is not None:
            self.settings.setdefault(argument[1], setting(argument[2]))
            return True
        if line.endswith("(") and _ARGUMENTS.search(line):
            self.open = "arguments"
            return True
        if self.open == "command" or (any(c in line for c in _COMMANDS) and _COMMAND.search(line)):
            pairs = [*_OPTION.findall(line), *_OVERRIDE.findall(line)]
            for name, text in pairs:
                self.settings.setdefault(name.replace("-", "_"), setting(text) if text else True)
            self.open = "command" if line.rstrip().endswith("\\") else ""
            return bool(pairs)
        return False

    def add(self, pairs: dict[str, Any]) -> None:
        """Take the settings of a printed dict."""
        for name, text in pairs.items():
            self.settings.setdefault(name, setting(str(text)))

    def _branch(self, line: str) -> bool:
        """Read a line of verl's tree, which ends where its braces are closed."""
        self.open = "tree"
        self._tree.append(line)
        self._size += len(line)
        self._depth += line.count("{") - line.count("}")
        if self._depth <= 0 or self._size > _LARGEST:
            try:
                tree = ast.literal_eval("\n".join(self._tree).strip())
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                tree = None
            for name, setting in flat(tree).items():
                self.settings.setdefault(name, setting)
            self.open, self._tree, self._depth, self._size = "", [], 0, 0
        return True
