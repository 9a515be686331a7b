"""Runs that can't have learned anything, by the lines of metrics.jsonl."""

import pytest

import gxpo
from gxpo.training.step_figures import Tally


def row(trajectories=8, unscored=0, groups=2, silent=0.5, updates=1, **more):
    return {"trajectories": trajectories, "unscored": unscored, "groups": groups, "zero_signal_groups": silent,
            "optimiser_steps": updates, **more}  # fmt: skip


DEAD, SILENT = row(unscored=8, silent=1.0, updates=0), row(silent=1.0, updates=0)


@pytest.mark.parametrize(
    ("rows", "method", "problem"),
    [
        ([], "grpo", None),
        ([row()], "grpo", None),
        ([DEAD], "grpo", "all 8 rollouts of step 1 were unscored (raised: no good)"),
        ([DEAD, DEAD], "grpo", "all 16 rollouts of the first 2 steps were unscored (raised: no good)"),
        ([DEAD, row(unscored=7)], "grpo", None),
        ([SILENT, SILENT, SILENT], "grpo", "all 6 groups of the first 3 steps had zero signal"),
        ([SILENT, row()], "grpo", None),
        ([DEAD, SILENT], "grpo", "all 4 groups of the first 2 steps had zero signal"),
        ([row(silent=1.0)], "grpo", "all 2 groups of step 1 had zero signal"),  # only a KL has moved the parameters
        ([row(updates=0)], "grpo", "no parameter has moved in step 1"),  # weights of 0
        ([row(0, 0, 0, None, 0)], "grpo", "no parameter has moved in step 1"),
        ([SILENT], "sdpo_self", None),  # a teacher teaches without credit
        ([DEAD], "sdpo_self", "all 8 rollouts of step 1 were unscored (raised: no good)"),
    ],
)
def test_what_is_said(rows, method, problem):
    found = Tally.of(rows).problem(gxpo.method(method), {"raised": "raised: no good"})
    assert found is None if problem is None else found.startswith(f"nothing is learned: {problem}")


def test_a_format_that_no_turn_has_is_said():
    """The metric is there where a segmenter labels; one tagged turn is enough."""
    none, one = row(untagged_turns=1.0), row(untagged_turns=0.875)
    assert Tally.of([none, one, none]).problem(gxpo.method("hiper")) is None
    found = Tally.of([none, none]).problem(gxpo.method("hiper"))
    assert found is not None and found.startswith(
        "no turn of the first 2 steps has anything that segment.patterns look for"
    )
    assert Tally.of([row(untagged_turns=None)]).problem(gxpo.method("hiper")) is None
