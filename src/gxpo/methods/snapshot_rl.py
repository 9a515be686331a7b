r"""Snapshot RL: episodes begin in states on a teacher's way, in the first steps of a run.

s_0 ~ states of stored trajectories of the task (all turns equally likely), steps 1..F;   s_0 = the task's own, after
A, L as in GRPO: the G episodes of a group begin in one state, and what was said before it is their prompt

Choices. There it is TD3, SAC and PPO in MuJoCo: snapshots of ten episodes of a trained policy, every tenth step, in six
clusters by its critic's value, a cluster and then a snapshot of it at random; episodes are cut 100 steps later, and the
first 100,000 steps of 1,000,000 are sampled so. Here there is no critic, so that turns are drawn instead of clusters;
nothing is cut (`env.max_turns` counts from the snapshot), since a group has no critic that would bootstrap. F = 100 is
ours. The teacher is the environment's expert; `rollout.teacher: own` takes successes of the run's earlier policies, a
folder of records (RUN/rollouts) those of another run. Later states are nearer to success, so that groups that all fail
from the start differ from there; the policy still has to learn the first moves, of which these episodes say nothing.
"""

from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.snapshot_start import SnapshotStart

snapshot_rl = Definition(
    name="snapshot_rl",
    doc=__doc__,
    title="Snapshot Reinforcement Learning: Leveraging Prior Trajectories for Efficiency",
    arxiv="2403.00673",
    authors="Zhao, Yanxiao and Qian, Yangge and Wang, Tianyi and Shan, Jingyang and Qin, Xiaolin",
    year=2024,
    formula="G episodes from a state drawn on a stored way of the task, for F steps; A, L as GRPO",
    evidence="reference-code",
    keys={"rollout": SnapshotStart, "rollout.first_steps": 100},
    cost="a stored way is gone once more in the environment, without sampling",
    code="sdpkjc/snapshotrl@02918ec8a272784eee946c9cbaf5cfdb76e8997f src/snapshot_ppo_fix_mujoco.py",
)
