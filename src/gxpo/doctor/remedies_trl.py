"""Remedies in the keys of TRL 1.16: fields of GRPOConfig, arguments of GRPOTrainer. unsloth takes them, too."""

from __future__ import annotations

TRL: dict[str, tuple[str, ...]] = {
    "no_eos": (
        "tokenizer.eos_token='<|im_end|>' (what ends a turn in the chat template), processing_class=tokenizer",
        "model.generation_config.eos_token_id=[...] with every id that ends an answer",
        "fine-tune with the end token in the loss: it is often masked where pad_token equals eos_token",
    ),
    "all_masked": (
        "mask_truncated_completions=False until most completions end by themselves",
        "double max_completion_length; if none ends at any length, mend the end token (tokenizer.eos_token)",
    ),
    "truncation": (
        "double max_completion_length",
        "mask_truncated_completions=True once few completions are cut",
    ),
    "wrong_template": (
        "give the dataset's `prompt` as a list of messages; as text it is sampled without a chat template",
        "print tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True) of one row",
    ),
    "verifier_rejects_right_answers": (
        "call the reward function with completions made of the reference answers: each must score the maximum",
        "conversational datasets give completions as lists of messages: read completion[0]['content']",
    ),
    "labels_misaligned": (
        "read the answer from the reward function's own argument of the column's name, not from a list by position",
        "print ten rows of prompts and that column inside the reward function, and solve them by hand",
    ),
    "missing_scores": (
        "return 0.0, not None, for a wrong answer: None leaves the completion out of every mean",
        "retry timeouts inside the reward function before returning None",
    ),
    "reward_sign": (
        "return the larger score for the better answer",
        "reward_weights must be positive for what is wanted, in the order of reward_funcs",
    ),
    "reward_ignores_completion": (
        "score the argument `completions`, one number for each; key any cache by prompt and completion",
    ),
    "near_constant_reward": (
        "scale_rewards='none' (or 'batch'), so that tiny differences stay tiny",
        "round the reward to what is meant, e.g. 3 digits",
        "gxpo.adapters.trl.GRPOTrainer gives exactly 0 where all rewards of a group are equal",
    ),
    "dead_component": ("call that function of reward_funcs on a reference answer by hand; mend it, or remove it",),
    "verifier_outage": (
        "return None, not 0.0, where the verifier did not answer, and retry first",
        "trainer.train(resume_from_checkpoint='.../checkpoint-N') from before the outage",
    ),
    "all_wrong": (
        "start with easier rows of train_dataset, or fine-tune on some solutions first",
        "num_generations=16, so that a rare right answer is seen",
        "gxpo.adapters.trl.GRPOTrainer(..., method='ngrpo') learns from groups that are all wrong",
    ),
    "all_right": (
        "filter train_dataset by pass rate: drop what the model solves in every sample",
        "stop: these tasks have nothing left to teach",
    ),
    "no_diversity": ("temperature=1.0, top_k=0, top_p=1.0",),
    "group_too_small": (
        "num_generations=8",
        "scale_rewards='batch', which divides by a deviation that is better known",
        "gxpo.adapters.trl.GRPOTrainer(..., method='reinforce_pp_baseline')",
    ),
    "wrong_groups": (
        "keep TRL's RepeatSampler: a _get_train_sampler of your own must repeat each prompt num_generations times",
        "a rollout_func returns num_generations completions for each prompt, in the order of the prompts",
    ),
    "advantage_sign": (
        "overfit one batch with learning_rate / 10: its reward must rise",
        "keep the completions' order in reward_funcs and in a _generate_and_score_completions of your own",
    ),
    "logprob_shift": (
        "a rollout_func returns the sampled completion_ids and their logprobs; do not tokenise its text again",
        "compare ids and log-probs of one row on both sides, position by position",
    ),
    "stale_sampler": (
        "vllm_mode='colocate' to rule out a server that misses deliveries",
        "with LoRA: compare a checksum of the merged weights on both sides after a step",
    ),
    "sampler_mismatch": (
        "top_p=1.0, top_k=0, and the same dtype in vLLM and model_init_kwargs",
        "vllm_importance_sampling_correction=True, vllm_importance_sampling_mode='token_truncate'",
    ),
    "too_off_policy": (
        "num_iterations=1, steps_per_generation=gradient_accumulation_steps",
        "learning_rate / 3",
        "importance_sampling_level='sequence' (GSPO)",
    ),
    "lr_too_low": (
        "learning_rate x 10: 1e-6 is usual for billions of parameters, 1e-5 and more with LoRA",
        "warmup_steps well below max_steps",
    ),
    "weights_do_not_move": (
        "max_grad_norm=1.0",
        "model_init_kwargs={'dtype': 'float32'} with bf16=True: small updates vanish in bfloat16 weights",
        "count the parameters with requires_grad; with peft_config, load the adapter with is_trainable=True",
    ),
    "kl_too_high": ("beta=0.0, or beta=0.001",),
    "lr_too_high": (
        "learning_rate / 10 with warmup_steps=10, from a checkpoint before the collapse",
        "max_grad_norm=0.2",
    ),
    "non_finite": (
        "bf16=True, fp16=False",
        "learning_rate / 10, max_grad_norm=0.2",
    ),
    "entropy_collapse": (
        "learning_rate / 3, from a checkpoint before the collapse",
        "epsilon_high=0.28",
        "entropy_coef=0.001",
    ),
    "length_hack": (
        "remove the function of reward_funcs that pays for length, or lower its entry of reward_weights",
        "loss_type='dr_grpo', scale_rewards='none': no division by each completion's length",
    ),
    "length_collapse": ("pay for brevity only where the answer is right, and lower its entry of reward_weights",),
    "component_dominates": (
        "lower its entry of reward_weights, or pay it only where the answer is right",
        "multi_objective_aggregation='normalize_then_sum'",
    ),
    "kl_runaway": (
        "learning_rate / 3, beta=0.01",
        "sync_ref_model=True, ref_model_sync_steps=64 renews the reference",
    ),
    "memorising": (
        "add rows to train_dataset, or fewer num_train_epochs",
        "load_best_model_at_end=True with metric_for_best_model='eval_reward', save_strategy='steps'",
    ),
    "duplicate_prompts": ("add rows to train_dataset and remove repeated ones; fewer num_train_epochs",),
    "eval_leak": ("split train_dataset and eval_dataset by prompt, after normalising spaces and case",),
    "eval_too_small": ("take a larger eval_dataset, or num_generations_eval=8",),
    "resume_discontinuity": (
        "trainer.train(resume_from_checkpoint=True), with checkpoints written under save_only_model=False",
    ),
    "slow_tail": ("lower max_completion_length", "use_vllm=True, if completions are sampled with transformers"),
}
