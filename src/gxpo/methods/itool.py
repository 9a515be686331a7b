r"""iTool: rounds of tree search on the policy's own tasks, and SimPO on the pairs of attempts that it finds.

warm-up: -log pi of right attempts;   repeat: attempts by MCTS, SimPO on (highest, lowest) outcome of a tree

Choices. Known by summaries alone. The warm-up there is supervised, from easy to hard data; here the policy imitates its
own right attempts (`rollout: logged` reads a data set). Outcomes are the run's reward: `reward.step.matched_calls` and
the matching rewards grade a call by name, arguments and values as the paper does. Pairs are of whole attempts, which
share the tree's prefixes: in SimPO's means these do not cancel.
"""

from gxpo.definition import Definition

_IMITATE = {"objective": "positive_likelihood", "objective.coef": 1.0}

itool = Definition(
    name="itool",
    doc=__doc__,
    title="iTool: Boosting Tool Use of Large Language Models via Iterative Reinforced Fine-Tuning",
    arxiv="2501.09766",
    authors="Zeng, Yirong and Ding, Xiao and Wang, Yuxian and others",
    year=2025,
    formula="imitation of right attempts, then (MCTS, SimPO on its best and worst) x 2",
    evidence="secondary",
    keys={
        "phases": [
            {"method": "grpo", **_IMITATE},
            {"repeat": 2, "phases": [{"method": "simpo", "rollout": "search", "objective.pairs": "outcome"}]},
        ]
    },
    cost="a tree of attempts for each task",
)
