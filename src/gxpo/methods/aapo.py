r"""AAPO: group advantage plus the clipped reward gap to the reference model (advantage momentum); no ratio, no clip.

A_i = (r_i - mean) / (std + eps) + clip(r_i - r'_i, -0.2, 0.28), r'_i of the i-th of G answers of the reference
L   = - sum_it A_i log pi(o_it) / tokens

Choices. As in the authors' code; "momentum" is its word for the gap, nothing is carried over from step to step. The
loss is -A rho without a bound, whose gradient is that of -A log pi as long as a step has one update (rho = 1). Sampling
from the reference takes adapters (`learner.lora_rank`). Its configuration sets a KL coefficient of 0.1 that the loss
does not read: there is none here. eps is 1e-4 in the code (`aapo@paper`). An answer whose partner could not be scored
has no gap. Groups of equal rewards learn where the reference's rewards differ.
"""

from gxpo.algorithms.credit.bonus import Bonus
from gxpo.algorithms.objectives.surrogate import unclipped
from gxpo.algorithms.signals.rollout_baseline import rollout_baseline
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.baseline import BaselineRollouts

aapo = Definition(
    name="aapo",
    doc=__doc__,
    title="AAPO: Enhance the Reasoning Capabilities of LLMs with Advantage Momentum",
    arxiv="2505.14264",
    authors="Xiong, Jian and Zhou, Jingbo and Ye, Jingyong and Huang, Qiang and Dou, Dejing",
    year=2025,
    formula="A_i = (r_i - mean) / std + clip(r_i - r'_i, -0.2, 0.28); L = -sum A log pi / tokens",
    evidence="reference-code",
    keys={
        "credit.add.clipped_gap": Bonus,
        "credit.add.clipped_gap.value": "gap",
        "credit.add.clipped_gap.low": -0.2,
        "credit.add.clipped_gap.high": 0.28,
        "rollout": BaselineRollouts,
        "rollout.of": "reference",
        "rollout.baselines": 0,
        "signal.rollout_baseline": rollout_baseline,
        "signal.rollout_baseline.paired": True,
        "objective.surrogate": unclipped,
        "objective.aggregate": "token_mean",
    },
    paper_defaults={"rollout.group_size": 6, "credit.eps": 1e-4, "optim.lr": 1e-6},
    cost="as many answers of the reference as of the policy: twice the generation; needs learner.lora_rank",
    code="JianxXiong/AAPO@b8aac37cf06d26c9308fa5f86e9e03eb085dc322 open-rs/trainer/AAPOTrainer.py "
    "open-rs/configs/AAPO.yaml",
)
