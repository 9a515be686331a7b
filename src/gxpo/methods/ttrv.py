r"""TTRV: share of the votes that give an attempt's answer as reward, at test time, without labels.

r_i = |votes for answer i| / n_votes;   A as in GRPO over the first G of them

Choices. From the code. It subtracts .75 times the entropy of the votes over the logarithm of the number of different
answers. It is the same for all of a group, so that any baseline of the group cancels it: A is the same with and without
(see the errata), and it is left out. Answers are compared as strings, and attempts without one share the answer "".
`scoring.options.majority_vote.alike: verified` joins what the verifier takes for equal; `missing: apart` pays 0 where
there is no answer. `scoring.options.majority_vote.pattern` says what an answer is: "(.+)" on `shapes`, where
docs/vision.md has runs. The commit is by the paper's first author, in a fork of the paper's repository, which is not
to be had.
"""

from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.again import Again

ttrv = Definition(
    name="ttrv",
    doc=__doc__,
    title="TTRV: Test-Time Reinforcement Learning for Vision Language Models",
    arxiv="2510.06783",
    authors="Singh, Akshit and Marjit, Shyam and Lin, Wei and others",
    year=2025,
    evidence="reference-code",
    code="dhimitriosduka1/TTRV@82726dbeb510a29c0e8d2d366b15b992f2a4b9a5 "
    "verl/verl/utils/reward_score/ttrl/ttt_metrics.py verl/verl/utils/reward_score/ttrl/auto_extract.py "
    "verl/examples/ttrv/run.sh",
    keys={
        "rollout": Again,
        "rollout.when": "always",
        "rollout.how": "voters",
        "rollout.keep": "numbered",
        "reward": "majority_vote",
        "scoring.options": {"majority_vote": {"reward": "frequency", "alike": "equal", "missing": "together"}},
    },
    paper_defaults={"rollout.group_size": 16, "rollout.n_votes": 32, "optim.lr": 5e-7},
    cost="n_votes attempts are sampled for each group of G (twice as many by default)",
)
