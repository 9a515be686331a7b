"""Keys of verl that are converted: their defaults, its configurations and programs, its names of gxpo's parts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gxpo.adapters.verl_asks import BOUNDS

ROOTS = ("actor_rollout_ref", "algorithm", "async_training", "critic", "custom_reward_function", "data", "distillation",
         "global_profiler", "ray_kwargs", "reward", "reward_model", "rollout", "trainer", "transfer_queue")  # fmt: skip
A, R, M = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
CORRECTION = "algorithm.rollout_correction"
# Defaults of what is read here: the same in verl 0.9.1's and 1dda039b's _generated_ppo_trainer.yaml, and in those of
# its other engines.
DEFAULTS: Mapping[str, Any] = {
    "algorithm.adv_estimator": "gae", "algorithm.norm_adv_by_std_in_grpo": True, "algorithm.use_kl_in_reward": False,
    "algorithm.kl_ctrl.kl_coef": 0.001, "algorithm.kl_ctrl.type": "fixed", "algorithm.kl_penalty": "kl",
    "algorithm.filter_groups.enable": False, "algorithm.filter_groups.max_num_gen_batches": 0,
    f"{CORRECTION}.rollout_is": None, f"{CORRECTION}.rollout_is_threshold": 2.0, f"{CORRECTION}.rollout_rs": None,
    f"{CORRECTION}.bypass_mode": False, f"{CORRECTION}.rollout_is_batch_normalize": False,
    f"{CORRECTION}.loss_type": "ppo_clip", "data.train_batch_size": 1024, "data.gen_batch_size": None,
    "data.max_response_length": 512, f"{A}.ppo_mini_batch_size": 256, f"{A}.ppo_epochs": 1,
    f"{A}.loss_agg_mode": "token-mean", f"{A}.loss_scale_factor": None, f"{A}.use_kl_loss": False,
    f"{A}.kl_loss_coef": 0.001, f"{A}.kl_loss_type": "low_var_kl", f"{A}.entropy_coeff": 0,
    f"{A}.policy_loss.loss_mode": "vanilla", f"{A}.optim.lr": 1e-6, f"{A}.optim.weight_decay": 0.01,
    f"{A}.optim.lr_warmup_steps": -1, f"{A}.optim.lr_warmup_steps_ratio": 0.0, f"{A}.optim.lr_scheduler_type": None,
    f"{A}.optim.warmup_style": None, f"{A}.optim.lr_decay_style": None, f"{A}.optim.clip_grad": 1.0,
    f"{A}.optim.grad_clip": None, f"{R}.n": 1, f"{R}.temperature": 1.0, f"{R}.top_k": -1, f"{R}.top_p": 1,
    f"{M}.lora_rank": 0, f"{M}.lora_alpha": 16, "trainer.total_epochs": 30, "trainer.total_training_steps": None,
    "trainer.save_freq": -1, "trainer.test_freq": -1, "distillation.enabled": False, "reward_model.enable": False,
    "reward.reward_model.enable": False,
} | {f"{A}.{name}": default for name, (default, _) in BOUNDS.items()}  # fmt: skip
ESTIMATORS = {
    "grpo": "grpo", "grpo_vectorized": "grpo", "rloo": "rloo", "rloo_vectorized": "rloo", "opo": "opo", "gpg": "gpg",
    "reinforce_plus_plus": "reinforce_pp", "reinforce_plus_plus_baseline": "reinforce_pp_baseline",
    "grpo_passk": "passk",
}  # fmt: skip
LOSSES = {"gspo": "gspo", "geo_mean": "gmpo", "cispo": "cispo", "sapo": "sapo_gate", "gpg": "gpg",
          "dppo_tv": "dppo_divergence", "dppo_kl": "dppo_divergence"}  # fmt: skip
KLS = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
# Recipes of verl whose trainer has a loss or an estimator of its own.
OWN_LOSS = re.compile(r"recipe\.(prime|sppo|spin|spo|gvpo|flowrl|dance_grpo|gkd)\b|main_(prime|sppo|spin|dance|gkd)$")
# Settings that say how, and not what, is computed.
IGNORED = re.compile(
    r"(trainer\.(logger|project_name|experiment_name|n_gpus_per_node|nnodes|val_before_train|critic_warmup|balance_batch"
    r"|default_local_dir|resume_mode|resume_from_path|use_v1|device|log_val_generations|default_hdfs_dir|ray_wait.*"
    r"|use_legacy_worker_impl|max_(actor|critic)_ckpt_to_keep|del_local_ckpt.*|rollout_data_dir|validation_data_dir"
    r"|esi_redundant_time|val_only)|.*micro_batch_size.*|.*fsdp_config.*|.*\.megatron\..*|.*\.veomni\..*"
    r"|actor_rollout_ref\.ref\..*|.*gpu_memory.*|.*_parallel_size|.*use_dynamic_bsz|.*max_token_len.*|.*checkpoint.*"
    r"|.*enable_gradient_checkpointing|.*activation_offload|.*use_remove_padding|.*enforce_eager|.*free_cache_engine"
    r"|.*ulysses.*|critic\..*|data\.(shuffle|filter_.*|truncation|return_.*|val_.*|max_prompt_length|.*_key|trust_remote"
    r"_code|dataloader_num_workers|validation_shuffle|seed|tokenizer|use_shm|image_patch_size)|.*val_kwargs.*"
    r"|.*load_format|ray_kwargs.*|.*rollout\.(name|mode|max_model_len|max_num_.*|enable_.*|disable_log_stats|dtype|nnodes"
    r"|n_gpus_per_node|prompt_length|skip_tokenizer_init|calculate_log_probs|engine_kwargs.*|multi_stage_wake_up|agent\."
    r"num_workers|do_sample|ignore_eos|response_length|trace.*)|hydra.*|.*layered_summon|.*chunked_prefill|.*strategy"
    r"|.*profiler.*|.*use_fused_kernels|.*fused_kernel_options.*|.*use_torch_compile|.*use_shm|.*use_liger"
    r"|.*trust_remote_code|.*entropy_from_logits.*|.*entropy_checkpointing|.*tiled_mlp.*|.*use_prefix_grouper"
    r"|.*hybrid_engine|.*external_lib|.*nccl_timeout|.*override_(optimizer|transformer)_config.*|model_engine|actor@.*"
    r"|.*target_modules|.*exclude_modules|.*optimizer_offload|.*param_offload|transfer_queue.*|.*data_loader_seed"
    r"|algorithm\.(gamma|lam|_target_|filter_groups\.max_inflight_gen_batches)|rollout\.(nnodes|n_gpus_per_node)"
    r"|.*override_ddp_config.*|.*num_workers|.*rollout_n|.*optim\.(total_training_steps|num_cycles|min_lr.*|lr_decay_"
    r"steps|lr_warmup_init|use_checkpoint_opt.*|override.*|optimizer|zero_indexed_step)|.*_target_)$"
)

# Reward managers of verl, by the key that names one: they score by the data's `data_source` or by a named function.
MANAGERS: Mapping[str, tuple[str, ...]] = {
    key: ("naive", "dapo", "batch", "prime", "gdpo", "limited", "rate_limited", "remote")
    for key in ("reward.reward_manager.name", "reward_model.reward_manager")
}

# verl's own configurations: what is read here has the same defaults in all of them
BASE_CONFIGS = ("ppo_trainer", "ppo_megatron_trainer", "ppo_veomni_trainer", "ppo_torchtitan_trainer")
GROUPS = ("actor", "algorithm", "critic", "data", "distillation", "engine", "hydra", "model", "model_engine",
           "npu_profile", "optim", "override hydra", "profiler", "ref", "reward", "rollout",
          "transfer_queue")  # fmt: skip
_BYPASS = {"algorithm.rollout_correction.bypass_mode": True}
_DAPO = {"reward.reward_manager.name": "dapo"}
_ASYNC = {**_BYPASS, "data.gen_batch_size": 1, "async_training.require_batches": 1,
          "async_training.staleness_threshold": 0.1, "async_training.trigger_parameter_sync_step": 4}  # fmt: skip
# Configurations of verl 1dda039b's experimental trainers and of verl-recipe 48ea0a79, where other than BASE_CONFIGS.
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    **{name: {} for name in (*BASE_CONFIGS, "specRL_trainer", "spo_trainer", "gvpo_trainer", "dynamo_trainer",
                             "rep_exp_trainer")},
    **{name: _DAPO for name in ("dapo_trainer", "dapo_megatron_trainer", "dapo_transfer_queue_trainer",
                                "entropy_trainer", "flowrl_trainer")},
    **{name: _ASYNC for name in ("fully_async_ppo_trainer", "fully_async_ppo_megatron_trainer", "fully_async")},
    **{name: _BYPASS for name in ("one_step_off_ppo_trainer", "one_step_off_ppo_megatron_trainer")},
    "prime_trainer": {f"{R}.n": 4, f"{A}.entropy_coeff": 0.001, "reward_model.enable": True},
    "sppo_trainer": {f"{A}.optim.lr_warmup_steps": 15, "algorithm.adv_estimator": None},
    "spin_trainer": {f"{A}.optim.lr_warmup_steps": 15, "algorithm.adv_estimator": None},
    "atropos_trainer": {"algorithm.adv_estimator": "grpo", "trainer.total_training_steps": 50},
    "async_grpo": {"data.train_batch_size": 16, "data.max_response_length": 1024, f"{A}.ppo_mini_batch_size": 1,
                   f"{A}.ppo_epochs": 2, f"{A}.optim.lr_warmup_steps_ratio": 0.03, f"{R}.n": 8},
}  # fmt: skip
# The configuration that a program takes where none is named.
PROGRAMS: Mapping[str, str] = {
    "": "ppo_trainer", "verl.trainer.main_ppo": "ppo_trainer", "recipe.partial_rollout.main_ppo": "ppo_trainer",
    "verl.experimental.fully_async_policy.fully_async_main": "fully_async_ppo_trainer",
    "verl.experimental.one_step_off_policy.main_ppo": "one_step_off_ppo_trainer",
    "recipe.dapo.main_dapo": "dapo_trainer", "recipe.entropy.main_entropy": "entropy_trainer",
    "recipe.dapo.dapo_transfer_queue.main_dapo": "dapo_transfer_queue_trainer",
    "recipe.prime.main_prime": "prime_trainer", "recipe.sppo.main_sppo": "sppo_trainer",
    "recipe.spin.main_spin": "spin_trainer", "recipe.spo.spo_main_ppo": "spo_trainer",
    "recipe.gvpo.gvpo_main_ppo": "gvpo_trainer", "recipe.flowrl.main_flowrl": "flowrl_trainer",
    "recipe.dynamo.main_dynamo": "dynamo_trainer", "recipe.atropos.main_atropos": "atropos_trainer",
    "recipe.reward_queue.main": "fully_async", "recipe.async_flow.grpo_main": "async_grpo",
    "rep_exp.main_rep_exp": "rep_exp_trainer",
}  # fmt: skip
# Settings outside of verl's own configuration, by which overrides tell their program.
PROGRAM_BY_KEY: Mapping[str, str] = {
    "async_training.": "verl.experimental.fully_async_policy.fully_async_main",
    "rollout.nnodes": "verl.experimental.one_step_off_policy.main_ppo",
}
