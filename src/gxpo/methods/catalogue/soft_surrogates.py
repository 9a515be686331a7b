"""Methods with a smooth surrogate, or a bound on the divergence, in the clip's place."""

from gxpo.parts.definition import Definition

# penalties and regressions
spo_simple = Definition(
    r"""SPO (Simple Policy Optimization): quadratic ratio penalty with its optimum at PPO's clip bound.

    J = A rho - |A| (rho - 1)^2 / (2 e),   e = 0.2;   dJ/drho = A - |A| (rho - 1) / e

    The optimum is at rho = 1 + sign(A) e. PPO has no gradient beyond that point; here it turns round, and tokens that
    overshot come back. With a coefficient of its own in place of |A| / (2 e) it is R2VPO (`r2vpo`).

    Choices. The loss only; with a learned critic, as in the paper, it is `gae+spo_simple`. No clamp on the ratio.
    """,
    cite="xie2024sposimple",
    evidence="reference-code",
    code="MyRepositories-hub/Simple-Policy-Optimization@9fdeda315b00cee82d1dc4e10c01db200c97e909 mujoco/trainer.py",
    keys={"objective.surrogate": "quadratic_penalty"},
)

r2vpo = Definition(
    r"""R2VPO: ratio-variance constraint with a Lagrange multiplier, in place of the clip.

    max E[A rho] subject to E[(rho - 1)^2] <= d:   J = A rho - c (rho - 1)^2
    c <- max(0, c + 0.1 (mean (rho - 1)^2 - d))

    For A > 0 the gradient ends at rho = 1 + A / (2 c) and turns beyond it; for A < 0 and rho > 1 both parts push down.

    Choices. No constants of the paper are known to us: c starts at 0.04 (a port's fixed value), d = 0.04 = 0.2^2, step
    0.1. The mean is over the tokens with an advantage other than 0, over the step's optimiser steps; c moves once per
    trainer step, so with one update per batch, where every ratio is 1, it falls to 0. Tokens of advantage 0 are not
    penalised. Its replay buffer is `r2vpo+repo_replay`.
    """,
    cite="luo2026r2vpo",
    evidence="secondary",
    keys={"objective.surrogate": "ratio_variance"},
)

gbpo = Definition(
    r"""GBPO: regression of the ratio on its bounded optimum, 1 + e above the group median and 1 - e below.

    max E[A rho] subject to |rho - 1| <= e is solved by rho* = 1 + e sign(A - median A)
    L = mean of |A| |rho - (1 + e sign(r - median))|,   A = (r - mean) / (std + 1e-6),   e = 0.2

    PPO's gradient until the target, the opposite beyond it. Answers on the median have target 1: where most are right,
    the right ones are held where they are, and the wrong ones alone are moved.

    Choices. As the authors' code. It has a smooth target, 1 - e + 2 e sigmoid((r - median) / (std t)), with t = 1e-4 in
    its scripts, where it is the hard one (`objective.temperature`; 1 in its configuration's defaults), e = 0.2 or 0.3,
    and a token mean (`objective.aggregate: token_mean`) with KL 0.001. `credit.center: median` is one advantage for
    both: answers on the median then have no pull. A group of one, which the code trains by its raw reward, has
    advantage 0.
    """,
    cite="ao2026gbpo",
    evidence="reference-code",
    code="bounded-ratio-rl/bounded_ratio_rl@64ff1cd src/verl/trainer/ppo/core_algos.py ttrl/Qwen2.5-Math/math.sh",
    keys={"objective.surrogate": "ratio_target"},
)

# smooth gates
dpo_discovered = Definition(
    r"""Discovered PO: discovered policy optimisation: a meta-learned drift function in place of the clip.

    J = A rho - f;   A > 0: f = relu(z - 2 tanh(z / 2)), z = (rho - 1) A;   A < 0: f = relu(z - 0.6 tanh(z / 0.6)),
    z = A log rho

    f and its slope are 0 at rho = 1, so every step is a mirror-learning step. Rewarded tokens lose gradient gradually;
    for punished ones the loss turns and pulls those back that became very unlikely.

    Choices. The paper calls it DPO; that name is direct preference optimization here (`dpo`). The loss of the first
    author's PureJaxRL, to which the paper's repository refers, a mean over tokens as there over steps; the advantage is
    group-relative, where theirs is GAE standardised over the minibatch.
    """,
    cite="lu2022dpodiscovered",
    evidence="reference-code",
    code="luchris429/purejaxrl@31756b197773 purejaxrl/dpo_continuous_action.py",
    keys={"objective.surrogate": "drift", "objective.aggregate": "token_mean"},
)

sapo_gate = Definition(
    r"""SAPO (soft adaptive): sigmoid of the ratio in place of the clip, with a temperature for each sign of A.

    l = -A (4 / tau) sigmoid(tau (rho - 1)),   tau = 1 for A > 0, 1.05 for A < 0
    Its gradient is that of -A rho times 4 p (1 - p), p the sigmoid: 1 at ratio 1, nothing far from it.

    Choices. The value at ratio 1 is -2 A / tau, so that the loss is not 0 on policy; verl and TRL are the same. The
    name of SAPO also belongs to swarm sampling.
    """,
    cite="gao2025sapogate",
    evidence="secondary",
    keys={"objective.surrogate": "sigmoid"},
)

# a mask by divergence
dppo_divergence = Definition(
    r"""DPPO (divergence): trust-region mask by the change of token probability (TV or binary KL), not by ratio.

    out: A > 0 and p - q > 0.2, or A < 0 and p - q < -0.2;   l = -stop(min(rho, 20)) A log pi, token mean
    p and q: the token's probability under the policy and under the behaviour policy.

    A ratio of 3 from 0.01 to 0.03 is nothing, one of 1.3 from 0.7 to 0.9 is much: PPO's clip has it the other way
    round. `{"objective.divergence": "kl"}` measures by the KL divergence of "this token or another".

    Choices. As in the authors' code, over the behaviour policy (`objective.ratio_over: proximal` is their
    `_recompute`), with bounds of 0.2, which are the trainer's clip widths there; their script in verl
    (examples/dppo_trainer) has 0.15, and 0.05 for `kl` (`objective.divergence_low`, `divergence_high`). Their sources
    disagree on the ratio's bound: 3 in their repository's configuration, 1e4 in the script; here 20
    (`objective.ratio_max`). The script is Dr. GRPO otherwise (all of it `dppo_divergence@paper`). A divergence over the
    top k tokens needs distributions that are not kept. A trainer that adds 1e-3 times the squared log-ratio on every
    token is not followed in that. The name also belongs to diffusion policies.
    """,
    cite="qi2026dppodivergence",
    evidence="reference-code",
    code="sail-sg/Stable-RL@c6af1d119c0f verl/trainer/ppo/core_algos.py verl/workers/config/actor.py",
    keys={
        "objective.surrogate": "divergence_mask",
        "objective.ratio_over": "behaviour",
        "objective.aggregate": "token_mean",
    },
    paper_defaults={
        "rollout.group_size": 16,
        "optim.lr": 1e-6,
        "credit.scale": "none",
        "objective.aggregate": "sequence_sum",
        "objective.ratio_max": 1e4,
        "objective.divergence_low": 0.15,
        "objective.divergence_high": 0.15,
    },
)
