r"""THOR: episode-level GRPO, step-level GRPO on regenerated failing tool calls, and imitation of positive tokens.

L = L_episodes + L_steps + 0.01 mean_{t: A_t > 0} -log pi(t)
steps: an episode's failing call, cut before the call, is sampled again n times; r_j = 1 where it can be carried out,
A_j = (r_j - mean) / (std + eps) over the n, on the regenerated tokens

Choices. As the code: the groups of steps are a batch with the episodes, so both are in one mean; the cut drops the last
100 tokens of the failing action. Not followed: the prefix is not tokenised again; where no call failed there is no
second group (the code takes one random episode); n is 8, the code's 16, with its clip of 0.28, dual clip 3 and token
mean, is `thor@paper`. A failing call is an action that the environment calls malformed or illegal; the first of an
episode is taken. The paper's correction of failed calls at inference is no training and is left out.
"""

from gxpo.algorithms.objectives.positive_likelihood import PositiveLikelihood
from gxpo.algorithms.objectives.surrogate import DualClip
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.regenerate import Regenerate

thor = Definition(
    name="thor",
    doc=__doc__,
    title="THOR: Tool-Integrated Hierarchical Optimization via RL for Mathematical Reasoning",
    arxiv="2509.13761",
    authors="Chang, Qikai and Zhang, Zhenrong and Hu, Pengfei and Du, Jun and Ma, Jiefeng and Pan, Yicheng and "
    "Zhang, Jianshu and Liu, Quan and Gao, Jianqing",
    year=2025,
    formula="L = GRPO over episodes + GRPO over rewritten failing steps (r = it works) + 0.01 mean_{A > 0} -log pi",
    evidence="reference-code",
    keys={"rollout": Regenerate, "objective.add.positive": PositiveLikelihood},
    paper_defaults={
        "rollout.group_size": 16,
        "rollout.samples": 16,
        "objective.surrogate": DualClip,
        "objective.clip_high": 0.28,
        "objective.aggregate": "token_mean",
    },
    cost="`samples` more actions for as many failed episodes as there are tasks",
    code="JingMog/THOR@eeabad026970a96fb20851a1e89d3a1509590ac2 verl/workers/actor/dp_actor.py "
    "verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py run_code_grpo.sh",
)
