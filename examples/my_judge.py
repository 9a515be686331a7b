"""A judge is any function of messages that returns a text; this one can add, and reads the number after the #.

What counts is the last line of the text, in the form that the question asks for.
"""

import re


def ask(messages):
    question = messages[-1]["content"]
    task, answer = question.split("# Task\n")[1].split("\n\n# Answer\n")
    a, b = map(int, re.findall(r"\d+", task))
    found = re.findall(r"#(\d+)", answer)
    if not found:
        return "There is no answer.\nScore: 0"
    off = abs(int(found[-1]) - (a + b))
    return f"It is {off} off.\nScore: {10 if off == 0 else 3 if off <= 2 else 1}"
