"""Methods for diffusion and flow models: noise of the sampler, matching losses, outcomes of single steps."""

from gxpo.parts.definition import Definition

# Gaussian steps: policy gradients on the sampler
ddpo = Definition(
    r"""DDPO: policy gradient on the denoising steps of a diffusion model, rewards normalised per prompt over time.

    x' ~ N(mean, s^2), s = eta sqrt(var) of DDIM;   logp the mean over the latent's dimensions
    A  = clip((r - m) / (sd + 1e-6), -10, 10), m and sd of the prompt's 16 newest rewards, these included
    L  = mean_i mean_k max(-A rho_k, -A clip(rho_k, 1 - 1e-4, 1 + 1e-4))

    Choices. eta is `sampling.temperature`. The last step is the ODE's: in the authors' code it has noise because its
    end is taken at t = 0. With fewer than 16 rewards of a prompt m and sd are the step's, as in the code.
    """,
    cite="black2023ddpo",
    evidence="reference-code",
    code="kvablack/ddpo-pytorch@18294d8d7a838c24424caf6ac10b0d39af10cbdc scripts/train.py config/base.py "
    "ddpo_pytorch/diffusers_patch/ddim_with_logprob.py ddpo_pytorch/stat_tracking.py",
    keys={
        "rollout": "denoise",
        "rollout.noise": "ddim_eta",
        "signal.reward_buffer": "reward_buffer",
        "credit": "standardised",
        "objective.aggregate": "token_mean",
        "objective.clip_low": 1e-4,
        "objective.clip_high": 1e-4,
    },
    paper_defaults={"sampling.temperature": 1.0, "optim.lr": 1e-4},
)

loop_diffusion = Definition(
    r"""LOOP: leave-one-out PPO on the denoising steps of a diffusion model.

    A_i = r_i - mean of the others;   L = -(1 / G) sum_i sum_k min(rho_k A, clip(rho_k, 1 - 1e-4, 1 + 1e-4) A)

    Choices. From the abstract and first page, and DDPO's step; the clip is DDPO's. A sum over steps, not a mean.
    """,
    cite="gupta2025loopdiffusion",
    evidence="secondary",
    keys={
        "rollout": "denoise",
        "rollout.group_size": 4,
        "rollout.noise": "ddim_eta",
        "credit.center": "leave_one_out",
        "credit.scale": "none",
        "objective.aggregate": "sequence_sum",
        "objective.horizon": 1.0,
        "objective.clip_low": 1e-4,
        "objective.clip_high": 1e-4,
    },
    paper_defaults={"sampling.temperature": 1.0},
)

dance_grpo = Definition(
    r"""DanceGRPO: GRPO on a flow's sampler with noise of constant size and a share of the steps.

    s_k = eta sqrt(-dt), eta 0.3;   A = (r - mean) / (sd + 1e-8), sd of the group, ddof 1
    L   = mean over 60 % of a sample's steps, drawn anew, of max(-A rho_k, -A clip(rho_k, 1 - 1e-4, 1 + 1e-4))

    The samples of a group begin at the same noise.

    Choices. eta is `sampling.temperature`. The code's bound of 5 on A is above any A of a group of 12. Several rewards:
    their weighted sum, not the sum of z-scores of its videos.
    """,
    cite="xue2025dancegrpo",
    evidence="reference-code",
    code="XueZeyue/DanceGRPO@22b85efe5312089f07c027d5ba94db168656c9dc fastvideo/train_grpo_flux.py",
    keys={
        "rollout": "denoise",
        "rollout.noise": "dance",
        "rollout.share": 0.6,
        "rollout.shared_noise": True,
        "credit.eps": 1e-8,
        "objective.aggregate": "token_mean",
        "objective.clip_low": 1e-4,
        "objective.clip_high": 1e-4,
    },
    paper_defaults={"rollout.group_size": 12, "optim.lr": 1e-5, "sampling.temperature": 0.3},
)

mix_grpo = Definition(
    r"""MixGRPO: GRPO on a sliding window of a flow's denoising steps; the steps outside of it are the ODE's.

    noise and training in steps l .. l + 3; every 25 training steps l moves on by 1, at the end back to 0
    A = clip((r - mean) / (sd + 1e-8), -5, 5), sd of the group, ddof 1;   L as in Flow-GRPO, over the window

    Choices. The code's window shrinks at the end and is empty for 25 iterations, which train on nothing; here it goes
    back when its last place is done. Left out: its compressed solver behind the window ("Flash"), other schedules of l.
    """,
    cite="li2025mixgrpo",
    evidence="reference-code",
    code="Tencent-Hunyuan/MixGRPO@10293ddd07b0c69ed7cee8c342cb369f1698238e fastvideo/train_grpo_flux.py "
    "fastvideo/utils/grpo_states.py fastvideo/utils/sampling_utils.py",
    keys={
        "rollout": "denoise",
        "rollout.window": 4,
        "credit": "segment_relative",
        "credit.ddof": 1,
        "credit.eps": 1e-8,
        "objective.aggregate": "token_mean",
        "objective.clip_low": 1e-4,
        "objective.clip_high": 1e-4,
    },
    paper_defaults={"rollout.group_size": 12, "optim.lr": 1e-5, "sampling.temperature": 0.7},
    cost="velocity evaluations of 4 steps in training, of all in sampling",
)

