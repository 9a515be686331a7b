"""Rewards that a cold model gets some of. The processes that score import this file, and nothing heavier."""


def parity(completion):
    return {"correct": float(sum(map(ord, completion)) % 2)}


def always(completion):
    return {"correct": 1.0}


def any_digit(completion):
    return sum(c.isdigit() for c in completion) / 8


def any_text(completion):
    return sum(map(ord, completion)) % 7
