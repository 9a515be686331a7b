"""Methods for teams: one policy, an adapter for each role, or frozen roles; critics beside a solver."""

from gxpo.parts.definition import Definition

at_grpo = Definition(
    r"""AT-GRPO: one group per agent and turn in multi-agent teams, with tree-sampled candidates; the best one goes on.

    r_c = alpha team_c + local_c;   A_c = (r_c - mean_cell r) / (std_cell r + eps);   c* = first argmax_c r_c goes on

    Choices. The team's reward of a candidate is the task's reward of the answer after it: for an agent that does not
    answer only `Role.local` differs between candidates (the reference's agents of mathematics have the verdict on their
    own answer as both). Every candidate's reward is read before one is selected, by its own cell's rewards, agent after
    agent. The reference code lets all agents of a turn speak first and then copies the best branch over all K
    environments after each agent, so that later agents see K copies of one reward and have no signal; its group key
    moreover merges the cells of K problems. Neither is followed. A cell of one has 0 (the reference: its raw reward).
    With `rollout.policy: per_role` the loss is the mean over all candidates of the step (the paper: a mean for each
    policy), and all policies take one optimiser step together.
    """,
    cite="zhao2025atgrpo",
    evidence="reference-code",
    code="pettingllms-ai/PettingLLMs@a054fb18b83f4dc7c1d49aba3b71669d1f93ca71 "
    "pettingllms/trainer/multi_agents_execution_engine.py pettingllms/trainer/multi_agents_ppo_trainer.py "
    "pettingllms/multi_agent_env/math/agents/reasoning_agent.py pettingllms/config/ppo_trainer/base.yaml",
    keys={"rollout": "team_cells"},
    paper_defaults={
        "objective.aggregate": "token_mean",
        "tasks.per_step": 32,
        "optim.lr": 1e-6,
        "learner.lora_rank": 16,
        "learner.lora_alpha": 32.0,
    },
    cost="group_size samples for every turn of every agent",
)

dr_mas = Definition(
    r"""Dr. MAS: per-agent advantage normalisation in multi-agent teams: each agent's own mean and std in the group.

    A = (R - mean_{q,k} R) / (std_{q,k} R + eps) for every call of agent k at query q; R the team's outcome

    Choices. Statistics over calls, ddof 1, eps 1e-6, as in the reference code; an agent that is called more often in
    some attempts than in others has other statistics than the group of attempts (averaging per attempt first would be
    the base's advantage). An agent's only call in a group has 0 (the reference keeps its raw outcome). The
    normalisation is a flag on other methods as well: `--set credit=dr_mas`, with `credit.center` and `credit.scale` as
    theirs. With `rollout.policy: per_role` all policies take one optimiser step together, clipped by one norm (the
    reference: a step and a norm for each).
    """,
    cite="feng2026drmas",
    evidence="reference-code",
    code="langfengQ/DrMAS@19c632bc0f75730b6db98d90b5035ee9bb7f66d1 verl/trainer/ppo/core_algos.py "
    "verl/trainer/ppo/ray_trainer.py",
    keys={"credit.group_by": ("agent",), "credit.unit": "step", "rollout": "team"},
    cost="one sample per turn of each attempt",
)

# critics
_CRITIQUE_RL = {
    "method": "rloo",
    "rollout": "critique",
    "rollout.refinements": 1,
    "rollout.refine_temperature": 0.0,
    "objective.kl.coef": 0.01,
    "objective.kl.place": "reward",
    "reward.shape.critique": "shape",
    "reward.shape.critique.function": "critique_reward",
    "reward.shape.critique.wrong": -1.0,
}

critique_rl = Definition(
    r"""Critique-RL: train a critic in two stages, to judge, then also to help a frozen solver refine its attempt.

    stage 1: r = 1 if the verdict on the attempt is right, else -1
    stage 2: r = c' + 0.2 if it is right, else -1;   c' the verdict on the refinement under the critique, greedy
    A_i = r_i - mean_{j != i} r_j over the critiques of one attempt;   KL to the model that the run starts from, 0.01

    Choices. From the authors' code, with its keys r_refine, r_delta and r_correct as `reward.shape.critique.pays:
    refined, gain, corrected`; an unreadable verdict is a wrong one. Its script has 4 critiques of an attempt, batches
    of 64 and two passes (`rollout.group_size`, here 8, `tasks.per_step`, `update.epochs`). The attempts are fresh ones
    of the frozen solver (there a data set of its attempts, the same for the whole run); the solver is the model
    without the critic's adapter, and both stages share `trainer.steps` equally. Left out: fine-tuning on critiques
    before, without which a small model may never state a verdict (watch component "unreadable"), and standardising
    rewards over the batch.
    """,
    cite="xi2025critiquerl",
    evidence="reference-code",
    code="WooooDyy/Critique-RL@c13f5869c1ebc24ad641f09794224fddbb736536 RL/Critique-RL/reward/reward_func.py "
    "RL/Critique-RL/reward_with_discrimination.py examples/step3-Critique-RL-stage2.sh",
    keys={
        "phases": [
            {**_CRITIQUE_RL, "reward.shape.critique.bonus": 1.0, "reward.shape.critique.weight": 0.0},
            {**_CRITIQUE_RL, "reward.shape.critique.bonus": 0.2},
        ]
    },
    cost="an attempt of the solver for each group, and a refinement for each critique; adapters (learner.lora_rank)",
)
