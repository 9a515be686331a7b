r"""Search-R2: actor and refiner: cut the attempt at its first flawed step, then regenerate the rest.

y ~ pi; the refiner accepts y or names step k; y' = y_{<k} + suffix, suffix ~ pi(. | q, y_{<k}); at most M times
R = R_out (1 + R_proc); A as in GRPO over the final trajectories, shared by the actor's and the refiner's tokens, each
with the log-prob under which its author wrote it.

Choices. R, A and M = 1 are the paper's (eq. 1, 2; it tries M up to 4, with groups of 5 and 4 turns of search). Its
discriminator accepts where its probability reaches a threshold, and a trimmer, called again, names the step: here both
are one turn, the refiner answers with a step's number, 0 accepts; what can't be read accepts. Steps end with
`rollout.delimiter`. A policy too small to write a step's number can cut at a random step (`rollout.where=uniform`) or
at its least probable one (`low_probability`): both are ours, and cut always. R_proc, the share of retrieved chunks that
a judge finds useful, needs that judge: `search_r2@paper` adds `reward.shape.process`, which reads component "process"
of your reward; without it R = R_out. In an environment the steps are turns. Held-out tasks are attempted by the actor
alone.
"""

from gxpo.environments.rewards.shape import Shape
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.cut_and_regenerate import CutAndRegenerate

search_r2 = Definition(
    name="search_r2",
    doc=__doc__,
    title="Search-R2: Enhancing Search-Integrated Reasoning via Actor-Refiner Collaboration",
    arxiv="2602.03647",
    authors="He, Bowei and Hu, Minda and Xu, Zenan and Wang, Hongru and Zong, Licheng and Chen, Yankai and Ma, Chen "
    "and Liu, Xue and Zhou, Pluto and King, Irwin",
    year=2026,
    formula="y' = y_{<k} + suffix, k from the refiner; R = R_out (1 + R_proc); A as GRPO for actor and refiner tokens",
    evidence="paper",
    keys={"rollout": CutAndRegenerate},
    paper_defaults={
        "reward.shape.process": Shape,
        "reward.shape.process.function": "process_bonus",
        "rollout.group_size": 5,
    },
    cost="a refiner's turn for each attempt, and a suffix for each that is cut: cut attempts are charged as discarded",
)
