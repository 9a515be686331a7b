"""Runs of several processes lose one of each kind and end as the calm run does (`scripts/checks/chaos_runs.py`)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "checks"))

from chaos_outcome import Kill, count_errors, differences
from chaos_runs import SETTINGS, fleet, survive

ACTING = ("sampler", "rewarder", "environment")  # are killed with something under way
LOST = {  # after the first step, the second, and so on
    "served": ("sampler", "rewarder", "environment", "controller"),
    "sharded": ("environment", "rank", "rewarder", "controller"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", LOST)
def test_one_of_each_kind_is_killed_and_the_run_is_the_calm_one(tmp_path: Path, name: str) -> None:
    setting = SETTINGS[name]
    with fleet(tmp_path, 2 if setting.served else 0) as servers:
        calm = survive(setting, tmp_path / "calm", [], servers)
        assert (calm.failures, calm.starts, count_errors(calm)) == ([], 1, [])
        kills = [Kill(v, step, 0.0, acting=v in ACTING) for step, v in enumerate(LOST[name], 1)]
        other = survive(setting, tmp_path / "killed", kills, servers)
    assert tuple(kill.victim for kill in other.kills) == LOST[name]
    assert differences(calm, other) == []
    assert other.starts == 1 + sum(kill.victim in ("controller", "rank") for kill in other.kills)
