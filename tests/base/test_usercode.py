"""Code of users: found in files, and described where it fails."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from gxpo.base.usercode import Unusable, check_defined, described, from_file, hint, object_at, one_line, place, unusable


def source(tmp_path: Path, code: str, name: str) -> dict[str, Any]:
    file = tmp_path / "mine.py"
    file.write_text("not what is loaded")
    return {"file": str(file), "folder": str(tmp_path), "code": code.encode(), "name": name}


def test_the_code_that_travels_is_what_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside.py").write_text("WORD = 'hello'")
    (tmp_path / "json.py").write_text("raise RuntimeError('hides the library')")
    monkeypatch.delitem(sys.modules, "json")
    code = "import json, beside\ndef say(): return json.dumps(beside.WORD)\nclass Kind: pass\n"
    assert from_file(source(tmp_path, code, "say"), types.FunctionType, "loaded_say")() == '"hello"'
    assert from_file(source(tmp_path, code, "Kind"), type, "loaded_kind").__module__ == "loaded_kind"


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("sai", types.FunctionType, "has no function 'sai'; did you mean 'say'?"),
        ("Knid", type, "has no class 'Knid'; did you mean 'Kind'?"),
        ("zzz", type, "has no class 'zzz'; it has Kind"),
        ("zzz", types.FunctionType, "has no function 'zzz'; it has say, Kind"),
        ("say", type, "'say' in .* is a function, not a class"),
        ("NUMBER", types.FunctionType, "'NUMBER' in .* is a int, not a function"),
    ],
)
def test_what_is_not_there(tmp_path: Path, name: str, kind: type, message: str) -> None:
    code = "from json import dumps\nNUMBER = 3\ndef say(): pass\nclass Kind: pass\n"
    with pytest.raises(Unusable, match=message.replace("?", r"\?")):
        from_file(source(tmp_path, code, name), kind, "loaded_none")


def test_where_users_made_the_mistake(tmp_path: Path) -> None:
    """The innermost line of theirs, not that of the library they have called."""
    code = "import json\ndef inner():\n    json.loads('[')\ndef outer():\n    inner()\n"
    outer = from_file(source(tmp_path, code, "outer"), types.FunctionType, "loaded_outer")
    with pytest.raises(ValueError) as caught:
        outer()
    frame = place(caught.value)
    assert frame is not None and (Path(frame.filename).name, frame.lineno, frame.name) == ("mine.py", 3, "inner")
    with pytest.raises(Unusable) as caught:
        from_file(source(tmp_path, "", "none"), types.FunctionType, "loaded_nothing")
    assert place(caught.value).filename == __file__  # gxpo's own lines are nobody's mistake


@pytest.mark.parametrize("name", ["f", "K", "x", "y", "dumps", "js", "inside", "z"])
def test_a_name_that_a_file_defines_is_found_without_running_it(tmp_path: Path, name: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "raise SystemExit('was run')\nfrom json import dumps\nimport json as js\ndef f(): ...\nclass K: ...\nx = 1\n"
        "y: int = 2\nif True:\n    def inside(): ...\nfor z in (): ...\n"
    )
    check_defined(f"{file}:{name}")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (b"def score(): ...\n", "has no 'socre'; did you mean 'score'"),
        (b"x = 1\ndef f(:\n", "mine.py line 2: invalid syntax"),
        (b"\x00", "null bytes"),
        (b"(" * 5000, "nested|parenthes|overflow|MemoryError"),
        (b"\xff", "codec|utf-8|UTF-8"),
    ],
)
def test_a_file_that_does_not_define_it(tmp_path: Path, code: bytes, message: str) -> None:
    (tmp_path / "mine.py").write_bytes(code)
    with pytest.raises(Unusable, match=message):
        check_defined(f"{tmp_path / 'mine.py'}:socre")
    with pytest.raises(Unusable, match="no such file"):
        check_defined(f"{tmp_path / 'other.py'}:f")


@pytest.mark.parametrize("path", ["gxpo", "mine.py", ":f", "mine.py:", ""])
def test_a_path_without_a_module_or_a_name_says_how_to_write_it(path: str) -> None:
    with pytest.raises(Unusable, match=r"^write FILE\.py:NAME or MODULE:NAME$"):
        object_at(path)


def test_failures_are_one_line_and_say_where(tmp_path: Path) -> None:
    raises = source(tmp_path, "def deep():\n    raise KeyError('a\\nb')\ndeep()\n", "deep")
    broken = source(tmp_path, "x = 1\ndef f(:\n", "f")
    for error, message in (
        (raises, "KeyError while loading: 'a\\nb' (mine.py line 2)"),
        (broken, f"{tmp_path}/mine.py line 2: invalid syntax"),
    ):
        with pytest.raises(BaseException) as caught:  # whatever the file raises
            from_file(error, types.FunctionType, "loaded_broken")
        assert str(unusable(caught.value)) == message
    assert str(unusable(Unusable("as it is"))) == "as it is"


def test_where_is_said_only_where_it_is_somewhere_else() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        assert described(error) == "ValueError: two lines"
        assert described(error, "trying") == "ValueError while trying: two lines"


def test_long_messages_are_cut() -> None:
    assert len(one_line("word " * 100)) == 300 and one_line("word " * 100).endswith("...")
    assert one_line(" a \n b ") == "a b"
    assert hint("lenth", ["length", "width"]) == "; did you mean 'length'?"
    assert hint("zzz", ["length"]) == ""
