"""Rewards of the runs in test_given: a file that a worker loads quickly."""


def digits(completion, answer):
    return sum(c.isdigit() for c in completion)


def levels(completions, level, **kwargs):
    return [float(len(set(text)) + x) for text, x in zip(completions, level, strict=True)]


def letters(completions):
    return [float(len(set(text))) for text in completions]
