"""A judge is any function of messages that returns a text; this one can add, and reads the number after the #.

What counts is the last line of the text, in the form that the question asks for.
"""

import re


def ask(messages):
    question = messages[-1]["content"]
    task, answer = question.split("# Task\n")[1].split("\n\n# Answer\n")
    a, b = map(int, re.findall(r"\d+", task))
    answers = re.findall(r"#(\d+)", answer)
    if not answers:
        return "There is no answer.\nScore: 0"
    error = abs(int(answers[-1]) - (a + b))
    return f"It is {error} off.\nScore: {10 if error == 0 else 3 if error <= 2 else 1}"
