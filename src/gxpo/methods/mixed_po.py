r"""Mixed PO (MPO): DPO on pairs far apart in reward, then online RL with the policy that DPO has made as reference.

phase 1: L_DPO over pairs with r_w - r_l >= tau;   phase 2: GRPO - beta KL(pi || pi_1), pi_1 the policy after phase 1

Choices. No code was found. The paper splits a data set of pairs by the gap of a reward model; here pairs are of the
step's own rollouts (`rollout: logged` reads a data set) and tau is `objective.least_gap`: with verdicts every pair is 1
apart. The paper's second stage is PPO on the prompts of close pairs; here it is GRPO on the run's tasks
(`tasks.sampler: hardest` prefers the hard ones of a data file). Both phases share `trainer.steps` equally.
"""

from gxpo.parts.definition import Definition

mixed_po = Definition(
    name="mixed_po",
    doc=__doc__,
    title="Mixed Preference Optimization: Reinforcement Learning with Data Selection and Better Reference Model",
    arxiv="2403.19443",
    authors="Gou, Qi and Nguyen, Cam-Tu",
    year=2024,
    formula="DPO on pairs with r_w - r_l >= tau, then GRPO - beta KL(pi || pi after DPO)",
    evidence="reconstruction",
    keys={
        "phases": [
            {"method": "dpo", "objective.pairs": "outcome", "objective.least_gap": 0.5},
            {"method": "grpo", "reference": "previous", "objective.kl.coef": 0.05},
        ]
    },
    cost="a frozen copy of the policy, made anew at the boundary",
)