hicogen = Definition(
    r"""HiCoGen: GRPO on a flow's sampler whose noise falls from the noisy to the clean end.

    eta(t) = eta_min + (eta_max - eta_min) (1 + cos(pi (T - t) / T)) / 2;   s_k = eta(t_k) sqrt(-dt);   A and L as GRPO

    Choices. The schedule alone, from summaries: eta_max is `sampling.temperature`, eta_min 0.1 of it (`rollout.
    noise_end`) ours, the noise DanceGRPO's. Left out: prompts decomposed by a language model, and the reward of whole,
    subjects and relations, which a judge that sees can give.
    """,
    cite="yang2025hicogen",
    evidence="secondary",
    keys={
        "rollout": "denoise",
        "rollout.noise": "dance",
        "rollout.noise_end": 0.1,
        "credit": "segment_relative",
        "objective.aggregate": "token_mean",
        "objective.clip_low": 1e-4,
        "objective.clip_high": 1e-4,
    },
    paper_defaults={"rollout.group_size": 16, "optim.lr": 1e-4},
)

# matching losses: samples noised again
awm = Definition(
    r"""AWM: advantage-weighted matching: PPO on minus the pre-training loss of re-noised samples as log-probability.

    l   = -((d + 1e-10)^p - 1e-10^p) t / p, d = mean |v(x_t) - (noise - x_0)|^2, p 0.25;   rho = exp(l - l_old)
    A   = clip((r - mean) / (sd + 1e-4), -5, 5) / 5, sd of the batch
    L   = mean max(-A rho, -A clip(rho, 0, 2)) + mean |v - v_ema|^2

    Choices. 6 times of the sampler's own steps but the first. The average moves by 1 - min(0.001 step, 0.3). The
    authors' second penalty, 1e-4 to the base model, is left out: `signal.anchor` is one policy.
    """,
    cite="xue2025awm",
    evidence="reference-code",
    code="scxue/advantage_weighted_matching@12b1397b2267a7cb7962e8f49f9d12da870b5abb "
    "advantage_weighted_matching/scripts/train_sd3_awm.py advantage_weighted_matching/config/dgx_awm.py",
    keys={
        "rollout": "renoise",
        "rollout.levels": 6,
        "rollout.first_step": 1,
        "credit": "segment_relative",
        "credit.scale": "batch_std",
        "objective": "advantage_matching",
        "signal.anchor": "anchor",
        "signal.anchor.max_decay": 0.3,
        "objective.add.anchor": "prediction_gap",
    },
    paper_defaults={"rollout.group_size": 24, "optim.lr": 3e-4},
    cost="one evaluation a re-noised time in training and one of the average; sampling by the ODE",
)

dgpo_diffusion = Definition(
    r"""DGPO: preference of whole groups by their advantages, with the matching error in the place of a log-probability.

    z_g = beta mean_{i in g} A_i (d_i - d_i^ref), beta 100;   L = mean_i stop(sigmoid(z_g)) A_i d_i
    d_i has no gradient where A_i > 0 and exp(d_i^old - d_i) > 1.05, or A_i <= 0 and it is < 0.95

    Samples of a group share noise and times, 4 of the noisiest 6. A is GRPO's: it adds up to 0 in a group, so that the
    unknown normalisers cancel.

    Choices. The reference is the base policy; the authors take a moving average after 200 steps, and add a penalty to
    the base of 0.02 for GenEval.
    """,
    cite="luo2025dgpo",
    evidence="reference-code",
    code="Luo-Yihong/DGPO@489428421731a158d4acf74721136acd2482051c scripts/train_sd3_dgpo.py config/dgpo.py",
    keys={
        "rollout": "renoise",
        "rollout.levels": 4,
        "rollout.end_step": 6,
        "rollout.shared_noise": True,
        "credit": "segment_relative",
        "objective": "group_preference",
    },
    paper_defaults={"rollout.group_size": 16},
    cost="one evaluation a re-noised time in training and one of the reference; sampling by the ODE",
)

