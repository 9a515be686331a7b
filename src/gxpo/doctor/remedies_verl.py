"""Remedies in the keys of verl 0.9.1: overrides of ppo_trainer.yaml, as they stand on the command line."""

from __future__ import annotations

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
BUFFER = "+reward.reward_kwargs.overlong_buffer_cfg"

VERL: dict[str, tuple[str, ...]] = {
    "no_eos": (
        "put the chat template's end of turn into eos_token_id of the model's generation_config.json",
        f"{ROLLOUT}.ignore_eos=False",
    ),
    "all_masked": (
        "double data.max_response_length, or mend the end token (eos_token_id in generation_config.json)",
        "look where response_mask is set to 0: verl itself does not mask cut completions",
    ),
    "truncation": (
        "double data.max_response_length",
        f"reward.reward_manager.name=dapo {BUFFER}.enable=True {BUFFER}.len=512 {BUFFER}.penalty_factor=1.0 "
        "+reward.reward_kwargs.max_resp_len='${data.max_response_length}' charges for the last 512 tokens",
    ),
    "wrong_template": (
        "give the data's `prompt` column as a list of messages; print one `input` of trainer.rollout_data_dir",
        "data.apply_chat_template_kwargs, e.g. {enable_thinking: false}",
    ),
    "verifier_rejects_right_answers": (
        "call compute_score(data_source, solution_str, ground_truth) on the reference answers: each must score 1",
        "the rows' data_source chooses verl's scorer; reward.custom_reward_function.path=FILE takes your own",
    ),
    "labels_misaligned": (
        "print prompt and reward_model.ground_truth of ten rows of data.train_files, and solve them by hand",
    ),
    "missing_scores": (
        "compute_score must return a number for every answer, 0 for a wrong one; retry timeouts inside it",
    ),
    "reward_sign": ("compute_score must return the larger number for the better answer",),
    "reward_ignores_completion": (
        "score solution_str in compute_score; key any cache by solution_str, not by ground_truth",
    ),
    "near_constant_reward": (
        "algorithm.norm_adv_by_std_in_grpo=False, so that tiny differences stay tiny",
        "round the score to what is meant, e.g. 3 digits",
    ),
    "dead_component": ("call compute_score on a reference answer by hand; mend that part, or remove it",),
    "verifier_outage": (
        "retry inside compute_score until the verifier answers: verl knows no missing score, so a failure counts as 0",
        "trainer.resume_mode=resume_path trainer.resume_from_path=.../global_step_N from before the outage",
    ),
    "all_wrong": (
        "start with easier rows of data.train_files, or fine-tune on some solutions first",
        f"{ROLLOUT}.n=16, so that a rare right answer is seen",
        f"VERL_USE_EXTERNAL_MODULES=gxpo.adapters.verl algorithm.adv_estimator=gxpo/ngrpo "
        f"{ACTOR}.policy_loss.loss_mode=gxpo/ngrpo learns from groups that are all wrong",
    ),
    "all_right": (
        "drop rows of data.train_files that the model solves in every sample",
        "algorithm.filter_groups.enable=True algorithm.filter_groups.metric=reward samples others instead (DAPO)",
    ),
    "no_diversity": (f"{ROLLOUT}.temperature=1.0 {ROLLOUT}.top_k=-1 {ROLLOUT}.top_p=1 {ROLLOUT}.do_sample=True",),
    "group_too_small": (
        f"{ROLLOUT}.n=8",
        "algorithm.adv_estimator=reinforce_plus_plus_baseline, which divides by the deviation of the whole batch",
    ),
    "wrong_groups": (
        "give each prompt one uid before it is repeated; a uid for each sample leaves every group with one member",
        f"{ROLLOUT}.n=8 with algorithm.adv_estimator=grpo",
    ),
    "advantage_sign": (
        f"overfit one batch with {ACTOR}.optim.lr / 10: its critic/score/mean must rise",
        "compute_score must return scores in the order of the rows, also in a reward manager of your own",
    ),
    "logprob_shift": (
        "agent loops return the sampled ids (response_ids); do not tokenise decoded text again",
        f"{ROLLOUT}.multi_turn.tokenization_sanity_check_mode=strict",
        f"{ROLLOUT}.logprobs_mode=processed_logprobs: log-probs at the sampling temperature",
    ),
    "stale_sampler": (
        "compare a checksum of the weights in the actor and in the rollout engine after a step",
        f"with LoRA: {ROLLOUT}.load_format=safetensors {ROLLOUT}.layered_summon=True",
        "trainer.v1.separate_async.parameter_sync_step=1, if the trainer is asynchronous",
    ),
    "sampler_mismatch": (
        "algorithm.rollout_correction.rollout_is=token algorithm.rollout_correction.rollout_is_threshold=2.0",
        f"{ROLLOUT}.top_p=1 {ROLLOUT}.top_k=-1, and {ROLLOUT}.dtype equal to {ACTOR}.fsdp_config.dtype",
    ),
    "too_off_policy": (
        f"{ACTOR}.ppo_epochs=1, and {ACTOR}.ppo_mini_batch_size nearer to data.train_batch_size",
        f"{ACTOR}.policy_loss.loss_mode=gspo {ACTOR}.loss_agg_mode=seq-mean-token-mean",
    ),
    "lr_too_low": (
        f"{ACTOR}.optim.lr x 10: 1e-6 is usual for billions of parameters, 1e-5 and more with LoRA",
        f"{ACTOR}.optim.lr_warmup_steps well below trainer.total_training_steps",
    ),
    "weights_do_not_move": (
        f"{ACTOR}.optim.clip_grad=1.0",
        f"{ACTOR}.fsdp_config.model_dtype=fp32: small updates vanish in bfloat16 weights",
        "trainer.critic_warmup=0: before that step the actor is not updated",
    ),
    "kl_too_high": (
        f"{ACTOR}.kl_loss_coef=0.001, or {ACTOR}.use_kl_loss=False",
        "algorithm.use_kl_in_reward=False",
    ),
    "lr_too_high": (
        f"{ACTOR}.optim.lr / 10 with {ACTOR}.optim.lr_warmup_steps=10, from a checkpoint before the collapse",
        f"{ACTOR}.optim.clip_grad=0.2",
    ),
    "non_finite": (
        f"{ACTOR}.fsdp_config.dtype=bfloat16 {ACTOR}.fsdp_config.model_dtype=fp32",
        f"{ACTOR}.optim.lr / 10, {ACTOR}.optim.clip_grad=0.2",
    ),
    "entropy_collapse": (
        f"{ACTOR}.optim.lr / 3, from a checkpoint before the collapse",
        f"{ACTOR}.clip_ratio_high=0.28",
        f"{ACTOR}.entropy_coeff=0.001",
        f"{ACTOR}.policy_loss.loss_mode=clip_cov leaves the tokens out that drive entropy down",
    ),
    "length_hack": (
        "take length out of compute_score",
        "charge for length in compute_score",
        f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm algorithm.norm_adv_by_std_in_grpo=False (Dr. GRPO)",
    ),
    "length_collapse": ("pay for brevity in compute_score only where the answer is right, and less",),
    "component_dominates": (
        "give that part of compute_score less weight, or pay it only where the answer is right",
        "algorithm.adv_estimator=gdpo +algorithm.gdpo_reward_keys=[correct,format] normalises each part by itself",
    ),
    "kl_runaway": (
        f"{ACTOR}.optim.lr / 3",
        f"{ACTOR}.use_kl_loss=True {ACTOR}.kl_loss_coef=0.01",
    ),
    "memorising": (
        "add rows to data.train_files, or fewer trainer.total_epochs",
        "trainer.test_freq=10 trainer.save_freq=10, and keep the checkpoint of the best evaluation",
    ),
    "duplicate_prompts": ("add rows to data.train_files and remove repeated ones; fewer trainer.total_epochs",),
    "eval_leak": ("split data.train_files and data.val_files by prompt, after normalising spaces and case",),
    "eval_too_small": (
        f"put more rows into data.val_files, or {ROLLOUT}.val_kwargs.n=8 {ROLLOUT}.val_kwargs.do_sample=True",
    ),
    "resume_discontinuity": (
        "trainer.resume_mode=auto",
        f"{ACTOR}.checkpoint.save_contents=[model,optimizer,extra]",
    ),
    "tool_failures": (
        f"{ROLLOUT}.multi_turn.format must be the model's own format of tool calls (hermes for Qwen)",
        f"{ROLLOUT}.multi_turn.max_tool_response_length=2048, if answers of tools are cut",
    ),
    "slow_tail": (
        "lower data.max_response_length",
        "trainer.v1.trainer_mode=separate_async samples while it trains",
    ),
}
