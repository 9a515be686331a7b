"""Which names of tests are the program's."""

from __future__ import annotations

import pytest

from gxpo.environments.rewards.code import names_of


@pytest.mark.parametrize(
    ("statements", "program", "modules"),
    [
        (["assert f(2) == 4", "assert set(g(1)) == {1}"], ["f", "g"], {}),
        (["def check(candidate):\n    assert candidate(h) == 4", "check(f)"], ["f", "h"], {}),
        (["def check(f):\n    f(1)", "check(f)"], ["f"], {}),  # a parameter of one, a name of the other
        (["for x in range(3):\n    assert f(x) == [y for y in (x,)]"], ["f"], {}),
        (["assert math.isclose(f(1), np.pi)"], ["f"], {"math": "math", "np": "numpy"}),
        (["import math\nfrom random import random as r\nassert math.floor(r()) == f()"], ["f"], {}),
        (["assert select(math, [1])"], ["math", "select"], {}),  # used as values: functions of the program
        (["assert sum(10, 15) == 25"], ["sum"], {}),
        (["assert sum([f(1)]) == 25"], ["f"], {}),
        (["assert sum(abs(1)) == 25"], [], {}),  # nobody can tell which one is meant
        (["root = Node(1)", "assert depth(root) == 1"], ["Node", "depth"], {}),
        (["def set_up():\n    global case\n    case = 1", "set_up()\nassert f(case)"], ["f"], {}),
        (["this is no Python", "assert f(2)"], ["f"], {}),
    ],
)
def test_whose_a_name_is(statements, program, modules):
    assert names_of(tuple(statements)) == (program, modules)


def test_tests_that_only_define_are_refused():
    with pytest.raises(ValueError, match="define functions and call none: any program would pass"):
        names_of(('"""Tests."""\nimport math', "class Tests:\n    def test(self):\n        assert f(1)"))
