r"""EMPO: share of the group that gives an attempt's answer as reward, without labels.

r_i = |cluster of answer i| / G where low <= H <= high, 0 in other groups;   A as in GRPO

H is the entropy of the group's answers over ln G. The mean reward is the sum of squared shares: what is minimised is
the collision entropy of the answers.
Choices. Clusters by the task's verifier, the first answer seen represents its cluster, as in the code; an attempt
without an answer earns 0 (verl code: 1 / G). low .1, high .9 are ours: the paper keeps prompts of middling entropy. Of
the released code the TRL part pays where H is below its maximum, so unless all answers differ, and the verl part has a
threshold on the largest share commented out (`scoring.options.majority_vote.gate`). The verl scripts minimise GSPO's
loss, clipped at 3e-4 and 4e-4, the TRL recipes GRPO's without a KL, as here. Confidently wrong answers are learnt:
watch `reward_vote_accuracy` and `eval_accuracy` beside `reward_agreement`.
"""

from gxpo.parts.definition import Definition

empo = Definition(
    name="empo",
    doc=__doc__,
    title="Right Question is Already Half the Answer: Fully Unsupervised LLM Reasoning Incentivization",
    arxiv="2504.05812",
    authors="Zhang, Qingyang and Wu, Haitao and Zhang, Changqing and Zhao, Peilin and Bian, Yatao",
    year=2025,
    evidence="reference-code",
    keys={
        "reward": "majority_vote",
        "scoring.options": {"majority_vote": {"reward": "frequency", "gate": [0.1, 0.9]}},
    },
    paper_defaults={"rollout.group_size": 16, "optim.lr": 5e-7},
    code="QingyangZhang/EMPO@582a07982348dc54b3ad7aa985e81a1becd06b29 "
    "verl-empo/verl/utils/reward_score/empo/compute_metrics.py trl/src/open_r1/rewards.py",
)
