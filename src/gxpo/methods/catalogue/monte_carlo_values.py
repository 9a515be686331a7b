"""Methods that measure the values of states by continuations of the policy."""

from gxpo.parts.definition import Definition

vineppo = Definition(
    r"""VinePPO: Monte Carlo values of reasoning steps, by continuations from each, instead of a critic.

    V(s) = mean outcome of 9 continuations from s;  A_t = r_t + V(s_{t+1}) - V(s_t) for all tokens of step t,
    r_t = 0 before the last step, whose V(s_{t+1}) is 0 and whose r_t the outcome;  PPO's clip, a mean over tokens.
    The advantages of an attempt add up to its outcome less V(prompt).

    Choices. A step is a line (`segment.text`; default changed on 2026-11-28: before, a comma ended a step, as in the
    built-in arithmetic). The code also splits the long sentences of a line. V(prompt) is estimated once a group, not
    once an attempt. The authors' code whitens advantages over the tokens of the batch, which their formula does not:
    `credit.whiten: token`. In environments a step is a turn: `rollout.unit: turn`. Their temperature, 0.6 at top_p 0.9,
    and learning rate are under `vineppo@paper`, without the KL.
    """,
    cite="kazemnejad2024vineppo",
    evidence="reference-code",
    code="McGill-NLP/VinePPO@efe7228469f21bad8cc8d4e44a3f688ed8cc6aac "
    "src/treetune/episode_generators/math_episode_generator_with_mc_advantages.py "
    "src/treetune/trainers/ppo_trainer.py",
    keys={
        "credit": "value_delta",
        "rollout": "monte_carlo_values",
        "segment": "delimiter",
        "segment.text": "\n",
        "objective.aggregate": "token_mean",
    },
    paper_defaults={"sampling.temperature": 0.6, "sampling.top_p": 0.9, "optim.lr": 1e-6},
    cost="9 continuations from every step of every attempt, generated and discarded",
)

spo_segment = Definition(
    r"""SPO: segment-level advantages by Monte Carlo values at low-probability cut points; confident tokens masked.

    A segment begins before every 5th token of probability < 0.9 (SPO-chain);  V = mean outcome of 9 continuations
    A = V(end of the segment) - V(its beginning), the outcome at the end of the last; 0 on tokens of probability > 0.9
    PPO's clip, a mean over tokens

    Choices. The first segment has the prompt's value to begin with (the code: only where a cut falls on the first
    token; else its advantage is 0: `rollout.prompt: false`). Confident tokens keep their place in the token mean, as
    every token of weight 0 does; the code leaves them out there too, which multiplies the step's gradient by one
    number, all tokens / unsure tokens. Its runs also whiten over the unsure tokens: `credit.whiten: token`. The chain
    is the default. The tree is `rollout: tree`, `credit: node_value`, `credit.form: edge`, `credit.value: child_mean`,
    with `credit.scale: sibling_std` for its "grpo" mode (its "rloo", without, measures a node against a mean that it is
    part of), and edges are trained once each by `objective.dedup_shared_tokens`. The code's tree is 6-6-6 of segments
    of 600 tokens, whose edges are replayed in later steps; that is not done.
    """,
    cite="guo2025sposegment",
    evidence="reference-code",
    code="AIFrameResearch/SPO@b9fc6a263dec54e28137fd488a9b9c0e0d026025 "
    "src/treetune/episode_generators/math_episode_generator_with_mc_advantages.py",
    keys={
        "credit": "value_delta",
        "credit.max_probability": 0.9,
        "rollout": "monte_carlo_values",
        "segment": "surprising",
        "objective.aggregate": "token_mean",
    },
    paper_defaults={"sampling.temperature": 0.6, "sampling.top_p": 0.9, "optim.lr": 1e-6},
    cost="9 continuations from every cut, generated and discarded",
)

