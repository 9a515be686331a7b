r"""DAPO: dynamic sampling, clip-higher, token mean and overlong reward shaping; no KL.

L = sum_{i,t} max(-A rho, -A clip(rho, 0.8, 1.28)) / number of tokens of the batch; A as in GRPO.
Rollout: groups whose verdicts are all equal are dropped and refilled (reads `success`, never the shaped reward).
Reward: + min(0, ((L_max - L_c) - |o|) / L_c), added after that filter.

Choices. No dual clip (the paper has none; the authors' recipe, which is verl's, sets c = 10). L_max is
sampling.max_new_tokens and L_c a fifth of it, the paper's proportion (4096 of 20480).
"""

from gxpo.environments.rewards import Overlong
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts import DynamicSampling

dapo = Definition(
    name="dapo",
    doc=__doc__,
    title="DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
    arxiv="2503.14476",
    authors="Yu, Qiying and Zhang, Zheng and Zhu, Ruofei and others",
    year=2025,
    formula="L = sum max(-A rho, -A clip(rho, 1 - 0.2, 1 + 0.28)) / tokens; r += overlong penalty",
    evidence="reference-code",
    keys={
        "objective.clip_high": 0.28,
        "objective.aggregate": "token_mean",
        "rollout": DynamicSampling,
        "reward.add.overlong": Overlong,
    },
    paper_defaults={"rollout.group_size": 16, "optim.lr": 1e-6, "tasks.per_step": 512},
    cost="dropped groups are sampled too: their tokens are charged",
    code="verl-project/verl-recipe@48ea0a797fa29867ea0ad92aff7d284eec7d4be3 dapo/dapo_ray_trainer.py "
    "dapo/run_dapo_qwen2.5_32b.sh",
)
