"""The section `teacher`: distilling from a checkpoint, judges by name, and what is refused; resumed runs are exact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

import gxpo
from gxpo.base.errors import CheckpointError, ConfigError, ModelError

SMALL = {
    "model": "tiny:cold",
    "task": "arithmetic",
    "tasks.per_step": 2,
    "rollout.group_size": 3,
    "sampling.max_new_tokens": 6,
    "eval.every": 0,
    "eval.tasks": 2,
    "trainer.steps": 4,
    "trainer.checkpoint_every": 1,
    "doctor.every": 0,
}
PARITY = f"{Path(__file__).parent}/parity_reward.py:parity"
ASKED = {"judge": {"function": "x.py:f"}}
DISTILS = {"signal.teacher": "teacher_model", "signal.teacher.top_k": 8, "objective": "distillation"}
JUDGE = """
def longer(messages):
    return f"Score: {len(messages[-1]['content']) % 11}"

def writer(messages):
    return f"[begin rubric]\\nAs before, {len(messages[-1]['content'])}.\\n[end rubric]"
"""


class Stopped(Exception):
    pass


def run(out: Path, keys: dict[str, Any], stop_at: int | None = None) -> Any:
    def watch(row: dict[str, Any]) -> None:
        if row["step"] == stop_at and "reward_mean" in row:
            raise Stopped

    return gxpo.train(out=out, watch=watch, set=SMALL | keys)


def lines(out: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time_", "memory_"))} for row in rows]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that another run has left: the cold model after two steps."""
    folder = tmp_path_factory.mktemp("teacher")
    actual = run(folder / "run", {"trainer.steps": 2, "optim.lr": 0.003, "reward": PARITY})
    actual.save_pretrained(folder / "model")
    return folder / "model"


@pytest.fixture
def judges(tmp_path: Path) -> str:
    (tmp_path / "judges.py").write_text(JUDGE)
    return f"{tmp_path}/judges.py"


def halves(tmp_path: Path, keys: dict[str, Any]) -> list[dict[str, Any]]:
    """Lines of a run that was stopped after two steps and resumed; the same as those of the run never stopped."""
    run(tmp_path / "whole", keys)
    with pytest.raises(Stopped):
        run(tmp_path / "stopped", keys, stop_at=2)
    gxpo.resume(tmp_path / "stopped")
    assert lines(tmp_path / "stopped") == lines(tmp_path / "whole")
    return lines(tmp_path / "whole")


@pytest.mark.slow
def test_a_policy_is_distilled_from_a_checkpoint_and_resumed(checkpoint: Path, tmp_path: Path) -> None:
    rows = halves(tmp_path, {**DISTILS, "teacher.model": str(checkpoint), "optim.lr": 0.003})
    assert all(row["taught_share"] == 1.0 for row in rows) and rows[0]["teacher_divergence"] > 1e-3
    assert rows[0]["weights_fingerprint"] != rows[-1]["weights_fingerprint"]


