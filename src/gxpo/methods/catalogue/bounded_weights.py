"""Methods that multiply the policy gradient by a bounded weight, and corrections for stale rollouts."""

from gxpo.parts.definition import Definition

# bounded weights
cispo = Definition(
    r"""CISPO: clipped, detached importance weights on log pi, so that every token keeps its gradient.

    l_t = -stop(min(rho_t, 1.28)) A log pi(o_t), token mean over the batch; 1.28 is `objective.ratio_max`

    Choices. Upper bound only, as the paper trains (eq. 4 and 5); it does not publish the bound, nor code: 1.28
    (absolute) is clip-higher's. The paper divides by the tokens of a question's answers, this by those of the batch; it
    also has DAPO's dynamic sampling and length penalty, which are not part of this. TRL's `epsilon_high` is this
    absolute bound, elsewhere the same number is an offset from 1. On policy every coefficient is exactly 1. The value
    of the loss has no meaning.
    """,
    cite="minimax2025cispo",
    evidence="paper",
    keys={"objective.surrogate": "truncate", "objective.aggregate": "token_mean"},
)

tis = Definition(
    r"""TIS: truncated importance sampling between sampler and learner.

    w_t = min(proximal / behaviour, 2.0), detached, multiplied on the gated loss; it changes no denominator.

    The same form as decoupled PPO with proximal = the policy at the start of the step. KL and entropy terms are not
    weighted. With `objective.ratio_over: behaviour` the ratio itself contains the correction: then leave this out.

    Choices. As in the first author's branch of verl, where it is off unless `tis_imp_ratio_cap` is above 0 and 2 in the
    script; its script has DAPO's loss: `dapo+tis`.
    """,
    cite="yao2025tis",
    evidence="reference-code",
    code="yaof20/verl@1e413344a2f31aefdbd05457843274f84dff9f2d verl/trainer/ppo/core_algos.py "
    "recipe/dapo/run_dapo_qwen2.5_32b_tis.sh",
    keys={"weight.mismatch": "truncated"},
    refuses={"objective.ratio_over": ("behaviour",)},
    cost="a forward pass over the rollouts before the update",
)

topr = Definition(
    r"""TOPR: tapered off-policy REINFORCE: no ratio for successes, ratio truncated at 1 for failures.

    A > 0: l = -A log pi(y);   A < 0: l = -stop(min(pi(y) / mu(y), 1)) A log pi(y);   L = mean_i l_i

    Failures that have become unlikely under the policy are not pushed down further, and successes are learned however
    unlikely they are: stable on old data without a KL term.

    Choices. The ratio is the whole answer's, the product of its tokens' (ports take each token's: `{"objective.ratio":
    "token", "objective.aggregate": "token_mean"}`), over the behaviour policy. Plain sums over tokens (horizon 1). The
    sign is that of the outcome less its group's mean, not scaled; the paper chooses its baseline for the share of
    positives that it gives. A ratio's logarithm is held in [-20, 20].
    """,
    cite="roux2025topr",
    evidence="secondary",
    keys={
        "objective.surrogate": "tapered",
        "objective.ratio": "sequence_sum",
        "objective.ratio_over": "behaviour",
        "objective.aggregate": "sequence_sum",
        "objective.horizon": 1.0,
        "credit.scale": "none",
    },
)

vespo = Definition(
    r"""VESPO: smooth variational kernel on the sequence-level importance weight, in place of the clip.

    W = pi(y) / mu(y);   phi(W) = W^k e^(lambda (1 - W));   l_t = -stop(phi(W)) A log pi(o_t), token mean
    (k, lambda) = (2, 3) for A > 0, (3, 2) for A < 0

    phi(1) = 1. Rewarded answers count most at W = 2/3 and fade beyond, punished ones at W = 3/2.

    Choices. As in the authors' code, with log W held in [-20, 20] (there a token's log-ratio is, too, and W >= 1e-8,
    which moves phi by less than 1e-13). W is over the behaviour policy, so that the mismatch of sampler and learner is
    in it, as where the code is given rollout weights; their synchronous scripts give none: `objective.ratio_over:
    proximal`. `tis` would count it twice. k and lambda depend on the sign of each token's advantage (the code: of the
    trajectory's first).
    """,
    cite="shen2026vespo",
    evidence="reference-code",
    code="FloyedShen/VESPO@aa1f3045c346 recipe/vespo/code/core_algos.py recipe/vespo/run/sync/vespo_N_8.sh",
    keys={
        "objective.surrogate": "gamma",
        "objective.ratio": "sequence_sum",
        "objective.ratio_over": "behaviour",
        "objective.aggregate": "token_mean",
    },
)

