r"""AT-GRPO: one group per agent and turn in multi-agent teams, with tree-sampled candidates; the best one goes on.

r_c = alpha team_c + local_c;   A_c = (r_c - mean_cell r) / (std_cell r + eps);   c* = first argmax_c r_c goes on

Choices. The team's reward of a candidate is the task's reward of the answer after it: for an agent that does not answer
only `Role.local` differs between candidates (the reference's agents of mathematics have the verdict on their own answer
as both). Every candidate's reward is read before one is selected, by its own cell's rewards, agent after agent. The
reference code lets all agents of a turn speak first and then copies the best branch over all K environments after each
agent, so that later agents see K copies of one reward and have no signal; its group key moreover merges the cells of K
problems. Neither is followed. A cell of one has 0 (the reference: its raw reward). With `rollout.policy: per_role` the
loss is the mean over all candidates of the step (the paper: a mean for each policy), and all policies take one
optimiser step together.
"""

from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.team_cells import TeamCells

at_grpo = Definition(
    name="at_grpo",
    doc=__doc__,
    title="Stronger Together: On-Policy Reinforcement Learning for Collaborative LLMs",
    arxiv="2510.11062",
    authors="Zhao, Yujie and Hu, Lanxiang and Wang, Yang and Hou, Minmin and Zhang, Hao and Ding, Ke and Zhao, Jishen",
    year=2025,
    evidence="reference-code",
    code="pettingllms-ai/PettingLLMs@a054fb18b83f4dc7c1d49aba3b71669d1f93ca71 "
    "pettingllms/trainer/multi_agents_execution_engine.py pettingllms/trainer/multi_agents_ppo_trainer.py "
    "pettingllms/multi_agent_env/math/agents/reasoning_agent.py pettingllms/config/ppo_trainer/base.yaml",
    keys={"rollout": TeamCells},
    paper_defaults={
        "objective.aggregate": "token_mean",
        "tasks.per_step": 32,
        "optim.lr": 1e-6,
        "learner.lora_rank": 16,
        "learner.lora_alpha": 32.0,
    },
    cost="group_size samples for every turn of every agent",
)
