r"""ArenaRL: a knockout tournament within the group, seeded by matches against the first attempt; the place is the
reward.

r_i = 1 - rank_i / (G - 1);   A as in GRPO

Choices. A judge of `scoring.options.judge` (or of the section `teacher`) gives a verdict on each match in both orders;
the code adds up two scores from 0 to 10 of both orders and takes the larger sum. Seeds without an opponent have a bye:
the code drops byes before it pairs, so that with six attempts the first two seeds have none. Equal places of a knockout
share the mean of their ranks, and where every match is a tie all are equal; there the order in the list decides, and
equal attempts are paid from 1 to 0. Attempts of one text are one contestant (code: each is one,
`scoring.options.judge.contestants: attempts`). `scoring.options.judge.compare`: round_robin, anchor (both pay 1 - rank
/ largest rank, equal ones the least of their ranks, as the code, which pays 0 where all are equal and here 1/2), swiss,
double_elim (seeded by their order, where the code draws pairs at random). A bye in a Swiss round is no match, and
opponents are compared by their mean; there it is a win, and by their sum. Its scripts' clip is `arena_rl@paper`.
"""

from gxpo.parts.definition import Definition

arena_rl = Definition(
    name="arena_rl",
    doc=__doc__,
    title="ArenaRL: Scaling RL for Open-Ended Agents via Tournament-based Relative Ranking",
    arxiv="2601.06487",
    authors="Zhang, Qiang and Chen, Boli and Zhang, Fanrui and Ding, Ruixue and Wang, Shihang and Wang, Qiuchen and "
    "Huang, Yinfeng and Zhang, Haonan and Zhu, Rongxiang and Wang, Pengyong and Ren, Ailin and Li, Xin and Xie, "
    "Pengjun and Liu, Jiawei and Guo, Ning and Zhou, Jingren and Zha, Zheng-Jun",
    year=2026,
    evidence="reference-code",
    code="Alibaba-NLP/qqr@944a2e2fbfe9e7e4e5fca49c75813d85da1fc9a3 qqr/reward_models/arena/single_elimination.py "
    "qqr/reward_models/arena/double_elimination.py qqr/reward_models/arena/swiss.py "
    "qqr/reward_models/arena/round_robin.py qqr/reward_models/arena/anchor.py scripts/travel/run-qwen3-8B.sh",
    keys={"reward": "judge", "scoring.options": {"judge": {"mode": "pairwise", "compare": "single_elim"}}},
    paper_defaults={
        "rollout.group_size": 16,
        "tasks.per_step": 16,
        "sampling.temperature": 0.8,
        "objective.clip_high": 0.28,
        "optim.lr": 1e-6,
        "credit.eps": 1e-6,
    },
    cost="at most 2 (G - 1) matches a group, two questions each",
)
