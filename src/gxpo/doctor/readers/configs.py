"""Readers of configurations: settings of five trainers under the names of `gxpo.doctor.runlog.SETTINGS`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from gxpo.base.errors import GxpoError
from gxpo.doctor.readers.table import Table, flat

LARGEST = 2_000_000  # characters of a file that may be a configuration

# Settings that are one key; of several keys the first that is there counts. Nested keys are joined by dots, and a key
# counts whatever stands before it ("grpo.learning_rate", "config.trainer.steps").
_TRL = {
    "lr": ("learning_rate",),
    "schedule": ("lr_scheduler_type",),
    "max_steps": ("max_steps",),
    "group_size": ("num_generations",),
    "beta": ("beta",),
    "epochs": ("num_iterations",),
    "clip": ("epsilon",),
    "temperature": ("temperature",),
    "top_k": ("top_k",),
    "top_p": ("top_p",),
    "max_tokens": ("max_completion_length",),
    "mask_truncated": ("mask_truncated_completions",),
    "max_grad_norm": ("max_grad_norm",),
    "dtype": ("model_init_kwargs.dtype", "model_init_kwargs.torch_dtype", "dtype", "torch_dtype"),
    "loss_type": ("loss_type",),
    "reward_weights": ("reward_weights",),
    "warmup_steps": ("warmup_steps",),
    "sync_every": ("vllm_sync_steps",),
}
_VERL = {
    "lr": ("actor.optim.lr",),
    "schedule": ("actor.optim.lr_scheduler_type", "actor.optim.warmup_style"),
    "max_steps": ("trainer.total_training_steps",),
    "group_size": ("rollout.n",),
    "epochs": ("actor.ppo_epochs",),
    "clip": ("actor.clip_ratio",),
    "temperature": ("rollout.temperature",),
    "top_k": ("rollout.top_k",),
    "top_p": ("rollout.top_p",),
    "max_tokens": ("rollout.response_length", "data.max_response_length"),
    "max_grad_norm": ("actor.optim.clip_grad", "actor.grad_clip"),
    "dtype": ("actor.fsdp_config.model_dtype",),
    "loss_type": ("actor.policy_loss.loss_mode", "algorithm.adv_estimator"),
    "warmup_steps": ("actor.optim.lr_warmup_steps",),
    "eval_samples": ("rollout.val_kwargs.n",),
    "eval_temperature": ("rollout.val_kwargs.temperature",),
    "sync_every": ("trainer.v1.separate_async.parameter_sync_step",),
}
_GXPO = {
    "lr": ("optim.lr", "update.lr"),  # the latter in 0.1.0
    "schedule": ("optim.schedule", "update.schedule"),
    "warmup_steps": ("optim.warmup_steps", "update.warmup_steps"),
    "max_grad_norm": ("optim.max_grad_norm", "update.max_grad_norm"),
    "max_steps": ("trainer.steps",),
    "group_size": ("rollout.group_size",),
    "beta": ("objective.kl.coef",),
    "epochs": ("update.epochs",),
    "clip": ("objective.clip_high",),
    "temperature": ("sampling.temperature",),
    "top_k": ("sampling.top_k",),
    "top_p": ("sampling.top_p",),
    "max_tokens": ("sampling.max_new_tokens",),
    "dtype": ("learner.dtype",),
    "loss_type": ("objective",),
    "method": ("method",),
    "eval_samples": ("eval.samples",),
    "eval_temperature": ("eval.temperature",),
}
_OPENRLHF = {
    "lr": ("actor_learning_rate", "actor.learning_rate", "actor.lr"),
    "schedule": ("lr_scheduler", "actor.lr_scheduler"),
    "group_size": ("n_samples_per_prompt", "rollout.n_samples_per_prompt"),
    "beta": ("init_kl_coef", "algo.kl.init_coef"),
    "epochs": ("max_epochs", "train.max_epochs"),
    "clip": ("eps_clip", "actor.eps_clip"),
    "temperature": ("rollout.temperature", "temperature"),
    "top_p": ("rollout.top_p", "top_p"),
    "max_tokens": ("generate_max_len", "rollout.max_new_tokens"),
    "max_grad_norm": ("max_norm", "actor.max_norm"),
    "eval_samples": ("eval_n_samples_per_prompt", "eval.n_samples_per_prompt"),
    "eval_temperature": ("eval_temperature", "eval.temperature"),
}
_PRIME = {
    "lr": ("trainer.optim.lr", "optim.lr"),
    "schedule": ("trainer.scheduler.type", "scheduler.type"),
    "warmup_steps": ("trainer.scheduler.warmup_steps", "scheduler.warmup_steps"),
    "max_steps": ("max_steps",),
    "group_size": ("rollouts_per_example", "group_size"),
    "temperature": ("sampling.temperature",),
    "max_tokens": ("sampling.max_tokens", "sampling.max_completion_tokens"),
    "max_grad_norm": ("optim.max_norm",),
}
_TABLES: dict[str, dict[str, tuple[str, ...]]] = {
    "trl": _TRL,
    "verl": _VERL,
    "gxpo": _GXPO,
    "openrlhf": _OPENRLHF,
    "prime-rl": _PRIME,
}
# Keys of one trainer alone: a file that has any is a configuration of that trainer.
_SIGNATURES = {
    "trl": ("num_generations", "max_completion_length", "num_iterations", "reward_weights", "scale_rewards"),
    "verl": ("actor.optim.lr", "rollout.n", "algorithm.adv_estimator", "trainer.total_epochs", "actor.ppo_epochs"),
    "gxpo": ("rollout.group_size", "trainer.steps", "optim.lr", "update.lr"),
    "openrlhf": ("n_samples_per_prompt", "actor_learning_rate", "init_kl_coef"),
    "prime-rl": ("rollouts_per_example", "orchestrator.batch_size", "trainer.optim.lr"),
}
_MODEL = ("architectures", "model_type", "_from_model_config", "tokenizer_class", "quantization_config")
_DTYPES = {"fp32": "float32", "float": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}
_FLAT_LINE = re.compile(r"^([A-Za-z_][\w.]*)\s*[:=]\s*(\S.*)$")


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
    # a model's config.json has keys of sampling and of precision, but they are not the run's
    if any(key in settings for key in _MODEL):
        return None
    # wandb's config.yaml has each value under "value"; "${...}" is a reference that nobody resolved
    settings = {
        key.removesuffix(".value"): setting
        for key, setting in settings.items()
        if not key.startswith(("_wandb", "wandb_version")) and not str(setting).startswith("${")
    }
    if trainer(settings) is None and "peft_type" not in settings:
        return None
    return Table("config", settings=dict(settings))


def trainer(settings: Mapping[str, Any]) -> str | None:
    """Name the trainer of a configuration by its keys; None without any of them."""
    counts = {name: sum(value(settings, key) is not None for key in keys) for name, keys in _SIGNATURES.items()}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] else None


def value(settings: Mapping[str, Any], key: str) -> Any:
    """Look up a setting by its key, or by the shortest key that ends in it after a dot; None without one."""
    if key in settings:
        return settings[key]
    longer = sorted((k for k in settings if k.endswith(f".{key}")), key=len)
    return settings[longer[0]] if longer else None


def translate(settings: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Rename settings of a trainer (`source`; unsloth's are TRL's) to the names of `SETTINGS`."""
    source = "trl" if source == "unsloth" else source
    translated: dict[str, Any] = {}
    for name, keys in _TABLES.get(source, {}).items():
        setting = next((v for key in keys if (v := value(settings, key)) is not None), None)
        if setting is not None and not isinstance(setting, dict):
            translated[name] = _clean(name, setting)
    special = _SPECIAL.get(source)
    if special is not None:
        special(settings, translated)
    return {name: v for name, v in translated.items() if v is not None}


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
    """Add verl's settings that take several keys: KL coefficient, scale, steps of the warm-up, LoRA."""
    # the KL may be in the loss, in the reward, or nowhere, which is 0; without either flag it is unknown
    coefficient = 0.0
    if value(settings, "actor.use_kl_loss"):
        coefficient = value(settings, "actor.kl_loss_coef")
    elif value(settings, "algorithm.use_kl_in_reward"):
        coefficient = value(settings, "algorithm.kl_ctrl.kl_coef")
    elif value(settings, "actor.use_kl_loss") is None:
        coefficient = None
    out["beta"] = coefficient
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
    """Add gxpo's settings that take several keys: scale, LoRA."""
    scale = value(settings, "credit.scale")
    if scale is not None:
        out["scale"] = {"std": "group", "true": "group", "batch_std": "batch"}.get(str(scale).lower(), str(scale))
    rank = value(settings, "learner.lora_rank")
    if isinstance(rank, (int, float)):
        out["lora"] = rank > 0


_SPECIAL: dict[str, Callable[[Mapping[str, Any], dict[str, Any]], None]] = {"trl": _trl, "verl": _verl, "gxpo": _gxpo}
