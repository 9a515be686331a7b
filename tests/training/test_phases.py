"""Phases: one run directory, exact resume across the boundary, the previous policy as reference, when a phase ends."""

import json
import os
import signal

import pytest
import torch
from tests import started
from tests.thorough import some

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.parts.definition import SettingValue
from gxpo.training import checkpoint, config
from gxpo.training.loop import Trainer
from gxpo.training.phase_plan import Until, expand

KEYS = {
    "tasks.per_step": 2,
    "rollout.group_size": 4,
    "sampling.max_new_tokens": 5,
    "eval.tasks": 4,
    "eval.every": 0,
    "optim.lr": 1e-2,
    "doctor.every": 0,
    "trainer.checkpoint_every": 1,
    "trainer.keep_checkpoints": 1,
    "trainer.rollouts_every": 0,
    "phases": [
        {"method": "dpo", "steps": 2, "objective.beta": 0.5},
        {"method": "grpo", "steps": 2, "reference": "previous", "objective": {"kl": {"coef": 0.1}}, "optim.lr": 1e-3},
    ],
}
REWARD = "def parity(completion):\n    return {'correct': float(sum(map(ord, completion)) % 2)}\n"
SCRIPT = """
import os, signal, sys
import gxpo

def watch(row):
    if row["step"] == int(os.environ.get("KILL_AT", -1)) and "reward_mean" in row:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    out, reward, keys = sys.argv[1], sys.argv[2], eval(sys.argv[3])
    gxpo.train("tiny:cold", "arithmetic", None, None, reward, out=out, watch=watch, set=keys, progress="none")
"""


