"""The reward of critic.yaml: whether an attempt has the form of a worked sum."""

import re

FORM = re.compile(r"(\d\+\d(\+1)?=\d{1,2},)*\d\+\d(\+1)?=\d{1,2}#\d{1,3}")


def well_formed(completion):
    """Reward 1 for digits added one after the other, then # and a number, such as 7+6=13,4+1+1=6#63."""
    return {"correct": float(FORM.fullmatch(completion) is not None)}
