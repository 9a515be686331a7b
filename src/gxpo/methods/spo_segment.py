r"""SPO: segment-level advantages by Monte Carlo values at low-probability cut points; confident tokens masked.

A segment begins before every 5th token of probability < 0.9 (SPO-chain);  V = mean outcome of 9 continuations
A = V(end of the segment) - V(its beginning), the outcome at the end of the last; 0 on tokens of probability > 0.9
PPO's clip, a mean over tokens

Choices. The first segment has the prompt's value to begin with (the code: only where a cut falls on the first token;
else its advantage is 0: `rollout.prompt: false`). Confident tokens keep their place in the token mean, as every token
of weight 0 does; the code leaves them out there too, which multiplies the step's gradient by one number, all tokens /
unsure tokens. Its runs also whiten over the unsure tokens: `credit.whiten: token`. The chain is the default. The tree
is `rollout: tree`, `credit: node_value`, `credit.form: edge`, `credit.value: child_mean`, with `credit.scale:
sibling_std` for its "grpo" mode (its "rloo", without, measures a node against a mean that it is part of), and edges are
trained once each by `objective.dedup_shared_tokens`. The code's tree is 6-6-6 of segments of 600 tokens, whose edges
are replayed in later steps; that is not done.
"""

from gxpo.algorithms.credit.value_delta import ValueDelta
from gxpo.algorithms.segments import surprising
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.monte_carlo_values import MonteCarloValues

spo_segment = Definition(
    name="spo_segment",
    doc=__doc__,
    title="Segment Policy Optimization: Effective Segment-Level Credit Assignment in RL for Large Language Models",
    arxiv="2505.23564",
    authors="Guo, Yiran and Xu, Lijie and Liu, Jie and Ye, Dan and Qiu, Shuang",
    year=2025,
    formula="A = (V(end of segment) - V(begin)) [p <= 0.9], V the mean outcome of 9 continuations",
    evidence="reference-code",
    keys={
        "credit": ValueDelta,
        "credit.confident": 0.9,
        "rollout": MonteCarloValues,
        "segment": surprising,
        "objective.aggregate": "token_mean",
    },
    paper_defaults={"sampling.temperature": 0.6, "sampling.top_p": 0.9, "optim.lr": 1e-6},
    cost="9 continuations from every cut, generated and discarded",
    code="AIFrameResearch/SPO@b9fc6a263dec54e28137fd488a9b9c0e0d026025 "
    "src/treetune/episode_generators/math_episode_generator_with_mc_advantages.py",
)
