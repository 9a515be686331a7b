"""A reward that a cold model gets half of the time."""


def parity(completion):
    return {"correct": float(sum(map(ord, completion)) % 2)}


def always(completion):
    return {"correct": 1.0}
