r"""SDPO (segment-level): DPO on segments of equal length that begin where the episodes part.

e the first turn in which the members of the group differ, k the least number of turns that one has from e on
s_i = sum over turns e .. e + k - 1 of (log policy - log reference);   l = -log sigmoid(beta (s_better - s_worse))

Choices. beta 0.1. In the paper a language model names the turn of a bad episode that went wrong, five episodes are
sampled anew from there and the best is taken, and it names the end of the segment; the loss is DPO with the other
tokens masked. Here a second episode leaves the first before a turn drawn at random among those it may have, and e is
that turn (default changed on 2026-11-28: before, rollouts were independent, `rollout: independent`); k is as long as
both go on. In pairs that come with the data (`rollout: logged`), and among independent episodes, e is where histories
part. Groups of more than two share one e and k. Pairs by verdict. Self-distillation, also SDPO, is `sdpo_self`.
"""

from gxpo.algorithms.objectives.preference_pairs import PreferencePairs
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.branching import TurnBranches

sdpo_segment = Definition(
    name="sdpo_segment",
    doc=__doc__,
    title="SDPO: Segment-Level Direct Preference Optimization for Social Agents",
    arxiv="2501.01821",
    authors="Kong, Aobo and Ma, Wentao and Zhao, Shiwan and others",
    year=2025,
    formula="l = -log sigmoid(beta (s_w - s_l)), s = sum of log(pi/ref) over turns e .. e + k - 1",
    evidence="reference-code",
    code="AlibabaResearch/DAMO-ConvAI@e0cc87a13bd330474cd5e48a6821a4334cd732cb "
    "SDPO/LLaMA-Factory/src/llamafactory/train/dpo/trainer.py",
    keys={
        "objective": PreferencePairs,
        "objective.over": "segment",
        "rollout": TurnBranches,
        "rollout.choose": "at_one_turn",
        "rollout.group_size": 2,
        "rollout.initial": 1,
    },
    refuses={"objective.kl.place": ("reward",)},
    cost="the turns before e are generated once for both; a frozen reference model",
)
