"""Models that see in shards of two processes: log-probs, gradients and steps of one process, whoever has pictures."""

import json
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests import started
from tests.learning.ranks import in_ranks
from tests.properties.vision import sharded_ranks
from tests.properties.vision.families import exact_rotary
from tests.properties.vision.test_policy import KEYS, SCRIPT


def agree(folder: Path, kinds: Sequence[str], cases: Sequence[str]) -> None:
    in_ranks("tests.properties.vision.sharded_ranks", folder, 2, ",".join(kinds), ",".join(cases))
    sharded_ranks.work(folder, False, list(kinds), list(cases))
    one, ranks = load_file(folder / "world1rank0"), [load_file(folder / f"world2rank{rank}") for rank in range(2)]
    for actual in ranks:
        assert actual.keys() == one.keys()
        for name, expected in one.items():
            scale = max(1.0, float(expected.double().norm()))
            assert float((actual[name] - expected).double().norm()) <= 1e-10 * scale, name
    for kind in kinds:
        gradient = {n: x for n, x in one.items() if n.startswith(f"{kind}/mixed/gradient/")}
        seen_gradients = [bool(x.any()) for n, x in gradient.items() if "vision" in n or "visual" in n]
        assert gradient and any(seen_gradients) != kind.endswith("frozen")


@pytest.mark.slow
def test_every_gradient_is_that_of_one_process(tmp_path: Path) -> None:
    agree(tmp_path, ["llava"], ["mixed"])


@pytest.mark.thorough
def test_other_families_and_frozen_towers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exact_rotary(monkeypatch)
    agree(tmp_path, [*sharded_ranks.KINDS], [*sharded_ranks.CASES])


def figures(run: Path) -> list[dict[str, object]]:
    rows = [json.loads(x) for x in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in r.items() if not k.startswith(("time_", "memory_"))} for r in rows]


@pytest.mark.thorough
def test_a_killed_run_of_two_processes_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "parity.py").write_text("def parity(completion):\n    return sum(map(ord, completion)) % 2\n")
    keys = {**KEYS, "learner.tokens_per_microbatch": 64}

    def command(doing: str, name: str, backend: str = "fsdp") -> list[object]:
        keys_text = repr({**keys, "cluster.backend": backend})
        return [tmp_path / "script.py", doing, name, "parity.py:parity", keys_text]

    def run(doing: str, name: str, kill_at: int = -1) -> int:
        return started.ranks(2, command(doing, name), cwd=tmp_path, KILL_AT=str(kill_at)).returncode

    assert started.run(command("train", "local", "local"), cwd=tmp_path).returncode == 0 == run("train", "whole")
    assert run("train", "killed", kill_at=3) == -signal.SIGKILL and run("resume", "killed") == 0
    assert figures(tmp_path / "whole") == figures(tmp_path / "killed")
    for ours, local in zip(figures(tmp_path / "whole"), figures(tmp_path / "local"), strict=True):
        assert {k: ours[k] for k in ("reward_mean", "grad_norm")} == pytest.approx(
            {k: local[k] for k in ("reward_mean", "grad_norm")}, rel=1e-5
        )
