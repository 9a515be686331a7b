"""Keys of cached models depend on code, not on its wording."""

from __future__ import annotations

from pathlib import Path

import pytest

from gxpo.models.cache import code_of, put


def test_comments_and_docstrings_leave_the_code_as_it_is(tmp_path: Path) -> None:
    sources = {
        "plain.py": "def f(x):\n    return x + 1\n",
        "worded.py": '"""A module."""\n\n\ndef f(x):\n    """Add one."""\n    # because\n    return x + 1\n',
        "other.py": "def f(x):\n    return x + 2\n",
    }
    for name, text in sources.items():
        (tmp_path / name).write_text(text)
    plain, worded, other = (code_of(tmp_path / name) for name in sources)
    assert plain == worded and plain != other


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        put(tmp_path / "model", fail)
    assert list(tmp_path.iterdir()) == []
    put(tmp_path / "model", lambda folder: (folder / "whole").write_text("x") and None)
    assert [p.name for p in (tmp_path / "model").iterdir()] == ["whole"]