rec = Definition(
    r"""REC: off-policy group-relative REINFORCE with a one-sided clip and without importance weights.

    A_i = r_i - mean;   l_t = -m_t A_i log pi(o_t), token mean;   m = 1 where rho <= 1.2 (A > 0), rho >= 0.8 (A < 0)

    It is one gradient step on (r_i - r_j - tau (log-ratio_i - log-ratio_j))^2 over pairs of a group, whichever policy
    sampled it. With `{"objective.importance": "ratio"}` it has PPO's gradient; `objective.side: two | ring` are the
    other masks. RED-Weight is `{"weight.exponential_credit": "exponential_credit"}`; AsymRE is `asymre`.

    Choices. REC-OneSide-NoIS of the family; bounds 0.2 as in the code, which also has 3e-4 / 4e-4 on the sequence
    ratio. Mean without std, as derived (the code has a std as an option). RED-Drop, which leaves out surplus failures
    at random and takes the mean again, is not here.
    """,
    cite="yao2025rec",
    evidence="reference-code",
    code="agentscope-ai/Trinity-RFT@1d7fae4a63f5e3a30e1927559d28a348a2167dd6 "
    "trinity/algorithm/policy_loss_fn/rec_policy_loss.py",
    keys={"objective.surrogate": "ratio_mask", "objective.aggregate": "token_mean", "credit.scale": "none"},
)

# mismatch of sampler and learner, and stale data
hispo = Definition(
    r"""HisPO: mask answers and tokens by the mismatch of sampler and learner, then a dual-clipped surrogate; no KL.

    r_dis = old / sampler;   m_t = [|exp(mean_t log r_dis) - 1| <= 0.1] [|r_dis_t - 1| <= 0.5]
    l_t = -m_t A rho, rho = policy / sampler, held at 1.2 (A > 0), at 0.8 and 3 (A < 0)
    no KL

    Choices. The report's eqs. 8 and 9 (its section 3.3 and file in meituan-longcat/LongCat-Flash-Prover; the code is
    not published, nor is any number): the bounds are ours, the three of the clip PPO's and the usual dual clip. The
    clip is on the product r_dis r_stale = policy / sampler. Masked tokens stay in the denominator. A mean over each
    answer's tokens, as in the base: its equation divides by the longest answer of the group, its text by a constant
    (`hispo@paper`).
    """,
    cite="wang2026hispo",
    evidence="paper",
    keys={
        "objective.surrogate": "dual_clip",
        "objective.ratio_over": "behaviour",
        "weight.mismatch_mask": "mismatch_mask",
        "weight.mismatch_mask.token_min": 0.5,
        "weight.mismatch_mask.token_max": 1.5,
        "weight.mismatch_mask.sequence_min": 0.9,
        "weight.mismatch_mask.sequence_max": 1.1,
    },
    paper_defaults={"objective.aggregate": "sequence_sum"},
    cost="a forward pass over the rollouts before the update",
)

score_centring = Definition(
    r"""Score centring: subtract the sampler's expected score: a mismatched sampler pulls the policy no longer along.

    l_t = -A_t [w_t log p(y_t) - sum_v stop(q_v w_v) log p_v],   q sampler, p learner
    w = 1;   with `tis`: w_v = min(p_v / q_v, cap)

    E_q[A grad log p] is E_q[A] E_q[grad log p], which moves p towards q whatever the rewards, and a covariance, which
    is kept. Composes with policy gradients of a ratio over the proximal policy: `dapo+tis+score_centring`.

    Choices. Of the paper (score "centering") the abstract was read, and ports that cite its equations: vime,
    torchtitan's `ScoreCenteringLoss`, the guide of NeMo RL. The sampler's 128 likeliest ids are recorded; outside of
    them q counts as proportional to p. The paper's loss is REINFORCE; here the term is added to the clipped one, which
    has the same gradient on the first optimiser step after sampling. Later steps centre by the current policy and look
    at no clip, as in NeMo RL. Weights other than `tis` multiply the advantage; masks by mismatch are refused.
    """,
    cite="marek2026scorecentring",
    evidence="secondary",
    keys={
        "objective.add.score_centring": "score_centring",
        "signal.sampler_distribution": "sampler_distribution",
    },
    refuses={"objective.ratio_over": ("behaviour",)},
    cost="a log-softmax over the vocabulary at each sampled token; records of 2 KB a token",
)

