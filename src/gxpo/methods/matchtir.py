r"""MatchTIR: turn rewards by bipartite matching of tool calls with a reference; outcome and turn-level advantages.

S(p, g) = [same tool] (1 + J(argument names) + #equal arguments) / (2 + #arguments of g);   one-to-one matching of calls
r_t     = mean of S over the turn's calls, 0 for a call without a partner; of an answering turn, F1 of the sets of words
A       = (z_g(sum_t r_t) + z_t(D_t)) / 2;   D_t = r_t + 0.9 D_{t+1}, z_t over the group's turns of the same number

Choices. The matching is optimal, as the paper says; the function called Hungarian in its code takes the largest pair
first (`reward.step.matched_calls.matching: greedy`; soft: `sinkhorn`). Alone at a number, a turn has 0 there; the code
gives it D_t itself, which pays the longest attempt for length (`credit.singleton: raw`). As in the code, words have no
punctuation, names of tools no case, and calls of an answering turn take part in no matching. The sum of the turns'
rewards is what trajectories are compared by: more right calls earn more, whatever the answer. The script's KL .001 and
entropy bonus .001 are in `@paper`; verl's dual clip at 3 is left out. Needs an environment that names the reference's
calls, as toolqa.
"""

from gxpo.algorithms.credit import Relative
from gxpo.environments.rewards.matched_calls import MatchedCalls
from gxpo.parts.definition import Definition

matchtir = Definition(
    name="matchtir",
    doc=__doc__,
    title="MatchTIR: Fine-Grained Supervision for Tool-Integrated Reasoning via Bipartite Matching",
    arxiv="2601.10712",
    authors="Qu, Changle and Dai, Sunhao and Cai, Hengyi and Xu, Jun and Wang, Shuaiqiang and Yin, Dawei",
    year=2026,
    formula="A = (z_g(sum_t r_t) + z_t(r_t + 0.9 D_{t+1})) / 2, r_t the mean likeness of the turn's matched calls",
    evidence="reference-code",
    keys={
        "credit": Relative,
        "credit.value": "turn_rewards",
        "credit.weight": 0.5,
        "credit.add.turn": Relative,
        "credit.add.turn.value": "return",
        "credit.add.turn.among": ("turn",),
        "credit.add.turn.discount": 0.9,
        "credit.add.turn.weight": 0.5,
        "reward.step.matched_calls": MatchedCalls,
    },
    paper_defaults={
        "objective.kl.coef": 0.001,
        "objective.entropy.coef": 0.001,
        "rollout.group_size": 16,
        "optim.lr": 1e-6,
    },
    code="quchangle1/MatchTIR@f614ce1 Code/verl/utils/reward_score/tool.py Code/verl/trainer/ppo/core_algos.py "
    "Scripts/run.sh",
)
