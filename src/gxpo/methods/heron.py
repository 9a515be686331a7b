r"""HERON: rewards by a hierarchy of factors: attempts are compared at the first factor that tells them apart.

i beats j at the first factor k with R_ik > R_jk + m sigma_k;   r_i = share of the group that i beats, a tie half;   A
as in GRPO

Choices. The factors are the judges of `scoring.options.judge.panel`, in the order of their importance; sigma_k over the
step's attempts (n - 1), m = `scoring.options.judge.margin`. The code trains a Bradley-Terry reward model on pairs drawn
at random; here the share of pairs won is the reward, and `objective=preference_pairs` with `objective.pairs=outcome`
trains on the pairs. The code's third and fourth factor take the second one's m; here each has the same m. The order is
not transitive where m > 0: a beats b, b beats c and c beats a can hold at once, and each then has the same share.
"""

from gxpo.parts.definition import Definition

heron = Definition(
    name="heron",
    doc=__doc__,
    title="Deep Reinforcement Learning from Hierarchical Weak Preference Feedback",
    arxiv="2309.02632",
    authors="Bukharin, Alexander and Li, Yixiao and He, Pengcheng and Zhao, Tuo",
    year=2023,
    evidence="reference-code",
    code="abukharin3/HERON@677beb54e2fbf576575a8f582d9e7d6e37f19712 robots/stable_baselines3/ppo/heron.py",
    keys={"reward": "judge", "scoring.options": {"judge": {"combine": "lexicographic"}}},
    cost="an answer of each judge of the panel for each attempt",
)
