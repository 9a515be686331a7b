from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from tests.forest.record_rows import FIRST, TURN, Json, few, fewer, record
from tests.naive import expand, view
from tests.strategies import RICH, forests, random_records, record_lists

from gxpo.base.errors import RecordError
from gxpo.forest.forest import Forest
from gxpo.forest.records import dump, load, parse


# ---------------------------------------------------------------- the whole format against the oracle
@few
@given(record_lists())
def test_a_forest_says_what_its_records_say(records: list[Json]) -> None:
    assert view(Forest.from_records(records)) == expand(records)


@fewer
@given(record_lists(**RICH))
def test_with_tensors_media_latents_and_texts(records: list[Json]) -> None:
    assert view(Forest.from_records(records)) == expand(records)
    assert view(Forest.from_records(records, share=False)) == expand(records)


@fewer
@given(forests(**RICH))
def test_dump_and_load(tmp_path_factory: pytest.TempPathFactory, forest: Forest) -> None:
    folder = tmp_path_factory.mktemp("rollouts")
    dump(forest, folder / "a.jsonl")
    again = load(folder / "a.jsonl")
    assert view(again) == view(forest)
    dump(again, folder / "b.jsonl")
    text = (folder / "a.jsonl").read_text()
    assert (folder / "b.jsonl").read_text() == text.replace("a.safetensors#", "b.safetensors#")
    names = {p.name for p in folder.iterdir()}
    assert names == {f"{n}.{k}" for n in "ab" for k in ("jsonl", *["safetensors"] * bool(again.extras))}


def test_a_file_that_can_not_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    dump(Forest.from_records([record()]), path)
    old = path.read_bytes()
    extras = {"x": torch.ones(3)}
    for info in ({"x": float("nan")}, {"x": object()}):
        with pytest.raises(RecordError, match="'bad' can't be written as JSON"):
            dump(Forest.from_records([record("bad", [{"action": [1, 2, 3], "extras": extras}], info=info)]), path)
    assert path.read_bytes() == old and [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]


GOOD_LINE = json.dumps(record("first"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not a JSON object"),
        ("[1]", "not a JSON object, but"),
        ("3", "not a JSON object, but 3"),
        (GOOD_LINE[:-1], "not a JSON object"),
        (GOOD_LINE + GOOD_LINE, "not a JSON object: Extra data"),
        (json.dumps(record("b", info={"x": float("nan")})), "NaN is not a finite number"),
        (json.dumps(record("b", reward=float("-inf"))), "-Infinity is not a finite number"),
        (json.dumps(record("b")).replace('"b"', '"b", "reward": 1e999'), "1e999 is not a finite number"),
        (json.dumps(record("b")).replace('"b"', '"b", "id": "c"'), "key 'id' is given twice"),
        ("[" * 100_000, "not a JSON object"),
        (json.dumps(record("b", groups="x")), "groups is not a known key; did you mean 'group'"),
        (json.dumps(record("first")), "id 'first' is the id of an earlier record"),
    ],
)
def test_a_malformed_line_is_named_with_its_number(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{GOOD_LINE}\n\n{line}\n{GOOD_LINE}\n")
    with pytest.raises(RecordError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:3: ") and message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(GOOD_LINE.encode() + b"\n\xff\xfe\n")
    with pytest.raises(RecordError, match=r"a.jsonl:2: not a JSON object: .*decode"):
        load(tmp_path / "a.jsonl")


def test_empty_and_missing_files(tmp_path: Path) -> None:
    for text in ("", "\n\n"):
        (tmp_path / "a.jsonl").write_text(text)
        with pytest.raises(RecordError, match=r"a\.jsonl: holds no records"):
            load(tmp_path / "a.jsonl")
    for path in (tmp_path / "b.jsonl", tmp_path):
        with pytest.raises(RecordError, match="no such file"):
            load(path)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("x.safetensors#nope", "nope"),
        ("y.safetensors#1", "y.safetensors"),
        ("x.safetensors", "is not a 'file.safetensors#key'"),
        ("../x.safetensors#1.0.x", "of a file beside the records"),
        ("broken.safetensors#k", "broken"),
    ],
)
def test_tensors_that_can_not_be_read(tmp_path: Path, reference: str, message: str) -> None:
    dump(Forest.from_records([FIRST]), tmp_path / "x.jsonl")
    (tmp_path / "broken.safetensors").write_bytes(b"not tensors")
    bad = record("b", [{**TURN, "extras": {"x": reference}}])
    (tmp_path / "a.jsonl").write_text(json.dumps(bad) + "\n")
    with pytest.raises(RecordError, match=r"a.jsonl:1: turns\[0\].extras.x") as caught:
        load(tmp_path / "a.jsonl")
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_the_last_line_alone_refuses_the_whole_file(tmp_path: Path) -> None:
    lines = [json.dumps(r) for r in random_records(5)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    assert view(load(path)) == expand(random_records(5))
    path.write_text("\n".join([*lines, "{"]))
    with pytest.raises(RecordError, match=f":{len(lines) + 1}:"):
        load(path)


def test_tensor_files_of_records_are_regular_files(tmp_path):
    turn = {"action": [1]}
    record = {"schema": "gxpo.rollouts/1", "group": "g", "id": "0", "reward": 1.0, "turns": [turn]}
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "device.safetensors").symlink_to("/dev/zero")
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "header.safetensors").write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    names = {"pipe": "is a pipe", "device": "is a device", "folder": "is a directory", "header": "header too large",
             "x" * 5000: "file name too long", "a\0b": "no such file", "absent": "no such file"}  # fmt: skip
    for name, why in names.items():
        turn["extras"] = {"a": f"{name}.safetensors#1.0.a"}
        (tmp_path / "r.jsonl").write_text(json.dumps(record) + "\n")
        with pytest.raises(RecordError, match=why) as caught:
            load(tmp_path / "r.jsonl")
        assert len(str(caught.value)) < 400 + len(str(tmp_path))
    del turn["extras"]
    for place in (["a", 1, "x"], [0, 1.5, "x"], [0, 10**30, "x"], [0, 1, "x" * 5000], [0, 1, None], [True, 1, "x"]):
        with pytest.raises(RecordError, match="media_at") as caught:
            parse([{**record, "turns": [{"observation": [7], "media_at": [place], **turn}]}])
        assert len(str(caught.value)) < 400
