"""Learners sharded by FSDP2 over gloo: outputs, gradients, steps and checkpoints are those of one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.learning import sharded_ranks
from tests.learning.llamas import clean_llama
from tests.learning.ranks import in_ranks

from gxpo.base.errors import ConfigError
from gxpo.learning.parameter_checks import fingerprint
from gxpo.learning.sharded import ShardedLearner

MODULE = "tests.learning.sharded_ranks"
QUICK = ("decoder", "transformers", "tied", "lora", "value")
SLOW = tuple(kind for kind in sharded_ranks.KINDS if kind not in QUICK)
TOLERANCE = {"float32": 5e-6, "float32-transformers": 5e-6, "bfloat16": 2e-2}  # of gradients; of others 1e-12


def ran(folder: Path, world: int, kinds: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Check a world against one process, and its ranks against each other; the notes of both."""
    in_ranks(MODULE, folder, world, "work", *kinds)
    sharded_ranks.work(folder, False, list(kinds))
    one, first = load_file(folder / "world1rank0"), load_file(folder / f"world{world}rank0")
    for rank in range(1, world):
        other = load_file(folder / f"world{world}rank{rank}")
        assert other.keys() == first.keys() and all(
            torch.equal(other[n].nan_to_num(), first[n].nan_to_num()) for n in first
        )
    assert one.keys() == first.keys()
    for name, expected in one.items():
        kind, what = name.split("/")[:2]
        if kind in TOLERANCE and what in ("after", "hidden", "reference"):
            continue  # steps of AdamW make rounding errors larger
        error = float((first[name].double().nan_to_num() - expected.double().nan_to_num()).norm())
        size = max(float(expected.double().nan_to_num().norm()), 1e-3)
        assert error <= TOLERANCE.get(kind, 1e-12) * size, (name, error / size)
    notes = [json.loads((folder / f"world{w}rank0.json").read_text()) for w in (1, world)]
    for name, expected in notes[0].items():
        if name.partition("/")[0] not in TOLERANCE:
            assert {k: notes[1][name][k] for k in ("loss", "norm")} == pytest.approx(
                {k: expected[k] for k in ("loss", "norm")}, rel=1e-12, abs=1e-12
            )
    return notes[0], notes[1]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("two")
    return folder, *ran(folder, 2, QUICK)


@pytest.mark.slow
def test_two_ranks_equal_one_process(two: tuple[Path, dict[str, Any], dict[str, Any]]) -> None:
    _, one, notes = two
    assert any(note["microbatches"] % 2 for name, note in notes.items() if "/" in name)  # a rank without a micro-batch
    for kind in QUICK:
        assert notes[kind]["share"] == pytest.approx(0.5, abs=0.02)
    assert all(note["norm"] > 0 for name, note in one.items() if "/" in name)


@pytest.mark.thorough
@pytest.mark.parametrize("world", [2, 3])
def test_other_layouts_and_dtypes(tmp_path: Path, world: int) -> None:
    ran(tmp_path, world, SLOW)


@pytest.mark.parametrize("world", [1, pytest.param(3, marks=pytest.mark.thorough)])
def test_a_checkpoint_of_two_ranks_is_read_by_others(
    two: tuple[Path, dict[str, Any], dict[str, Any]], world: int
) -> None:
    folder, _, notes = two
    in_ranks(MODULE, folder, world, "load", "decoder")
    loaded = json.loads((folder / f"loaded{world}rank0.json").read_text())
    went_on = notes["decoder"]
    assert loaded["weights_fingerprint"] == went_on["weights_fingerprint"]
    assert loaded["norm"] == pytest.approx(went_on["norm"], rel=1e-12)
    assert loaded["after"] == pytest.approx(went_on["after"], rel=1e-12)


def test_states_of_16_bits_are_refused() -> None:
    with pytest.raises(ConfigError, match="shards float32 states"):
        ShardedLearner(clean_llama(), lr=0.01, states="bfloat16")


def test_a_fingerprint_sees_values_places_and_names() -> None:
    x = torch.arange(6.0).reshape(3, 2)
    actual = fingerprint({"a": x})
    assert actual == fingerprint({"a": x.clone()}) < 2**53
    moved = x.clone()
    moved[0], moved[1] = x[1], x[0]
    others = [{"b": x}, {"a": moved}, {"a": x + 1e-7}, {"a": x.double()}, {"a": x, "b": x[:1]}, {"a": -x}]
    assert len({actual, *map(fingerprint, others)}) == 7
    assert fingerprint({"a": x, "b": moved}) == fingerprint({"b": moved, "a": x})
