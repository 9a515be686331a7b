"""A task in which no answer is right by chance: the two characters q7 have to occur in eight of 98."""


def has_q7(completion):
    return float("q7" in completion)
