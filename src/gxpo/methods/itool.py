r"""iTool: rounds of tree search on the policy's own tasks, and SimPO on the pairs that its nodes give.

warm-up: mean over tokens of right attempts of -log policy
repeat: a tree by MCTS, 3 steps from a node; SimPO, beta 2.5, gamma 0.5, on (best, worst) child of every node whose q
differ by 0.1 and more

Choices. From the authors' code, for what repeats: it draws the 30 % of the data that the policy finds hardest, by the
perplexity of the given answers, searches for 5 iterations, 3 steps deep, at temperature 1.5, and trains on pairs from
all nodes. Here all tasks are searched (`tasks.sampler: keep_hardest`, `tasks.sampler.shares: [0.3]` leaves those of
the lowest success rates), and attempts go on to their ends, whose verdicts +-1 make a node's q, a mean; there a value
is a sum of scores: of a call's form (+-.1), of the words that it shares with the right one, and of the policy's own
mark. Left out: pairs whose texts share over 95 % of their words, or whose better value is below -.3. The warm-up is
not in that code: in the paper it is supervised, from easy to hard data; here the policy imitates those of its
attempts whose outcome is 1 and more (`rollout: logged` reads a data set). Outcomes are the run's reward:
`reward.step.matched_calls` and the matching rewards grade a call by name, arguments and values.
"""

from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.search import Search

_IMITATE = {
    "credit.center": "none",
    "credit.scale": "none",
    "objective": "positive_likelihood",
    "objective.coef": 1.0,
    "objective.threshold": 0.99,
}
_PAIRS = {
    "rollout": Search,
    "rollout.width": 3,
    "rollout.values": "mean",
    "rollout.backup": "all",
    "rollout.following": "root",
    "rollout.trains": "siblings",
    "objective.beta": 2.5,
    "objective.pairs": "outcome",
    "objective.least_gap": 0.1,
}

itool = Definition(
    name="itool",
    doc=__doc__,
    title="iTool: Boosting Tool Use of Large Language Models via Iterative Reinforced Fine-Tuning",
    arxiv="2501.09766",
    authors="Zeng, Yirong and Ding, Xiao and Wang, Yuxian and others",
    year=2025,
    formula="imitation of right attempts, then (MCTS, SimPO on its nodes' best and worst children) x 2",
    evidence="reference-code",
    code="zeng-yirong/iTool@871eceb4d4cdec56139fbb450f21ab01250b7aa3 mcts/main.py mcts/mcts_vllm.py mcts/utils.py "
    "mcts/run_mcts_dpo.sh mcts/dpo_train.py",
    keys={
        "phases": [
            {"method": "grpo", **_IMITATE},
            {"repeat": 2, "phases": [{"method": "simpo", **_PAIRS}]},
        ]
    },
    cost="a tree of attempts for each task",
)
