"""Tasks for an untaught model: letters that have to occur in eight characters of 98."""


def has_q(completion):
    """Right by chance once in 13 answers."""
    return float("q" in completion)


def q_and_7(completion):
    """Right by chance once in 180 answers; half is paid for z, which one in 13 has."""
    right = "q" in completion and "7" in completion
    return {"correct": float(right), "z": 0.5 * ("z" in completion and not right)}


def both(completion):
    """`q_and_7` without what is paid for z."""
    return float("q" in completion and "7" in completion)
