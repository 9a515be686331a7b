"""`gxpo verify`: a good run is equal, and each thing that is wrong with another one is named, with its place."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import run as gxpo_command

import gxpo
from gxpo.doctor import diagnose, read
from gxpo.training.verify import Verification, verify

REWARD = f"{Path(__file__).parent / 'parity_reward.py'}:parity"
KEYS: dict[str, Any] = {
    "tasks.per_step": 3,
    "rollout.group_size": 3,
    "sampling.max_new_tokens": 5,
    "eval.every": 0,
    "eval.tasks": 2,
    "doctor.every": 0,
    "trainer.checkpoint_every": 1,
    "trainer.rollouts_every": 1,
    "trainer.keep_checkpoints": 9,
    "learner.tokens_per_microbatch": 1024,
    "optim.lr": 1e-3,
}


def train(out: Path, steps: int = 3, method: str = "grpo", **keys: Any) -> Path:
    return gxpo.train("tiny:cold", "arithmetic", method, steps, REWARD, out=out, progress="none",
                      set=KEYS | keys).path  # fmt: skip


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    return train(tmp_path_factory.mktemp("verify") / "good")


@pytest.fixture
def copied(good, tmp_path) -> Path:
    return shutil.copytree(good, tmp_path / "run")


def edit(run: Path, step: int, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    """Change the records of a step as somebody with an editor would."""
    path = run / "rollouts" / f"step-{step:06d}.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    change(records)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def causes(result: Verification) -> dict[int, str | None]:
    return {s.step: s.cause for s in result.steps}


# ---------------------------------------------------------------- a good run
def test_a_good_run_is_equal(copied):
    result = verify(copied)
    assert (result.verdict, result.exit_code, causes(result)) == ("equal", 0, {1: None, 2: None, 3: None})
    assert [s.versions for s in result.steps] == [(0,), (1,), (2,)]
    assert all(s.rollouts == 9 and s.tokens >= 9 and s.different == 0 for s in result.steps)
    assert all(s.largest < 1e-4 and s.place is None for s in result.steps)
    assert json.loads((copied / "verify.json").read_text())["verdict"] == "equal"
    assert "are the policy's in 3 of 3 steps" in result.text()
    assert not any(f.ids == ("recorded_logprobs",) for f in diagnose(read(copied)).findings)


def test_as_many_steps_as_asked_for(copied):
    assert list(causes(verify(copied, 1))) == [3] and list(causes(verify(copied, 2))) == [1, 3]


# ---------------------------------------------------------------- weights
def test_an_exchanged_checkpoint(copied, tmp_path):
    other = train(tmp_path / "other", 2, seed=1)
    shutil.rmtree(copied / "checkpoints" / "step-000002")
    shutil.copytree(other / "checkpoints" / "step-000002", copied / "checkpoints" / "step-000002")
    result = verify(copied)
    assert causes(result) == {1: None, 2: None, 3: "weights"} and result.exit_code == 1
    last = result.steps[-1]
    assert "checkpoints/step-000002" in last.finding and "weights_fingerprint" in last.finding
    assert last.place is not None and last.place.version == 2 and last.largest > 1e-3


def test_a_damaged_checkpoint(copied):
    path = copied / "checkpoints" / "step-000001" / "tensors.safetensors"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    last = next(s for s in verify(copied).steps if s.step == 2)
    assert last.cause == "weights" and "checksum" in last.finding and last.tokens == 0


# ---------------------------------------------------------------- records
def test_an_edited_logprob(copied):
    edit(copied, 3, lambda records: records[4]["turns"][0]["logprob"].__setitem__(1, -0.25))
    (last,) = [s for s in verify(copied).steps if s.cause]
    assert (last.step, last.cause, last.rollouts_different, last.different) == (3, "records", 1, 1)
    assert (last.place.turn, last.place.token, last.place.recorded) == (0, 1, -0.25)
    assert "a log-prob was changed" in last.finding and "1 of 9 rollouts" in last.finding


def test_an_edited_token_with_its_reward_untouched(copied):
    def change(records):
        record = next(r for r in records if len(r["turns"][0]["action"]) == 5)
        record["turns"][0]["action"][1] = (record["turns"][0]["action"][1] + 3) % 20

    edit(copied, 2, change)
    (bad,) = [s for s in verify(copied).steps if s.cause]
    assert (bad.step, bad.cause, bad.rollouts_different) == (2, "records", 1)
    assert "from turns[0].action[1]" in bad.finding and "this token" in bad.finding


def test_an_age_that_the_policy_never_had(copied):
    edit(copied, 3, lambda records: [r["turns"][0].update(policy_version=1) for r in records])
    edit(copied, 1, lambda records: [r["turns"][0].update(policy_version=3) for r in records])
    by_step = {s.step: s for s in verify(copied).steps}
    assert by_step[3].cause == "age" and "of policy version 1 are version 2's" in by_step[3].finding
    assert by_step[1].cause == "age" and "at most 0 had been made" in by_step[1].finding


def test_another_temperature(copied):
    edit(copied, 2, lambda records: [r["sampling"].update(temperature=0.6) for r in records])
    (bad,) = [s for s in verify(copied).steps if s.cause]
    assert bad.cause == "temperature" and "temperature 0.6" in bad.finding and "at temperature 1" in bad.finding


def test_all_logprobs_shifted(copied):
    def shift(records):
        for record in records:
            record["turns"][0]["logprob"] = [x - 0.5 for x in record["turns"][0]["logprob"]]

    edit(copied, 2, shift)
    (bad,) = [s for s in verify(copied).steps if s.cause]
    assert bad.cause == "records" and "when the step was trained" in bad.finding


def test_rounded_log_probs_are_of_another_precision(copied):
    """The gap that the run saw is as large: a sampler of lower precision, from the beginning."""

    def coarse(records):
        for record in records:
            record["turns"][0]["logprob"] = [round(x * 30) / 30 for x in record["turns"][0]["logprob"]]

    edit(copied, 2, coarse)
    rows = [json.loads(line) for line in (copied / "metrics.jsonl").read_text().splitlines()]
    rows[1]["sampler_gap"] = 0.02
    (copied / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (bad,) = [s for s in verify(copied).steps if s.cause] or [None]
    assert bad is None  # within twice the gap of that step
    rows[1]["sampler_gap"] = 0.002
    (copied / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (bad,) = [s for s in verify(copied).steps if s.cause]
    assert bad.cause in ("records", "dtype")


# ---------------------------------------------------------------- nothing to tell
def test_what_to_save_where_nothing_can_be_compared(copied):
    for step in (0, 1, 2):
        shutil.rmtree(copied / "checkpoints" / f"step-{step:06d}")
    for step in (1, 2, 3):
        path = copied / "rollouts" / f"step-{step:06d}.jsonl"
        (path.unlink if step == 1 else path.touch)()
    result = verify(copied)
    assert (result.verdict, result.exit_code, result.steps) == ("unknown", 2, ())
    assert "rollouts are of steps 2, 3, checkpoints of steps 3" in result.advice
    assert "trainer.rollouts_every=1" in result.advice and "trainer.checkpoint_every" in result.advice
    shutil.rmtree(copied / "rollouts")
    assert "no rollouts were written" in verify(copied).advice


def test_the_start_is_version_0_without_a_checkpoint_of_it(copied):
    shutil.rmtree(copied / "checkpoints" / "step-000000")
    assert causes(verify(copied))[1] is None


# ---------------------------------------------------------------- command and doctor
def test_the_command_and_the_doctor(copied):
    edit(copied, 3, lambda records: records[0]["turns"][0]["logprob"].__setitem__(0, -9.0))
    code, out, _ = gxpo_command(["verify", copied, "--json"])
    data = json.loads(out)
    assert (code, data["verdict"]) == (1, "different") and data["steps"][-1]["place"]["recorded"] == -9.0
    found = next(f for f in diagnose(read(copied)).findings if f.ids == ("recorded_logprobs",))
    assert (found.grade, found.severity) == ("proved", "warning") and "(records)" in found.title
    code, out, _ = gxpo_command(["verify", copied, "--steps", 1])
    assert code == 1 and "step 3: DIFFERENT (records)" in out and "restore the records" in out
    code, out, _ = gxpo_command(["verify", copied / "nowhere", "--json"])
    assert code == 2


# ---------------------------------------------------------------- other kinds of runs
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "bfloat16": ("grpo", {"learner.dtype": "bfloat16"}),
    "lora": ("grpo", {"learner.lora_rank": 2}),
    "top_p": ("grpo", {"sampling.top_p": 0.8, "sampling.temperature": 1.3}),
    "asynchronous": ("grpo", {"async.max_staleness": 2, "weight.mismatch": "truncated"}),
    "score_centring": ("grpo+tis+score_centring", {"update.minibatches": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_other_kinds_of_runs_are_equal(kind, tmp_path):
    method, keys = KINDS[kind]
    run = train(tmp_path / "run", 3, method, **keys)
    result = verify(run)
    assert result.verdict == "equal", result.text()
    assert all(s.rollouts == 9 for s in result.steps)
    if kind == "asynchronous":
        assert any(len(s.versions) > 1 or max(s.versions) < s.step - 1 for s in result.steps), result.text()
    if kind != "top_p":
        return
    # records without the ids that were allowed, and without the settings that tell of them
    edit(run, 2, lambda records: [r["turns"][0].pop("extras") for r in records])
    (bad,) = [s for s in verify(run).steps if s.cause]
    assert bad.cause == "support" and "top_p=0.8" in bad.finding
    edit(run, 2, lambda records: [r["sampling"].update(top_p=1.0) for r in records])
    (bad,) = [s for s in verify(run).steps if s.cause]
    assert bad.cause == "support" and "left ids out" in bad.finding


@pytest.mark.slow
def test_several_policies(tmp_path):
    keys = {"learner.lora_rank": 2, "rollout.policy": "per_role", "rollout.group_size": 2, "tasks.per_step": 2}
    run = train(tmp_path / "run", 2, "dr_mas", **keys)
    result = verify(run)
    assert result.verdict == "equal" and result.steps, result.text()


# ---------------------------------------------------------------- phases
PHASES = [
    {"method": "grpo", "steps": 2},
    {"method": "gae", "steps": 2, "sampling.temperature": 0.7},
    {"method": "grpo", "steps": 1, "weights": "reset"},
]


@pytest.fixture(scope="module")
def phased(tmp_path_factory) -> Path:
    return train(tmp_path_factory.mktemp("verify") / "phased", None, phases=PHASES)  # type: ignore[arg-type]


@pytest.mark.slow
def test_each_step_is_verified_with_the_learner_of_its_phase(phased, tmp_path):
    result = verify(shutil.copytree(phased, tmp_path / "run"), 5)
    # the second phase has a value head that the first has not, and the third begins with the weights of the start
    assert causes(result) == dict.fromkeys(range(1, 6)) and result.notes == ()
    assert [s.versions for s in result.steps] == [(0,), (1,), (2,), (3,), (4,)]
    assert all(s.tokens >= 9 for s in result.steps)


@pytest.mark.slow
def test_a_step_of_an_unknown_phase_is_refused_in_a_line(phased, tmp_path):
    run = shutil.copytree(phased, tmp_path / "run")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows if row["step"] != 3))
    result = verify(run, 5)
    assert list(causes(result)) == [1, 2, 4, 5] and result.verdict == "equal"
    assert result.notes == ("step 3: metrics.jsonl does not say which phase it is of, so that its learner is unknown",)