diffusion_nft = Definition(
    r"""DiffusionNFT: good samples pull the velocity, and bad ones push it, around a moving average of the policy.

    v+ = v_old + b (v - v_old), v- = v_old - b (v - v_old);   r = clip(1/2 + A / 10, 0, 1), A as in Flow-GRPO
    L  = 5 mean (r / b |x+ - x_0|^2 / w+ + (1 - r) / b |x- - x_0|^2 / w-), x+- = x_t - t v+-, w = stop mean |x+- - x_0|

    Choices. b 1; 0.1 for text rendering. The average moves by 1 - min(0.001 step, 0.5). Rollouts are the policy's: the
    authors sample from the average. Their penalty to the base, 1e-4, is left out. Read in a
    third party's copy of NVlabs/DiffusionNFT.
    """,
    cite="zheng2025diffusionnft",
    evidence="reference-code",
    code="sebastian-stapf/DiffusionNFT@646f410649b7c9a616b86bd7ddd475b5cca232f0 scripts/train_nft_sd3.py",
    keys={
        "rollout": "renoise",
        "rollout.levels": 10,
        "credit": "segment_relative",
        "credit.scale": "batch_std",
        "objective": "negative_aware",
        "signal.anchor": "anchor",
    },
    paper_defaults={"rollout.group_size": 24, "optim.lr": 3e-4},
    cost="one evaluation a re-noised time in training and one of the average; sampling by the ODE",
)

# outcomes of single steps
spo_diffusion = Definition(
    r"""SPO: preference of denoising steps: the best and the worst of 4 next latents from one; a random one goes on.

    rho = exp(logp - logp_ref) of the step;   c = log clip(rho, 0.9, 1.1);   l = -log sigmoid(10 (c_w - c_l))
    pairs whose softmax of two scores differs by more than 0.3: scores by more than 2 artanh 0.3 = 0.619

    Choices. A step is scored by the reward of its one-step look-ahead, where the authors train a scorer of noisy
    latents; `objective.min_gap` is in its units. Steps without a valid pair stay in the mean. From step 4 on.
    """,
    cite="liang2024spo",
    evidence="reference-code",
    code="RockeyCoss/SPO@27a86428edcff3b25dcce8001be94a7a01608f58 "
    "spo_training_and_inference/train_scripts/train_spo.py",
    keys={
        "rollout": "denoise_steps",
        "rollout.group_size": 1,
        "rollout.candidates": 4,
        "rollout.first_step": 4,
        "rollout.by_sample": True,
        "rollout.noise": "ddim_eta",
        "objective": "preference_pairs",
        "objective.pairs": "outcome",
        "objective.form": "clamped",
        "objective.beta": 10.0,
        "objective.min_gap": 0.619,
    },
    refuses={"objective.kl.place": ("reward",)},
    paper_defaults={"optim.lr": 6e-5, "sampling.temperature": 1.0},
    cost="4 evaluations of look-aheads a step, and their rewards",
)

vgpo = Definition(
    r"""VGPO: values of denoising steps by one-step look-ahead, and an advantage that equal groups keep.

    Q_k = sum_{j >= k} gamma^(j - k) R(x_j - sigma_j v(x_j)), omega_k = Q_k / mean_k Q
    A   = omega_k ((Q_k - mean) / sd + kappa Q_k), mean and sd of the group's Q_k;   L as in Flow-GRPO

    Choices. From reviews that quote the equations, no code: gamma 0.9, kappa 0.1 are ours, kappa Q in the first 5
    steps as its appendix says. Rewards must not be negative: where the mean Q is not above 0, omega is 1.
    """,
    cite="shao2025vgpo",
    evidence="secondary",
    keys={
        "rollout": "denoise_steps",
        "credit": "anchored_value",
        "objective.aggregate": "token_mean",
        "objective.clip_low": 1e-4,
        "objective.clip_high": 1e-4,
    },
    paper_defaults={"sampling.temperature": 0.7},
    cost="a look-ahead and its reward for each step",
)

dppo = Definition(
    r"""DPPO: PPO on a diffusion policy, whose denoising steps have a discount and clips of their own.

    A_i = gamma^(K - 1 - i) A of step i of K, gamma 0.99, A whitened over the batch;   L as in PPO, clip 1 +- c_i
    c_i = 1e-3 + (1e-2 - 1e-3) (exp(3 u) - 1) / (exp(3) - 1), u = i / (K - 1), from the noisiest on

    Choices. Of episodes of one action: A is r less the group's mean, in the place of GAE and the value network. Left
    out: a floor of 0.1 under the noise (`sampling.temperature` sets it), and stopping at a KL of 1. The authors' clip
    is nan where one step is trained; here it is the last's.
    """,
    cite="ren2024dppo",
    evidence="reference-code",
    code="irom-lab/dppo@8293b0936b62a63ffe75f993f61d32177be8f470 model/diffusion/diffusion_ppo.py",
    keys={
        "rollout": "denoise",
        "rollout.noise": "ddim_eta",
        "credit": "batch_whiten",
        "credit.center": "mean",
        "objective.surrogate": "denoising_clip",
        "objective.aggregate": "token_mean",
        "update.epochs": 5,
    },
    paper_defaults={"sampling.temperature": 1.0},
)
