"""Remedies without settings: for trainers whose keys are not listed, and where no setting is to blame."""

from __future__ import annotations

ANY: dict[str, tuple[str, ...]] = {
    "no_eos": (
        "put the chat template's end of turn into eos_token_id of the model's generation_config.json",
        "train the end token: fine-tune on examples that have it, and do not mask it out of the loss",
    ),
    "all_masked": ("raise the length limit, or mend the end token; until then keep cut completions in the loss",),
    "truncation": ("double the length limit", "once few are cut, leave cut completions out of the loss"),
    "wrong_template": (
        "print one rendered prompt with special tokens and compare it with the model card's",
        "pass messages, not rendered text, to whatever applies the chat template",
    ),
    "verifier_rejects_right_answers": (
        "score the reference answers themselves: each must be accepted before training",
        "normalise both sides before comparing: spaces, units, LaTeX, thousands separators",
    ),
    "labels_misaligned": (
        "print ten rows with prompt and answer as the reward function receives them, and solve them by hand",
        "carry the answer in the prompt's own row; do not join by position after a shuffle or a filter",
    ),
    "missing_scores": (
        "return 0 for a wrong answer and no score only where the verdict is unknown",
        "retry timeouts before giving up on a score",
    ),
    "reward_sign": ("make the score larger for the better answer: check the sign of the function and of its weight",),
    "reward_noise": (
        "return scores in the order of the completions, also where they are computed in parallel",
        "average several verdicts of a judge",
        "sample a judge at temperature 0",
    ),
    "reward_ignores_completion": ("score the completion, not the prompt; key any cache by both",),
    "near_constant_reward": ("do not divide by the group's deviation, or round the reward to what is meant",),
    "dead_component": ("try that reward function on a reference answer by hand; mend it, or remove it",),
    "verifier_outage": (
        "retry, and report a failure as a missing score, not as 0",
        "go on from the last checkpoint before the outage",
    ),
    "all_wrong": (
        "start with easier tasks, or fine-tune on some solutions first",
        "sample larger groups",
    ),
    "all_right": ("take harder tasks", "stop: these have nothing left to teach"),
    "no_diversity": ("sample at temperature 1 without top-k, each sample with a seed of its own",),
    "group_too_small": ("sample 8 to 16 completions a prompt, or take a baseline that needs no group",),
    "wrong_groups": ("give all samples of one prompt, and no others, the same group id",),
    "advantage_sign": (
        "overfit one batch at a tenth of the learning rate: its reward must rise",
        "keep rewards and rows in one order from scoring to the loss",
    ),
    "logprob_shift": (
        "train on the sampled token ids; never tokenise the text again",
        "compare ids and log-probs of one row on both sides, position by position",
    ),
    "stale_sampler": (
        "compare a checksum of the weights on both sides after each delivery",
        "with LoRA: merge the adapter before delivery, or load it in the sampler",
    ),
    "sampler_mismatch": (
        "use one dtype and one temperature on both sides, and sample without top-p and top-k",
        "weight tokens by truncated importance sampling",
    ),
    "too_off_policy": (
        "take fewer updates on each batch, or a smaller learning rate",
        "clip the ratio of the whole sequence (GSPO)",
    ),
    "lr_too_low": ("raise the learning rate tenfold until entropy or KL move", "shorten the warm-up"),
    "weights_do_not_move": (
        "print the share of weights that one step changes",
        "check requires_grad, the bound of the gradient norm, and that the optimiser's weights are float32",
    ),
    "kl_too_high": ("set the KL coefficient to 0, or at most 0.01",),
    "lr_too_high": (
        "divide the learning rate by 10, with a warm-up; go on from a checkpoint before the collapse",
        "clip the gradient norm at 0.2",
    ),
    "non_finite": (
        "divide the learning rate by 10; use bfloat16 where it is float16",
        "look at rewards and log-probs of the first batch that was not finite",
    ),
    "entropy_collapse": (
        "go on from before the collapse with a smaller learning rate",
        "raise the upper clip to 0.28",
        "add an entropy bonus",
    ),
    "length_hack": (
        "take length out of the reward",
        "charge for length in the reward",
        "average the loss without dividing by each completion's length",
    ),
    "length_collapse": ("pay for brevity only where the answer is right, and less",),
    "judge_hacked": (
        "read what the judge is shown and what it answers, on the attempts that it credits and the others reject",
        "ask several judges with different rubrics and models, and keep one that is never paid",
    ),
    "component_dominates": (
        "lower that component's weight, or pay it only where the answer is right",
        "normalise each component by itself",
    ),
    "kl_runaway": ("divide the learning rate by 3, and add a KL term; renew its reference from time to time",),
    "memorising": ("add prompts, or pass over them fewer times", "keep the checkpoint of the best evaluation"),
    "blind_policy": (
        "train and evaluate on questions that the text alone does not answer, and compare with blank pictures",
        "look at what the model is shown: is the picture there, at a resolution at which the answer can be read?",
    ),
    "duplicate_prompts": ("add prompts; remove repeated rows",),
    "eval_leak": ("split by prompt, after normalising spaces and case",),
    "eval_too_small": ("evaluate on more tasks, or sample each several times",),
    "resume_discontinuity": ("save and load optimiser, scheduler and step number with the weights",),
    "tool_failures": (
        "put the tools' schema into the prompt, and return the error's text to the model",
        "take a little reward off for calls that can't be read",
    ),
    "slow_tail": ("lower the length limit, with a penalty near it", "sample asynchronously"),
}
