"""Reconstructed methods that learn values from logged rollouts."""

from gxpo.parts.definition import Definition

ota = Definition(
    r"""OTA: values over options: five turns cost one reward and one discount, so that far goals stay told apart.

    V: 0.9-expectile of -1 + 0.99 V(five turns on), 0 after success
    L = -mean min(e^(3 A), 100) log pi + 0.5 value loss

    Choices. From the abstract and HIQL, whose low and high policies both are imitation weighted by advantages: here one
    policy. The option's length is ours; of answers of one turn set `credit.level: token`.
    """,
    cite="ahn2025ota",
    evidence="reconstruction",
    keys={
        "rollout": "logged",
        "credit": "option_values",
        "credit.option": 5,
        "credit.cost": -1.0,
        "credit.temperature": 1 / 3,
        "objective.surrogate": "log_likelihood",
        "objective.add.value": "value_regression",
        "objective.add.value.form": "expectile",
    },
    cost="a forward pass for the values",
)

dual_rl = Definition(
    r"""Dual RL (of its methods dual-V with the KL divergence): a value by Gumbel regression, advantage-weighted
    imitation.

    z = (r + 0.99 V' - V) / beta;   L_V = e^z - z - 1;   L = -mean min(e^(A / beta), 100) log pi + 0.5 L_V;   beta 1

    Choices. From the abstract and from XQL, which it generalises: z is cut at 5, as there. Its other divergences (chi
    square) are expectiles of a kind: `objective.add.value.form: expectile`.
    """,
    cite="sikchi2023dualrl",
    evidence="reconstruction",
    keys={
        "rollout": "logged",
        "credit": "option_values",
        "objective.surrogate": "log_likelihood",
        "objective.add.value": "value_regression",
        "objective.add.value.form": "gumbel",
    },
    cost="a forward pass for the values",
)

bcoder = Definition(
    r"""B-Coder (of it the conservative value and its use): a value of programs from logged attempts and their tests,
    by which the best of n is taken.

    V: 0.3-expectile of R, at every token, R by the unit tests;   the policy imitates all that is logged

    Choices. From the abstract: there Q is read off the logits of the fine-tuned model and its backup follows that model
    alone, which keeps it from hoping. Here a head is added, and an expectile below one half is what is cautious. It is
    fitted to the outcome itself (options of 4096 tokens): from token to token (`credit.option: 1`) a head that begins
    at 0 needs as many steps as an answer has tokens until its beginning knows of the end. The programs' reward is the
    run's (`reward: code`), or the log's.
    """,
    cite="yu2023bcoder",
    evidence="reconstruction",
    keys={
        "rollout": "logged",
        "credit": "option_values",
        "credit.level": "token",
        "credit.option": 4096,
        "credit.discount": 1.0,
        "credit.policy_credit": "all",
        "objective.surrogate": "log_likelihood",
        "objective.add.value": "value_regression",
        "objective.add.value.form": "expectile",
        "objective.add.value.tau": 0.3,
    },
    cost="a forward pass for the values",
)
