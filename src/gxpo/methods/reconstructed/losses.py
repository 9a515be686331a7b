"""Reconstructed methods that change the loss: clips, weights of tokens, preference losses."""

from gxpo.parts.definition import Definition

# clips and weights of tokens
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
        "weight.entropy_quantile.score": "entropy",
        "weight.entropy_quantile.curve": "above_quantile",
        "weight.entropy_quantile.scope": "trajectory",
    },
    cost="a forward pass for entropies before the update",
)

# preference losses
power_dl = Definition(
    r"""POWER-DL: reward robust to rare answers by a weighted entropy, and labels that follow the policy, in pairs.

    s_i = (sum_t log policy + 1) / length;   z = beta (s_better - s_worse)
    l = -label log sigmoid(z) - (1 - label) log sigmoid(-z) - eta beta mean_t log policy(better)
    label <- (1 - gamma) label + gamma sigmoid(z) after each step that has the pair, from 1 on

    Choices. Reconstructed from the abstract and summaries: the weights w = 1 / length of the entropy are the paper's
    example, beta 2, eta 1e-3 and gamma 0.1 are within what is reported and ours. eta beta is `objective.nll`, gamma
    `objective.label_rate`. Labels move where a pair comes back, with rollout `logged`; of fresh rollouts each is new,
    and this is POWER.
    """,
    cite="rashidinejad2024powerdl",
    evidence="reconstruction",
    keys={
        "objective": "robust_pairs",
        "objective.reference": "none",
        "objective.length_mean": True,
        "objective.length_offset": 1.0,
        "objective.beta": 2.0,
        "objective.nll": 2e-3,
        "objective.label_rate": 0.1,
    },
    refuses={"objective.kl.place": ("reward",)},
    cost="a label of every pair, in the checkpoint",
)

mpo_set = Definition(
    r"""MPO (formerly SWEPO): the answers above a group's mean reward against all of them, those far from it weighing
    more.

    x_i = beta sum_t (log policy - log reference) + alpha |r_i - mean r|^power
    L = mean over groups of -log(sum_{r_i > mean r} e^x_i / sum_i e^x_i),   beta 0.1, alpha 1, power 1

    Choices. Reconstructed from the abstract and memory of SWEPO's text, which has powers 0, 1 and 2 (0: no weights,
    here alpha 0) and four answers a prompt. Answers at the mean are not above it; a group of equal rewards gives 0.
    With one answer above and one below, and alpha 0, this is DPO. Other methods of this acronym mix preferences or
    prompts.
    """,
    cite="gupta2024mposet",
    evidence="reconstruction",
    keys={"objective": "set_contrast"},
    refuses={"objective.kl.place": ("reward",)},
    cost="a frozen reference model and its forward pass over the rollouts",
)
