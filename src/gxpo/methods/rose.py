r"""ROSE: tree rollouts branched at uncertain tokens; advantages are value differences between branch points.

A(tokens from branch point j to j + 1) = V(j + 1) - V(j), and R - V of the last point for the rest;
V(j) = mean outcome of the answers through point j. 8 answers: with probability 0.5 a new one begins at the prompt, else
at the token of largest -log p so far. Loss: the sum over an answer's tokens over the longest length.

Choices. The paper branches where likely tokens differ most in meaning: -(|sum p_i e_i|^2 - sum p_i^2) H over the top 20
tokens and their embeddings e. Engines return the sampled token's log-prob alone, so its -log p is used instead: a
branch is uncertain here, not known to be diverse. A token is branched at once; the code, which retires none, returns to
the same point until a new answer has a larger value. V belongs to the point of the tree; the code pools points of a
prompt at equal positions (`credit.keyed_by: position`). The length penalty is off, as in the script:
`credit.length_power`. There an answer also has its parent's branch point where it left the parent before that point;
here only points that it came through. The script also drops groups of equal outcomes; here they are left in, at 0.
"""

from gxpo.algorithms.credit.value_delta import ValueDelta
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.tree import Tree

rose = Definition(
    name="rose",
    doc=__doc__,
    title="Reinforced Efficient Reasoning via Semantically Diverse Exploration",
    arxiv="2601.05053",
    authors="Zhao, Ziqi and Ren, Zhaochun and Zou, Jiahong and Yang, Liu and Xu, Zhiwei and Ge, Xuri and "
    "Chen, Zhumin and Ma, Xinyu and Shi, Daiting and Wang, Shuaiqiang and Yin, Dawei and Xin, Xin",
    year=2026,
    formula="A = V(next branch point) - V(branch point), R - V(last) at the end; V the mean outcome through a point",
    evidence="reference-code",
    keys={
        "credit": ValueDelta,
        "credit.value": "branch_points",
        "rollout": Tree,
        "rollout.where": "surprisal",
        "rollout.trees": 1,
        "rollout.rounds": 7,
        "rollout.expansions": 1,
        "rollout.explore": 0.5,
        "objective.aggregate": "sequence_sum",
    },
    paper_defaults={"objective.kl.coef": 1e-3, "optim.lr": 1e-6},
    cost="a sampling call for each of 8 answers of a prompt; their prefixes are shared",
    code="ZiqiZhao1/ROSE-rl@2142dc79ceabea43e195dc64b54e150c7b228a4b verl/trainer/ppo/core_algos.py "
    "verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py example.sh",
)
