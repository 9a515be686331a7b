r"""GPPO: gradient-preserving clip: tokens beyond the clip range keep a bounded gradient.

held above: l = -A (1 + e) rho / stop(rho);   held below: l = -A (1 - e) rho / stop(rho);   else -A min(rho, c if A < 0)
The value is PPO's. A rewarded token that has gone up far enough is still pushed, at the bound's weight; a punished one
far below is pushed with 1 - e, more than its ratio. Beyond c, the dual clip, a punished token has no gradient.

CE-GPPO (arXiv 2509.20712) multiplies the two by factors: `{"objective.slope_low": 0.75}`; both 0 is PPO's gradient.
Choices. c = 3, the code's default since its commit e0f7bb1, before which c was always 1; its scripts have 10 and clip
above at 0.28 (`gppo@paper`), and `objective.ratio_max: .inf` is none. Which tokens are clipped follows PPO's rule,
before the factors: the maximum of the two scaled terms would not clip a token between 0.75 (1 - e) and 1 - e. The
factors scale the value, too. Token mean. At the last commit the loss by this name stops at a name that is not defined;
the general one, with factors of 1, is the same.
"""

from gxpo.algorithms.objectives.surrogate_clips import preserving_clip
from gxpo.parts.definition import Definition

gppo = Definition(
    name="gppo",
    doc=__doc__,
    title="Klear-Reasoner: Advancing Reasoning Capability via Gradient-Preserving Clipping Policy Optimization",
    arxiv="2508.07629",
    authors="Su, Zhenpeng and Pan, Leiyu and Bai, Xue and others",
    year=2025,
    formula="l = max(-A rho, -A b rho / stop(rho)), b = clip(rho, 1 - e, 1 + e); for A < 0 at most -A c",
    evidence="reference-code",
    code="Kwai-Klear/KlearReasoner@3422f6d36a8251cb1c86a7b943c7c815850864fd verl/trainer/ppo/core_algos.py "
    "verl/workers/actor/dp_actor.py verl/trainer/config/ppo_trainer.yaml recipe/dapo/perf_run_dapo_ours_math.sh",
    keys={"objective.surrogate": preserving_clip, "objective.aggregate": "token_mean"},
    paper_defaults={
        "objective.clip_high": 0.28,
        "objective.ratio_max": 10.0,
        "rollout.group_size": 8,
        "tasks.per_step": 128,
        "update.minibatches": 8,
        "optim.lr": 1e-6,
    },
)
