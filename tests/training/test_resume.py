"""A run that is killed and resumed is the run that was never stopped (T36)."""

import json
import os
import signal

import pytest
from tests import started
from tests.thorough import some

import gxpo
from gxpo.base.errors import CheckpointError, ConfigError

KEYS = {
    "tasks.per_step": 3,
    "rollout.group_size": 4,
    "sampling.max_new_tokens": 5,
    "eval.tasks": 6,
    "eval.every": 2,
    "trainer.checkpoint_every": 2,
    "trainer.rollouts_every": 1,
    "update.epochs": 2,
    "update.minibatches": 2,
    "optim.weight_decay": 0.01,
}
REWARD = "def parity(completion):\n    return {'correct': float(sum(map(ord, completion)) % 2)}\n"

# Trains as a user would; with KILL_AT set the process kills itself (SIGKILL) at that many calls of os.fsync, which
# falls into the middle of writing a checkpoint, or at the end of a step.
SCRIPT = """
import os, signal, sys
import gxpo

calls = 0
def dying(descriptor, fsync=os.fsync):
    global calls
    calls += 1
    if calls == int(os.environ.get("KILL_AT_FSYNC", 0)):
        os.kill(os.getpid(), signal.SIGKILL)
    return fsync(descriptor)
os.fsync = dying

def watch(row):
    if row["step"] == int(os.environ.get("KILL_AT_STEP", -1)) and "reward_mean" in row:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    if sys.argv[1] == "train":
        out, reward, keys = sys.argv[2], sys.argv[3], eval(sys.argv[4])
        gxpo.train("tiny:cold", "arithmetic", "grpo", 6, reward, out=out, watch=watch, set=keys)
    else:
        gxpo.resume(sys.argv[2])
"""


def lines(path, name="metrics.jsonl"):
    """The lines of a run, without what depends on the clock or the machine."""
    rows = [json.loads(line) for line in (path / name).read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time_", "memory_"))} for row in rows]


def weights(path):
    from gxpo.training import checkpoint

    return checkpoint.load(checkpoint.latest(path))[0]


@pytest.fixture(scope="module")
def reward(tmp_path_factory):
    path = tmp_path_factory.mktemp("rewards") / "my_rewards.py"
    path.write_text(REWARD)
    return f"{path}:parity"


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory, reward):
    path = tmp_path_factory.mktemp("runs") / "whole"
    gxpo.train("tiny:cold", "arithmetic", "grpo", 6, reward, out=path, set=KEYS)
    return path


def same(a, b):
    assert lines(a) == lines(b)
    assert lines(a, "evaluations.jsonl") == lines(b, "evaluations.jsonl")
    assert sorted(p.name for p in (a / "rollouts").iterdir()) == sorted(p.name for p in (b / "rollouts").iterdir())
    for path in (a / "rollouts").iterdir():
        assert path.read_text() == (b / "rollouts" / path.name).read_text()
    one, other = weights(a), weights(b)
    assert one.keys() == other.keys() and all(bool((one[k] == other[k]).all()) for k in one)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run(never_stopped, reward, tmp_path):
    gxpo.train("tiny:cold", "arithmetic", "grpo", 6, reward, out=tmp_path / "again", set=KEYS)
    same(never_stopped, tmp_path / "again")
    rows = lines(never_stopped)
    assert [r["step"] for r in rows] == [1, 2, 3, 4, 5, 6]
    assert len({r["weights_fingerprint"] for r in rows}) == 6


@pytest.mark.slow
def test_another_seed_gives_another_run(never_stopped, reward, tmp_path):
    gxpo.train("tiny:cold", "arithmetic", "grpo", 2, reward, out=tmp_path / "other", seed=1, set=KEYS)
    assert lines(tmp_path / "other")[0]["weights_fingerprint"] != lines(never_stopped)[0]["weights_fingerprint"]


