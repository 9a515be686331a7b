"""Methods for teams: one policy, an adapter for each role, or frozen roles."""

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
    keys={"credit.among": ("agent",), "credit.unit": "step", "rollout": "team"},
    cost="one sample per turn of each attempt",
)
