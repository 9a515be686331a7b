r"""NFT: negative-aware fine-tuning: likelihood on correct answers, an implicit negative policy on wrong ones.

Of a group with success rate q, old = q positive + (1 - q) negative; the policy is trained as the positive one:
success: l_t = -log rho_t;   failure: l_t = -log max((1 - q rho_t) / (1 - q), 1), the floor on the value alone
L = mean_i sum_t w(q) l_t / horizon,   w = 1 - q, q held in [0.02, 0.98]

On policy a failure's gradient is q / (1 - q) of a success's. With `objective.emphasis: root_odds`, w = sqrt((1 - q) /
q), that is GRPO with population std.

Choices. w = 1 - q as in the code's script for 7B models. The floor is 1: rho beyond 1 weighs q rho / (1 - q), without a
pole; below, a floor of 0.01 would let one token weigh a hundred times more. Ratios of tokens; the code has ratios of
sequences too. Its constant divisor, 1000, is `objective.horizon`, here the longest length unless set. Groups of equal
verdicts count in the mean; the script filters them. Advantages are not read.
"""

from gxpo.algorithms.objectives.sequence_losses import ImplicitNegative
from gxpo.parts.definition import Definition

nft = Definition(
    name="nft",
    doc=__doc__,
    title="Bridging Supervised Learning and Reinforcement Learning in Math Reasoning",
    arxiv="2505.18116",
    authors="Chen, Huayu and Zheng, Kaiwen and Zhang, Qinsheng and others",
    year=2025,
    formula="l = -log rho if right, else -log max((1 - q rho) / (1 - q), 1); L = mean_i sum_t (1 - q) l / horizon",
    evidence="reference-code",
    keys={"objective": ImplicitNegative},
    paper_defaults={"rollout.group_size": 16, "optim.lr": 1e-6, "objective.horizon": 1000.0},
    refuses={"objective.kl.place": ("reward",)},
    code="NVlabs/NFT@b358faeb691391b500bfdabe667f9450aab6e70f dp_actor.py train_7B.sh",
)
