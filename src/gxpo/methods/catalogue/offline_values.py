"""Values learnt from logged rollouts, and policies that imitate by them; the best of n is taken by `gxpo best-of`."""

from gxpo.parts.definition import Definition

saw = Definition(
    r"""SAW: advantage-weighted imitation with an expectile value, and a pull to the policy that is shown the way.

    V: 0.7-expectile of -1 + 0.99 V', V' = 0 after success;   A = -1 + 0.99 V' - V
    L = -mean min(e^(3 A), 100) log pi + 0.5 mean expectile loss + KL(pi(. | a right peer) || pi)

    Choices. From the authors' code: alpha 3, cut 100, expectile .7. There the guide is a policy told a sub-goal 25
    steps ahead; here it is the policy that reads a right answer of the group (`signal.self_teacher`), and its KL is not
    weighted by e^(3 A). A in their actor is V' - V, the same up to a factor. One head and no target network.
    """,
    cite="zhou2025saw",
    evidence="reference-code",
    code="johnlyzhou/saw@18072952efcd785c956a1fcb42da0db86f64d101 impls/agents/saw.py",
    keys={
        "rollout": "logged",
        "credit": "option_values",
        "credit.cost": -1.0,
        "credit.temperature": 1 / 3,
        "objective.surrogate": "log_likelihood",
        "objective.add.value": "value_regression",
        "objective.add.value.form": "expectile",
        "objective.add.value.tau": 0.7,
        "objective.add.guide": "distillation",
        "objective.add.guide.alpha": 0.0,
        "signal.self_teacher": "self_teacher",
    },
    cost="a forward pass for the values, one of the guide",
)

_DQC_HEADS = ("chunk", "short")

dqc = Definition(
    r"""DQC: a critic of chunks, distilled into one of short prefixes; the policy imitates, the best of n is taken.

    chunk(s) <- R + 0.999 short(s after 25 tokens), by cross-entropy
    short(s) <- R + 0.999 chunk(s after 25 tokens), by an expectile;   policy: imitation of all that is logged

    Choices. From the authors' code: chunk 25, discount .999, best of 32. There the short critic is a 0.5-expectile of
    the chunk's and V, a third network, a 0.9-quantile of the short one: here the short head is both, a 0.9-expectile.
    In a text the state after a chunk holds the chunk, so both critics are heads that read states.
    """,
    cite="li2025dqc",
    evidence="reference-code",
    code="ColinQiyangLi/dqc@949d85b866be1924de6863c7ed95d60dc3ee5370 agents/dqc.py",
    keys={
        "rollout": "logged",
        "credit": "option_values",
        "credit.level": "token",
        "credit.option": 25,
        "credit.discount": 0.999,
        "credit.two_heads": True,
        "credit.logits": True,
        "credit.policy_credit": "all",
        "objective.surrogate": "log_likelihood",
        **{f"objective.add.{name}": "value_regression" for name in _DQC_HEADS},
        **{f"objective.add.{name}.head": name for name in _DQC_HEADS},
        "objective.add.chunk.form": "bce",
        "objective.add.short.form": "expectile",
    },
    cost="a forward pass for two values",
)

mbrcsl = Definition(
    r"""MBRCSL: imitation of everything that is logged, each answer under a prompt that says how it will end.

    L = -mean log pi(y | word(outcome), q);   at test the prompt has the word of the best outcome

    Choices. From the authors' code its return-conditioned half: all is imitated under its return, and the goal is asked
    for. Its rollouts in a learnt dynamics model, which stitch trajectories, have no counterpart: `imagined` has such a
    model, for worlds. Returns are cut into as many kinds as `rollout.returns` has words, from the worst on.
    """,
    cite="zhou2023mbrcsl",
    evidence="reference-code",
    code="zhaoyizhou1123/mbrcsl@382ccff7bdcbada7136ce0f0611f0536465df354 "
    "offlinerlkit/policy_trainer/rcsl_policy_trainer.py",
    keys={
        "rollout": "logged",
        "rollout.returns": ["wrong", "right"],
        "credit": "constant_advantage",
        "credit.origin": "logged",
        "objective.surrogate": "log_likelihood",
    },
)
