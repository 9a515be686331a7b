"""TRL's GRPOConfig: its defaults, and which of its settings a user stated.

A value equal to TRL's default says nothing by itself, so the names are noted where a configuration is made:
`GRPOConfig.__new__` sees the arguments of every call, also of a subclass. A parser (`TrlParser`) and
`dataclasses.replace` pass every field, which states none of them: of such a call the names on the command line count.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from typing import Any

# ---------------------------------------------------------------- defaults
# of TRL 1.16's GRPOConfig and `trl grpo`, where they say what is computed; a test holds them against an installed TRL
DEFAULTS: Mapping[str, Any] = {
    # batches and steps
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "num_generations": 8,
    "generation_batch_size": None, "steps_per_generation": None, "num_iterations": 1, "max_steps": -1,
    "num_train_epochs": 3.0, "seed": 42,
    # sampling
    "max_completion_length": 512, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None,
    "repetition_penalty": 1.0, "generation_kwargs": None, "chat_template_kwargs": None, "use_vllm": False,
    "vllm_mode": "colocate", "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "sequence_mask", "vllm_importance_sampling_clip_max": 3.0,
    "vllm_importance_sampling_clip_min": None,
    # the method
    "beta": 0.0, "epsilon": 0.2, "epsilon_high": None, "delta": None, "loss_type": "dapo", "scale_rewards": "group",
    "importance_sampling_level": "token", "reward_weights": None, "multi_objective_aggregation": "sum_then_normalize",
    "mask_truncated_completions": False, "sync_ref_model": False, "top_entropy_quantile": 1.0, "entropy_coef": 0.0,
    "use_adaptive_entropy": False, "entropy_coef_min": 0.0, "entropy_coef_max": 1.0, "entropy_coef_delta": 0.005,
    "entropy_target": 0.2, "off_policy_mask_threshold": None, "use_bias_correction_kl": True,
    "sapo_temperature_neg": 1.05, "sapo_temperature_pos": 1.0, "vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0,
    "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0, "router_aux_loss_coef": None,
    # the optimiser
    "learning_rate": 1e-6, "weight_decay": 0.0, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8,
    "max_grad_norm": 1.0, "lr_scheduler_type": "linear", "warmup_steps": 0, "warmup_ratio": None,
    "optim": "adamw_torch_fused", "bf16": True, "fp16": False, "gradient_checkpointing": True,
    # outputs
    "output_dir": "trainer_output", "save_strategy": "steps", "save_steps": 500, "save_total_limit": None,
    "eval_strategy": "no", "eval_steps": None, "report_to": "none",
}  # fmt: skip
Settings: Any = dataclasses.make_dataclass(
    "Settings", [(name, Any, dataclasses.field(default=value)) for name, value in DEFAULTS.items()], frozen=True
)


def with_defaults(fields: Mapping[str, Any]) -> Any:
    """Return a configuration with these fields, at TRL's defaults else; names that it does not have are left out."""
    return Settings(**{name: value for name, value in fields.items() if name in DEFAULTS})


# ---------------------------------------------------------------- stated settings
NOTE = "_gxpo_stated"  # attribute of a configuration that holds the names


def note_arguments(config_class: Any) -> None:
    """Make a configuration class note the arguments of each call from here on; a second time changes nothing."""
    if "__new__" in vars(config_class):
        return

    def noting(cls: Any, *values: Any, **keywords: Any) -> Any:
        config = object.__new__(cls)
        names = [f.name for f in dataclasses.fields(cls) if f.init]
        if values or keywords:  # a copy is made without arguments, and brings the note of the original
            vars(config)[NOTE] = frozenset(chosen_names((*names[: len(values)], *keywords), names))
        return config

    config_class.__new__ = staticmethod(noting)


def chosen_names(arguments: Iterable[str], fields: Iterable[str]) -> set[str]:
    """Return the arguments that a user chose: all, or those on the command line if a call passes every field."""
    names = set(arguments)
    return names & on_command_line(sys.argv[1:]) if names >= set(fields) else names


def on_command_line(words: Iterable[str]) -> set[str]:
    """Return the names of options among words such as `--scale_rewards group` and `--scale-rewards=group`."""
    options = (word for word in words if word.startswith("--"))
    return {word.removeprefix("--").partition("=")[0].replace("-", "_") for word in options}


def stated_names(args: Any) -> set[str]:
    """Return the names of settings that differ from TRL's defaults, or were given at them; None counts as not given."""
    defaults = {f.name: f.default for f in dataclasses.fields(args)}
    noted = vars(args).get(NOTE, frozenset())
    values = {name: getattr(args, name) for name in defaults}
    return {n for n, v in values.items() if v != defaults[n] or (n in noted and v is not None)}
