"""A reward that an untrained model earns in part."""


def share(tokens):
    """How many of the ids are even."""
    return sum(t % 2 == 0 for t in tokens) / max(1, len(tokens))
