r"""Place of the final answer: `format` and `math` agree on it, and numbers are read as people write them."""

from __future__ import annotations

import doctest

import pytest

from gxpo.environments.rewards import built_in, final_answer, math
from gxpo.environments.rewards.built_in import well_formed
from gxpo.environments.rewards.final_answer import find_answers
from gxpo.environments.rewards.math import correct

# completion, whether it is well formed, whether its answer is 7
PLACES = [
    (r"\boxed{7}", 1, 1),
    (r"so $\boxed{7}$.", 1, 1),
    (r"so \boxed{7}. That is 8 less than 15.", 1, 1),
    (r"<think>3+4</think><answer>7</answer>", 1, 1),
    ("<think>3+4</think>\n<answer>\n7\n</answer>", 1, 1),
    (r"3+4</think><answer>7</answer>", 1, 1),
    (r"<answer>\boxed{7}</answer>", 1, 1),
    (r"<answer>$7$</answer>", 1, 1),
    (r"<answer>The answer is 7.</answer>", 1, 1),
    (r"<think>\boxed{8}</think> \boxed{7}", 1, 1),
    (r"\boxed{8}, or rather <answer>7</answer>", 1, 1),
    (r"\boxed{\boxed{7}}", 1, 1),
    (r"\fbox{7}", 1, 1),
    (r"\boxed 7", 1, 1),
    (r"\boxed{ 7 }", 1, 1),
    (r"\boxed{\text{7}}", 1, 1),
    (r"x} and { \boxed{7}", 1, 1),
    (r"\boxed{3} \boxed{7}", 0, 1),
    (r"\boxed{7} \boxed{3}", 0, 0),
    (r"<answer>3</answer><answer>7</answer>", 0, 1),
    (r"<answer>7</answer><answer>3</answer>", 0, 0),
    (r"<answer>3</answer> \boxed{7}", 0, 1),
    (r"<answer>7</answer> \boxed{3}", 0, 0),
    (r"\boxed{7} and \boxed{", 0, 1),
    (r"\boxed{3 and \boxed{7}", 0, 1),
    (r"<answer><answer>7</answer>", 0, 1),
    (r"\boxed{7} \boxed{}", 0, 1),
    (r"\boxed{7", 0, None),
    (r"\boxed{", 0, 0),
    (r"so \boxed{3 and then it was cut", 0, 0),
    (r"<answer>7", 0, None),
    (r"7</answer>", 0, None),
    (r"\boxed{}", 0, 0),
    (r"\boxed{  }", 0, 0),
    (r"<answer></answer>", 0, 0),
    (r"<answer>\boxed{}</answer>", 0, 0),
    (r"<think>\boxed{7}</think>", 0, 0),
    (r"<think><answer>7</answer></think>", 0, 0),
    ("it is 7", 0, 1),
    ("", 0, 0),
]

RIGHT = [  # completion's answer, the task's
    *(("10^{-6}", x) for x in ("1e-6", "0.000001", r"10^{-6}", r"1\times10^{-6}", "1E-06", 1e-6)),
    *((x, "1e-6") for x in (r"1\times10^{-6}", r"1 \times 10^{-6}", r"1\cdot 10^{-6}", "1e-6", "0.000001")),
    ("$10^{-6}$", "1e-6"),
    *((x, "1000") for x in (r"1\,000", r"1\ 000", "1{,}000", "1,000", "1 000", "1~000", r"1\!,000")),
    ("1\u202f000", "1000"), ("10^3", "1000"),
    *(("1000", x) for x in (r"1\,000", "1,000", "1{,}000", "1 000", 1000, "1e3", r"\(1000\)")),
    *((x, "1234567.5") for x in (r"1\,234\,567.5", "1,234,567.5", "1 234 567.5", r"1.2345675\times10^{6}")),
    ("2.5e3", "2500"), ("6.02 x 10^{23}", "6.02e23"), ("-0.5", "-.5"), ("\u22127", "-7"), ("+7", "7"), ("7.", "7.0"),
    (r"50\%", "50"), (r"50\%", "0.5"), ("0.5", r"50\%"), (r"90^\circ", "90"), ("90", r"90^{\circ}"),
    (r"5\text{ cm}", "5"), ("5", "5 cm"), (r"\$5", "5"), (r"\frac{1}{2}", "0.5"), ("x = 7", "7"),
    ("3.14159265", "3.1415927"),
    (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}"), (r"\{1,2\}", r"\{2,1\}"), (r"1\,000\text{ apples}", "1000"),
]  # fmt: skip
WRONG = [
    ("1,000", "(1, 0)"), ("(1, 0)", "1000"), ("1,000", "1"), ("1000", "(1,000)"), ("1,00", "100"), ("1,00", "1000"),
    ("1,0000", "10000"), ("1 00", "100"), ("10^{6}", "1e-6"), ("10^{-5}", "1e-6"), ("1.2e-6", "1e-6"), ("0", "1e-6"),
    ("1e-7", "1e-6"), (r"1\,00", "1000"), ("(1,2)", "(2,1)"), ("-7", "7"), (r"1\times10^{-6}", "10^6"), ("0", "1e-300"),
    ("1e-6", "0"), ("90", "9"), (r"5\%", "5000"), ("0{,}123", "123"),
]  # fmt: skip


def test_format_and_math_agree_on_the_place():
    wrong = []
    for completion, formed, right in PLACES:
        if well_formed(completion) != formed:
            wrong.append((completion, "format", well_formed(completion)))
        verdict = correct(completion, "7")["correct"]
        if right is not None and verdict != right:
            wrong.append((completion, "math", verdict))
    assert wrong == []


def verdict(said, right):
    return [correct(text, right)["correct"] for text in (rf"so \boxed{{{said}}}.", f"<answer>{said}</answer>")]


def test_numbers_as_people_write_them():
    assert [(message, right) for message, right in RIGHT if verdict(message, right) != [1.0, 1.0]] == []
    assert [(message, right) for message, right in WRONG if verdict(message, right) != [0.0, 0.0]] == []


def test_a_number_without_a_place_is_read_too():
    assert correct(r"The answer is $10^{-6}$.", "1e-6") == {"correct": 1.0}
    assert correct(r"The answer is $1\,000$.", "1000") == {"correct": 1.0}


@pytest.mark.parametrize(
    "piece", [r"\boxed{", "<answer>", r"\boxed{}", "{", "}", r"\boxed{x}", r"\boxed ", "</think>", "1 "]
)
def test_long_completions_are_read(piece):
    text = piece * (64_000 // len(piece))
    assert not find_answers(text).is_well_formed
    math.plain(text)


def test_examples():
    for module in (final_answer, built_in, math):
        assert doctest.testmod(module).failed == 0
