r"""TempFlow-GRPO: branches at each denoising step of a flow model, weighted by the noise of the step.

From each initial noise the ODE's path; at each step k but the last, 6 branches take step k by the SDE and go on by the
ODE. Only the branched step is trained, and compared with the branches of the same step:

A_{i,k} = clamp((r_{i,k} - mean_k) / (std_k + 1e-4), -5, 5)      over the group's branches at step k, ddof 0
w_k     = s_k / mean_k s_k                                        s_k the noise that step k adds
L       = mean_i mean_k max(-w_k A rho_k, -w_k A clip(rho_k, 1 - 1e-4, 1 + 1e-4))

Choices. The code's constant 2.25 s_k is w_k for one schedule; here the mean is computed. A comment in it recommends
std_k, without the step's length, in the place of s_k: not built. Groups are the branches of all seeds of a prompt, as
in the code; `rollout.by_seed: true` compares those of one initial noise, as the paper's later versions do. std of the
column (the authors' setting for it), not of the batch. KL, and rows without an advantage, as in `flow_grpo`.
"""

from gxpo.algorithms.credit.segment_relative import segment_relative
from gxpo.algorithms.weighting.token_weight import TokenWeight
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.denoise import DenoiseTree

tempflow_grpo = Definition(
    name="tempflow_grpo",
    doc=__doc__,
    title="TempFlow-GRPO: When Timing Matters for GRPO in Flow Models",
    arxiv="2508.04324",
    authors="He, Xiaoxuan and Fu, Siming and Zhao, Yuke and others",
    year=2025,
    formula="A_k = clamp((r - mean_k) / (std_k + eps), 5); w_k = s_k / mean s; L = mean w_k max(-A rho, -A clip rho)",
    evidence="reference-code",
    keys={
        "rollout": DenoiseTree,
        "credit": segment_relative,
        "weight.noise_level": TokenWeight,
        "weight.noise_level.by": "noise_scale",
        "weight.noise_level.keep": "over_mean",
        "objective.aggregate": "token_mean",
        "objective.clip_low": 1e-4,
        "objective.clip_high": 1e-4,
    },
    paper_defaults={"sampling.temperature": 0.7},
    cost="a seed takes T + branches * T (T - 1) / 2 velocity evaluations; training one for each branch",
    code="Shredded-Pork/TempFlow-GRPO@e66824eca96d2b41cfd70fd1879650ae1ea5892e scripts/train_sd3_pr.py "
    "flow_grpo/diffusers_patch/sd3_sde_with_logprob_perstep.py",
)
