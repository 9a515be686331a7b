"""Fields of TRL's configurations: which matter to what is computed, what takes their place, and values that fit."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from gxpo.adapters.convert_script import Value
from gxpo.adapters.trl_config import DEFAULTS
from gxpo.base.yamltext import OPEN

SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant"}
REWARDS = {"accuracy_reward": "math", "accuracy": "math"}  # of trl.rewards, and of open-r1
LOGGERS = ("tensorboard", "trackio", "wandb")
COLUMNS = {"system_prompt": "chat.system", "dataset_prompt_column": "tasks.options.prompt"}  # of open-r1's YAML
# Fields without a counterpart -> what there is, or what to do; others are noted as such.
REASONS = {
    "max_prompt_length": "gone from TRL; prompts are not cut here",
    "trust_remote_code": "gxpo runs no code of a model: it needs a type that transformers knows",
    "model_revision": "download that revision, and name its directory",
    "reward_clip_range": "clip in the reward function",
    "shuffle_dataset": "gxpo draws its tasks by seed",
    "num_generations_eval": "eval.samples",
    "deepspeed": "cluster.backend",
    "fsdp": "cluster.backend",
    "fsdp_config": "cluster.backend",
    "resume_from_checkpoint": "gxpo resume goes on with a run of gxpo",
    "load_best_model_at_end": "trainer.keep_best",
    "metric_for_best_model": "trainer.keep_best",
    "max_tool_calling_iterations": "env.max_turns",
    "data_seed": "seed",
    "datasets": "a mixture: join the rows in a file of tasks",
    "reward_model_name_or_path": "a reward model: teacher.models",
}
# Fields that do what gxpo does not, where they are set.
DIFFERENCES = {
    "mask_truncated_completions": "cut-off completions stay in the loss here",
    "sync_ref_model": "gxpo's reference is the policy of the first step",
    "router_aux_loss_coef": "no load-balancing loss here",
}
# Keys that are open where a field is; fields without an entry are said in a note.
OPEN_KEYS: Mapping[str, tuple[str, ...]] = {
    "loss_type": ("method",), "multi_objective_aggregation": ("method",), "normalize_advantages": ("method",),
    "epsilon": ("objective.clip_low", "objective.clip_high"), "epsilon_high": ("objective.clip_high",),
    "delta": ("objective.ratio_max",), "beta": ("objective.kl.coef",), "scale_rewards": ("credit.scale",),
    "importance_sampling_level": ("objective.ratio",), "entropy_coef": ("objective.entropy.coef",),
    "use_adaptive_entropy": ("objective.entropy.control",), "top_entropy_quantile": ("weight.entropy_quantile",),
    "temperature": ("sampling.temperature",), "top_p": ("sampling.top_p",), "top_k": ("sampling.top_k",),
    "generation_kwargs": ("sampling.stop",), "chat_template_kwargs": ("chat.kwargs",),
    "use_vllm": ("sampling.engine",), "adam_beta1": ("optim.betas",), "adam_beta2": ("optim.betas",),
    "weight_decay": ("optim.weight_decay",), "max_grad_norm": ("optim.max_grad_norm",),
    "lr_scheduler_type": ("optim.schedule",), "warmup_steps": ("optim.warmup_steps",),
    "warmup_ratio": ("optim.warmup_steps",), "num_train_epochs": (), "gradient_checkpointing": ("learner.recompute",),
    "save_strategy": ("trainer.checkpoint_every",), "save_total_limit": ("trainer.keep_checkpoints",),
    "eval_strategy": ("eval.every",), "eval_steps": ("eval.every",), "system_prompt": ("chat.system",),
    "num_iterations": ("update.epochs",),
}  # fmt: skip
# Numbers whose default is None.
OPTIONAL_NUMBERS = frozenset({
    "generation_batch_size", "steps_per_generation", "epsilon_high", "delta", "min_p", "warmup_ratio",
    "save_total_limit", "eval_steps", "off_policy_mask_threshold", "router_aux_loss_coef",
    "vllm_importance_sampling_clip_min",
})  # fmt: skip
WHOLE_NUMBERS = frozenset({
    "per_device_train_batch_size", "gradient_accumulation_steps", "num_generations", "num_iterations", "seed",
    "generation_batch_size", "steps_per_generation", "max_steps", "max_completion_length", "top_k",
    "save_total_limit",
})  # fmt: skip
POSITIVE = WHOLE_NUMBERS - {"max_steps", "seed", "top_k", "save_total_limit"} | {"learning_rate"}
ELSEWHERE = (
    "normalize_advantages",
    "load_in_4bit",
    "load_in_8bit",
    "model_init_kwargs",
)  # not in DEFAULTS, and converted or noted
OF_RLOO = {"num_generations": 2, "beta": 0.05}  # defaults of RLOOConfig that are not GRPOConfig's
# Fields that have nothing to do with what is computed, or do by themselves what gxpo always does.
WITHOUT_EFFECT = frozenset({
    "attn_implementation", "bf16", "dataloader_num_workers", "dataloader_pin_memory", "dataset_config",
    "dataset_name", "dataset_test_split", "dataset_train_split", "ddp_timeout", "disable_tqdm", "do_eval",
    "do_train", "dtype", "eval_on_start", "fp16", "gradient_checkpointing", "gradient_checkpointing_kwargs",
    "dataset_streaming", "ddp_backend", "ddp_broadcast_buffers", "ddp_bucket_cap_mb", "ddp_find_unused_parameters",
    "ddp_static_graph", "dataloader_persistent_workers", "dataloader_prefetch_factor", "ds3_gather_for_generation",
    "hub_always_push", "hub_model_id", "hub_private_repo", "hub_revision", "hub_strategy", "hub_token",
    "ignore_bias_buffers", "label_names", "local_rank", "log_completions", "log_completions_hub_repo", "log_level",
    "log_level_replica", "log_multimodal", "log_on_each_node", "log_unique_prompts", "logging_dir",
    "logging_first_step", "logging_nan_inf_filter", "logging_steps", "logging_strategy", "lora_alpha", "lora_dropout",
    "lora_r", "lora_target_modules", "model_name_or_path", "num_completions_to_print", "overwrite_output_dir",
    "pad_to_multiple_of", "per_device_eval_batch_size", "project", "push_to_hub", "remove_unused_columns",
    "reward_funcs", "run_name", "save_on_each_node", "save_only_model", "save_safetensors", "skip_memory_metrics",
    "tf32", "torch_compile", "torch_compile_backend", "torch_compile_mode", "torch_dtype", "torch_empty_cache_steps",
    "trackio_bucket_id", "trackio_space_id", "trackio_static_space_id", "use_cpu", "use_dora", "use_liger_kernel",
    "liger_kernel_config", "use_peft", "use_rslora", "use_transformers_continuous_batching", "use_transformers_paged",
    "transformers_continuous_batching_config", "cache_implementation", "vllm_device", "vllm_enable_sleep_mode",
    "vllm_gpu_memory_utilization", "vllm_group_port", "vllm_max_model_length", "vllm_model_impl",
    "vllm_server_base_url", "vllm_server_host", "vllm_server_port", "vllm_server_timeout",
    "vllm_tensor_parallel_size", "vllm_mode", "wandb_entity", "wandb_project",
})  # fmt: skip


def check_value(name: str, setting: Value) -> Value:
    """Return a setting with its number, where a text spells one; OPEN if it is of no kind that TRL takes."""
    default: Any = DEFAULTS.get(name)
    value: Any = setting.value
    # names are texts (scale_rewards a boolean too), weights a list of numbers
    is_text = isinstance(default, str) and name not in ("report_to", "output_dir")
    is_weights = name == "reward_weights" and value is not None
    if (is_text and not isinstance(value, (str, bool))) or (is_weights and not _is_numbers(value)):
        return Value(OPEN, setting.where, setting.note if setting.is_open else "it is no value of TRL's")
    is_number = name in OPTIONAL_NUMBERS or (isinstance(default, (int, float)) and not isinstance(default, bool))
    if name == "importance_sampling_level" and value not in ("token", "sequence", OPEN):
        return Value(OPEN, setting.where, f"{value!r} is no level of TRL's")
    if setting.is_open or name not in DEFAULTS or not (is_number or isinstance(default, bool)):
        return setting
    if isinstance(value, str) and is_number:
        with suppress(ValueError):
            value = float(value) if not re.fullmatch(r"[+-]?\d{1,18}", value) else int(value)
    # a number that is not set is None, and so are bf16 and fp16, which TRL then decides by the device
    if value is None and (name in OPTIONAL_NUMBERS or name in ("bf16", "fp16", "max_grad_norm", "top_k", "top_p")):
        return Value(DEFAULTS[name], setting.where, setting.note)
    is_right = isinstance(value, bool) if isinstance(default, bool) else (
        isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 1e15
    )  # fmt: skip
    is_whole = name in WHOLE_NUMBERS and isinstance(value, float) and value.is_integer()
    is_right = is_right and (is_whole or name not in WHOLE_NUMBERS or isinstance(value, int))
    is_refused = name in POSITIVE and isinstance(value, (int, float)) and value <= 0
    if not is_right or is_refused:
        options = repr(value) if len(repr(value)) < 60 else type(value).__name__
        reason = f"set with {setting.note}" if setting.note and value is None else f"{options} is no value of it"
        return Value(OPEN, setting.where, reason)
    return Value(int(value) if isinstance(value, float) and is_whole else value, setting.where, setting.note)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in value)
