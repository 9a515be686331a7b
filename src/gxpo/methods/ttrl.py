r"""TTRL: test-time RL with the majority vote as label; more rollouts vote than are trained.

y = most frequent answer of the n_votes attempts (ties: first seen);   r_i = verify(o_i, y);   A as in GRPO over the
first G of them.

Choices. Voting is by exact string, the reward by the task's verifier, as in the released code. A group without any
answer has reward 0 throughout (the code raises); the released reward manager puts all rewards at the length of the
group's last row, which is not copied. True answers, where tasks have them, are read for `success` and `vote_accuracy`
alone, never for training. A confident wrong majority is learnt: watch `reward_vote_accuracy`.
"""

from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.again import Again

ttrl = Definition(
    name="ttrl",
    doc=__doc__,
    title="TTRL: Test-Time Reinforcement Learning",
    arxiv="2504.16084",
    authors="Zuo, Yuxin and Zhang, Kaiyan and Qu, Shang and others",
    year=2025,
    formula="y = argmax_a #{i: a_i = a} over n_votes; r_i = verify(o_i, y); A as in GRPO over the first G",
    evidence="reference-code",
    keys={
        "rollout": Again,
        "rollout.when": "always",
        "rollout.how": "voters",
        "rollout.keep": "numbered",
        "reward": "majority_vote",
    },
    paper_defaults={
        "rollout.group_size": 32,
        "rollout.n_votes": 64,
        "tasks.per_step": 8,
        "update.minibatches": 8,
        "optim.lr": 5e-7,
        "objective.kl.coef": 1e-3,
    },
    cost="n_votes attempts are sampled for each group of G (twice as many by default)",
    code="PRIME-RL/TTRL@3e2cc9376dc7486256f6021b37c4353d0e1abe2b verl/verl/workers/reward_manager/ttrl.py "
    "verl/verl/utils/reward_score/ttrl/auto_verify.py verl/examples/ttrl/aime.sh",
)
