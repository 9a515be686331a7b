r"""Train Long, Think Short: a triangular reward around a budget of tokens that falls over the run.

r = 0.6 r_outcome + 0.3 R_len;   R_len = |o| / B up to B, 1 - (|o| - B) / B up to 2 B, 0 beyond
B = 256 gamma^floor(t / 150), gamma = 0.7, four budgets over 600 steps: 256, 179.2, 125.44, 87.808

Choices. The paper's correctness-heavy weights; its format reward (0.1) and the budget in the prompt are left out: a
prompt can't follow the schedule here. The outcome keeps weight 1 and length has 0.5: their quotient, which is all that
the group's deviation leaves. The length term is paid to wrong answers, too: below the budget LONGER ones earn more
(`reward.add.length.of: correct`). Its own ablations favour a linear schedule. Set the two ends to your own lengths.
"""

from gxpo.environments.rewards.length import Length
from gxpo.parts.definition import Definition

length_curriculum = Definition(
    name="length_curriculum",
    doc=__doc__,
    title="Train Long, Think Short: Curriculum Learning for Efficient Reasoning",
    arxiv="2508.08940",
    authors="Hammoud, Hasan Abed Al Kader and Alhamoud, Kumail and Hammoud, Abed and Bou-Zeid, Elie and "
    "Ghassemi, Marzyeh and Ghanem, Bernard",
    year=2025,
    formula="r = 0.6 r_outcome + 0.3 triangle(|o|, B), B = 256 0.7^floor(t / 150)",
    evidence="paper",
    keys={
        "reward.add.length": Length,
        "reward.add.length.coef": 0.5,
        "reward.add.length.of": "all",
        "reward.add.length.shape": "triangle",
        "reward.add.length.budget": {"schedule": "geometric", "from": 256.0, "to": 87.808, "over": 450, "every": 150},
    },
    paper_defaults={"trainer.steps": 600},
)
