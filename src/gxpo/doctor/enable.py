"""`unchecked`: sicknesses that could not be looked for, why, and the line of that trainer that would enable it."""

from __future__ import annotations

from gxpo.doctor.case import Case
from gxpo.doctor.finding import Unchecked
from gxpo.doctor.sickness import SICKNESSES

WHAT = {
    "rollouts": "no completions were found",
    "references": "no reference answers beside the completions",
    "entropy": "no entropy was logged",
    "kl": "no KL to the reference was logged",
    "truncated": "the share of cut completions was not logged",
    "clip_fraction": "the share of clipped tokens was not logged",
    "gap_mean": "the gap between sampler and learner was not logged",
    "eval/accuracy": "fewer than two evaluations",
    "component/NAME": "only the total reward was logged",
    "lr": "no learning rate was logged",
    "loss": "neither loss nor gradient norm was logged",
    "weights_crc": "nothing tells whether weights changed",
    "zero_signal": "the share of zero-signal groups was not logged",
    "reward_std": "no spread of the reward was logged",
}
# What a user of the trainer can switch on. A sickness none of whose sources stands here is not listed: a run without
# tools has no failing calls, one without a KL term no KL that is too strong.
TRL = {
    "rollouts": "log_completions=True writes completions/*.parquet",
    "references": "log_extra('answer', answers) in the reward function, with log_completions=True",
    "entropy": "a newer TRL (1.16 logs entropy)",
    "kl": "beta=0.001 (loads a reference model)",
    "truncated": "a newer TRL (1.16 logs completions/clipped_ratio)",
    "gap_mean": "with use_vllm=True: vllm_importance_sampling_correction=True",
    "eval/accuracy": "eval_strategy='steps', eval_steps=10, and an eval_dataset",
    "component/NAME": "reward_funcs=[correct, well_formed]: a function for each aspect",
    "lr": "logging_steps=1",
    "loss": "logging_steps=1",
    "weights_crc": "callbacks=[gxpo.adapters.trl.Doctor()] looks at the weights",
    "reward_std": "logging_steps=1",
}
LINES = {
    "trl": TRL,
    "unsloth": {k: v for k, v in TRL.items() if "gxpo" not in v},
    "verl": {
        "rollouts": "trainer.rollout_data_dir=DIR",
        "references": "trainer.rollout_data_dir=DIR, with reward_model.ground_truth in the data",
        "entropy": "actor_rollout_ref.actor.calculate_entropy=True",
        "kl": "actor_rollout_ref.actor.use_kl_loss=True (loads a reference model)",
        "truncated": "trainer.logger=[console,file]",
        "clip_fraction": "trainer.logger=[console,file]",
        "gap_mean": "actor_rollout_ref.rollout.calculate_log_probs=True",
        "eval/accuracy": "trainer.test_freq=10",
        "component/NAME": "compute_score returns {'score': ..., NAME: ...}, with trainer.rollout_data_dir=DIR",
        "lr": "trainer.logger=[console,file]",
        "loss": "trainer.logger=[console,file]",
        "zero_signal": "trainer.rollout_data_dir=DIR",
    },
    "gxpo": {
        "rollouts": "trainer.rollouts_every=10",
        "references": "trainer.rollouts_every=10 with this version of gxpo, which records the tasks' answers",
        "kl": "objective.kl.coef=0.001 (loads a reference model)",
        "eval/accuracy": "eval.every=10",
        "component/NAME": "scoring.weights={correct: 1, well_formed: 0.2}: a reward for each aspect",
    },
}
ANY = {
    "rollouts": "keep the completions of some steps beside the metrics: prompt, completion, reward, step",
    "truncated": "log the share of completions that the length limit cut",
    "entropy": "log the mean entropy of the policy",
    "eval/accuracy": "evaluate on held-out prompts every few steps",
}
IN_FORCE = {"kl_too_high"}  # a term that is not logged is not in the loss


def unchecked(case: Case) -> list[Unchecked]:
    """Every sickness none of whose sources the log has and one of whose sources the user can switch on; none where
    nothing was read."""
    if not case.log.read:
        return []
    out = []
    lines = LINES.get(case.log.source, ANY)
    for s in SICKNESSES.values():
        if s.id in IN_FORCE or not s.needs or any(_has(case, need) for need in s.needs):
            continue
        need = next((n for n in s.needs if n in lines), None)
        if need is not None:
            out.append(Unchecked(s.id, WHAT[need], lines[need]))
    return out


def _has(case: Case, need: str) -> bool:
    if need == "rollouts":
        return case.rollouts is not None
    if need == "references":
        return case.rollouts is not None and any(r is not None for r in case.rollouts.reference)
    if need == "messages":
        return bool(case.log.messages)
    if need.endswith("/NAME"):
        return any(name.startswith(need.removesuffix("NAME")) for name in case.log.series)
    return need in case.log.series  # with values that are not finite, too: they are a finding
