"""Tables of trainers' metric keys: names that the doctor knows, under the first of which a figure counts."""

import pytest

from gxpo.doctor.readers import key_tables
from gxpo.doctor.runlog import NAMES

TABLES = ("TRL", "VERL", "GXPO", "OPENRLHF", "PRIME", "COMMON")


@pytest.mark.parametrize("name", TABLES)
def test_every_key_has_a_name_that_the_doctor_knows(name):
    table = getattr(key_tables, name)
    doctor_names = {*NAMES, *(f"eval/{n}" for n in NAMES)}
    assert table and {n for n in table.values() if not n.startswith(("component", "eval/"))} <= doctor_names
    assert "reward" in table.values() and "lr" in table.values()


def test_keys_of_each_trainer_as_its_source_writes_them():
    assert key_tables.TRL["frac_reward_zero_std"] == "zero_signal"
    assert key_tables.TRL["completions/clipped_ratio"] == "truncated"
    assert key_tables.VERL["critic/score/mean"] == "reward"
    assert "critic/rewards/mean" not in key_tables.VERL  # the KL of the reward is taken off there
    assert "actor/pg_clipfrac_lower" not in key_tables.VERL  # the dual clip
