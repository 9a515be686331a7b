"""Methods that reward agreement between answers, without labels."""

from gxpo.parts.definition import Definition

ttrl = Definition(
    r"""TTRL: test-time RL with the majority vote as label; more rollouts vote than are trained.

    y = most frequent answer of the n_votes attempts (ties: first seen);   r_i = verify(o_i, y);
      A as in GRPO over the first G of them.

    Choices. Voting is by exact string, the reward by the task's verifier, as in the released code. A group without any
    answer has reward 0 throughout (the code raises); the released reward manager puts all rewards at the length of the
    group's last row, which is not copied. True answers, where tasks have them, are read for `success` and
    `vote_accuracy` alone, never for training. A confident wrong majority is learnt: watch `reward_vote_accuracy`.
    """,
    cite="zuo2025ttrl",
    evidence="reference-code",
    code="PRIME-RL/TTRL@3e2cc9376dc7486256f6021b37c4353d0e1abe2b verl/verl/workers/reward_manager/ttrl.py "
    "verl/verl/utils/reward_score/ttrl/auto_verify.py verl/examples/ttrl/aime.sh",
    keys={
        "rollout": "retry",
        "rollout.retry_if": "always",
        "rollout.retry_with": "voters",
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
)

empo = Definition(
    r"""EMPO: share of the group that gives an attempt's answer as reward, without labels.

    r_i = |cluster of answer i| / G where low <= H <= high, 0 in other groups;   A as in GRPO

    H is the entropy of the group's answers over ln G. The mean reward is the sum of squared shares: what is minimised
    is the collision entropy of the answers.

    Choices. Clusters by the task's verifier, the first answer seen represents its cluster, as in the code; an attempt
    without an answer earns 0 (verl code: 1 / G). low .1, high .9 are ours: the paper keeps prompts of middling entropy.
    Of the released code the TRL part pays where H is below its maximum, so unless all answers differ, and the verl part
    has a threshold on the largest share commented out (`scoring.options.majority_vote.gate`). The verl scripts minimise
    GSPO's loss, clipped at 3e-4 and 4e-4, the TRL recipes GRPO's without a KL, as here. Confidently wrong answers are
    learnt: watch `reward_vote_accuracy` and `eval_accuracy` beside `reward_agreement`.
    """,
    cite="zhang2025empo",
    evidence="reference-code",
    code="QingyangZhang/EMPO@582a07982348dc54b3ad7aa985e81a1becd06b29 "
    "verl-empo/verl/utils/reward_score/empo/compute_metrics.py trl/src/open_r1/rewards.py",
    keys={"reward": "majority_vote", "scoring.options": {"majority_vote": {"reward": "frequency", "gate": [0.1, 0.9]}}},
    paper_defaults={"rollout.group_size": 16, "optim.lr": 5e-7},
)

ttrv = Definition(
    r"""TTRV: share of the votes that give an attempt's answer as reward, at test time, without labels.

    r_i = |votes for answer i| / n_votes;   A as in GRPO over the first G of them

    Choices. From the code. It subtracts .75 times the entropy of the votes over the logarithm of the number of
    different answers. It is the same for all of a group, so that any baseline of the group cancels it: A is the same
    with and without (see the errata), and it is left out. Answers are compared as strings, and attempts without one
    share the answer "". `scoring.options.majority_vote.equality: verified` joins what the verifier takes for equal;
    `missing: apart` pays 0 where there is no answer. `scoring.options.majority_vote.pattern` says what an answer is:
    "(.+)" on `shapes`, where docs/vision.md has runs. The commit is by the paper's first author, in a fork of the
    paper's repository, which is not to be had.
    """,
    cite="singh2025ttrv",
    evidence="reference-code",
    code="dhimitriosduka1/TTRV@82726dbeb510a29c0e8d2d366b15b992f2a4b9a5 "
    "verl/verl/utils/reward_score/ttrl/ttt_metrics.py verl/verl/utils/reward_score/ttrl/auto_extract.py "
    "verl/examples/ttrv/run.sh",
    keys={
        "rollout": "retry",
        "rollout.retry_if": "always",
        "rollout.retry_with": "voters",
        "rollout.keep": "numbered",
        "reward": "majority_vote",
        "scoring.options": {"majority_vote": {"reward": "frequency", "equality": "equal", "missing": "together"}},
    },
    paper_defaults={"rollout.group_size": 16, "rollout.n_votes": 32, "optim.lr": 5e-7},
    cost="n_votes attempts are sampled for each group of G (twice as many by default)",
)

ps_grpo = Definition(
    r"""PS-GRPO (Con-RAG): similarity to the answers that other wordings of the question got, and F1 to the true one.

    r_ij = mean over wordings u other than i, answers m of BLEU(o_ij, o_um) + F1(o_ij, answer)

    Tasks that are one question in several wordings have one `same_as`, and are drawn in one step.

    Choices. All pairs, where the paper also samples some for speed. BLEU is not symmetric: the own answer is the
    hypothesis. F1 has weight 1, which is ours; without it (`scoring.weights: {consistency: 1}`) being consistently
    wrong is optimal. No retrieval: what is retrieved is part of the prompt.
    """,
    cite="hamman2025psgrpo",
    evidence="secondary",
    keys={
        "scoring.weights": {"consistency": 1.0, "match": 1.0},
        "scoring.options": {
            "consistency": {"metric": "bleu", "pattern": None},
            "match": {"metric": "f1", "pattern": None},
        },
    },
)
