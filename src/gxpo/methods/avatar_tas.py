r"""AVATAR: U-shaped token weights over the answer; replayed rollouts against the prompt's moving mean outcome.

w_t   = 1 + 0.3 (2 t - 1)^2, t from 0 to 1 along the answer; not divided out
fresh:    A = (R - mean_g) / std_g over the task's fresh rollouts
replayed: A = (R - mean of the task's newest 20 outcomes) / std over its replayed rollouts
L     = over fresh and replayed rows together, the ratio over the policy that sampled them

Choices. From an analysis with formulas. An answer of one token has t = 0 and weight 1.3. Replayed rollouts of equal
outcomes have no std and are not scaled, so that they teach where no group does. The paper's sequence ratio of replayed
rows is the token's here, as for fresh ones (`objective.ratio: sequence` has it for both); `rollout.coef` weighs
replayed rows. Not built: the buffer in tiers of easy, medium and hard prompts, from which prompts are drawn again (here
a task's rollouts come back when the task does), and hints where a hard prompt's policy stops exploring. The weight
alone: `grpo` with `weight.u_shape: u_shape`.
"""

from gxpo.algorithms.credit.baselines import replay_baseline
from gxpo.algorithms.signals.task_mean import TaskMean
from gxpo.algorithms.weighting.token_weight import TokenWeight
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.replay import Replay

avatar_tas = Definition(
    name="avatar_tas",
    doc=__doc__,
    title="AVATAR: Reinforcement Learning to See, Hear, and Reason Over Video",
    arxiv="2508.03100",
    authors="Kulkarni, Yogesh and Fazli, Pooyan",
    year=2025,
    formula="w_t = 1 + 0.3 (2 t - 1)^2; replayed: A = (R - mean of the newest 20 of q) / std of the replayed",
    evidence="secondary",
    keys={
        "rollout": Replay,
        "rollout.choice": "random",
        "credit": replay_baseline,
        "signal.newest_mean": TaskMean,
        "signal.newest_mean.prior": 0.0,
        "signal.newest_mean.window": 20,
        "weight.u_shape": TokenWeight,
        "weight.u_shape.by": "position",
        "weight.u_shape.keep": "u_shape",
        "objective.ratio_over": "behaviour",
    },
    paper_defaults={"rollout.group_size": 4, "rollout.replays": 4, "rollout.min_stored": 4},
    cost="K more trajectories a task in the update; about 70 bytes of memory for every stored token",
)
