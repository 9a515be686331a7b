"""Files of results: whole, gone on with, and refused where they are of other work."""

import json

import pytest

from gxpo.base.errors import ConfigError
from gxpo.bench.results import Results

MACHINE = {"threads": 2, "torch": "2"}


def test_every_row_is_saved_and_gone_on_with(tmp_path):
    path = tmp_path / "deep" / "rows.json"
    first = Results.open(path, "peer", MACHINE)
    first.add([{"name": "tiny/16", "ratio": 2.0, "memory": float("nan"), "spread": (1.0, float("inf"))}])
    assert json.loads(path.read_text()) == {
        "suite": "peer",
        "machine": MACHINE,
        "rows": [{"name": "tiny/16", "ratio": 2.0, "memory": None, "spread": [1.0, None]}],
    }
    again = Results.open(path, "peer", MACHINE)
    again.add([{"name": "tiny/256", "ratio": 4.0}])
    assert [row["name"] for row in Results.load(path).rows] == ["tiny/16", "tiny/256"]
    assert [p.name for p in path.parent.iterdir()] == ["rows.json"]


def test_rows_are_known_by_name_or_by_what_stands_above_them():
    results = Results("agreement", {}, [{"name": "full/8/step1"}, {"name": "one"}])
    assert results.has("full/8") and results.has("full") and results.has("one") and results.has("")
    assert not results.has("full/8/step") and not results.has("on") and not results.has("two")
    assert not Results("credit", {}).has("")


@pytest.mark.parametrize(
    ("suite", "machine", "message"),
    [
        ("step", MACHINE, "rows of suite peer, not step"),
        ("peer", MACHINE | {"threads": 1}, "threads 2, which is 1 now"),
    ],
)
def test_rows_of_other_work_are_not_mixed_in(tmp_path, suite, machine, message):
    path = tmp_path / "rows.json"
    Results.open(path, "peer", MACHINE).add([{"name": "a", "ratio": 1.0}])
    before = path.read_text()
    with pytest.raises(ConfigError, match=message):
        Results.open(path, suite, machine)
    assert path.read_text() == before


def test_what_only_the_rows_to_come_depend_on_is_noted(tmp_path):
    path = tmp_path / "rows.json"
    Results.open(path, "sample", MACHINE).add([{"name": "a", "ratio": 1.0}])
    again = Results.open(path, "sample", MACHINE | {"vllm": "0.32"})
    again.add([{"name": "vllm/a", "ratio": 1.0}])
    assert Results.load(path).machine == MACHINE | {"vllm": "0.32"}
    with pytest.raises(ConfigError, match=r"vllm 0\.32, which is 0\.33 now"):
        Results.open(path, "sample", MACHINE | {"vllm": "0.33"})
    assert Results.open(path, "sample", MACHINE).machine["vllm"] == "0.32"


@pytest.mark.parametrize("text", ["", "[1]", '{"suite": "peer"}', '{"suite": "p", "machine": {}, "rows": 3}', "\xff"])
def test_a_file_of_something_else(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="no results of gxpo bench"):
        Results.load(path)
