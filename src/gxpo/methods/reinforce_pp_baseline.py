r"""REINFORCE++-baseline: group-mean baseline, then batch normalisation over all trainable tokens.

a_i = r_i - mean_g r;   A_{i,t} = (a_i - mean) / sqrt(var + 1e-8) over tokens of the batch

Choices. A group of one has a = 0, as `reinforce_baseline` has it in OpenRLHF, the authors' framework (verl keeps its
raw reward). OpenRLHF's population variance and its mean over the tokens of the optimiser step are
`reinforce_pp_baseline@paper`; here one degree of freedom is taken off, as in verl, and the mean is the base's. A
variance below 1e-8 is raised to it there, and has it added here.
"""

from gxpo.algorithms.credit.batch_whiten import batch_relative
from gxpo.parts.definition import Definition

reinforce_pp_baseline = Definition(
    name="reinforce_pp_baseline",
    doc=__doc__,
    title="REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage Normalization",
    arxiv="2501.03262",
    authors="Hu, Jian and Liu, Jason Klein and Xu, Haotian and Shen, Wei",
    year=2025,
    evidence="reference-code",
    code="OpenRLHF/OpenRLHF@3c3be6234e0cb353e76bb8019947db9dfe99fca7 openrlhf/trainer/ppo_utils/experience_maker.py "
    "openrlhf/models/loss.py openrlhf/models/utils.py",
    keys={"credit": batch_relative, "credit.center": "mean"},
    paper_defaults={"credit.ddof": 0, "objective.aggregate": "token_mean"},
)