@pytest.mark.parametrize(
    ("variable", "at"),
    # a checkpoint of three files takes several fsyncs: these fall into the second and third, and before the first
    # metrics line, between checkpoints and right at one
    [
        pytest.param("KILL_AT_FSYNC", 14, marks=pytest.mark.slow),
        pytest.param("KILL_AT_FSYNC", 17, marks=pytest.mark.thorough),
        pytest.param("KILL_AT_FSYNC", 20, marks=pytest.mark.thorough),
        pytest.param("KILL_AT_STEP", 1, marks=pytest.mark.thorough),
        ("KILL_AT_STEP", 3),
        pytest.param("KILL_AT_STEP", 4, marks=pytest.mark.thorough),
    ],
)
def test_kill_and_resume_equals_the_run_never_stopped(never_stopped, reward, tmp_path, variable, at):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    out = tmp_path / "run"
    killed = started.run([script, "train", out, reward, repr(KEYS)], env={**os.environ, variable: str(at)})
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    gxpo.resume(out)
    same(never_stopped, out)


WORLD = """
import gxpo

class Guess:
    "Guess a digit: the state is the bounds; a digit outside them is malformed."
    instructions, max_turns = "guess", 4

    def reset(self, seed):
        self.secret, self.low, self.high = seed % 10, 0, 9
        return self.show()

    def step(self, action):
        digits = [int(c) for c in action if c.isdigit()]
        if not digits:
            return self.show(reward=0.0, action_error="malformed")
        if digits[-1] == self.secret:
            return self.show(reward=1.0, done=True, success=True)
        if digits[-1] < self.secret:
            self.low = max(self.low, digits[-1])
        else:
            self.high = min(self.high, digits[-1])
        return self.show(reward=0.0)

    def show(self, **more):
        state = f"{self.low}-{self.high}"
        return gxpo.TimeStep(f"{state}>", state=state, **more)
"""


@pytest.mark.slow
@pytest.mark.parametrize("context", some(["full", "window", "summary"], ["summary"]))
def test_kill_in_the_middle_of_episodes_and_resume(tmp_path, context):
    """The process dies at the second turn of the episodes of step 3, while the environments live in workers."""
    (tmp_path / "guess.py").write_text(WORLD)
    keys = KEYS | {"env.context": context, "env.window": 1, "env.workers": 2, "update.epochs": 1}
    task = f"{tmp_path / 'guess.py'}:Guess"
    gxpo.train("tiny:cold", task, "gigpo", 4, out=tmp_path / "whole", set=keys)
    assert lines(tmp_path / "whole")[-1]["turns_mean"] > 1
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import os, signal, gxpo
from gxpo.training.session import Session
turns = 0
def dying(self, requests, sample=Session.sample):
    global turns
    turns += self.step == 3
    if turns == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample(self, requests)
Session.sample = dying
if __name__ == "__main__":
    gxpo.train("tiny:cold", {task!r}, "gigpo", 4, out={str(tmp_path / "run")!r}, set={keys!r})
"""
    )
    killed = started.run([script])
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [r["step"] for r in lines(tmp_path / "run")] == [1, 2]
    gxpo.resume(tmp_path / "run")
    same(tmp_path / "whole", tmp_path / "run")


def test_resume_refuses_a_changed_configuration(reward, tmp_path):
    out = tmp_path / "run"
    gxpo.train("tiny:cold", "arithmetic", "grpo", 2, reward, out=out, set=KEYS)
    config = out / "config.yaml"
    config.write_text(config.read_text().replace("optim.lr: 0.0003", "optim.lr: 0.001"))
    with pytest.raises(CheckpointError, match="not the configuration of its checkpoint"):
        gxpo.resume(out)


@pytest.mark.slow
def test_resume_can_extend_a_run_and_equals_the_longer_one(never_stopped, reward, tmp_path):
    out = tmp_path / "run"
    gxpo.train("tiny:cold", "arithmetic", "grpo", 4, reward, out=out, set=KEYS)
    gxpo.resume(out, steps=6)
    assert lines(out) == lines(never_stopped)


def test_a_run_directory_is_not_written_over(never_stopped, reward):
    before = (never_stopped / "metrics.jsonl").read_text()
    with pytest.raises(ConfigError, match="holds a run"):
        gxpo.train("tiny:cold", "arithmetic", "grpo", 2, reward, out=never_stopped)
    assert (never_stopped / "metrics.jsonl").read_text() == before


def test_a_directory_that_is_no_run_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no config\.yaml"):
        gxpo.resume(tmp_path)
