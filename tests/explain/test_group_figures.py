"""Figures of groups, and the choice of groups for a page."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tests.explain.rollout_pages import ParsedReply, many, numbers, page_of

from gxpo.explain import rollout_page
from gxpo.explain.group_figures import choose_groups, figures
from gxpo.explain.outlook import look


def test_groups_are_chosen_whole_from_all_kinds() -> None:
    source = many(400, 4)
    looks = [look(m, source.forest) for m in ("grpo", "dr_grpo")]
    group_figures = figures(source.forest, looks, source.recorded_advantage)
    taken = choose_groups(group_figures, rollouts=80)
    assert len(taken) == 20 and taken.tolist() == sorted(set(taken.tolist()))
    silent = group_figures.zero_signal["grpo"][taken]
    assert 3 <= silent.sum() <= 10 and group_figures.spread[taken].max() == 1
    differ = group_figures.disagreement["grpo", "dr_grpo"]
    assert np.argmax(differ) in taken
    assert choose_groups(group_figures).tolist() == list(range(400))
    page = ParsedReply(rollout_page.page_text(source, looks, rollouts=80))
    assert len(page.data["groups"]["name"]) == 20 and "20 of 400 groups are shown (80 of 1,600 rollouts)" in page.text
    assert re.search(r"left out: \d+ zero-signal under grpo, \d+ others", page.text)


def test_the_spread_over_a_long_list_is_even() -> None:
    group_figures = figures(many(64, 2).forest, [], np.full(128, np.nan))
    group_figures.low[:], group_figures.high[:] = 0.0, 0.0
    taken = choose_groups(group_figures, rollouts=16)
    assert len(taken) == 8 and taken.min() < 16 and taken.max() >= 48


def test_residues_of_equal_rewards_are_flagged(tmp_path: Path) -> None:
    columns = {
        "step": [3] * 12,
        "prompt": ["a?"] * 4 + ["b?"] * 4 + ["c?"] * 4,
        "completion": list("wxyzwxyzwxyz"),
        "near": [0.95] * 4 + [1.0, 0.0, 0.0, 1.0] + [1.0] * 4,
        # of the last group a constant advantage, as of imitated answers
        "advantage": [6e-4] * 4 + [0.866, -0.866, -0.866, 0.866] + [1.0] * 4,
    }
    path = tmp_path / "completions" / "completions_00003.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table(columns), path)
    page = page_of(tmp_path)
    assert numbers(page.data["groups"]["residue"], 3) == [6e-4, 0.0, 0.0]
    assert "equal rewards, recorded advantage up to 6.0e-04" in page.text
    assert numbers(page.data["R"]["recorded"], 12)[4] == 0.866
