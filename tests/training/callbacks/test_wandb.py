"""wandb logger with a fake wandb: ownership of the run, identity and missing steps after a resume."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from gxpo.training.callbacks import loggers as module


class Server:
    """A wandb run that notes what it is sent; `step` is the first step that it lacks."""

    def __init__(self, step=0):
        self.id, self.project, self.step = "x1", "sums", step
        self.logged, self.exit_code = [], None
        self.config = SimpleNamespace(update=lambda config, allow_val_change: self.logged.append(("config", config)))

    def log(self, figures, step=None, commit=None):
        self.logged.append((step, figures))

    def finish(self, exit_code):
        self.exit_code = exit_code


class Wandb:
    """The part of wandb that the logger uses; `run` is an active run, `server` the one that `init` gives."""

    def __init__(self, run=None, server=None):
        self.run, self.server, self.inits = run, server or Server(), []

    def init(self, **options):
        self.inits.append(options)
        return self.server

    @staticmethod
    def Table(columns, data):
        return len(data)


def run_of(resumed=False, metrics=()):
    config = {"logging.project": None, "logging.name": None, "logging.samples": 0, "seed": 3, "model": None}
    return SimpleNamespace(
        path=Path("runs/one"), config=config, resumed=resumed, metrics=list(metrics), evaluations=[{"step": 0}], step=0
    )


@pytest.fixture
def logger(monkeypatch):
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    monkeypatch.delenv("WANDB_NAME", raising=False)

    def make(fake, **options):
        monkeypatch.setattr(module, "need", lambda name, extra: fake)
        return module.Wandb(**options)

    return make


def test_a_run_of_its_own_is_named_by_its_directory_and_finished(logger):
    fake = Wandb()
    one = logger(fake, group="night")
    one.on_start(run_of())
    one.on_step({"step": 1, "reward_mean": 0.5, "text": "no figure"}, run_of())
    one.on_end(run_of(), None)
    (options,) = fake.inits
    assert options == {
        "project": "gxpo", "name": "one", "dir": "runs/one", "group": "night", "resume": "allow",
        "config": {"logging.samples": 0, "seed": 3},
    }  # fmt: skip
    assert fake.server.logged == [(1, {"reward_mean": 0.5})] and fake.server.exit_code == 0
    assert one.state_dict() == {"id": "x1", "project": "sums"}


def test_an_exception_ends_the_wandb_run_with_exit_code_1(logger):
    fake = Wandb()
    one = logger(fake)
    one.on_start(run_of())
    one.on_end(run_of(), ValueError("no"))
    assert fake.server.exit_code == 1


def test_an_active_wandb_run_counts_its_own_steps_and_stays_open(logger):
    active = Server(step=40)
    fake = Wandb(run=active)
    one = logger(fake)
    one.on_start(run_of())
    one.on_step({"step": 1, "loss": 2.0}, run_of())
    one.on_end(run_of(), None)
    assert fake.inits == [] and active.exit_code is None
    assert active.logged[1:] == [(None, {"step": 1, "loss": 2.0})]


def test_a_resumed_run_keeps_its_id_and_sends_the_missing_steps(logger):
    fake = Wandb(server=Server(step=2))
    one = logger(fake)
    one.load_state_dict({"id": "old", "project": "sums"})
    one.on_start(run_of(resumed=True, metrics=[{"step": n, "loss": float(n)} for n in (1, 2, 3)]))
    assert fake.inits[0]["id"] == "old" and fake.inits[0]["project"] == "sums"
    assert fake.server.logged == [(2, {"loss": 2.0}), (3, {"loss": 3.0})]


def test_a_step_that_the_server_has_is_not_sent_again(logger):
    fake = Wandb(server=Server(step=3))
    one = logger(fake)
    one.on_start(run_of())
    one.on_step({"step": 2, "loss": 1.0}, run_of())
    assert fake.server.logged == []


def test_tables_are_sent_once_with_their_step(logger):
    fake = Wandb()
    one = logger(fake)
    one.on_start(run_of())
    row = dict.fromkeys(("step", "set", "task", "prompt", "completion", "reward", "success", "advantage", "answer"))
    one.on_samples([row | {"set": "train", "tokens": 1}], run_of())
    one.on_step({"step": 1}, run_of())
    one.on_step({"step": 2}, run_of())
    assert fake.server.logged == [(1, {"samples/train": 1}), (2, {})]
