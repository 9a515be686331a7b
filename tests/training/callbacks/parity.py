"""A reward that an untrained model sometimes earns, and settings of runs of a second."""


def parity(completion):
    return {"correct": float(sum(map(ord, completion)) % 2)}


SMALL = {"model": "tiny:cold", "tasks.per_step": 2, "rollout.group_size": 4, "eval.tasks": 4, "eval.every": 2,
         "sampling.max_new_tokens": 2, "trainer.rollouts_every": 2, "trainer.checkpoint_every": 2,
         "doctor.every": 0}  # fmt: skip
REWARD = f"{__file__}:parity"
