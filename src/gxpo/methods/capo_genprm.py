r"""CAPO (generative PRM): penalise steps that LLM critiques call wrong; token-level group normalisation.

R_t = 2 * outcome - 1 * [the token's step is voted wrong];   A_t = (R_t - mean) / (std + 1e-6), mean and population std
over all tokens of all attempts of the group.   4 critiques; wrong is what all of them call wrong ("intersection")

Choices. From secondary sources: a reimplementation's table of rewards, and reviews for the normalisation. C = 2 and P =
1: the reward of the whole outweighs that of the process, so that a right attempt with wrong steps stays above a wrong
one; other orders are refused. Steps end with an empty line (`segment=pattern` with `segment.regex` for numbered ones).
`credit.vote` is intersection, majority or union. Critiques are sampled at temperature 1; the paper's is not known to
us. The judge (`signal.step_judge.server`, or `.ask`) is yours to name. A step that no critique could be read for is not
penalised, and counted. Advantages vary between tokens, so a group of one learns where it has wrong steps.
"""

from gxpo.algorithms.segments import Delimiter
from gxpo.algorithms.signals.step_judge import StepJudge
from gxpo.parts.definition import Definition

capo_genprm = Definition(
    name="capo_genprm",
    doc=__doc__,
    title="CAPO: Towards Enhancing LLM Reasoning through Verifiable Generative Credit Assignment",
    arxiv="2508.02298",
    authors="Xie, Guofu and Shi, Yunsheng and Tian, Hongtao and Yao, Ting and Zhang, Xiao",
    year=2025,
    formula="R_t = 2 outcome - [step voted wrong]; A_t = (R_t - mean) / std over all tokens of the group",
    evidence="secondary",
    keys={
        "credit.value": "penalised_outcome",
        "credit.unit": "token",
        "credit.ddof": 0,
        "segment": Delimiter,
        "signal.step_judge": StepJudge,
        "signal.step_judge.say": "wrong",
        "signal.step_judge.critiques": 4,
        "signal.step_judge.temperature": 1.0,
    },
    cost="4 critiques of every attempt by a judge of your choice",
)
