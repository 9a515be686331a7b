r"""HiPER: options-style agent (switch, sub-goal and action tokens) with a separate advantage for each level.

A turn: <switch>KEEP|SWITCH</switch><subgoal>...</subgoal><action>...</action>; an option: turns up to the next SWITCH
action tokens    A_t = r_t + g V' - VL_t + g l A_{t+1} inside the option; V' = VL_{t+1}, at its end VH of the next
sub-goal tokens  where an option begins: D = sum_j g^j r_j + g^d VH(next) - VH, A = D + g^d l_H A(next)
switch tokens    T_t - VT_t;  T_t = r_t + g T_{t+1}, g VH(next) at the option's end
each of the three over its own turns: (A - mean) / (std + 1e-8)

Choices. After the released code and its scripts: g = l = 1, l_H 0.95; a keep costs 0.3 / T, one with another sub-goal
than before 0.3; truncated episodes end with the value expected at their last turn. The first switch tag decides: any
word in it but KEEP begins an option, with or without a sub-goal; without one, or with none in it, the turn goes on. A
turn without an action is the action as a whole. The switch advantage is the return's, not the option-critic form that
the code has commented out. Values at the turn's first token (VH, VT) and the first after the sub-goal (VL). Tokens
outside the tags have advantage 0, but stay in the mean's denominator and in the KL (there they are masked); a token
that two tags share is the earlier kind's (there the sum). Of several actions all count, there the first. The penalty
for actions that can't be read, 0.1 there, is left to the environment here. The prompt or the system message has to
describe the format: `untagged_turns` counts the turns without any tag, and a run of such turns alone is warned of. KL
coefficient: `@paper`.
"""

from gxpo.algorithms.credit.gae_hierarchical import HierarchicalGae
from gxpo.algorithms.objectives.value import ValueRegression
from gxpo.algorithms.segments.by_text import Spans
from gxpo.parts.definition import Definition

HEADS = ("low", "high", "switch")

hiper = Definition(
    name="hiper",
    doc=__doc__,
    title="HiPER: Hierarchical Reinforcement Learning with Explicit Credit Assignment for Large Language Model Agents",
    arxiv="2602.16165",
    authors="Peng, Jiangweizhi and Liu, Yuanxin and Zhou, Ruida and Fleming, Charles and Wang, Zhaoran and "
    "Garcia, Alfredo and Hong, Mingyi",
    year=2026,
    formula="A = A_low on action tokens + A_high on sub-goal tokens where an option begins + (T - VT) on switch tokens",
    evidence="reference-code",
    keys={
        "segment": Spans,
        "segment.patterns": (
            r"\A(?:(?!<switch>).)*(<switch>\s*(?i:keep)?\s*</switch>)",
            r"\A.*?(<switch>.*?</switch>)",
            r"\A.*?(<subgoal>.*?</subgoal>)",
            r"<action>.*?</action>",
        ),
        "credit": HierarchicalGae,
        "credit.keep_penalty": -0.3,
        "credit.consistency_penalty": -0.3,
        "credit.cut": "extend",
        **{f"objective.add.{name}": ValueRegression for name in HEADS},
        **{f"objective.add.{name}.head": name for name in HEADS},
    },
    paper_defaults={"objective.kl.coef": 0.01, "optim.lr": 1e-6},
    code="JonP07/HiPER-agent@9d3c118 hiper_hae/core_hae.py hiper_hae/hier_mask.py verl/trainer/ppo/ray_trainer.py "
    "example_scripts/HiPER_trainer/run_alfworld.sh",
    cost="a forward pass for three values at the start of the step; three vectors of parameters",
)
