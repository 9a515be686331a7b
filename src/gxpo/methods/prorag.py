r"""ProRAG: step scores of a process reward model, normalised over the group's tokens, added to GRPO's advantage.

A_t = (R - mean_g R) / (std_g R + 1e-4) + 0.5 z_t;   z_t = (s_t - mu) / (std + 1e-8), s_t the score of the token's step,
mu and std (population) over all tokens of all attempts of the group, so that a long step moves them more

Choices. The scorer is a setting: `signal.step_judge.score=prm.py:score`, a judge, or a server (the paper's model is
trained on trees of its own, which is not built). A step is a turn, or a segment where `segment` names a segmenter. The
reference has 1e-8 inside the root, here it is added to the std; and divides by 1 where a group has one token, which is
0 either way. A step without a score has z 0 and is in no statistic. Groups of equal outcomes learn from the scores
alone. Warm-up and refinement of the policy before the training are other stages.
"""

from gxpo.algorithms.credit import Relative
from gxpo.algorithms.signals.step_judge import StepJudge
from gxpo.parts.definition import Definition

prorag = Definition(
    name="prorag",
    doc=__doc__,
    title="ProRAG: Process-Supervised Reinforcement Learning for Retrieval-Augmented Generation",
    arxiv="2601.21912",
    authors="Wang, Zhao and Zhao, Ziliang and Dou, Zhicheng",
    year=2026,
    formula="A_t = (R - mean_g) / std_g + 0.5 (s_t - mu) / std, mu and std over all tokens of the group",
    evidence="reference-code",
    keys={
        "credit.eps": 1e-4,
        "credit.add.token_normalised": Relative,
        "credit.add.token_normalised.value": "segment_score",
        "credit.add.token_normalised.ddof": 0,
        "credit.add.token_normalised.eps": 1e-8,
        "credit.add.token_normalised.weight": 0.5,
        "signal.step_judge": StepJudge,
    },
    paper_defaults={"rollout.group_size": 8, "optim.lr": 1e-5},
    cost="a score for every step, by a model or a judge of your choice",
    code="lilinwz/ProRAG@c7a64110d0c900561fde4292f234b97dfe633e94 prorag/rl/trainer.py prorag/rl/train.py",
)
