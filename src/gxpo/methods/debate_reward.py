r"""Debate reward: an opponent argues against each answer, and a frozen judge's verdict is part of the reward.

r = (1 - lambda) r_env + lambda 1[judge prefers the case for the answer];   lambda 0.25;   A as in GRPO

Choices. Two roles speak: the policy answers with its evidence, and the opponent, which stays the model that the run
starts from (`rollout.frozen`, so set learner.lora_rank), argues for another answer; their texts are the two cases,
asked in both orders, a tie counting 0 as in the code (`scoring.options.judge.tie`; default changed on 2026-11-28, it
was 0.5). Both are shown the task's prompt first, whatever it asks for, and then our sentence. In the code the cases are
sets of a state's features in favour of two treatments, both debaters are trained before the policy, a DQN on recorded
patients whose rewards are multiplied by 15 and the debate's by 10, and the judge is a network trained on preferences;
here it is whoever `scoring.options.judge` names. lambda is the weight of judge in `scoring.weights`. r_env is the
verdict, 0 or 1. Other teams: `rollout.graph=FILE.py:NAME` with `cases`.
"""

from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.team import Team

debate_reward = Definition(
    name="debate_reward",
    doc=__doc__,
    title="Reward Design for Justifiable Sequential Decision-Making",
    arxiv="2402.15826",
    authors="Sukovic, Aleksa and Radanovic, Goran",
    year=2024,
    evidence="reference-code",
    code="aleksa-sukovic/iclr2024-reward-design-for-justifiable-rl@f3740902578497ea4726f20ed2b930e21ea80aec "
    "argo/datasets/sepsis.py argo/library/evaluation.py argo/scripts/protagonist.py",
    keys={
        "rollout": Team,
        "rollout.graph": "debate",
        "rollout.frozen": ["opponent"],
        "scoring.weights": {"correct": 0.75, "judge": 0.25},
        "scoring.options": {"judge": {"mode": "debate", "tie": 0.0}},
    },
    cost="the opponent's action and two questions to the judge for each attempt",
)