def test_a_teacher_that_is_the_policy_teaches_nothing(tmp_path: Path) -> None:
    rows = lines(run(tmp_path / "run", {**DISTILS, "teacher.model": "tiny:cold", "trainer.steps": 1}).path)
    assert rows[0]["teacher_divergence"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.slow
def test_a_run_is_not_resumed_with_another_teacher(checkpoint: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in checkpoint.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    keys = {**DISTILS, "teacher.model": str(copy)}
    with pytest.raises(Stopped):
        run(tmp_path / "run", keys, stop_at=2)
    run(tmp_path / "other", {"trainer.steps": 1, "optim.lr": 0.1, "reward": PARITY}).save_pretrained(tmp_path / "new")
    (copy / "model.safetensors").write_bytes((tmp_path / "new" / "model.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="teacher teacher has other weights"):
        gxpo.resume(tmp_path / "run")


def test_a_teacher_with_another_tokenizer_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file in checkpoint.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    tokens = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokens["model"]["vocab"]
    a, b = [x for x in vocabulary if len(x) == 1 and x.isdigit()][:2]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    Tokenizer.from_str(json.dumps(tokens)).save(str(other / "tokenizer.json"))
    with pytest.raises(ModelError, match="another tokenizer than the policy"):
        run(tmp_path / "run", {**DISTILS, "teacher.model": str(other)})


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"teacher.model": "tiny:cold"}, "nothing reads the teacher 'teacher'"),
        (DISTILS, "reads the teacher 'teacher', which is not there"),
        ({"teacher.models": {"j": {"model": "tiny:cold"}}}, "set its role"),
        ({"teacher.models": {"j": {"role": "jugde", "model": "x"}}}, "it is one of teacher, judge"),
        ({"teacher.models": {"j": {"role": "judge"}}}, "one of model"),
        ({"teacher.models": {"j": {"role": "teacher", "server": "http://x", "model": "y"}}}, "scores given tokens"),
        ({"teacher.models": {"j": {"role": "judge", "moodel": "x"}}}, "has no 'moodel'; did you mean 'model'"),
        (
            {"reward": "judge", "scoring.options": {"judge": {"teacher": "nobody"}}},
            "is no judge of the section teacher",
        ),
        ({"method": "meta_po", "rollout": "replay", "scoring.options": ASKED}, "not comparable"),
        ({"method": "meta_po", "async.max_staleness": 1, "scoring.options": ASKED}, "older rubric"),
    ],
)
def test_what_can_not_work_is_refused(keys: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        run(tmp_path / "run", keys)


@pytest.mark.slow
def test_judge_of_the_section_is_default_and_method_options_stay(judges: str, tmp_path: Path) -> None:
    keys = {"method": "arena_rl", "teacher.models": {"critic": {"role": "judge", "function": f"{judges}:longer"}}}
    actual = run(tmp_path / "a", {**keys, "trainer.steps": 1})
    assert actual.config["scoring.options"] == {"judge": {"mode": "pairwise", "compare": "single_elim"}}
    assert lines(actual.path)[0]["unscored"] == 6  # it gives scores where verdicts are asked for
    judge_keys = {"method": "rluf", "scoring.options": {"judge": {"function": f"{judges}:longer", "workers": 1}}}
    row = lines(run(tmp_path / "b", {**judge_keys, "trainer.steps": 1}).path)[0]
    assert row["unscored"] == 0 and {"reward_judge_helpful", "reward_judge_safe", "reward_judge_love"} <= set(row)


@pytest.mark.slow
def test_a_checkpoint_judges_in_words_that_nobody_can_read(tmp_path: Path) -> None:
    keys = {"reward": "judge", "teacher.models": {"c": {"role": "judge", "model": "tiny:cold", "max_tokens": 2}}}
    with pytest.warns(UserWarning, match="nothing is learned"):
        row = lines(run(tmp_path / "run", {**keys, "trainer.steps": 1}).path)[0]
    assert row["unscored"] == 6 and row["judge_tokens"] > 0


@pytest.mark.slow
def test_a_rubric_that_changes_is_in_the_checkpoint(judges: str, tmp_path: Path) -> None:
    refresh = {"every": 1, "samples": 2, "function": f"{judges}:writer"}
    options = {"judge": {"function": f"{judges}:longer", "refresh": refresh}}
    rows = halves(tmp_path, {"method": "meta_po", "scoring.options": options})
    assert [row["reward_rubric_version"] for row in rows] == [1, 2, 3, 4]


@pytest.mark.slow
def test_the_listener_of_a_run(tmp_path: Path) -> None:
    keys = {
        "method": "listener",
        "teacher.models": {"ear": {"role": "judge", "model": "tiny:cold"}},
        "trainer.steps": 1,
    }
    row = lines(run(tmp_path / "run", keys).path)[0]
    assert 0 < row["reward_judge"] < 1 and row["unscored"] == 0
