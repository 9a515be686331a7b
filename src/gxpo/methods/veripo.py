r"""VerIPO (mostly ours): GRPO, then DPO on pairs that a verifier makes of GRPO's own rollouts, in turns.

repeat: GRPO for n steps;   pairs (right, wrong) of these steps' groups;   DPO on them against the policy after GRPO

Choices. The authors have released no training code. Their verifier asks small models whether an answer's reasoning is
consistent with it and prefers long ones among these; here the run's verdict makes the pairs (a judge as a reward, and
`objective.pairs: outcome`, is its place). DPO reads what the phase before has sampled (`rollout.file: previous`), so
that it costs no sampling. Two turns; the four phases share `trainer.steps` equally.
"""

from gxpo.parts.definition import Definition

_PAIRS = {"rollout": "logged", "rollout.file": "previous", "reference": "previous"}

veripo = Definition(
    name="veripo",
    doc=__doc__,
    title="VerIPO: Cultivating Long Reasoning in Video-LLMs via Verifier-Guided Iterative Policy Optimization",
    arxiv="2505.19000",
    authors="Li, Yunxin and Chen, Xinyu and Li, Zitao and Liu, Zhenyu and Wang, Longyue and Luo, Wenhan and "
    "Hu, Baotian and Zhang, Min",
    year=2025,
    formula="(GRPO, then DPO on pairs of its rollouts by verdict) x 2",
    evidence="reconstruction",
    keys={
        "phases": [{"repeat": 2, "phases": [{"method": "grpo"}, {"method": "dpo", **_PAIRS}]}],
        "trainer.rollouts_every": 1,
    },
    cost="a frozen copy of the policy; the rollouts of every step on the disk",
)
