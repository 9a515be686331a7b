"""The arithmetic that a page shows, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from tests.explain.rollout_pages import forest_of

import gxpo
from gxpo.explain.derivation import ALONE, EQUAL, INPUTS, SHOWN, RecordedCredit, formula_of
from gxpo.explain.outlook import look
from gxpo.forest.forest import Forest


def compared(method: str, forest: Forest, part: int = 0) -> dict[str, list[float]]:
    outlook = look(method, forest)
    assert not outlook.missing
    c = outlook.summands[part].compared
    assert c is not None
    return {k: getattr(c, k).tolist() for k in ("value", "center", "spread", "result", "status")}


def test_grpo_of_two_right_in_four() -> None:
    # mean (1 + 0 + 0 + 1) / 4 = 0.5; std sqrt(4 * 0.25 / 3) = 0.5773502692; (0 - 0.5) / 0.5773512692 = -0.866023904
    rows = compared("grpo", forest_of([1, 0, 0, 1]))
    assert rows["center"] == [0.5] * 4
    assert rows["spread"] == pytest.approx([0.5773502691896258 + 1e-6] * 4, abs=1e-15)
    assert rows["result"] == pytest.approx([0.866023904, -0.866023904, -0.866023904, 0.866023904], abs=5e-10)
    assert rows["status"] == [SHOWN] * 4


def test_other_centres_and_scales() -> None:
    dr, rloo, maxrl = (compared(m, forest_of([1, 0, 0, 1])) for m in ("dr_grpo", "rloo", "maxrl"))
    assert dr["result"] == [0.5, -0.5, -0.5, 0.5] and dr["spread"] == [1.0] * 4
    # of the others: (0 + 0 + 1) / 3 for a right one, (1 + 0 + 1) / 3 for a wrong one
    assert rloo["center"] == pytest.approx([1 / 3, 2 / 3, 2 / 3, 1 / 3])
    assert rloo["result"] == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])
    # (r - p) / p at p = 1/2, whose eps is 1e-6
    assert maxrl["result"] == pytest.approx([1, -1, -1, 1], abs=1e-5)


def test_equal_groups_and_lone_rollouts_say_why_they_are_zero() -> None:
    rows = compared("grpo", forest_of([0.95, 0.95, 0.95], [1.0], [0, 1]))
    assert rows["status"] == [EQUAL] * 3 + [ALONE] + [SHOWN] * 2
    assert rows["result"][:4] == [0.0] * 4


@pytest.mark.parametrize("method", ["grpo", "dr_grpo", "rloo", "maxrl", "lite_ppo", "dgpo_math", "mc_grpo"])
def test_all_rows_are_shown_and_add_up(method: str) -> None:
    forest = forest_of([1, 0, 0.25, 1], [0.1, 0.9, 0.3, 0.3], [1, 1, 1, 0])
    outlook = look(method, forest)
    assert outlook.credit is not None and outlook.summands[0].compared is not None
    assert not (outlook.summands[0].compared.status == INPUTS).any()
    assert torch.equal(outlook.credit, gxpo.method(method).fill(horizon=2.0).advantages(forest))


def test_tokens_as_the_unit_weigh_the_mean_by_length() -> None:
    forest = Forest.from_completions([[1]], [[[7, 7, 7], [7]]], [1.0, 0.0])
    comparison = (
        look(gxpo.method("grpo", {"credit.unit": "token", "credit.scale": "none"}), forest).summands[0].compared
    )
    # (1 + 1 + 1 + 0) / 4
    assert comparison is not None and comparison.axis == "P" and comparison.center.tolist() == [0.75] * 4
    assert comparison.result.tolist() == [0.25, 0.25, 0.25, -0.75] and comparison.status.tolist() == [SHOWN] * 4


def test_a_part_of_another_kind_has_inputs_alone() -> None:
    outlook = look("ngrpo", forest_of([0, 0, 0]))
    assert outlook.summands[0].compared is None
    # three zeros and a virtual 1: mean 0.25, std 0.5, so -0.25 / 0.500001
    assert outlook.credit is not None and outlook.credit[0] == pytest.approx(-0.499999, abs=1e-9)
    assert formula_of(outlook.summands[0]) != ""


def test_watching_a_credit_changes_nothing() -> None:
    class Odd:
        needs = requires = ()

        def __call__(self, forest: Forest, signals: object, step: int) -> torch.Tensor:
            return torch.arange(forest.n_entries, dtype=torch.float64)

    watched = RecordedCredit(Odd())
    assert watched(forest_of([1, 0]), {}, 0).tolist() == [0, 1, 2, 3] and watched.summands[0].compared is None


# ---- turns and states
def walk(i: int, states: list[str], reward: float) -> dict:
    turns = [{"action": [5], "logprob": [-1.0], "state": s} for s in states]
    return {"schema": "gxpo.rollouts/1", "group": "g", "id": f"t{i}", "prompt": [1], "turns": turns, "reward": reward}


def test_gigpo_compares_returns_of_turns_in_the_same_state() -> None:
    # t0: A, B, then the goal; t1: A, A, B, failure. Discount 0.95: returns 0.95, 1 and 0, 0, 0.
    forest = Forest.from_records([walk(0, ["A", "B"], 1.0), walk(1, ["A", "A", "B"], 0.0)])
    rows = compared("gigpo", forest, part=1)
    assert rows["value"] == pytest.approx([0.95, 1.0, 0.0, 0.0, 0.0])
    # state A: 0.95, 0, 0: mean 0.3166667, std 0.5484827558; state B: 1, 0: mean 0.5, std 0.7071067812
    assert rows["center"] == pytest.approx([0.95 / 3, 0.5, 0.95 / 3, 0.95 / 3, 0.5])
    assert rows["spread"][0] == pytest.approx(0.95 / math.sqrt(3) + 1e-6)
    assert rows["result"] == pytest.approx(
        [1.154698433, 0.707105781, -0.577349217, -0.577349217, -0.707105781], abs=5e-9
    )
    full_credit = look("gigpo", forest).credit
    # and 0.5 / (0.7071067812 + 1e-6) = 0.707105781 for the outcome
    assert full_credit is not None and full_credit[0] == pytest.approx(1.154698433 + 0.707105781, abs=1e-8)


# ---- weight, share and gradient
