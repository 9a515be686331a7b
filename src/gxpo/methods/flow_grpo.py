r"""Flow-GRPO: GRPO for flow matching models: ODE-to-SDE sampling, denoising steps as Gaussian actions.

std_k   = a sqrt(sigma_k / (1 - sigma_k)),  s_k = std_k sqrt(-dt_k),  x_{k+1} ~ N(mean_k, s_k^2), a 0.7
rho_k   = exp(logp_k - logp_k^old), logp_k the mean over the latent's dimensions
A       = clamp((r - mean_g) / (std + 1e-4), -5, 5), std of all rewards of the batch, ddof 0; the same for every step
L       = mean_i mean_k max(-A rho_k, -A clip(rho_k, 1 - 1e-4, 1 + 1e-4))

Choices. The std is the batch's, the reference's default; `credit.scale: std` is its other setting. A group of equal
rewards has 0 and stays in the loss's mean; the reference leaves its rows out, but for some that fill the last batch
(`weight.valid_share: group_weight` with `statistic: credited` and `curve: over_share` has their mean). The last step is
the ODE's (the reference draws it and does not train it). The noise level a is `sampling.temperature`, which the run
gives. KL: the estimator k3 on logp, not the reference's closed form (mean difference squared over 2 std_k^2, without
dt), whose coefficient 0.04 therefore means another thing.
"""

from gxpo.algorithms.credit.segment_relative import segment_relative
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.denoise import Denoise

flow_grpo = Definition(
    name="flow_grpo",
    doc=__doc__,
    title="Flow-GRPO: Training Flow Matching Models via Online RL",
    arxiv="2505.05470",
    authors="Liu, Jie and Liu, Gongye and Liang, Jiajun and others",
    year=2025,
    formula="A = clamp((r - mean_g) / (std_batch + eps), 5); L = mean_ik max(-A rho_k, -A clip(rho_k, 1 +- 1e-4))",
    evidence="reference-code",
    keys={
        "rollout": Denoise,
        "credit": segment_relative,
        "credit.scale": "batch_std",
        "objective.aggregate": "token_mean",
        "objective.clip_low": 1e-4,
        "objective.clip_high": 1e-4,
    },
    paper_defaults={"rollout.group_size": 24, "optim.lr": 3e-4, "sampling.temperature": 0.7},
    cost="one velocity evaluation a denoising step, in sampling and in training",
    code="yifan123/flow_grpo@ac4c86e8cae021841f1fde853d340e0db67690dd scripts/train_sd3.py "
    "flow_grpo/diffusers_patch/sd3_sde_with_logprob.py flow_grpo/stat_tracking.py config/grpo.py",
)
