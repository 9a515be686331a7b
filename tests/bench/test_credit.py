"""The suite that measures credit parts: what it is measured on, and what it says."""

from __future__ import annotations

import math

import pytest
import torch
from tests.algorithms.credit.compositions import against_baseline_credit, step_reward_credit

import gxpo
from gxpo.base.errors import GxpoError
from gxpo.bench import credit
from gxpo.bench.credit import GROUP, STATES, TURNS, WRITTEN, synthetic_forest, tile_columns
from gxpo.forest.forest import Forest
from gxpo.parts import registry


@pytest.mark.parametrize("forks", [False, True])
def test_a_made_up_forest_is_one_that_records_could_hold(forks: bool) -> None:
    forest = synthetic_forest(300, forks=forks)
    again = Forest.from_records(forest.to_records())
    assert (forest.n_steps, forest.n_trajectories, forest.n_entries) == (300, 3 * GROUP, 300 * WRITTEN)
    for name in ("parent", "first_token", "token", "path_token", "path_step", "step_state", "step_previous"):
        held_getattr, read = getattr(forest, name), getattr(again, name)
        assert len(held_getattr) == len(read) and (name == "step_state" or torch.equal(held_getattr, read)), name
    torch.testing.assert_close(again.step_reward, forest.step_reward, equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(again.outcome, forest.outcome, rtol=0, atol=0)
    assert again.group == forest.group and again.success.tolist() == forest.success.tolist()
    assert len(set(forest.ids("state", axis="S").tolist())) <= 3 * STATES
    shared = forest.n_steps - len(set(forest.step_action.tolist()))
    assert shared == (3 * 8 * TURNS // 2 if forks else 0)  # two trees a group: four of five go on from the first


def test_synthetic_forest_is_a_function_of_its_seed() -> None:
    one, same, other = synthetic_forest(100), synthetic_forest(100), synthetic_forest(100, seed=1)
    assert torch.equal(one.outcome, same.outcome) and torch.equal(one.token, same.token)
    assert not torch.equal(one.token, other.token)


def test_copies_of_a_forest_are_those_of_concat() -> None:
    forest = synthetic_forest(100, forks=True)
    joined = Forest.concat([forest] * 3)
    copies = Forest(**tile_columns(forest, 3) | {"state_names": forest.state_names})
    for name in ("parent", "previous", "token", "path_token", "path_step", "path_trajectory", "step_trajectory",
                 "step_action", "step_previous", "last_action", "prompt_node", "first_token"):  # fmt: skip
        assert torch.equal(getattr(copies, name), getattr(joined, name)), name


def test_turns_that_are_no_whole_groups_are_refused() -> None:
    with pytest.raises(GxpoError, match="multiple of 100"):
        synthetic_forest(150)


def test_every_part_has_a_row_of_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credit, "QUICK", (100, 1000))
    monkeypatch.setattr(credit, "PER_ROUND", 1)
    threads, messages = torch.get_num_threads(), []
    rows = credit.rows(2, True, messages.append)
    assert torch.get_num_threads() == threads
    assert [row["name"] for row in rows] == [f"{name}/{size}" for name in registry.CREDITS for size in ("1e2", "1e3")]
    assert sorted(line.split()[1].rstrip(":") for line in messages) == sorted(registry.CREDITS)
    for small, large in zip(rows[::2], rows[1::2], strict=True):
        assert (small["turns"], large["turns"]) == (100, 1000)
        for row in (small, large):
            low, high = row["spread"]
            assert 0 < low <= row["ratio"] <= high and row["memory_mb"] >= 0
            assert row["ms"] == pytest.approx(1e3 * row["seconds"])
            assert row["ns_per_turn"] == pytest.approx(1e9 * row["seconds"] / row["turns"])
        assert (large["against"], small["against"]) == (f"{small['name']}, per turn", "sums by trajectory")


def test_the_ratio_is_of_the_time_per_turn() -> None:
    """100 turns in 1 s and 1000 in 20 s: the larger has half the speed; 1000 in 5 s: twice."""
    group = registry.CREDITS["relative"]()
    works = [credit.Work.of(group, synthetic_forest(n)) for n in (100, 1000)]
    assert credit._ratio(works, [1.0, 20.0], 0.5, 1) == pytest.approx(0.5)
    assert credit._ratio(works, [1.0, 5.0], 0.5, 1) == pytest.approx(2.0)
    assert credit._ratio(works, [1.0, 20.0], 0.25, 0) == 0.25


def test_a_part_is_measured_on_what_it_reads() -> None:
    """Each signal is on its axis, and the advantages are those of the part composed into a method."""
    forest = synthetic_forest(100)
    work = credit.Work.of(registry.CREDITS["relative"](), forest)
    assert torch.equal(work.method.advantages(forest, work.signals), gxpo.method("grpo").advantages(forest))
    gae = registry.CREDITS["gae"]
    for make, rows in ((gae, forest.n_entries), (step_reward_credit, forest.n_steps), (against_baseline_credit, GROUP)):
        part = make()
        actual = credit.signals_for(part, forest)
        assert [len(actual[signal]) for signal in part.needs] == [rows]
        advantages = credit.Work.of(part, forest).method.advantages(forest, actual)
        assert math.isfinite(advantages.abs().sum()) and advantages.abs().max() > 0
