"""Methods for flow models, whose steps are those of a sampler in latents."""

from gxpo.parts.definition import Definition

flow_grpo = Definition(
    r"""Flow-GRPO: GRPO for flow matching models: ODE-to-SDE sampling, denoising steps as Gaussian actions.

    std_k   = a sqrt(sigma_k / (1 - sigma_k)),  s_k = std_k sqrt(-dt_k),  x_{k+1} ~ N(mean_k, s_k^2), a 0.7
    rho_k   = exp(logp_k - logp_k^old), logp_k the mean over the latent's dimensions
    A       = clamp((r - mean_g) / (std + 1e-4), -5, 5), std of all rewards of the batch, ddof 0;
      the same for every step
    L       = mean_i mean_k max(-A rho_k, -A clip(rho_k, 1 - 1e-4, 1 + 1e-4))

    Choices. The std is the batch's, the reference's default; `credit.scale: std` is its other setting. A group of equal
    rewards has 0 and stays in the loss's mean; the reference leaves its rows out, but for some that fill the last batch
    (`weight.valid_share: group_weight` with `statistic: credited` and `curve: over_share` has their mean). The last
    step is the ODE's (the reference draws it and does not train it). The noise level a is `sampling.temperature`, which
    the run gives. KL: the estimator k3 on logp, not the reference's closed form (mean difference squared over 2
    std_k^2, without dt), whose coefficient 0.04 therefore means another thing.
    """,
    cite="liu2025flowgrpo",
    evidence="reference-code",
    code="yifan123/flow_grpo@ac4c86e8cae021841f1fde853d340e0db67690dd scripts/train_sd3.py "
    "flow_grpo/diffusers_patch/sd3_sde_with_logprob.py flow_grpo/stat_tracking.py config/grpo.py",
    keys={
        "rollout": "denoise",
        "credit": "segment_relative",
        "credit.scale": "batch_std",
        "objective.aggregate": "token_mean",
        "objective.clip_low": 1e-4,
        "objective.clip_high": 1e-4,
    },
    paper_defaults={"rollout.group_size": 24, "optim.lr": 3e-4, "sampling.temperature": 0.7},
    cost="one velocity evaluation a denoising step, in sampling and in training",
)

tempflow_grpo = Definition(
    r"""TempFlow-GRPO: branches at each denoising step of a flow model, weighted by the noise of the step.

    A_{i,k} = clamp((r_{i,k} - mean_k) / (std_k + 1e-4), -5, 5)      over the group's branches at step k, ddof 0
    w_k     = s_k / mean_k s_k                                        s_k the noise that step k adds
    L       = mean_i mean_k max(-w_k A rho_k, -w_k A clip(rho_k, 1 - 1e-4, 1 + 1e-4))

    From each initial noise the ODE's path; at each step k but the last, 6 branches take step k by the SDE and go on by
    the ODE. Only the branched step is trained, and compared with the branches of the same step:

    Choices. The code's constant 2.25 s_k is w_k for one schedule; here the mean is computed. A comment in it recommends
    std_k, without the step's length, in the place of s_k: not built. Groups are the branches of all seeds of a prompt,
    as in the code; `rollout.by_seed: true` compares those of one initial noise, as the paper's later versions do. std
    of the column (the authors' setting for it), not of the batch. KL, and rows without an advantage, as in `flow_grpo`.
    """,
    cite="he2025tempflowgrpo",
    evidence="reference-code",
    code="Shredded-Pork/TempFlow-GRPO@e66824eca96d2b41cfd70fd1879650ae1ea5892e scripts/train_sd3_pr.py "
    "flow_grpo/diffusers_patch/sd3_sde_with_logprob_perstep.py",
    keys={
        "rollout": "denoise_tree",
        "credit": "segment_relative",
        "weight.noise_level": "token_weight",
        "weight.noise_level.score": "noise_scale",
        "weight.noise_level.curve": "over_mean",
        "objective.aggregate": "token_mean",
        "objective.clip_low": 1e-4,
        "objective.clip_high": 1e-4,
    },
    paper_defaults={"sampling.temperature": 0.7},
    cost="a seed takes T + branches * T (T - 1) / 2 velocity evaluations; training one for each branch",
)

chunk_grpo = Definition(
    r"""Chunk-GRPO: importance ratio, clip and loss per chunk of consecutive denoising steps of a flow model.

    rho_j = exp(mean_{k in chunk j} (logp_k - logp_k^old))
    L     = mean_i mean_j max(-A rho_j, -A clip(rho_j, 1 - 1e-4, 1 + 1e-4)),   A as in GRPO, for every chunk

    Choices. From the paper's later version (eq. 12 to 17); there is no code. The chunks of 16 trained steps are its
    first version's, [2, 3, 4, 7]: for another number of steps, say `rollout.chunks`; the smallest change of the latents
    at which a new chunk should begin is a property of the model. Left out: chunks that adapt to the run, and training
    a random half of the chunks, which its reviews say hurts. Clip and noise as in `flow_grpo` (the paper's are
    DanceGRPO's). One chunk is GSPO's ratio, a chunk for each step `flow_grpo`'s.
    """,
    cite="luo2025chunkgrpo",
    evidence="paper",
    keys={
        "rollout": "denoise",
        "rollout.chunks": [2, 3, 4, 7],
        "credit": "segment_relative",
        "objective.ratio": "segment",
        "weight.chunk": "token_weight",
        "weight.chunk.score": "segment",
        "weight.chunk.curve": "equal_values",
        "weight.chunk.scope": "trajectory",
        "objective.aggregate": "token_mean",
        "objective.clip_low": 1e-4,
        "objective.clip_high": 1e-4,
    },
    paper_defaults={"sampling.temperature": 0.7},
    cost="one velocity evaluation a denoising step, in sampling and in training",
)
