"""Defaults of TRL 1.16's GRPOConfig and `trl grpo`, those that say what is computed; a test holds them against TRL."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

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
    # what is kept
    "output_dir": "trainer_output", "save_strategy": "steps", "save_steps": 500, "save_total_limit": None,
    "eval_strategy": "no", "eval_steps": None, "report_to": "none",
}  # fmt: skip
Settings: Any = dataclasses.make_dataclass(
    "Settings", [(name, Any, dataclasses.field(default=value)) for name, value in DEFAULTS.items()], frozen=True
)


def settings(given: Mapping[str, Any]) -> Any:
    """A GRPOConfig's fields with what is given; other names are left out."""
    return Settings(**{name: value for name, value in given.items() if name in DEFAULTS})
