"""Methods that change the clip of the ratio: its level, its bounds, what is dropped."""

from gxpo.parts.definition import Definition

# clips of a token's ratio
ppo = Definition(
    r"""PPO: dual clip, which bounds the loss at ratio_max |A| for negative advantages; objective only, no critic.

    A < 0: l = min(max(-A rho, -A clip(rho, 0.8, 1.2)), -A 3);   A >= 0: PPO's clip, which is the base's gate

    Choices. ratio_max 3.0 (absolute), as in verl and in the code of the authors' group (Tencent's Honor of Kings Arena,
    which bounds the ratio of good tokens at 3 too, where the clip is tighter); the gradient is 0 where A < 0 and rho >
    3. The mean is the base's, over sequences; theirs is over frames (`objective.aggregate: token_mean`).
    """,
    cite="ye2020ppo",
    evidence="reference-code",
    code="tencent-ailab/hok_env@c6e0029a5e4b6e037a049804fdbe23ac74484311 aiarena/1v1/common/algorithm_torch.py",
    keys={"objective.surrogate": "dual_clip"},
)

dapo = Definition(
    r"""DAPO: dynamic sampling, clip-higher, token mean and overlong reward shaping; no KL.

    L = sum_{i,t} max(-A rho, -A clip(rho, 0.8, 1.28)) / number of tokens of the batch; A as in GRPO.
    Rollout: groups whose verdicts are all equal are dropped and refilled (reads `success`, never the shaped reward).
    Reward: + min(0, ((L_max - L_c) - |o|) / L_c), added after that filter.

    Choices. No dual clip (the paper has none; the authors' recipe, which is verl's, sets c = 10). L_max is
    sampling.max_new_tokens and L_c a fifth of it, the paper's proportion (4096 of 20480).
    """,
    cite="yu2025dapo",
    evidence="reference-code",
    code="verl-project/verl-recipe@48ea0a797fa29867ea0ad92aff7d284eec7d4be3 dapo/dapo_ray_trainer.py "
    "dapo/run_dapo_qwen2.5_32b.sh",
    keys={
        "objective.clip_high": 0.28,
        "objective.aggregate": "token_mean",
        "rollout": "dynamic_sampling",
        "reward.add.overlong": "overlong",
    },
    paper_defaults={"rollout.group_size": 16, "optim.lr": 1e-6, "tasks.per_step": 512},
    cost="dropped groups are sampled too: their tokens are charged",
)

# ratios of sequences and means of tokens
gspo = Definition(
    r"""GSPO: sequence-level, length-normalised importance ratio with a sequence-level clip.

    s_i = exp(mean_t log rho_{i,t});   l_i = max(-A_i s_i, -A_i clip(s_i, 1 - 3e-4, 1 + 4e-4));   L = mean_i l_i

    Choices. Eq. 5 to 7 of the paper, whose code is not public, in its GSPO-token form (eq. 13 and 14), s_{i,t} =
    stop(s_i) rho_{i,t} / stop(rho_{i,t}): value and gradient are GSPO's where the advantage is constant over a
    trajectory, and turn-level advantages (`gigpo+gspo`) are allowed. The clip is three orders tighter than PPO's. With
    token_mean it would no longer be GSPO: refused.
    """,
    cite="zheng2025gspo",
    evidence="paper",
    keys={"objective.ratio": "sequence", "objective.clip_low": 3e-4, "objective.clip_high": 4e-4},
    paper_defaults={"update.minibatches": 4},
    refuses={"objective.aggregate": ("token_mean",)},
)

gmpo = Definition(
    r"""GMPO: geometric mean of token importance ratios, clipped on one side in log space.

    log rho'_t = min(log rho_t, 0.4) for A >= 0, max(log rho_t, -0.4) for A < 0
    L = mean_i -A_i exp(mean_t log rho'_t)

    Choices. 0.4 is in log space: (e^-0.4, e^0.4). Sequences without trainable tokens are not counted (verl counts
    them). Unclipped it equals unclipped GSPO.
    """,
    cite="zhao2025gmpo",
    evidence="reference-code",
    code="callsys/GMPO@205b2bf412f150cf96c29b33273b81bcd1a9b20f train_zero_math_gmpo.py "
    "scripts/qwen2.5-math-7b-gmpo.sh",
    keys={"objective.ratio": "sequence", "objective.surrogate": "log_clip"},
    refuses={"objective.aggregate": ("token_mean",)},
)

