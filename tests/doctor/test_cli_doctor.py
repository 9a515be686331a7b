"""`gxpo doctor` as a command: exit codes, the JSON that other programs read, no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INCIDENTS = Path(__file__).parent / "incidents"
FINDING = {"ids", "severity", "grade", "title", "evidence", "examples", "remedy", "follows_from"}


def doctor(*arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr)."""
    done = subprocess.run(
        [sys.executable, "-m", "gxpo.cli.app", "doctor", *arguments], capture_output=True, text=True, cwd=ROOT
    )
    return done.returncode, done.stdout, done.stderr


def _state(path: Path, reward: list[float]) -> Path:
    """A trainer_state.json of TRL with these rewards."""
    rows = [{"step": i + 1, "reward": r, "loss": 0.0, "completions/mean_length": 90.0} for i, r in enumerate(reward)]
    path.write_text(json.dumps({"global_step": len(rows), "log_history": rows}))
    return path


def test_a_healthy_run_exits_with_0(tmp_path: Path) -> None:
    state = _state(tmp_path / "trainer_state.json", [0.3 + 0.01 * i + 0.02 * (i % 3) for i in range(40)])
    code, out, _ = doctor(str(state))
    assert code == 0
    assert out.startswith("trl run: no sickness found")
    assert "gains" in out


def test_a_sick_run_exits_with_1_and_names_the_cause_first() -> None:
    code, out, _ = doctor(str(INCIDENTS / "verl-721"))
    assert code == 1
    assert "[non_finite]" in out


@pytest.mark.slow
def test_json_of_a_sick_run() -> None:
    code, out, _ = doctor(str(INCIDENTS / "verl-721"), "--json")
    document = json.loads(out)
    assert code == 1
    assert set(document) >= {"source", "read", "findings", "unchecked"}
    assert document["source"] == "verl"
    assert set(document["findings"][0]) == FINDING
    assert document["findings"][0]["ids"] == ["non_finite"]
    assert all(set(u) == {"id", "why", "enable"} for u in document["unchecked"])
    assert all(line.endswith("(untested here)") for line in document["findings"][0]["remedy"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "content", [None, b"", b"\x00\xff" * 100, b"hello\nworld\n"], ids=["none", "0", "binary", "text"]
)
def test_json_where_nothing_could_be_read(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "run"
    if content is not None:
        path.write_bytes(content)
    code, out, _ = doctor(str(path), "--json")
    document = json.loads(out)
    assert code == 2
    assert document["findings"] == [] and document["read"] == [] and document["unchecked"] == []
    assert document["notes"]


@pytest.mark.slow
def test_the_page_holds_verdict_evidence_and_remedies(tmp_path: Path) -> None:
    code, _, _ = doctor(str(INCIDENTS / "verl-721"), "--html", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert code == 1
    assert "non_finite" in page and "actor/pg_loss" in page and "untested here" in page
    assert "http://" not in page.replace("http://www.w3.org", "") and "<script src" not in page


@pytest.mark.slow
def test_a_missing_path_is_a_one_line_error(tmp_path: Path) -> None:
    code, out, err = doctor(str(tmp_path / "nowhere"))
    assert code == 2 and out == ""
    assert err.count("\n") == 1 and "nowhere" in err


@pytest.mark.slow
def test_the_list_names_every_sickness_with_its_statistic() -> None:
    code, out, _ = doctor("--list", "--json")
    rows = json.loads(out)
    assert code == 0
    assert len(rows) == len({r["id"] for r in rows}) == 44
    assert all(r["title"] and r["statistic"] for r in rows)


@pytest.mark.slow
def test_metrics_are_read_without_torch(tmp_path: Path) -> None:
    state = _state(tmp_path / "trainer_state.json", [0.4] * 50)
    program = (
        "import sys; from gxpo.doctor import read, diagnose\n"
        f"diagnose(read({str(state)!r}))\n"
        "print(sorted({'torch', 'transformers', 'pandas', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.slow
def test_a_reward_is_called_on_the_logged_completions(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    for step in range(1, 7):
        rows = [
            {"input": f"{g}+{step}=", "output": f"so {m}</think>{g + step}", "gts": str(g + step), "score": 0.0}
            for g in range(4)
            for m in range(4)
        ]
        text = "\n".join(json.dumps(row | {"step": step}) for row in rows)
        (tmp_path / "rollouts" / f"{step}.jsonl").write_text(text)
    rewards = tmp_path / "rewards.py"
    rewards.write_text("def both(completion, answer):\n    return float(completion.startswith('<think>'))\n")
    code, out, _ = doctor(str(tmp_path / "rollouts"), "--reward", f"{rewards}:both")
    assert code == 1
    assert "proved: the reward function rejects the form of the completions" in out
    assert "with <think> before it: 100% of them score more" in out


@pytest.mark.slow
def test_a_named_column_gives_a_verdict(tmp_path: Path) -> None:
    rows = [{"step": i, "train/rewards_ema": 0.3 + 0.01 * i, "zed": 1.0} for i in range(20)]
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, _ = doctor(str(path))
    assert code == 2 and "not recognised: train/rewards_ema, zed" in out
    assert "for a verdict: 'train/rewards_ema' looks like the reward: --map reward=train/rewards_ema" in out
    code, out, _ = doctor(str(path), "--map", "reward=train/rewards_ema")
    assert code == 0 and "train/rewards_ema 0.3" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pair", "error"),
    [
        ("rewad=reward", "--map rewad=reward: no name 'rewad'; did you mean 'reward'?"),
        ("reward=rewards", "--map reward=rewards: no file has a column 'rewards'; did you mean 'reward'?"),
        ("reward", "--map reward: give NAME=KEY, e.g. reward=train/rewards_mean"),
    ],
)
def test_a_wrong_name_or_key_is_one_line(tmp_path: Path, pair: str, error: str) -> None:
    code, out, err = doctor(str(_state(tmp_path / "trainer_state.json", [0.5] * 12)), "--map", pair)
    assert code == 2 and out == "" and err.strip() == f"gxpo: {error}"
