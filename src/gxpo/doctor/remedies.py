"""`remedies`: what to change, in the trainer's own keys."""

from __future__ import annotations

from collections.abc import Sequence

from gxpo.doctor.case import Case

UNTESTED = "(untested here)"  # until `gxpo compare` has measured what a remedy does

# By sickness and trainer; "any" where no setting of a trainer is meant or the trainer is unknown.
REMEDIES: dict[str, dict[str, tuple[str, ...]]] = {
    "all_wrong": {
        "any": ("easier tasks first, or supervised fine-tuning on some solutions", "larger groups"),
        "trl": (
            "num_generations=16; easier rows of train_dataset first",
            "from gxpo.adapters.trl import GRPOTrainer; GRPOTrainer(..., method='ngrpo')",
        ),
        "verl": (
            "actor_rollout_ref.rollout.n=16; easier rows of data.train_files first",
            "algorithm.adv_estimator=gxpo/ngrpo with VERL_USE_EXTERNAL_MODULES=gxpo.adapters.verl",
        ),
        "gxpo": ("rollout.group_size=16, or method=scaf_grpo or ghpo where tasks have hints", "method=ngrpo"),
    },
    "all_right": {
        "any": ("harder tasks", "stop: there is nothing left to learn here"),
        "verl": ("harder data.train_files; algorithm.filter_groups.enable=True drops solved groups (DAPO's recipe)",),
        "gxpo": ("harder tasks, or method=dapo, which samples others in the place of solved ones",),
    },
    "reward_ignores_completion": {
        "any": ("let the scorer read the completion; is its cache keyed by the prompt alone?",),
        "trl": (
            "the reward function's argument is `completions`, one score for each; is its cache keyed by the prompt?",
        ),
        "verl": ("compute_score(data_source, solution_str, ground_truth): score solution_str; check a cache's key",),
        "gxpo": ("reward(completion, ...) must depend on completion: gxpo check-reward tries it",),
    },
    "dead_component": {"any": ("mend or remove that reward function: try it on a reference answer by hand",)},
    "lr_too_high": {
        "any": ("a tenth of the learning rate, with a warm-up; a smaller max_grad_norm",),
        "trl": ("learning_rate / 10, warmup_steps=10, max_grad_norm=0.2; go on from a checkpoint before the collapse",),
        "verl": (
            "actor_rollout_ref.actor.optim.lr / 10 with lr_warmup_steps=10, actor_rollout_ref.actor.grad_clip=0.2",
        ),
        "gxpo": ("optim.lr / 10, optim.warmup_steps=10, update.max_grad_norm=0.2",),
    },
    "lr_too_low": {
        "any": ("raise the learning rate tenfold until entropy or KL move; shorten the warm-up",),
        "trl": (
            "learning_rate x 10 (1e-6 for billions of parameters, 1e-5 and more with LoRA); warmup_steps below max_steps",
        ),
        "verl": ("actor_rollout_ref.actor.optim.lr x 10; lr_warmup_steps below the total of steps",),
        "gxpo": ("optim.lr x 10; optim.warmup_steps below trainer.steps",),
    },
    "weights_do_not_move": {
        "any": (
            "print the share of weights that a step changes; check requires_grad, max_grad_norm and the dtype of the weights",
        ),
        "trl": (
            "max_grad_norm=1.0; model_init_kwargs={'dtype': 'float32'} with bf16=True; model.requires_grad_(True)",
        ),
        "verl": ("actor_rollout_ref.actor.grad_clip=1.0; actor_rollout_ref.actor.fsdp_config.model_dtype=fp32",),
        "gxpo": ("update.max_grad_norm=1, learner.dtype=float32",),
    },
    "entropy_collapse": {
        "any": ("a higher upper clip, a smaller learning rate, or an entropy bonus; go on from before the collapse",),
        "trl": ("epsilon_high=0.28; learning_rate / 3; or gxpo.adapters.trl.GRPOTrainer(method='psr_nsr')",),
        "verl": ("actor_rollout_ref.actor.clip_ratio_high=0.28; actor_rollout_ref.actor.entropy_coeff=0.001",),
        "gxpo": ("method=dapo or psr_nsr; objective.entropy.coef=0.001",),
    },
    "truncation": {
        "any": ("raise the length limit; leave cut completions out of the loss until then",),
        "trl": ("max_completion_length x 2; mask_truncated_completions=True while few are cut",),
        "verl": ("data.max_response_length x 2; reward_model.overlong_buffer (DAPO)",),
        "gxpo": ("sampling.max_new_tokens x 2; method=dapo has a soft penalty near the limit",),
    },
    "no_eos": {
        "any": (
            "set the ids that end an answer; train the model to emit them (supervised examples with the end token)",
        ),
        "trl": (
            "processing_class.eos_token='<|im_end|>' (the template's), or generation_kwargs={'eos_token_id': [...]}; is the end token part of the SFT loss?",
        ),
        "verl": ("generation_config.json of the model: eos_token_id; is the chat template's end token among them?",),
        "gxpo": ("gxpo check-template MODEL; the tokenizer's eos_token must be the one the template ends a turn with",),
    },
    "all_masked": {
        "any": ("raise the length limit or mend the end token: only finished completions are trained on",),
        "trl": ("mask_truncated_completions=False, or max_completion_length x 2, or the end token as in no_eos",),
    },
    "verifier_rejects_right_answers": {
        "any": ("run the scorer on reference answers before training; mend its extraction",),
        "trl": ("call the reward function with completions made of the reference answers: each must score 1",),
        "gxpo": ("gxpo check-reward TASK: every reference answer must be accepted",),
    },
    "labels_misaligned": {"any": ("check the join of prompts and answers: print ten rows and solve them by hand",)},
    "no_diversity": {
        "any": ("temperature 1, no top-k; one seed for each sample",),
        "trl": ("temperature=1.0, top_k=0, top_p=1.0",),
        "verl": (
            "actor_rollout_ref.rollout.temperature=1.0, top_k=-1, do_sample=True; val_kwargs must not leak into training",
        ),
        "gxpo": ("sampling.temperature=1, sampling.top_k=0",),
    },
    "length_hack": {
        "any": ("take length out of the reward, or price it; average the loss without dividing by length",),
        "trl": ("drop or down-weight the function that pays length (reward_weights); loss_type='dr_grpo'",),
        "verl": (
            "algorithm.norm_adv_by_std_in_grpo=False, actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm; mend the score",
        ),
        "gxpo": ("method=dr_grpo; reward.add.length=length with coef 0.2 prices right answers' length",),
    },
    "length_collapse": {"any": ("pay brevity only where the answer is right; a smaller weight of it",)},
    "component_dominates": {
        "any": (
            "a smaller weight of that component, or pay it only where the answer is right; normalise each component",
        ),
        "trl": (
            "reward_weights; multi_objective_aggregation='normalize_then_sum', or gxpo.adapters.trl.GRPOTrainer(method='gdpo_multi')",
        ),
        "gxpo": ("scoring.weights; method=gdpo_multi",),
    },
    "reward_sign": {
        "any": ("the score must be larger for the better answer: check the sign of the function and of its weight",),
        "trl": (
            "reward_weights must be positive for what is wanted; the reward function returns 1.0 for a right answer",
        ),
    },
    "advantage_sign": {
        "any": (
            "overfit one batch: its reward must rise; check that rewards and rows stay in one order up to the loss",
        ),
    },
    "missing_scores": {
        "any": ("return 0 for a wrong answer; missing means unknown; retry timeouts",),
        "trl": ("return 0.0, not None, for a wrong answer (None leaves the completion out of every mean)",),
    },
    "verifier_outage": {
        "any": ("retry, and report a failure as missing, not as 0; go on from the checkpoint before the outage",),
        "trl": ("return None where the verifier failed; resume_from_checkpoint of a step before",),
        "gxpo": (
            "raise in the reward function (the rollout is then unscored); gxpo train --from RUN/checkpoints/step-N",
        ),
    },
    "reward_noise": {
        "any": ("check that scores return in the order of the completions; average several verdicts of a judge",),
    },
    "near_constant_reward": {
        "any": ("do not divide by the deviation, or round the reward",),
        "trl": (
            "scale_rewards=False (or 'batch'); round the reward to 4 digits; gxpo.adapters.trl.GRPOTrainer gives exactly 0 for equal rewards",
        ),
        "verl": ("algorithm.norm_adv_by_std_in_grpo=False",),
        "gxpo": ("credit.scale=none or a larger credit.eps",),
    },
    "kl_too_high": {
        "any": ("a KL coefficient of 0 to 0.01",),
        "trl": ("beta=0.0 (or 0.001)",),
        "verl": ("actor_rollout_ref.actor.kl_loss_coef=0.001, algorithm.use_kl_in_reward=False",),
        "gxpo": ("objective.kl.coef=0.001",),
    },
    "kl_runaway": {
        "any": ("a smaller learning rate; a KL term, its reference renewed",),
        "trl": ("learning_rate / 3; beta=0.01; sync_ref_model=True",),
        "verl": ("actor_rollout_ref.actor.optim.lr / 3; actor_rollout_ref.actor.use_kl_loss=True, kl_loss_coef=0.01",),
        "gxpo": ("optim.lr / 3; objective.kl.coef=0.01",),
    },
    "too_off_policy": {
        "any": ("fewer updates on one batch, or a smaller rate; a ratio of the whole sequence",),
        "trl": (
            "num_iterations=1, steps_per_generation=gradient_accumulation_steps; importance_sampling_level='sequence' (GSPO)",
        ),
        "verl": (
            "actor_rollout_ref.actor.ppo_epochs=1, ppo_mini_batch_size = train_batch_size; policy_loss.loss_mode=gspo",
        ),
        "gxpo": ("update.epochs=1, update.minibatches=1; method=gspo or cispo",),
    },
    "sampler_mismatch": {
        "any": ("the same dtype, temperature and top-p on both sides; truncated importance sampling",),
        "trl": ("vllm_importance_sampling_correction=True; top_p=1.0, top_k=0; the same dtype in vLLM",),
        "verl": (
            "algorithm.rollout_correction.rollout_is=token, rollout_is_threshold=2.0; actor_rollout_ref.rollout.dtype as the actor's",
        ),
        "gxpo": ("method=grpo+tis; sampling.top_p=1; learner.dtype as the engine's",),
    },
    "stale_sampler": {
        "any": ("compare a checksum of the weights on both sides after each delivery; deliver adapters merged",),
        "verl": (
            "actor_rollout_ref.rollout.load_format=safetensors with layered_summon for LoRA; compare rollout and actor weights",
        ),
    },
    "logprob_shift": {
        "any": (
            "keep the sampled token ids (never tokenise the text again); compare ids and positions of one row on both sides",
        ),
    },
    "wrong_template": {
        "any": ("print one rendered prompt and compare it with the model card's",),
        "trl": (
            "tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True) of one row; pass messages, not text",
        ),
        "verl": ("data.apply_chat_template_kwargs; print one `input` of the rollout dump",),
        "gxpo": ("gxpo check-template MODEL",),
    },
    "wrong_groups": {
        "any": ("the group's id must be that of the prompt instance, equal for all its samples",),
        "verl": ("batch.non_tensor_batch['uid'] once per prompt, repeated with interleave=True for rollout.n",),
        "trl": ("per_device_train_batch_size x processes must hold whole groups; leave RepeatSampler in place",),
    },
    "group_too_small": {
        "any": ("8 to 16 samples a prompt, or a baseline that needs no group",),
        "trl": (
            "num_generations=8; scale_rewards='batch'; or gxpo.adapters.trl.GRPOTrainer(method='reinforce_pp_baseline')",
        ),
        "verl": ("actor_rollout_ref.rollout.n=8; algorithm.adv_estimator=reinforce_plus_plus",),
        "gxpo": ("rollout.group_size=8; method=reinforce_pp or rloo",),
    },
    "duplicate_prompts": {"any": ("more prompts; remove repeated rows",)},
    "memorising": {"any": ("more prompts, fewer passes over them; stop at the best evaluation",)},
    "eval_leak": {"any": ("split by prompt, after normalising space and case",)},
    "eval_too_small": {
        "any": ("more held-out tasks, or several samples of each",),
        "gxpo": ("eval.tasks=200",),
    },
    "resume_discontinuity": {
        "any": ("save and load optimiser, scheduler and the step number with the weights",),
        "trl": ("trainer.train(resume_from_checkpoint=True), with save_only_model=False",),
        "verl": ("trainer.resume_mode=auto; checkpoint.save_contents=[model,optimizer,extra]",),
        "gxpo": ("gxpo resume RUN",),
    },
    "non_finite": {
        "any": ("a smaller learning rate; bfloat16 in the place of float16; look at the first bad batch's rewards",),
        "trl": ("fp16=False, bf16=True; max_grad_norm=0.2; learning_rate / 10",),
        "gxpo": ("optim.lr / 10; learner.dtype=float32",),
    },
    "slow_tail": {
        "any": ("a lower limit with a penalty near it; sample asynchronously",),
    },
    "tool_failures": {
        "any": (
            "show the tool's schema in the prompt; return the error to the model; a small penalty for malformed calls",
        ),
    },
}


def remedies(ids: Sequence[str], case: Case) -> tuple[str, ...]:
    """Lines for the findings' sicknesses in the keys of the run's trainer."""
    lines = []
    for name in ids:
        known = REMEDIES.get(name, {})
        for line in known.get(case.log.source, known.get("any", ())):
            lines.append(f"{line} {UNTESTED}" if len(ids) == 1 else f"{name}: {line} {UNTESTED}")
    return tuple(lines)
