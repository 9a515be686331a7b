"""trackio logger with a fake trackio: names of runs, missing steps after a resume, remote stores."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from gxpo.training.callbacks import loggers as module


class Trackio:
    """The part of trackio that the logger uses; `names` of the project's runs, `steps` that the database has."""

    def __init__(self, names=(), steps=(), missing=False):
        self.names, self.steps, self.missing = names, steps, missing
        self.inits, self.logged, self.is_finished = [], [], False
        self.SQLiteStorage = SimpleNamespace(get_logs=lambda project, name, run_id: [{"step": n} for n in self.steps])

    @staticmethod
    def Table(columns, data):
        return len(data)

    def Api(self):
        def runs(project):
            if self.missing:
                raise ValueError("no such project")
            return [SimpleNamespace(name=name) for name in self.names]

        return SimpleNamespace(runs=runs)

    def init(self, **options):
        self.inits.append(options)
        run = SimpleNamespace(name=options["name"], id="r1")
        run.log = lambda figures, step: self.logged.append((step, figures))
        run.finish = lambda: setattr(self, "is_finished", True)
        return run


def run_of(resumed=False, steps=(), name=None):
    config = {"logging.project": "sums", "logging.name": name, "logging.samples": 0, "seed": 3, "model": None}
    metrics = [{"step": n, "loss": float(n)} for n in steps]
    return SimpleNamespace(
        path=Path("runs/one"), config=config, resumed=resumed, metrics=metrics, evaluations=[{"step": 0}]
    )


@pytest.fixture
def logger(monkeypatch):
    for name in ("TRACKIO_PROJECT", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)

    def make(fake, **options):
        monkeypatch.setattr(module, "need", lambda name, extra: fake)
        return module.Trackio(**options)

    return make


@pytest.mark.parametrize(
    ("names", "expected"),
    [((), "one"), (("one",), "one-2"), (("one", "one-2", "one-4"), "one-3"), (("two",), "one")],
)
def test_a_new_run_takes_a_name_that_no_run_has(logger, names, expected):
    fake = Trackio(names)
    one = logger(fake)
    one.on_start(run_of())
    (options,) = fake.inits
    assert options["name"] == expected and options["resume"] == "never" and options["project"] == "sums"
    assert options["config"] == {"logging.project": "sums", "logging.samples": 0, "seed": 3}
    assert one.state_dict() == {"name": expected}


def test_a_project_that_does_not_exist_has_no_names(logger):
    fake = Trackio(missing=True)
    logger(fake).on_start(run_of(name="mine"))
    assert fake.inits[0]["name"] == "mine"


def test_a_resumed_run_logs_the_steps_that_the_database_lacks(logger):
    fake = Trackio(("one",), steps=(0, 1, 3))
    one = logger(fake)
    one.load_state_dict({"name": "one"})
    one.on_start(run_of(resumed=True, steps=(1, 2)))
    assert fake.inits[0]["name"] == "one" and fake.inits[0]["resume"] == "allow"
    assert fake.logged == [(2, {"loss": 2.0})]
    one.on_step({"step": 3, "loss": 3.0}, run_of())  # logged before the kill: the same figures
    one.on_step({"step": 4, "loss": 4.0}, run_of())
    assert [step for step, _ in fake.logged] == [2, 4]


def test_a_remote_store_is_neither_read_nor_filled_up(logger):
    fake = Trackio(("one",), steps=(1,))
    one = logger(fake, space_id="me/space")
    one.load_state_dict({"name": "one"})
    one.on_start(run_of(resumed=True, steps=(1, 2)))
    assert fake.logged == []
    one.on_step({"step": 1, "loss": 1.0}, run_of())
    assert fake.logged == [(1, {"loss": 1.0})]


def test_the_trackio_run_is_finished_at_the_end(logger):
    fake = Trackio()
    one = logger(fake)
    one.on_start(run_of())
    one.on_end(run_of(), ValueError("no"))
    assert fake.is_finished
