"""What a finished run says of itself."""

import json
import shutil

import pytest
from tests import started
from tests.thorough import some

import gxpo
from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.training import checkpoint
from gxpo.training.directory import Lock
from gxpo.training.metrics import comparable
from gxpo.training.run import Run


def run_with(path, **evaluations):
    (path / "evaluations").mkdir(parents=True)
    for step, verdicts in evaluations.items():
        (path / "evaluations" / f"{step.replace('_', '-')}.json").write_text(json.dumps(verdicts))
    return Run(path, None)  # type: ignore[arg-type]  # the trainer has no part in it


def test_the_gain_pairs_the_same_tasks(tmp_path):
    """Differences 1, 0, 0, 0: mean 1/4, deviation 1/2, standard error 1/4, t(3, 0.975) = 3.182446."""
    before, after = {"a": 0.0, "b": 1.0, "c": 0.0, "d": 1.0}, {"d": 1.0, "c": 0.0, "b": 1.0, "a": 1.0}
    run = run_with(tmp_path, step_000000=before, step_000005={**before, "a": 0.5}, step_000010=after)
    mean, low, high = run.gain
    assert mean == 0.25
    assert (low, high) == pytest.approx((0.25 - 3.182446 / 4, 0.25 + 3.182446 / 4), abs=1e-6)


def test_one_evaluation_has_no_gain(tmp_path):
    assert run_with(tmp_path, step_000000={"a": 1.0}).gain is None


KEYS = {"tasks.per_step": 2, "rollout.group_size": 2, "eval.tasks": 2, "sampling.max_new_tokens": 2}


def files(run):
    return {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}


def test_a_directory_that_is_being_written_is_left_alone(tmp_path):
    run = gxpo.train("tiny:cold", "arithmetic", steps=1, out=tmp_path / "run", set=KEYS)
    before = files(run.path)
    lock = Lock(run.path)
    lock.acquire()
    with pytest.raises(ConfigError, match="is being written by another process"):
        gxpo.resume(run.path)
    assert files(run.path) == before
    lock.release()
    assert gxpo.resume(run.path).trainer.step_number == 1


SECOND = """
import sys
import gxpo
from gxpo import config
from gxpo.base.errors import ConfigError
from gxpo.parts.definition import SettingValue

keys = {"model": "tiny:cold", "trainer.steps": 1, **eval(sys.argv[2])}
trainer = gxpo.Trainer(config.resolve({k: SettingValue(v, "test") for k, v in keys.items()}), out=sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    try:
        trainer.train()
    except ConfigError as error:
        print(error, flush=True)
"""


@pytest.mark.slow
def test_a_second_start_destroys_nothing(tmp_path):
    """It looked while there was no run, and begins while the first one runs, and again when that has ended."""
    out = tmp_path / "run"
    second = started.Started(["-c", SECOND, out, repr(KEYS)])

    def begun():
        second.stdin.write("begin\n")
        second.stdin.flush()
        return second.stdout.readline()

    assert second.stdout.readline() == "ready\n"
    messages = []
    keys = KEYS | {"trainer.checkpoint_every": 1}
    gxpo.train("tiny:cold", "arithmetic", steps=2, out=out, set=keys, watch=lambda row: messages.append(begun()))
    assert len(messages) == 3 and all("is being written by another process" in line for line in messages)
    before = files(out)
    assert f"{out} holds a run: `gxpo resume {out}`" in begun()
    assert files(out) == before and len(before) > 5
    second.communicate()
    second.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The metrics of a run whose directory stays."""
    run = gxpo.train("tiny:cold", "arithmetic", steps=3, out=tmp_path_factory.mktemp("whole") / "run", set=KEYS)
    return [comparable(row) for row in run.metrics]


@pytest.mark.slow
@pytest.mark.parametrize("at", some([1, 2, 3], [2]))
@pytest.mark.parametrize("how", ["deleted", "emptied"])
def test_deleted_run_directory_is_an_error_that_loses_no_step(tmp_path, whole, how, at):
    """What is left of an emptied one is not the run's any more: the step goes to a directory beside it."""
    out = tmp_path / "run"

    def watch(row):
        if row["step"] == at:
            for path in [out] if how == "deleted" else list(out.glob("[!.]*")):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    saved = out if how == "deleted" else tmp_path / "run-2"
    with pytest.raises(CheckpointError, match=f"deleted or replaced .* step {at} is saved, .*gxpo resume {saved}$"):
        gxpo.train("tiny:cold", "arithmetic", steps=3, out=out, set=KEYS, watch=watch)
    resumed = gxpo.resume(saved)
    assert resumed.trainer.step_number == 3
    assert [comparable(row) for row in resumed.metrics] == whole[at:]


def test_a_run_may_end_before_its_first_step(tmp_path):
    run = gxpo.train("tiny:cold", "arithmetic", steps=3, out=tmp_path / "run", set=KEYS, watch=lambda row: True)
    assert run.trainer.step_number == 0 and run.metrics == []
    assert gxpo.resume(run.path, watch=lambda row: True).trainer.step_number == 1


@pytest.mark.slow
@pytest.mark.parametrize("place", some(["before", "between", "after"], ["between"]))
def test_a_kill_while_a_run_is_extended_leaves_one_that_resumes(tmp_path, monkeypatch, place):
    """`steps` changes both the configuration and the checkpoint, one after the other."""
    out = tmp_path / "run"
    gxpo.train("tiny:cold", "arithmetic", steps=1, out=out, set=KEYS)
    text = (out / "config.yaml").read_text()

    class Killed(BaseException):
        pass

    def write(path, content, write=checkpoint.write_atomic):
        if place == "between":
            raise Killed
        write(path, content)
        if place == "after":
            raise Killed

    def save(*arguments, save=checkpoint.save):
        if place == "before":
            raise Killed
        return save(*arguments)

    monkeypatch.setattr(checkpoint, "write_atomic", write)
    monkeypatch.setattr(checkpoint, "save", save)
    with pytest.raises(Killed):
        gxpo.resume(out, steps=2)
    monkeypatch.undo()
    assert ((out / "config.yaml").read_text() == text) == (place != "after")
    assert gxpo.resume(out, steps=2).trainer.step_number == 2
