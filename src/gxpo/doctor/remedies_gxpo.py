"""Remedies in gxpo's own keys, methods and commands."""

from __future__ import annotations

GXPO: dict[str, tuple[str, ...]] = {
    "no_eos": (
        "gxpo check-template MODEL; the tokenizer's eos_token must be the one with which the chat template ends a turn",
        "sampling.stop=['</answer>'] ends an action at a text",
    ),
    "all_masked": ("double sampling.max_new_tokens, or mend the end token (gxpo check-template MODEL)",),
    "truncation": (
        "double sampling.max_new_tokens",
        "reward.add.overlong=overlong charges for the last fifth of the limit (DAPO)",
    ),
    "wrong_template": (
        "gxpo check-template MODEL",
        "chat.template=rendered, where prompts hold a rendered template already: gxpo tasks FILE --model MODEL tells",
        "chat.template=FILE.jinja, or chat.kwargs for the template's variables",
    ),
    "verifier_rejects_right_answers": ("gxpo check-reward REWARD --task TASK: it must accept every reference answer",),
    "labels_misaligned": (
        "gxpo check-reward REWARD --task TASK --n 10, and solve those tasks by hand",
        "optim.lr / 10 under reward=majority_vote, which settles on what is agreed, right or not",
    ),
    "missing_scores": (
        "scoring_raised, scoring_timeout and scoring_died in metrics.jsonl say what went wrong: mend that",
        "raise scoring.timeout, or add scoring.workers",
    ),
    "reward_sign": (
        "make the reward larger for the better answer: gxpo check-reward REWARD --task TASK tries both",
        "scoring.weights must be positive for what is wanted",
    ),
    "reward_ignores_completion": (
        "score the completion, and key any cache by it: gxpo check-reward REWARD --task TASK",
    ),
    "near_constant_reward": (
        "credit.scale=none, so that tiny differences stay tiny",
        "round the reward to what is meant, e.g. 3 digits",
    ),
    "dead_component": ("gxpo check-reward REWARD --task TASK; mend that reward, or take it out of scoring.weights",),
    "verifier_outage": (
        "scoring_raised, scoring_timeout and scoring_died in metrics.jsonl say what went wrong: mend that",
        "raise in the reward function where the verifier does not answer: that rollout is unscored, not 0",
        "gxpo train --from RUN/checkpoints/step-N from before the outage",
    ),
    "all_wrong": (
        "start with easier tasks (tasks.options), or with a fine-tuned model (init_from)",
        "rollout.group_size=16, so that a rare right answer is seen",
        "method=ngrpo learns from groups that are all wrong",
        "method=ghpo shows part of the solution",
        "method=videorl_select leaves out tasks that are never solved, from their second epoch on",
    ),
    "all_right": (
        "harder tasks (tasks.options)",
        "method=dapo samples others in the place of solved ones",
        "method=srpo_history does not draw solved tasks again",
        "tasks.sampler=variance draws them seldom: more groups had a signal here, accuracy the same",
    ),
    "no_diversity": ("sampling.temperature=1, sampling.top_k=0, sampling.top_p=1",),
    "group_too_small": (
        "rollout.group_size=8",
        "method=reinforce_pp takes its baseline from the whole batch",
    ),
    "wrong_groups": ("a rollout of your own must give all samples of one task, and no others, one group",),
    "advantage_sign": (
        "overfit one batch with optim.lr / 10: its reward must rise",
        "credit.weight must be positive",
    ),
    "logprob_shift": (
        "sampling.engine=torch to see whether the engine is to blame",
        "gxpo check-template MODEL: a later prompt must not render earlier turns in another way",
    ),
    "stale_sampler": ("sampling.engine=torch samples with the learner's own weights",),
    "sampler_mismatch": (
        "sampling.top_p=1, sampling.top_k=0, and sampling.products equal to learner.products",
        "method=grpo+tis weights tokens by truncated importance sampling",
    ),
    "too_off_policy": (
        "update.epochs=1, update.minibatches=1",
        "optim.lr / 3",
        "method=gspo",
    ),
    "lr_too_low": (
        "optim.lr x 10: 1e-6 is usual for billions of parameters, 1e-5 and more with learner.lora_rank",
        "optim.warmup_steps well below trainer.steps",
    ),
    "weights_do_not_move": (
        "optim.max_grad_norm=1",
        "learner.states=float32, which keeps float32 copies of bfloat16 weights",
    ),
    "kl_too_high": ("objective.kl.coef=0, or objective.kl.coef=0.001",),
    "lr_too_high": (
        "optim.lr / 10 with optim.warmup_steps=10",
        "optim.max_grad_norm=0.2",
    ),
    "non_finite": (
        "optim.lr / 10, optim.max_grad_norm=0.2",
        "learner.dtype=float32",
    ),
    "entropy_collapse": (
        "optim.lr / 3: gxpo train --from RUN/checkpoints/step-N from before the collapse",
        "objective.clip_high=0.28",
        "objective.entropy.coef=0.001",
    ),
    "length_hack": (
        "take length out of the reward",
        "charge for length: reward.add.length=length, reward.add.length.coef=0.2",
        "method=dr_grpo: no division by each completion's length",
        "reward.add.length.of=all_right_groups charges where every answer is right (ConciseR)",
        "reward.add.length.coef={schedule: linear, from: 0, to: 0.2} begins to charge by and by",
    ),
    "length_collapse": (
        "pay for brevity only where the answer is right: reward.add.length.of=correct",
        "a smaller reward.add.length.coef",
    ),
    "judge_hacked": (
        "a panel of judges most of which do not share the flaw, combined by the median",
        "pay what can be checked: an entry of scoring.weights for correct beside the judge's",
        "method=meta_po: a model rewrites the rubric from scored answers",
    ),
    "component_dominates": (
        "lower its entry of scoring.weights, or pay it only where the answer is right",
        "method=gdpo_multi normalises each reward by itself",
    ),
    "kl_runaway": ("optim.lr / 3", "objective.kl.coef=0.01"),
    "memorising": ("more tasks, or fewer trainer.steps", "eval.every=10, and keep the best checkpoint"),
    "blind_policy": (
        "tasks whose text does not give the answer away: compare with the accuracy on blank pictures",
        "method=papo pays for depending on the picture",
    ),
    "eval_too_small": ("eval.tasks=200, or eval.samples=8 with eval.temperature=1",),
    "resume_discontinuity": ("gxpo resume RUN goes on exactly where the run stopped; train --from begins a new one",),
    "tool_failures": (
        "gxpo check-env ENV; put the tools' schema into the prompt (chat.tools=native)",
        "return an error's text to the model, and take a little reward off for it",
        "method=otc where right answers take more calls than they need",
    ),
    "slow_tail": ("lower sampling.max_new_tokens", "reward.add.overlong=overlong charges for answers near the limit"),
}