luspo = Definition(
    r"""LUSPO: length-unbiased GSPO: the loss of each sequence times its length.

    s_i = exp(mean_t log rho);   l_i = max(-A_i s_i, -A_i clip(s_i, 1 - 2e-3, 1 + 2.5e-3));   L = mean_i |o_i| l_i

    In the form of GSPO-token, |o_i| l_i is the sum over the answer's tokens: GSPO with `sequence_sum`, horizon 1.

    Choices. Bounds as in the paper (eq. 7, section 5.1) and in TRL; its code was announced and has not been found.
    `objective.horizon` divides the loss by a constant and changes nothing else; 1 is the paper's scale, where gradients
    are as large as answers are long.
    """,
    cite="liu2026luspo",
    evidence="paper",
    keys={
        "objective.ratio": "sequence",
        "objective.clip_low": 2e-3,
        "objective.clip_high": 2.5e-3,
        "objective.aggregate": "sequence_sum",
        "objective.horizon": 1.0,
    },
    refuses={"objective.aggregate": ("sequence_mean",)},
)

apmpo = Definition(
    r"""APMPO: adaptive power mean of token ratios, with an upper clip bound that adapts to the rewards.

    J_i = sgn(A_i) (mean_t phi_t^p)^(1/p), phi_t = |min(rho_t A_i, clip(rho_t, 1 - 0.2, 1 + e) A_i)|;   L = -mean_i J_i
    p = exp(-0.8 mu),   e = 0.2 + 0.2 tanh(mu / (sigma + 1e-6));   mu, sigma: mean and std of the step's rewards

    Choices. The minimum is of signed terms, as in PPO, before the absolute value (a minimum of absolute values would
    let a wrong answer's ratio fall without bound). Where A is 0 nothing is trained: phi^(p - 1) has no value there. mu
    and sigma are those of the optimiser step; below mu = 0 the upper bound stays at its least.
    """,
    cite="huang2026apmpo",
    evidence="secondary",
    keys={"objective": "power_mean"},
    paper_defaults={"objective.kl.coef": 0.001},
)

# clips with gradients of their own, mixtures and residuals
gppo = Definition(
    r"""GPPO: gradient-preserving clip: tokens beyond the clip range keep a bounded gradient.

    held above: l = -A (1 + e) rho / stop(rho);   held below: l = -A (1 - e) rho / stop(rho);
      else -A min(rho, c if A < 0)
    The value is PPO's. A rewarded token that has gone up far enough is still pushed, at the bound's weight;
      a punished one far below is pushed with 1 - e, more than its ratio. Beyond c, the dual clip,
      a punished token has no gradient.

    CE-GPPO (arXiv 2509.20712) multiplies the two by factors: `{"objective.slope_low": 0.75}`; both 0 is PPO's gradient.

    Choices. c = 3, the code's default since its commit e0f7bb1, before which c was always 1; its scripts have 10 and
    clip above at 0.28 (`gppo@paper`), and `objective.ratio_max: .inf` is none. Which tokens are clipped follows PPO's
    rule, before the factors: the maximum of the two scaled terms would not clip a token between 0.75 (1 - e) and 1 - e.
    The factors scale the value, too. Token mean. At the last commit the loss by this name stops at a name that is not
    defined; the general one, with factors of 1, is the same.
    """,
    cite="su2025gppo",
    evidence="reference-code",
    code="Kwai-Klear/KlearReasoner@3422f6d36a8251cb1c86a7b943c7c815850864fd verl/trainer/ppo/core_algos.py "
    "verl/workers/actor/dp_actor.py verl/trainer/config/ppo_trainer.yaml "
    "recipe/dapo/perf_run_dapo_ours_math.sh",
    keys={"objective.surrogate": "preserving_clip", "objective.aggregate": "token_mean"},
    paper_defaults={
        "objective.clip_high": 0.28,
        "objective.ratio_max": 10.0,
        "rollout.group_size": 8,
        "tasks.per_step": 128,
        "update.minibatches": 8,
        "optim.lr": 1e-6,
    },
)

