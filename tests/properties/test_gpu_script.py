"""Every part of scripts/gpu.py at toy size on the CPU, so that a GPU's minutes are not spent on its mistakes."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest
from tests.strict_device import strict

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module")
def gpu():
    sys.path.insert(0, str(SCRIPTS))
    spec = importlib.util.spec_from_file_location("gpu", SCRIPTS / "gpu.py")
    module = sys.modules["gpu"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["gpu"]


def rows(path):
    return {row["name"]: row for row in map(json.loads, path.read_text().splitlines())}


@pytest.mark.thorough
def test_each_part_writes_its_figures(gpu, tmp_path):
    out = tmp_path / "gpu.jsonl"
    assert gpu.main(["tests", "--device", "cpu", "--toy", "--out", str(out)]) == 0
    assert all(row["passed"] for row in rows(out).values()) and len(rows(out)) == 2

    assert gpu.main(["learn", "--device", "cpu", "--toy", "--out", str(out)]) == 0
    assert rows(out)["learn:resume"]["equal_bits"] and rows(out)["learn:frozenlake_gigpo"]["steps"] == 2

    assert gpu.main(["numerics", "--device", "cpu", "--toy", "--out", str(out)]) == 0
    actual = rows(out)
    for method in ("grpo", "dr_grpo", "gspo", "cispo", "gvpo"):
        row = actual[f"numerics:gradient/toy/{method}/float32"]
        assert row["gradient_norm"] > 0 and row["gradient_relative_difference"] < 1e-6
        assert 0.9 < actual[f"numerics:gradient/toy/{method}/bfloat16"]["gradient_cosine"] < 1
    assert actual["numerics:sampler_gap/toy/packed/float32"]["largest_nats"] < 1e-4

    assert gpu.main(["speed", "--device", "cpu", "--toy", "--out", str(out)]) == 0
    packed, flat = (rows(out)[f"speed:update/toy/8x8/{layout}"] for layout in ("packed", "flat"))
    assert packed["tokens_forward"] == 2 + 8 * 7 and flat["tokens_forward"] == 8 * (2 + 7)
    assert rows(out)["speed:sample/toy/8x8"]["tokens_per_s"] > 0

    gpu.main(["peer", "--device", "cpu", "--toy", "--out", str(out)])  # TRL may be missing: then its figure is an error
    assert rows(out)["peer:gxpo/toy/16x8"]["steps"] == 3
    other = rows(out)["peer:trl/toy/16x8"]
    assert other.get("steps") == 3 or "No module named" in other["error"]


@pytest.mark.thorough
def test_parts_of_scale_write_their_figures(gpu, tmp_path, capfd):
    out = tmp_path / "gpu.jsonl"
    for part in ("trees", "lora", "vllm", "kill", "memory"):
        assert gpu.main([part, "--device", "cpu", "--toy", "--out", str(out)]) == 0
    actual = rows(out)
    assert actual["trees:gradient/toy/flex"]["logprob_largest_nats"] < 1e-5
    assert actual["trees:gradient/toy/dense"]["gradient_relative_difference"] < 1e-5
    assert actual["trees:update/toy/4x16on8/dense"]["tokens_forward"] == 8 + 4 * 15
    assert actual["trees:update/toy/4x16on8/flat"]["tokens_forward"] == 4 * (8 + 15)
    assert [actual[f"trees:row/toy/64/{way}"]["backward"] for way in ("flex", "dense")] == [False, True]
    # rank 16 on 7 maps of 2 layers: q, o 32 + 32, k, v 32 + 16, gate, up, down 32 + 48, in float32
    assert actual["lora:toy"]["adapter_bytes"] == 4 * 16 * 2 * (2 * 64 + 2 * 48 + 3 * 80)
    assert actual["vllm:toy"]["gap_largest_nats"] < 1e-4 and actual["vllm:toy"]["gap_tokens"] == 16 * 4
    assert actual["kill:resume"]["equal_weights"] and actual["kill:resume"]["steps"] == 12
    assert "trees: varlen skipped" in capfd.readouterr().out
    update = actual["memory:update/toy/float32/lora"]
    assert update["microbatches"] == 2
    assert update["foretold_gb"] == pytest.approx(sum(update["parts_gb"].values()), abs=0.01)

    before = out.read_text()
    assert gpu.main(["trees", "--device", "cpu", "--toy", "--out", str(out)]) == 0
    assert out.read_text() == before


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_each_part_runs_on_the_strict_device(gpu, tmp_path, monkeypatch):
    """All but `fsdp`, whose collectives have no such device, and `verl`."""
    out, root = tmp_path / "gpu.jsonl", SCRIPTS.parent
    # programs that a part starts know the device too
    start = ["from tests.strict_device import strict", "kept = strict()", "kept.__enter__()"]
    (tmp_path / "sitecustomize.py").write_text("\n".join(start))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{root}")
    parts = tuple(name for name in gpu.PARTS if name not in ("fsdp", "verl"))
    with strict() as device:
        for part in parts:
            gpu.main([part, "--device", device, "--toy", "--out", str(out)])
    actual = rows(out)
    assert [name for name, row in actual.items() if "error" in row and not name.startswith("peer:trl")] == []
    assert {name.partition(":")[0] for name in actual} == set(parts) and actual["trees:row/toy/64/flex"]["backward"]
    assert {row["device"] for row in actual.values()} == {device} and "peak_mib" in actual["lora:toy"]


@pytest.mark.thorough
def test_parts_of_engines_write_their_figures(gpu, tmp_path, capfd, monkeypatch):
    out = tmp_path / "gpu.jsonl"
    for part in ("fsdp", "staleness"):
        assert gpu.main([part, "--device", "cpu", "--toy", "--out", str(out)]) == 0
    actual = rows(out)
    assert actual["fsdp:toy"]["gradient_relative_difference"] < 1e-5 and actual["fsdp:toy"]["action_tokens"] == 64
    assert (actual["fsdp:toy"]["backend"], actual["fsdp:toy"]["ranks"]) == ("gloo", 1)
    assert actual["fsdp:toy"]["overhead"] > -1
    calm, old = (actual[f"staleness:tiny:cold/6/{age}"] for age in (0, 2))
    assert calm["steps"] == old["steps"] == 6
    assert calm["staleness_mean"] == 0 and old["staleness_mean"] == (0 + 1 + 2 + 2 + 2 + 2) / 6
    assert old["mismatch_kl"] > 0

    python = os.environ.get("GXPO_VERL_PYTHON")
    assert gpu.main(["verl", "--device", "cpu", "--toy", "--out", str(out)]) == 0
    if python is None:
        assert "verl: skipped: " in capfd.readouterr().out
        return
    float32_row, bfloat16_row = (rows(out)[f"verl:toy/{dtype}"] for dtype in ("float32", "bfloat16"))
    assert float32_row["gradient_of_grpo"] < 1e-5 < bfloat16_row["gradient_of_grpo"] < 0.1
    assert bfloat16_row["probe_scale"] < 0.25  # the bound of a run in bfloat16
    assert float32_row["pull_over_forward"] > 0 and float32_row["tokens"] == 48


def test_verl_is_looked_for_where_it_is_said_to_be(gpu, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("GXPO_VERL_PYTHON", "false")
    assert gpu.main(["verl", "--device", "cpu", "--toy", "--out", str(tmp_path / "f.jsonl")]) == 0
    assert "verl: skipped: false has no verl" in capsys.readouterr().out
    assert not (tmp_path / "f.jsonl").exists()


def test_a_figure_is_measured_once_and_an_error_again(gpu, tmp_path):
    figures = gpu.Figures(tmp_path / "f.jsonl", "cpu", True, float("inf"))
    calls = []

    def fails():
        calls.append("fails")
        raise RuntimeError("no such kernel")

    def works():
        calls.append("works")
        return {"x": 1}

    figures.take("a", fails)
    figures.take("b", works)
    again = gpu.Figures(tmp_path / "f.jsonl", "cpu", True, float("inf"))
    again.take("a", works)
    again.take("b", works)
    assert calls == ["fails", "works", "works"]
    assert rows(tmp_path / "f.jsonl")["a"]["x"] == 1
    assert list(gpu.failures(tmp_path / "f.jsonl")) == ["a"]


def test_a_lost_device_ends_its_part_and_stands_in_the_file(gpu, tmp_path):
    figures = gpu.Figures(tmp_path / "f.jsonl", "cpu", True, float("inf"))

    def breaks():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(gpu.DeviceLost):
        figures.take("a", breaks)
    assert list(gpu.failures(tmp_path / "f.jsonl")) == ["a"]


def test_a_part_that_hangs_or_crashes_costs_itself_alone(gpu, tmp_path, monkeypatch):
    python = [sys.executable, "-S", "-c"]
    assert gpu.run_process([*python, "import time; time.sleep(60)"], 0.2) == "killed after 0 s"
    assert gpu.run_process([*python, "raise SystemExit(5)"], 60) == "ended with exit code 5"
    assert gpu.run_process([*python, "raise SystemExit(3)"], 60) is None

    commands = []

    def run_process(command, seconds):
        commands.append((command[2], "--toy" in command, seconds))
        return "killed after 90 s" if command[2] == "learn" else None

    monkeypatch.setattr(gpu, "run_process", run_process)
    out = tmp_path / "f.jsonl"
    assert gpu.run_all(out, "cpu", toy=True, minutes=15, parts={"numerics": 1, "learn": 1, "kill": 20}) == 1
    assert [x[:2] for x in commands] == [("numerics", True), ("learn", True), ("kill", True)]
    # 60 s and the grace to end a figure; what is left of all 15 minutes
    assert [x[2] for x in commands] == pytest.approx([90, 90, 900], abs=5)
    actual = rows(out)
    assert actual["part:learn"]["error"] == "killed after 90 s" and actual["part:kill"]["ended"]
    assert gpu.run_all(out, "cpu", toy=True, minutes=0.1, parts={"numerics": 1}) == 0 and len(commands) == 3


def test_the_table_has_each_figure_once_and_failures_last(gpu, tmp_path, capsys):
    out = tmp_path / "f.jsonl"
    figures = gpu.Figures(out, "cpu", True, float("inf"))
    figures.write("b:x", {"error": "no such kernel"}, 1.0)
    figures.write("a:x", {"error": "first try"}, 1.0)
    figures.write("a:x", {"seconds": 0.123456, "tokens": 5}, 1.0)
    figures.write("tests:t.py::one", {"passed": True}, 1.0)
    figures.write("part:a", {"ended": True}, 1.0)
    capsys.readouterr()
    assert gpu.main(["table", "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("gxpo on CPU, torch ") and lines[0].endswith(": 2 figures")
    actual = ["| tests | 1 passed |", "| a:x | seconds 0.1235, tokens 5 |", "| b:x | FAILED: no such kernel |"]
    assert lines[4:] == actual


def test_nothing_is_begun_after_the_last_minute(gpu, tmp_path):
    out = tmp_path / "f.jsonl"
    assert gpu.main(["speed", "--device", "cpu", "--toy", "--minutes", "0", "--out", str(out)]) == 3
    assert not out.exists()
