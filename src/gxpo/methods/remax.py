r"""ReMax: the policy's most likely answer is the baseline of its samples.

A_i = r_i - r(greedy answer to the same prompt);   the same for every token, nothing is scaled

Choices. Read in ports. The paper has one sample a prompt (`remax@paper`); more are measured against the one greedy
answer, each on its own. The greedy answer is scored like any other and shaped like any other, but is not compared, not
trained and in no denominator. The loss is the base's: at one update a step its ratio is 1 and its gradient that of -A
log pi, which the paper sums over an answer's tokens (`objective.aggregate: sequence_sum`) where the base takes their
mean. Its KL in the reward is `objective.kl.place: reward`; the baseline has none subtracted. Groups of equal rewards
learn unless the greedy answer fared alike.
"""

from gxpo.credit.against_baseline import AgainstBaseline
from gxpo.keys import Definition
from gxpo.rollouts.with_baseline import WithBaseline
from gxpo.signals.rollout_baseline import RolloutBaseline

remax = Definition(
    name="remax",
    title="ReMax: A Simple, Effective, and Efficient Reinforcement Learning Method for Aligning Large Language Models",
    arxiv="2310.10505",
    authors="Li, Ziniu and Xu, Tian and Zhang, Yushun and Lin, Zhihang and Yu, Yang and Sun, Ruoyu and Luo, Zhi-Quan",
    year=2023,
    idea="the reward of the greedy answer is the baseline: no critic, no group",
    formula="A_i = r_i - r(argmax answer)",
    evidence="secondary",
    keys={
        "credit": AgainstBaseline,
        "rollout": WithBaseline,
        "rollout.temperature": 0.0,
        "signal.rollout_baseline": RolloutBaseline,
    },
    paper_defaults={"rollout.group_size": 1},
    choices="several samples share one greedy answer; base loss; KL, where set, is not in the baseline",
    cost="one more generated answer a prompt, which nothing is learned from",
)
