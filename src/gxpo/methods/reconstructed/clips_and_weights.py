"""Reconstructed clips, and weights of tokens."""

from gxpo.parts.definition import Definition

etr = Definition(
    r"""ETR (mostly ours): elastic trust region: PPO clip range that widens with |A| and with the variance of the group.

    e_i = e (1 + 0.5 tanh |A_i|) (1 + 0.5 * 4 p (1 - p));   loss = max(-A rho, -A clip(rho, 1 - e_i, 1 + e_i))

    Choices. A reconstruction: the abstract says that bounds scale with the advantage's magnitude and with the group's
    variance; their form, both sides alike, and the two factors 0.5 are ours. The pass rate p is read off the z-scored
    advantage of a binary outcome, 4 p (1 - p) = 4 A^2 / (1 + A^2)^2, exact for the population std; so within a group
    the two factors are tied, and partly oppose.
    """,
    cite="zhang2026etr",
    evidence="reconstruction",
    keys={"objective.surrogate": "elastic_clip"},
)

earl = Definition(
    r"""EARL: train only the 20% highest-entropy tokens of each answer.

    w_t = 1 where H_t is at least the 80 % quantile of its answer's entropies, else 0;   loss = GRPO's times w

    Choices. A reconstruction: the quantile is per answer, as summaries have it (`weight.entropy_quantile.scope: batch`
    is the common form, over all tokens of the step), linearly interpolated, of the policy at the start of the step.
    Masked tokens stay in the denominators. The paper keeps a KL term whose coefficient we don't know:
    `objective.kl.coef`.
    """,
    cite="shi2025earl",
    evidence="reconstruction",
    keys={
        "weight.entropy_quantile": "token_weight",
        "weight.entropy_quantile.by": "entropy",
        "weight.entropy_quantile.keep": "above_quantile",
        "weight.entropy_quantile.scope": "trajectory",
    },
    cost="a forward pass for entropies before the update",
)