vsrm = Definition(
    r"""VSRM: verifiable stepwise rewards: the change in success rate of answers forced after each reasoning step.

    acc_j = mean outcome of 5 answers asked for after the first j steps;  d_j = acc_{j+1} - acc_j;
    r_j = d_k 0.7^(k - j), d_k the first of d_j ... d_{j+4} that is not 0, and 0 if all are (steps that lead nowhere)
    A_t = whitened over tokens (outcome + r_j + r_{j+1} + ... from token t's step on)

    Choices. REINFORCE++ of the paper's two (the other is PPO with a critic). All tokens of step j have r_j; the code
    writes it on the first one, so that the others of the step do not have it and all steps before do. The last acc is
    of the whole chain, where the attempt ended it by itself; of one that did not, the code measures the first 7
    characters, and here its last step has no reward. The code's outcome of -9.5 or -10 for answers of the wrong form is
    left to the task. Steps begin at words like wait, but, however..., after 1000 characters and 400 apart, and answers
    are asked for by "</think>", of 768 tokens, as in the code (default changed on 2026-11-28: before, the comma and "#"
    of the built-in arithmetic, for which `segment: delimiter`, `segment.text: ","`, `rollout.answer_cue: "#"` and
    `rollout.answer_tokens: 0` are right).
    """,
    cite="yue2025vsrm",
    evidence="reference-code",
    code="1benwu1/VSRM-Efficient-LRMs@e4e928b4307056d7b04b2a06a76e518481245760 verl/workers/rollout_postprocess.py",
    keys={
        "credit": "value_trend",
        "rollout": "monte_carlo_values",
        "rollout.samples": 5,
        "rollout.prompt": False,
        "rollout.answer_cue": "</think>",
        "rollout.answer_tokens": 768,
        "segment": "pattern",
        "segment.min_offset": 1000,
        "segment.min_distance": 400,
    },
    paper_defaults={"sampling.temperature": 0.6, "sampling.top_p": 0.95, "optim.lr": 1e-6},
    cost="5 short answers after every step of every attempt, generated and discarded",
)

pav = Definition(
    r"""PAV: process advantages: step progress under a prover policy (best of K), added to the outcome advantage.

    A = (R - mean_g R) + alpha (V^mu(end of the step) - V^mu(its beginning)),   alpha 5
    V^mu = 1 - (1 - V)^K: mu is the best of K = 4 attempts of the policy, V the mean outcome of 9 continuations

    Choices. From the paper (v1: eq. 1 to 5, appendices C to E). alpha is 5 for its model of 2 billion parameters, 3 for
    that of 9, and 0.5 to 6 all help. Its provers in RL are SFT models of 2 or 9 billion parameters, the weaker the
    better, and its analysis is of the best of K of the policy, 1 - (1 - V)^K as here, which it uses in search, with K
    from 2 to 32. It trains a model to predict V, from 20 continuations a step, that then stays as it is; here V is
    measured in every step, so nothing is learnt but the policy. The gradient is that of Q^pi + alpha A^mu: a step's
    progress is an advantage of that step alone, not of those before. There a learnt value of Q^pi + alpha A^mu is
    subtracted; here the group's mean outcome. Outcomes are not divided by their std, since alpha weighs one chance
    against another. Steps end with a newline (`segment.text`). Under `pav@paper`: 20 continuations, and its KL to the
    first policy and learning rate.
    """,
    cite="setlur2024pav",
    evidence="paper",
    keys={
        "credit.scale": "none",
        "credit.add.value_difference": "value_delta",
        "credit.add.value_difference.best_of": 4,
        "credit.add.value_difference.factor": 5.0,
        "rollout": "monte_carlo_values",
        "segment": "delimiter",
        "segment.text": "\n",
    },
    paper_defaults={"rollout.samples": 20, "objective.kl.coef": 0.001, "optim.lr": 1e-7},
    cost="9 continuations from every step of every attempt, generated and discarded",
)

var_grpo = Definition(
    r"""VAR-GRPO (value as middle return), for text: the first half is paid by a soft value of where it ends.

    V_m = eta log 1/K sum_k e^(R_k / eta)    from K = 2 continuations of the state in the middle of the answer, eta 1
    A   = V_m - V_0 for the tokens before it, V_0 the same of the prompt;   A = R - V_m for those after it

    Choices. The paper generates pictures from coarse to fine scales, and compares prefixes, and suffixes of one prefix,
    within groups; here the values themselves are the baselines. With the exact V_m both halves' optima under a KL with
    weight eta are the whole's. Left out: weights of scales by their tokens, masks of the tokens that a reward is about,
    three updates of prefixes for one of suffixes. The middle is a line's end (`segment.text`).
    """,
    cite="gallici2025vargrpo",
    evidence="paper",
    keys={
        "credit": "value_delta",
        "rollout": "monte_carlo_values",
        "rollout.samples": 2,
        "rollout.boundaries": 1,
        "rollout.reduce": "soft",
        "segment": "delimiter",
        "segment.text": "\n",
    },
    paper_defaults={"rollout.group_size": 16, "optim.lr": 1e-6},
    cost="2 continuations from the middle of every attempt, and from the prompt, generated and discarded",
)
