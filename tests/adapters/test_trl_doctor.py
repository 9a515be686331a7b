"""The callback on a stand-in for transformers' events: what it hands on, when it stops, that it breaks nothing."""

from __future__ import annotations

from collections import deque
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gxpo.adapters.trl_doctor import Watching
from gxpo.doctor import live as live_module
from gxpo.doctor.finding import Diagnosis, Finding
from gxpo.doctor.runlog import RunLog

SICK = Finding(("lr_too_low",), "critical", "likely", "the learning rate is too small", ("lr = 0",), (), ("lr x 10",))
ROW = {"loss": 0.1, "grad_norm": 0.5, "learning_rate": 1e-8, "reward": 0.25, "rewards/right/mean": 0.25}


class Events:
    """A trainer that logs every step: the order of events is transformers'."""

    def __init__(self, doctor: Watching, tmp_path: Any, **settings: Any) -> None:
        self.doctor = doctor
        self.args = SimpleNamespace(output_dir=str(tmp_path), log_completions=False, num_generations=2, **settings)
        self.state = SimpleNamespace(global_step=0, max_steps=30, log_history=[], is_world_process_zero=True)
        self.control = SimpleNamespace(should_training_stop=False)
        self.model = torch.nn.Linear(4, 4)
        self.begin()

    def begin(self) -> None:
        self.doctor.on_train_begin(self.args, self.state, self.control, model=self.model)

    def step(self, **more: Any) -> None:
        self.state.global_step += 1
        self.doctor.on_step_end(self.args, self.state, self.control, model=self.model)
        self.doctor.on_log(self.args, self.state, self.control, logs={**ROW, **more})

    def end(self) -> None:
        self.doctor.on_log(self.args, self.state, self.control, logs={"train_runtime": 3.0, "train_loss": 9.0})
        self.doctor.on_train_end(self.args, self.state, self.control)


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> list[RunLog]:
    """What is examined; the diagnosis is always the same."""
    logs: list[RunLog] = []

    def examine(log: RunLog) -> Diagnosis:
        logs.append(log)
        return Diagnosis(log.source, log.read, [SICK], progress="reward 0.25 -> 0.25")

    monkeypatch.setattr(live_module, "Live", partial(live_module.Live, examine=examine, share=1e9))
    return logs


def test_rows_settings_and_weights(tmp_path, logs, capsys):
    events = Events(Watching(every=2), tmp_path, learning_rate=1e-8, beta=0.04)
    events.step()
    with torch.no_grad():
        events.model.weight[:2] += 1.0  # 8 of the 20 numbers
    with pytest.warns(UserWarning, match=r"doctor, step 2: the learning rate is too small \(likely: lr_too_low\)"):
        events.step(reward=0.75)
    events.step()
    events.end()
    log = logs[-1]
    assert log.values("reward").tolist() == [0.25, 0.75, 0.25] and log.values("component/right").tolist() == [0.25] * 3
    assert log.values("weights_moved").tolist() == [0.0, 0.4, 0.0]
    assert len(set(log.values("weights_crc").tolist())) == 2 and "train_loss" not in log.raw
    assert log.config == {"lr": 1e-8, "beta": 0.04, "group_size": 2, "max_steps": 30, "dtype": "float32", "lora": False}
    assert [len(x.steps("reward")) for x in logs] == [2, 3]
    assert events.doctor.diagnosis is not None and not events.control.should_training_stop
    assert capsys.readouterr().out.splitlines() == [
        "doctor: the learning rate is too small (likely)",
        "  lr = 0",
        "  try: lr x 10",
        "  reward 0.25 -> 0.25",
    ]


def test_a_critical_cause_ends_the_training_with_stop(tmp_path, logs):
    events = Events(Watching(every=2, stop=True, quiet=True), tmp_path)
    events.step()
    assert not events.control.should_training_stop
    with pytest.warns(UserWarning, match="too small"):
        events.step()
    assert events.control.should_training_stop


def test_the_trainers_own_log_of_completions(tmp_path, logs):
    trainer = SimpleNamespace(num_generations=2, reward_weights=torch.tensor([1.0, 0.5]))
    trainer._logs = {
        "prompt": deque(["2+2=", "2+2=", "1+1=", "1+1="]),
        "completion": deque([[{"role": "assistant", "content": "4"}], "5", "2", "3"]),
        "rewards": {"right": deque([1.0, 0.0, 1.0, float("nan")]), "short": deque([1.0, 1.0, 0.0, float("nan")])},
        "advantages": deque([0.7, -0.7, 0.0, 0.0]),
        "extra": {"answer": deque(["4", "4", "2", "2"])},
    }
    events = Events(Watching(every=1, quiet=True).attach(trainer), tmp_path)
    with pytest.warns(UserWarning, match="too small"):
        events.step()
    actual = logs[-1].rollouts
    assert actual is not None and actual.completion == ["4", "5", "2", "3"] and actual.reference == ["4", "4", "2", "2"]
    assert actual.score[:3].tolist() == [1.5, 0.5, 1.0] and actual.score[3] != actual.score[3]
    assert actual.group.tolist() == [0, 0, 1, 1] and actual.advantage.tolist() == [0.7, -0.7, 0.0, 0.0]
    events.doctor.on_evaluate(events.args, events.state, events.control)  # it may hold the evaluation's rows now
    events.step()
    assert logs[-1].rollouts is not None and len(logs[-1].rollouts) == 4
    trainer._logs["completion"][-1] = "of a new batch"
    events.step()
    assert logs[-1].rollouts is not None and len(logs[-1].rollouts) == 8


def test_evaluations_are_rows_of_their_own(tmp_path, logs):
    events = Events(Watching(every=1, quiet=True), tmp_path)
    with pytest.warns(UserWarning, match="too small"):
        events.step()
    events.doctor.on_log(events.args, events.state, events.control, logs={"eval_reward": 0.5, "eval_loss": 0.0})
    events.step()
    assert logs[-1].values("eval/reward").tolist() == [0.5] and logs[-1].values("reward").tolist() == [0.25, 0.25]
    assert len(logs) == 2


def test_a_failing_callback_is_one_warning(tmp_path):
    doctor = Watching(every=1)
    events = Events(doctor, tmp_path)
    doctor.attach(SimpleNamespace(num_generations=2, _logs={"prompt": [1], "completion": [1]}))
    with pytest.warns(UserWarning, match=r"doctor: watches no more: KeyError: 'advantages'"):
        events.step()
    events.step()
    events.end()
    assert not events.control.should_training_stop
    with pytest.raises(ValueError, match="every=0"):
        Watching(every=0)