decoupled_ppo = Definition(
    r"""Decoupled PPO: clip against the proximal policy, with an importance weight from the behaviour policy (AReaL).

    rho = pi / proximal, clipped;   w = proximal / behaviour, 0 where it exceeds 5;   l = w max(-A rho, -A clip(rho))

    Choices. The form is Hilton et al.'s (arXiv 2110.00641). The proximal policy is the learner's at the start of the
    step, as in AReaL, where it is recomputed before the update. Tokens of w > 5 are masked (AReaL's former default;
    there now an option, `rejection_sampling`; `weight.mismatch_mask.token_max`), not truncated, and stay in the
    denominators. With a truncation at 2 in place of the mask the same form is `tis`. Over the behaviour policy the
    ratio would hold w already: refused. Over tokens it is GRPO's mean, each answer alike; AReaL's is the mean over all
    tokens (`objective.aggregate: token_mean`), masked ones counted.
    """,
    cite="fu2025decoupledppo",
    evidence="reference-code",
    code="inclusionAI/AReaL@4aef98d8d818af55b43621aaadba047ae10f4e77 areal/utils/functional/functional.py "
    "areal/api/cli_args.py",
    keys={
        "weight.mismatch": "truncated",
        "weight.mismatch.cap": 5.0,
        "weight.mismatch_mask": "mismatch_mask",
        "weight.mismatch_mask.token_min": 0.0,
        "weight.mismatch_mask.token_max": 5.0,
    },
    refuses={"objective.ratio_over": ("behaviour",)},
    cost="a forward pass over the rollouts before the update",
)

minpro = Definition(
    r"""MinPRO: off-policy token weight: the ratio times the minimum ratio of the prefix, capped and detached.

    w_t = rho_t min_{u<t} rho_u (w_1 = rho_1);   l_t = -stop(min(w_t, ratio_max)) A log pi(o_t),
      the mean over all tokens
    Exactly, a token sampled by another policy is corrected by prod_{u<=t} rho_u: by its own ratio and by that of the
      state it was sampled in. The product's variance grows with the length; its surrogate's does not.

    Choices. From a survey that gives the objective; no code was found. There the weight is clipped to (1 - e_low, 1 +
    e_high), whose widths we don't know: here 1.28 above and nothing below (`objective.ratio_min`), since a floor near 1
    would undo what an unlikely prefix is to do. The prefix is exclusive and reaches back over turns. `objective.prefix:
    sum` is the exact correction, `mean` the prefix's geometric mean.
    """,
    cite="lei2026minpro",
    evidence="secondary",
    keys={"objective.ratio": "prefix", "objective.surrogate": "truncate", "objective.aggregate": "token_mean"},
)

kpo = Definition(
    r"""KPO: causal Kalman filter over token log-ratios before the clip.

    x_t = x_{t-1} + w, w ~ N(0, Q);   log rho_t = x_t + v, v ~ N(0, V);   x^_t its filtered mean, x^_0 = 0, P_0 = 0
    s_t = exp(stop(x^_t) + log pi - stop(log pi));   l_t = max(-A s_t, -A clip(s_t, 1 - 3e-4, 1 + 4e-4))

    Choices. Constants (Q = 1e-6, V = 1) and the form (value of the filter, the token's own gradient) are those of the
    authors' code. Gains are exact, where the code holds them in [1e-6, 1 - 1e-6], and log s is not bounded (code: at
    most 10). Tokens that are not trained are no observations and take no time; the code filters them as log-ratios of
    0.
    """,
    cite="he2026kpo",
    evidence="reference-code",
    code="shuohe1995/verl-kpo@c3135943a0cda7ec2733530855040aedf67380b6 verl/trainer/ppo/core_algos.py "
    "examples/kpo_trainer/kpo_qwen3_4b.sh",
    keys={"objective.ratio": "filtered", "objective.clip_low": 3e-4, "objective.clip_high": 4e-4},
    paper_defaults={"update.minibatches": 4, "rollout.group_size": 8, "tasks.per_step": 32, "optim.lr": 1e-6},
)