dhpo = Definition(
    r"""DHPO: mixture of token-level and sequence-level importance ratios, each clipped in its own range.

    s_i = exp(mean_t log rho_{i,t});   m_t = w_t clip(rho_t, 1 +- 0.2) + (1 - w_t) clip(s_i, 1 - 3e-4, 1 + 4e-4)
    L = mean_i mean_t -A m_t;   w = 1/2, or the token's entropy between its trajectory's extremes (`mixing: entropy`)

    Choices. The widths of both branches are those of GRPO and GSPO: the paper's are not known to us. Each branch is a
    plain clip, as the prose says, which stops tokens on the harmful side too; `objective.sides: improving` takes PPO's
    minimum in each. How entropies are brought to [0, 1] is ours. The sequence ratio is in GSPO's token form.
    """,
    cite="min2026dhpo",
    evidence="secondary",
    keys={"objective.surrogate": "hybrid_clip"},
    refuses={"objective.ratio": ("sequence", "turn", "filtered", "prefix")},
)

fiberpo = Definition(
    r"""FiberPO: a trajectory's drift up and its drift down gated each, times the token's residual, clipped.

    u_i = mean_t max(log rho_{i,t}, 0);   d_i = mean_t max(-log rho_{i,t}, 0);   l_{i,t} = log rho_{i,t}
    log w_i = g(u_i, 0.55) - g(d_i, 0.45);   g(x, C) = x up to C, then (T_i + 1) C - T_i x, 0 from C (1 + 1 / T_i) on
    log r_{i,t} = clip(l - u_i, +-e) + clip(d_i, +-e) where l >= 0, clip(l + d_i, +-e) - clip(u_i, +-e) below;   e 0.2
    L = mean_i mean_t -A w_i r_{i,t}

    Choices. From the technical report of the authors' model (JoyAI-LLM Flash, arXiv 2604.03044, section 3.3.1), which
    states objective and gates in full and no widths: the budgets and e are ours, with budget up above budget down and e
    below their sum as it recommends. Beyond a budget the gradient turns round and pulls the trajectory back; far beyond
    it w_i is 1. Two levels: prompt groups and domains, which the method's own paper adds, are not built.
    `objective.surrogate: nested_clip` clips the trajectory's mean log-ratio and the residual from it.
    """,
    cite="li2026fiberpo",
    evidence="paper",
    keys={"objective.surrogate": "fiber_gate"},
    refuses={"objective.ratio": ("sequence", "turn", "filtered", "prefix")},
)

hapo = Definition(
    r"""HAPO: token-level group normalisation, with clip range and advantage scale that follow each token's entropy.

    A_i = (r_i - mean) / (std + 1e-6), mean and population std over all tokens of the group,
      each with its answer's reward
    h_t = log H_t - Q_0.8(log H) over its extremes, in [-1, 1];
      clip to [1 - 0.2 (1 - min(h, 0)), 1 + 0.2 (1 + max(h, 0))]
    A times 1 + h where h > 0 and rho is outside the half of that region, and where h <= 0 and rho is inside it

    Choices. Q is the token's value that is nearest to the quantile, as coded. The code divides negative h by a negative
    number, so that all h are in [0, 1] and its low-entropy branch never runs; here it does, as the paper has it.
    Entropies are the current policy's, their quantile is of the optimiser step's tokens (the code: of each
    micro-batch's). Where any |A| of a group reaches 5 the code takes GRPO's for that group: done. Temperature by
    entropy while sampling and DAPO's filter of equal groups, which the scripts have, are left out.
    """,
    cite="liu2025hapo",
    evidence="reference-code",
    code="starriver030515/HAPO@7671dde3e268779a949954ec75ed3edda45f7e0a verl/trainer/ppo/core_algos.py "
    "verl/workers/actor/dp_actor.py recipe/qwen2.5_math_7b.sh",
    keys={
        "credit": "length_weighted",
        "credit.scale": "std",
        "credit.bound": 5.0,
        "objective.surrogate": "entropy_adaptive_clip",
        "objective.aggregate": "token_mean",
    },
)

