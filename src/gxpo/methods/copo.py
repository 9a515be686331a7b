r"""COPO: blend of within-group and between-group advantages, weighted by the entropy of the group's answers.

A = w A_in + (1 - w) A_between;   w = 1 / (1 + exp(-20 (H - 1.5))),  H = entropy of the group's answers in bits
A_in = GRPO's;   A_between = (R_g - mean R) / (std R + eps),  R_g = mean_g r, over the groups of the step

Choices. Logarithms to base 2, standard deviations of one degree of freedom, eps 1e-6 as in the authors' code; 20 and
1.5 are the paper's. Their `run_copo.sh` has 5 and 1 and measures failures between groups alone (`credit.steepness`,
`middle`, `failures: between`), other scripts 20 and 0.5 or 1; `credit.unit: nats` is what the paper's formula reads
like, and with 4 attempts H is then below log 4 = 1.39. They add two clipped losses with weights w and 1 - w; here the
advantages are added, which is the same wherever both have one sign or nothing is clipped. Their clip is dual (3).
Answers are compared as strings, an attempt without one is an answer of its own.
"""

from gxpo.algorithms.credit.consistency import consistency_blended
from gxpo.algorithms.signals.texts import answer_clusters
from gxpo.parts.definition import Definition

copo = Definition(
    name="copo",
    doc=__doc__,
    title="COPO: Consistency-Aware Policy Optimization",
    arxiv="2508.04138",
    authors="Han, Jinghang and Chen, Jiawei and Shao, Hang and Ma, Hao and Li, Mingcheng and Shen, Xintian and "
    "Zheng, Lihao and Chen, Wei and Wei, Tao and Zhang, Lihua",
    year=2025,
    formula="A = w A_GRPO + (1 - w)(mean_g r - mean)/std over groups, w = sigmoid(20 (H(answers) - 1.5))",
    evidence="reference-code",
    code="hijih/copo-code@f66883fb89271d4664bfdd9ca98acf6d28d3887b verl/trainer/ppo/core_algos.py",
    keys={"credit": consistency_blended, "signal.answer_clusters": answer_clusters},
    paper_defaults={"rollout.group_size": 6},
)
