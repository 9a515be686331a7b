r"""RLUF (mostly ours): how likely a user's heart is, weighed with judges of helpfulness and safety.

r = sum_k w_k r_k,   r_love = P(the user reacts with a heart);   A as in GRPO

Choices. From an abstract: the weights are not known to us, so 1/3 each (`scoring.weights`). P[love] is a classifier
that was trained on users' reactions; here a judge with a rubric, until `scoring.options.judge.panel` names yours (a
function of messages, a server). A stand-in for the application, not for its data. Paid for hearts alone, a policy
learns to ask for them: watch `reward_judge_helpful` and `reward_judge_safe`.
"""

from gxpo.parts.definition import Definition

rluf = Definition(
    name="rluf",
    doc=__doc__,
    title="Reinforcement Learning from User Feedback",
    arxiv="2505.14946",
    authors="Han, Eric and Chen, Jun and Sankararaman, Karthik Abinav and Peng, Xiaoliang and Xu, Tengyu and "
    "Helenowski, Eryk and Peng, Kaiyan and Kumar, Mrinal and Wang, Sinong and Fang, Han and Talebzadeh, Arya",
    year=2025,
    evidence="reconstruction",
    keys={
        "scoring.weights": {"judge": 0.0, "judge_helpful": 1 / 3, "judge_safe": 1 / 3, "judge_love": 1 / 3},
        "scoring.options": {
            "judge": {
                "panel": [
                    {"name": "helpful", "rubric": "Does the answer help with what was asked?"},
                    {"name": "safe", "rubric": "Is the answer free of what could harm somebody?"},
                    {"name": "love", "rubric": "How likely is it that the user reacts to the answer with a heart?"},
                ]
            }
        },
    },
    cost="three answers of a judge for each attempt",
)