# by entropy and by later tokens
clip_cov = Definition(
    r"""Clip-Cov: entropy control by masking a few tokens of high covariance between advantage and log-prob.

    cov_t = (A_t - mean A)(log pi_t - mean log pi) over the step's tokens;   loss: PPO's clip, token mean, but 0 for
    k = max(1, 2e-4 N) tokens drawn among those with 1 < cov < 5 that the clip leaves alone
    KL-Cov (`objective.surrogate: covariance_penalty`): -A rho without a clip, + |log rho| for the k tokens of greatest
      cov

    Choices. The clip is the trainer's, 0.2; the authors' Clip-Cov scripts set it to 1 on both sides (`clip_cov@paper`),
    so that it cuts for A > 0 at rho > 2 alone. All tokens of an optimiser step are one set (theirs: of a micro-batch),
    and dropped ones stay in the denominator. The draw is a hash of the token (place, advantage, old log-prob) and
    `objective.draw_seed`: it does not depend on micro-batches or on the order of trajectories, and is the same in every
    update of a step; theirs has no generator of its own. KL-Cov's share is 2e-4 in their script for 32B and 2e-3 for 7B
    (`objective.covariance_share`).
    """,
    cite="cui2025clipcov",
    evidence="reference-code",
    code="PRIME-RL/Entropy-Mechanism-of-RL@88505792fd97 verl/trainer/ppo/core_algos.py recipe/dapo/7b_clip_cov.sh "
    "recipe/dapo/7b_kl_cov.sh",
    keys={"objective.surrogate": "covariance_clip", "objective.aggregate": "token_mean"},
    paper_defaults={"objective.clip_low": 1.0, "objective.clip_high": 1.0},
)

fipo = Definition(
    r"""FIPO: token weights from the future KL: the discounted sum of log-ratios of the rest of the trajectory.

    F_t = sum_{k >= t} g^{k-t} log rho_k, g = 2^(-1/32), tokens of rho > 10 left out;   f_t = clip(exp(F_t), 1, 1.2)
    l_t = stop(f_t) * DAPO's clipped loss, dual clip at 10; f is held in [0.8, 1] where A < 0 and rho > 10; token mean
    A trajectory with two or more dual-clipped tokens is dropped, from the denominator too.

    Choices. Constants of the authors' script for 32B; the code's own defaults are a half-life of 128, a dual clip at 3
    and a bound of 4 on rho where A < 0 (`objective.safe_ratio`). `objective.factor_low: 0.8` lets f shrink losses as
    well, as they do for small models; `objective.dual_clipped_max: null` drops nothing. The code drops and divides
    within each micro-batch, here it is the optimiser step. On policy f is 1: it takes several updates a step, so there
    are four (`fipo@paper`: eight). Of DAPO only the loss is taken; compose `fipo+dapo` for its rollouts.
    """,
    cite="ma2026fipo",
    evidence="reference-code",
    code="qwenpilot/FIPO@ee25452087c73ead4278b7f80766cac4fe18bf74 verl/trainer/ppo/core_algos.py "
    "recipe/fipo/run_fipo_qwen2.5_32b.sh",
    keys={
        "objective.surrogate": "future_drift",
        "objective.clip_high": 0.28,
        "objective.aggregate": "token_mean",
        "update.minibatches": 4,
    },
    paper_defaults={"rollout.group_size": 16, "tasks.per_step": 512, "update.minibatches": 8, "optim.lr": 1e-6},
    cost="where an optimiser step is cut, a forward pass more: dropped rows change the denominator",
)

lite_ppo = Definition(
    r"""Lite PPO: group-mean baseline, batch std and token mean; no critic, no KL.

    A_i = (r_i - mean_g r) / (std_batch r + 1e-6);   L = sum_{i,t} max(-A rho, -A clip(rho, 1 +- 0.2)) / tokens

    Choices. The std is of the raw rewards of all compared trajectories of the step, one degree of freedom, eps 1e-6, as
    in ROLL, whose authors the paper's are (`norm_mean_type: group`, `norm_std_type: batch`); REINFORCE++-baseline takes
    the std after the group's mean is subtracted. No critic, no KL, no filter. ROLL's page for it pairs these with GAE,
    whitening and a dual clip at 1.4, against the paper's recipe.
    """,
    cite="liu2025liteppo",
    evidence="reference-code",
    code="alibaba/ROLL@8eb27cc2dc34 roll/utils/functionals.py roll/pipeline/rlvr/actor_worker.py",
    keys={"credit.scale": "batch_std", "objective.aggregate": "token_mean"},
    paper_defaults={"rollout.group_size": 8, "sampling.temperature": 0.99},
)
