"""Sampling of rollouts: spread indices, whole groups, files by step."""

from itertools import pairwise
from pathlib import Path

import pytest

from gxpo.doctor.rollout_sample import STEPS, Dump, by_step, dump, share, spread, whole_groups


@pytest.mark.parametrize("n", [3, 10, 101, 5000])
@pytest.mark.parametrize("k", [2, 3, 7, 64])
def test_indices_are_spread_with_both_ends(n, k):
    places = spread(n, k)
    assert places[0] == 0 and places[-1] == n - 1
    assert places == sorted(set(places)) and len(places) <= max(k, min(n, k))
    assert max(b - a for a, b in pairwise(places)) <= 2 * n / max(k - 2, 1) + 1  # one of each inner stretch


def test_indices_of_few_places_are_all_of_them():
    assert spread(3, 5) == [0, 1, 2] and spread(9, 1) == [0] and spread(9, 0) == []


def test_nothing_periodic_is_hit_always_or_never():
    hits = [i % 50 == 0 for i in spread(5000, 100)]
    assert 0 < sum(hits) < 20


def test_groups_are_kept_whole_and_within_the_budget():
    keys = [g for g in "abcdefgh" for _ in range(4)]
    rows = whole_groups(keys, 12, "salt")
    assert len(rows) == 12 and {len([i for i in rows if keys[i] == g]) for g in {keys[i] for i in rows}} == {4}
    assert rows == list(range(rows[0], rows[0] + 12))  # neighbours
    assert whole_groups(keys, 2, "salt") != [] and len(whole_groups(keys, 2, "salt")) == 4  # one group at least
    assert whole_groups(keys, 100, "salt") == list(range(32))


def test_other_files_begin_with_other_groups():
    keys = [g for g in range(50) for _ in range(2)]
    assert len({tuple(whole_groups(keys, 10, f"completions_{i}")) for i in range(20)}) > 5


def test_a_table_of_many_steps_is_sampled_in_all_of_them():
    steps = [s for s in range(10) for _ in range(8)]
    keys = [(s, i // 2) for s in range(10) for i in range(8)]
    rows = by_step(steps, keys, 40, "salt")
    assert len(rows) == 40 and {steps[i] for i in rows} == set(range(10))
    assert by_step([1] * 4, [0, 0, 1, 1], 2, "salt") in ([0, 1], [2, 3])


def test_files_are_chosen_over_the_steps_whatever_their_order():
    files = [Dump(Path(f"{i}.jsonl"), f"{i}.jsonl", i, 10, False) for i in reversed(range(1000))]
    chosen, each = share(files, 100.0, 1000)
    assert len(chosen) == STEPS and each == 1000 // STEPS
    assert [d.step for d in chosen][:1] == [0] and chosen[-1].step == 999


@pytest.mark.parametrize(
    ("name", "step", "held_out"),
    [
        ("completions/completions_00010.parquet", 10, False),
        ("val_rollouts/7.jsonl", 7, True),
        ("rollouts/step-3-of-12.jsonl", 12, False),
        ("eval.jsonl", -1, True),
        ("evaluate_me/1.jsonl", 1, False),
        ("interval/1.jsonl", 1, False),
    ],
)
def test_a_file_is_known_by_step_and_evaluation_in_its_name(tmp_path, name, step, held_out):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}\n")
    assert dump(path, tmp_path) == Dump(path, name, step, 3, held_out)
