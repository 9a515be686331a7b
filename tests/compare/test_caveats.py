"""Caveats of existing runs: what is refused, and what is noted."""

from pathlib import Path
from typing import Any

import pytest
from tests.compare.existing_runs import run

from gxpo.base.errors import ConfigError
from gxpo.compare.existing import read_existing


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"task": "countdown"}, r"task is arithmetic in .*a and countdown in .*b"),
        ({"model": "other"}, "model is tiny"),
        ({"eval__samples": 4}, "eval.samples is 1 in .* and 4"),
        ({"tasks": "xy"}, "2 held-out tasks and .*b on 2, 0 of them the same"),
    ],
)
def test_other_tasks_are_refused(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_existing([run(tmp_path / "a"), run(tmp_path / "b", "dr_grpo", **keys)])


def test_what_arms_do_not_share_is_said(tmp_path: Path) -> None:
    a = run(tmp_path / "a", sampling__max_new_tokens=8, init_from="warm/0", versions={"torch": "2.0"})
    b = run(tmp_path / "b", "dr_grpo", sampling__max_new_tokens=16, init_from="warm/1", versions={"torch": "2.1"})
    text = "\n".join(read_existing([a, b]).notes)
    assert "not evaluated alike: sampling.max_new_tokens is 8 (grpo), 16 (dr_grpo)" in text
    assert "pairs did not begin alike: init_from differs between the arms at seed 0" in text
    assert "made with different versions of torch: 2.0, 2.1" in text