def lines(path, name="metrics.jsonl"):
    rows = [json.loads(line) for line in (path / name).read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time_", "memory_"))} for row in rows]


@pytest.fixture(scope="module")
def reward(tmp_path_factory):
    path = tmp_path_factory.mktemp("rewards") / "my_rewards.py"
    path.write_text(REWARD)
    return f"{path}:parity"


def train(out, reward, watch=None, **others):
    keys = {**KEYS, **others}
    return gxpo.train("tiny:cold", "arithmetic", reward=reward, out=out, set=keys, watch=watch, progress="none")


@pytest.fixture(scope="module")
def calm(tmp_path_factory, reward):
    return train(tmp_path_factory.mktemp("runs") / "calm", reward).path


def test_one_directory_with_the_phase_in_every_line(calm):
    rows = lines(calm)
    assert [row["phase"] for row in rows] == [1, 1, 2, 2]
    assert [row["lr"] for row in rows] == [1e-2, 1e-2, 1e-3, 1e-3]
    assert all("pairs" in row for row in rows[:2]) and not any("pairs" in row for row in rows[2:])
    assert [row["step"] for row in lines(calm, "evaluations.jsonl")] == [0, 2, 4]


def test_the_policy_before_is_the_reference(calm):
    """The KL to it is 0 to the bit before anything has moved, and not afterwards."""
    first, second = lines(calm)[2:]
    assert first["kl"] == 0.0 and second["kl"] > 0.0
    assert checkpoint.steps(calm) == [2, 4]  # the reference's is kept beside the newest


@pytest.mark.slow
@pytest.mark.parametrize("step", some([1, 2, 3], [2]))
def test_a_killed_run_is_the_calm_one(tmp_path, reward, calm, step):
    """Killed as line 1 (inside phase 1), 2 (its last step, before the checkpoint of the boundary) or 3 is written."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    out = tmp_path / "run"
    died = started.run([script, out, reward, repr(KEYS)], env={**os.environ, "KILL_AT": str(step)})
    assert died.returncode == -signal.SIGKILL, died.stderr
    gxpo.resume(out, progress="none")
    assert lines(out) == lines(calm) and lines(out, "evaluations.jsonl") == lines(calm, "evaluations.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("step", some([2, 3], [3]))
def test_a_run_that_stops_at_the_boundary_or_behind_it_goes_on(tmp_path, reward, calm, step):
    """2: the checkpoint of the boundary is the newest there is."""
    out = tmp_path / "run"
    stopped = train(out, reward, watch=lambda row: row["step"] == step)
    assert stopped.step == step
    gxpo.resume(out, progress="none")
    assert lines(out) == lines(calm)
    a, b = (checkpoint.load(checkpoint.latest(run))[0] for run in (out, calm))
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.thorough
def test_a_second_phase_is_a_run_from_the_first_ones_parameters(tmp_path, reward):
    """With `fresh`: as what --from starts, whose lines count from 1. Its reference is the loaded model there."""
    phases = [{"method": "dpo", "steps": 2}, {"method": "dpo", "steps": 1}]
    full_path = train(tmp_path / "a", reward, phases=phases).path
    first = train(tmp_path / "b", reward, phases=phases[:1]).path
    trainer = Trainer(
        config.resolve(gxpo.training.train.keys_from_run(first, {"method": SettingValue("dpo", "test")})),
        out=tmp_path / "c",
    )
    try:
        start = trainer.learner.snapshot()
        assert trainer.learner.optimiser.steps == 0
    finally:
        trainer.close()
    tensors = checkpoint.load(checkpoint.latest(first))[0]
    assert all(torch.equal(start[k], tensors[f"parameter/{k}"]) for k in start)
    assert lines(full_path)[:2] == lines(first)


@pytest.mark.thorough
def test_a_kept_optimiser_goes_on(tmp_path, reward):
    """Two phases of the same method that keep the optimiser's state are one run without phases, column aside."""
    one = [{"method": "dpo", "steps": 4}]
    two = [{"method": "dpo", "steps": 2}, {"method": "dpo", "steps": 2, "optimiser": "keep"}]
    fresh = [{"method": "dpo", "steps": 2}, {"method": "dpo", "steps": 2}]
    a, b, c = (lines(train(tmp_path / str(i), reward, phases=p).path) for i, p in enumerate((one, two, fresh)))
    crcs = [[row["weights_fingerprint"] for row in rows] for rows in (a, b, c)]
    assert crcs[0] == crcs[1] and crcs[0][:3] != crcs[2][:3] and crcs[0][:2] == crcs[2][:2]


@pytest.mark.slow
def test_until_ends_a_phase_and_repetitions_take_turns(tmp_path, reward):
    phases = [
        {"method": "grpo", "until": "success_rate >= 0.0 over 2", "steps": 3},
        {"repeat": 2, "phases": [{"method": "dpo"}, {"method": "grpo"}]},
    ]
    rows = lines(train(tmp_path / "run", reward, phases=phases, **{"trainer.steps": 8}).path)
    assert [row["phase"] for row in rows] == [1, 1, 2, 3, 4, 4, 5, 5]  # 2 of at most 3, then 6 // 4, 5 // 3, 4 // 2
    again = config.resolve(config.read(tmp_path / "run" / "config.yaml"))
    assert [one.method.name for one in again.phases] == ["grpo", "dpo", "grpo", "dpo", "grpo"]


@pytest.mark.thorough
def test_shares_of_a_budget(tmp_path, reward):
    """Under trainer.max_tokens a phase without steps ends with its share of the tokens."""
    phases = [{"method": "dpo"}, {"method": "grpo"}]
    rows = lines(train(tmp_path / "r", reward, phases=phases, **{"trainer.steps": 100, "trainer.max_tokens": 150}).path)
    first = [row["generated_tokens"] for row in rows if row["phase"] == 1]
    assert first[-1] >= 75 > (first[-2] if len(first) > 1 else 0) and rows[-1]["phase"] == 2


def test_the_condition_of_until():
    assert Until.parse("eval_accuracy <= 5e-1") == Until("eval_accuracy", "<=", 0.5)
    assert str(Until.parse("success_rate>=0.8 over 5")) == "success_rate >= 0.8 over 5"
    assert [p.keys["method"].value for p in expand([{"repeat": 2, "phases": [{"method": "a"}, {"method": "b"}]}])] == [
        "a", "b", "a", "b",
    ]  # fmt: skip


GOOD = {"method": "grpo"}


@pytest.mark.parametrize(
    ("phases", "others", "said"),
    [
        ([], {"phases": ["x"]}, "list of mappings"),
        ([{"steps": 0}], {}, "whole number"),
        ([{"until": "success_rate"}], {}, "METRIC >= NUMBER"),
        ([{"until": "time_step_s >= 1"}], {}, "differs between equal runs"),
        ([{"until": "sucess_rate >= 1"}], {}, "did you mean 'success_rate'"),
        ([{"reference": "teacher"}], {}, "one of start, previous"),
        ([{"reference": "previous"}], {}, "reads no reference policy"),
        ([{"trainer.steps": 3}], {}, "holds for the whole run"),
        ([{"repeat": 2, "phases": [GOOD], "method": "dpo"}], {}, "nothing else"),
        ([GOOD, {"method": "nonsense"}], {}, "phase 2: unknown method"),
        ([{**GOOD, "steps": 2}], {"trainer.steps": 3}, "the phases take 2 steps"),
        ([GOOD], {"async.max_staleness": 1}, "sampled ahead"),
        ([GOOD], {"optim.schedule": "cosine"}, "state its steps"),
        ([GOOD, {**GOOD, "optimiser": "keep", "credit": "gae"}], {}, "value heads"),
        ([GOOD, {"method": "dpo"}], {"objective.betta": 1.0}, "did you mean 'objective.beta'"),
        ([GOOD, {"method": "dpo"}], {"method": "dpo+gspo"}, "would do nothing"),
    ],
)
def test_what_cannot_be_had_is_refused_in_one_line(tmp_path, phases, others, said):
    with pytest.raises(ConfigError, match=said) as actual:
        gxpo.train("tiny:cold", "arithmetic", out=tmp_path / "run", set={"phases": phases, **others}, progress="none")
    assert "\n" not in str(actual.value)


def test_a_key_reaches_the_phases_that_have_it():
    keys = {"phases": [GOOD, {"method": "dpo"}], "objective.beta": 0.25, "rollout.group_size": 3}
    one, two = config.resolve({k: SettingValue(v, "test") for k, v in keys.items()}).phases
    assert "objective.beta" not in one.keys and two.keys["objective.beta"].value == 0.25
    assert one.method.rollout.group_size == two.method.rollout.group_size == 3


def test_a_key_can_be_dropped():
    keys = config.over(
        {
            "objective.pairs": SettingValue("outcome", "f"),
            "credit": SettingValue("gae", "f"),
            "credit.lam": SettingValue(1.0, "f"),
        },
        config.parse_set(["~objective.pairs", "~credit"]),
    )
    assert keys == {}
    with pytest.raises(ConfigError, match="nothing to drop"):
        config.load(None, ["~objective.pairs"])


def test_a_run_with_phases_is_continued_by_what_is_said(calm):
    with pytest.raises(ConfigError, match="had phases"):
        gxpo.train(from_run=calm, steps=1)
    keys = gxpo.training.train.keys_from_run(calm, {"method": SettingValue("grpo", "test")})
    assert "phases" not in keys and config.resolve(keys).phases == ()


@pytest.mark.slow
@pytest.mark.parametrize("step", some([3, 4], [4]))
def test_rollouts_of_earlier_phases_are_read_again(tmp_path, reward, step):
    """Phase 2 reads those of phase 1; phase 4, from the first weights, those of phases 1 and 3. Exact after a resume
    inside them."""
    imitate = {"method": "grpo", "objective": "positive_likelihood", "objective.coef": 1.0}
    phases = [
        {"method": "grpo", "steps": 1},
        {**imitate, "rollout": "logged", "rollout.file": "previous", "steps": 1},
        {"method": "grpo", "steps": 1},
        {**imitate, "rollout": "logged", "rollout.file": "earlier", "weights": "reset", "steps": 2},
    ]
    more = {"phases": phases, "trainer.rollouts_every": 1}
    full_path = train(tmp_path / "a", reward, **more).path
    read = {
        p.parent.name: sorted(x.name for x in p.parent.iterdir()) for p in (full_path / "rollouts").glob("phase-*/*")
    }
    assert read == {"phase-2": ["step-000001.jsonl"], "phase-4": ["step-000001.jsonl", "step-000003.jsonl"]}
    rows = lines(full_path)
    tokens = [row["generated_tokens"] for row in rows]
    assert tokens[0] == tokens[1] < tokens[2] == tokens[3] == tokens[4]
    assert rows[1]["origin_logged"] == 1.0 and "origin_logged" not in rows[2]
    train(tmp_path / "b", reward, watch=lambda row: row["step"] == step, **more)
    gxpo.resume(tmp_path / "b", progress="none")
    assert lines(tmp_path / "b") == rows


def test_rollouts_of_earlier_phases_have_to_be_there(tmp_path):
    logged = {"method": "dpo", "rollout": "logged", "rollout.file": "previous"}
    for phases, every, message in (([GOOD, logged], 10, "rollouts_every=1"), ([logged, GOOD], 1, "there is none")):
        with pytest.raises(ConfigError, match=message):
            set_ = {"phases": phases, "trainer.rollouts_every": every}
            gxpo.train("tiny:cold", "arithmetic", out=tmp_path / "run", set=set_, progress="none")


@pytest.mark.parametrize("file", ["previous", "earlier"])
def test_logged_rollouts_without_an_earlier_phase_are_refused(tmp_path, file):
    path = tmp_path / "run.yaml"
    path.write_text(f"method: dpo\nrollout: logged\nrollout.file: {file}\n")
    for arguments in ((path,), (None, path.read_text().replace(": ", "=").split())):
        with pytest.raises(ConfigError, match=rf"rollout\.file={file}: .* there is none: state phases, of which the"):
            config.load(*arguments)
    composed = gxpo.method("dpo", {"rollout": "logged", "rollout.file": file})
    with pytest.raises(ConfigError, match="there is none"):
        gxpo.train("tiny:cold", "arithmetic", composed, out=tmp_path / "run", progress="none")
    assert not (tmp_path / "run").exists()
    twice = f"phases: [{{steps: 1}}, {{steps: 1, rollout: logged, rollout.file: {file}}}]\n"
    path.write_text(f"method: dpo\n{twice}trainer.rollouts_every: 1\n")
    assert [getattr(m.rollout, "file", None) for m in config.load(path).methods] == [None, file]
