"""`unchecked`: sicknesses that could not be looked for, why, and the line of that trainer that would enable it."""

from __future__ import annotations

from gxpo.doctor.case import Case
from gxpo.doctor.finding import Unchecked
from gxpo.doctor.sickness import SICKNESSES

WHAT = {
    "rollouts": "no completions were found",
    "references": "no reference answers stand beside the completions",
    "entropy": "no entropy was logged",
    "kl": "no KL to the reference was logged",
    "truncated": "no share of cut completions was logged",
    "clip_fraction": "no clip share was logged",
    "gap_mean": "no difference of sampler and learner was logged",
    "eval/accuracy": "there are fewer than two evaluations",
    "component/NAME": "the reward has no named components",
    "lr": "no learning rate was logged",
    "weights_crc": "nothing tells whether weights changed",
    "tool_failures": "no tool calls were logged",
    "seconds_sampling": "no times of sampling were logged",
    "advantage_min": "no advantages were logged",
    "zero_signal": "no share of silent groups was logged",
    "reward_std": "no spread of the reward within groups was logged",
}
LINES = {
    "trl": {
        "rollouts": "GRPOConfig(log_completions=True): completions/*.parquet",
        "references": "log_extra('answer', answers) in the reward function, with log_completions=True",
        "entropy": "TRL 0.20 or later logs entropy",
        "kl": "GRPOConfig(beta=1e-3) (at the price of a reference model)",
        "truncated": "TRL logs completions/clipped_ratio",
        "gap_mean": "use_vllm=True with vllm_importance_sampling_correction=True logs sampling/*",
        "eval/accuracy": "GRPOConfig(eval_strategy='steps', eval_steps=10) and an eval_dataset",
        "component/NAME": "reward_funcs=[correct, format]: one function for each aspect",
        "lr": "GRPOConfig(logging_steps=1)",
        "weights_crc": "callbacks=[gxpo.adapters.trl.Doctor()] watches the weights",
        "tool_failures": "GRPOTrainer(tools=[...]) logs tools/failure_frequency",
        "reward_std": "GRPOConfig(logging_steps=1)",
        "advantage_min": "GRPOConfig(log_completions=True)",
    },
    "verl": {
        "rollouts": "trainer.rollout_data_dir=DIR",
        "references": "trainer.rollout_data_dir=DIR with reward_model.ground_truth in the data",
        "entropy": "actor_rollout_ref.actor.calculate_entropy=True",
        "kl": "actor_rollout_ref.actor.use_kl_loss=True",
        "truncated": "trainer.logger=[console,file]",
        "gap_mean": "actor_rollout_ref.rollout.calculate_log_probs=True logs training/rollout_probs_diff_*",
        "eval/accuracy": "trainer.test_freq=10",
        "component/NAME": "return {'score': ..., NAME: ...} from compute_score, with trainer.rollout_data_dir=DIR",
        "lr": "trainer.logger=[console,file]",
        "weights_crc": "no setting; compare a checkpoint's parameters",
        "zero_signal": "trainer.rollout_data_dir=DIR",
    },
    "gxpo": {
        "rollouts": "trainer.rollouts_every=10",
        "references": "a run of this version notes the answers of its tasks; gxpo check-reward tries a reward on them",
        "kl": "objective.kl.coef above 0",
        "eval/accuracy": "eval.every=10",
        "component/NAME": "a reward that gives named numbers",
        "clip_fraction": "update.epochs above 1",
        "gap_mean": "a run of this version writes sampler_gap_mean",
    },
}
ANY = {
    "rollouts": "keep the completions of some steps beside the metrics, with prompt, completion, reward and step",
    "references": "write the reference answer beside each completion",
}


def unchecked(case: Case) -> list[Unchecked]:
    """Every sickness none of whose sources the log has; none where nothing was read."""
    if not case.log.read:
        return []
    out = []
    for s in SICKNESSES.values():
        if not s.needs or any(_has(case, need) for need in s.needs):
            continue
        first = s.needs[0]
        line = LINES.get(case.log.source, {}).get(first) or ANY.get(first) or f"log {first.replace('_', ' ')}"
        out.append(Unchecked(s.id, WHAT.get(first, f"no {first} was logged"), line))
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
    return need in case.log
