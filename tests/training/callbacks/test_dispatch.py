"""Callbacks of a run: made by name, order of their calls, exceptions, stopping, states after a resume."""

import warnings

import pytest
from tests.training.callbacks.parity import REWARD, SMALL

import gxpo
from gxpo.base import usercode
from gxpo.base.errors import ConfigError
from gxpo.training.callbacks import Callback, Dispatcher, dispatch, make


class Listening(Callback):
    def __init__(self):
        self.events = []

    def on_start(self, run):
        self.events.append(("start", run.step, run.resumed))

    def on_step(self, row, run):
        self.events.append(("step", row["step"], "eval_accuracy" in row, run.path.name))

    def on_evaluation(self, figures, run):
        self.events.append(("evaluation", figures["step"], len(run.evaluations)))

    def on_samples(self, samples, run):
        self.events.append(("samples", samples[0]["set"], samples[0]["step"]))

    def on_end(self, run, error):
        self.events.append(("end", run.step, error))


def train(path, *callbacks, steps=3, **keys):
    return gxpo.train(reward=REWARD, steps=steps, out=path, set=SMALL | keys, callbacks=callbacks)


@pytest.mark.slow
def test_the_calls_of_a_run_in_their_order(tmp_path):
    one = Listening()
    train(tmp_path / "run", one)
    assert one.events == [
        ("start", 0, False),
        ("evaluation", 0, 1), ("samples", "eval", 0), ("step", 0, True, "run"),
        ("step", 1, False, "run"),
        ("evaluation", 2, 2), ("samples", "eval", 2), ("samples", "train", 2), ("step", 2, True, "run"),
        ("evaluation", 3, 3), ("samples", "eval", 3), ("samples", "train", 3), ("step", 3, True, "run"),
        ("end", 3, None),
    ]  # fmt: skip


def test_an_exception_is_warned_of_once_and_costs_no_step(tmp_path):
    class Failing(Callback):
        def on_step(self, row, run):
            raise ValueError("out of ink")

    class Dead(Callback):
        def on_start(self, run):
            raise OSError("no printer")

        def on_step(self, row, run):
            raise AssertionError("it is not called again")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = train(tmp_path / "run", Failing(), Dead())
    texts = [str(w.message) for w in caught if "callback" in str(w.message)]
    assert [t for t in texts if "Failing: on_step: ValueError: out of ink" in t and "the run goes on" in t]
    assert [t for t in texts if "Dead: on_start: OSError: no printer" in t and "not called again" in t]
    assert len(texts) == 3 and "Failing: 4 of its calls raised an exception" in texts[-1]
    assert run.step == 3 and run.trainer.calls.failures == {"Failing": 4, "Dead": 1}


@pytest.mark.slow
def test_a_callback_can_stop_the_run_which_is_saved(tmp_path):
    class Enough(Callback):
        def on_step(self, row, run):
            if row["step"] == 2:
                run.stop("two are enough")

    run = train(tmp_path / "run", Enough(), steps=9)
    assert run.step == 2 and run.stopped == "two are enough"
    assert gxpo.resume(run.path, steps=3).step == 3  # without the callback


def test_on_end_gets_the_exception_that_ended_the_run(tmp_path):
    one = Listening()

    def watch(row):
        if row["step"] == 1:
            raise RuntimeError("watch is not a callback")

    with pytest.raises(RuntimeError, match="watch is not"):
        gxpo.train(reward=REWARD, steps=3, out=tmp_path / "run", set=SMALL, callbacks=[one], watch=watch)
    assert one.events[-1][:2] == ("end", 1) and isinstance(one.events[-1][2], RuntimeError)


@pytest.mark.slow
def test_a_resumed_run_restores_the_state_of_the_checkpoint(tmp_path):
    class Counting(Listening):
        seen = 0

        def on_step(self, row, run):
            self.seen += 1

        def state_dict(self):
            return {"seen": self.seen}

        def load_state_dict(self, state):
            self.seen = state["seen"]

    def kill(row):
        if row["step"] == 3:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        gxpo.train(reward=REWARD, steps=5, out=tmp_path / "run", set=SMALL, callbacks=[Counting()], watch=kill)
    again = Counting()
    gxpo.resume(tmp_path / "run", callbacks=[again])  # the newest checkpoint is of step 2
    assert again.events[0] == ("start", 2, True) and again.seen == 1 + 5


def test_a_class_and_objects_that_are_no_callbacks_are_refused():
    with pytest.raises(ConfigError, match="the class Listening is no callback: give an instance"):
        Dispatcher({}, [Listening])
    with pytest.raises(ConfigError, match="int is no callback"):
        Dispatcher({}, [3])


def test_two_callbacks_of_one_class_have_different_names():
    callbacks = {"wandb": Callback()}
    assert list(Dispatcher(callbacks, [Listening(), Listening()]).parts) == ["wandb", "Listening", "Listening-2"]


# ---------------------------------------------------------------- by name
MINE = """
import gxpo

class Mine(gxpo.training.callbacks.Callback):
    def __init__(self, to="steps.txt"):
        self.to = to

    def on_step(self, row, run):
        with open(run.path / self.to, "a") as file:
            file.write(f"{row['step']} ")
"""


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "my_logger.py").write_text(MINE)
    return f"{tmp_path / 'my_logger.py'}:Mine"


@pytest.mark.slow
def test_a_class_of_a_file_is_made_with_its_options(tmp_path, mine):
    keys = {"trainer.callbacks": [mine], "logging.options": {mine: {"to": "mine.txt"}}}
    run = gxpo.train(reward=REWARD, steps=2, out=tmp_path / "run", set=SMALL | keys)
    assert (run.path / "mine.txt").read_text() == "0 1 2 "
    assert gxpo.resume(run.path, steps=3).path == run.path
    assert (run.path / "mine.txt").read_text() == "0 1 2 3 "


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (
            ["tensorbord"],
            {},
            r"no logger 'tensorbord'; did you mean 'tensorboard'\? \(tensorboard, trackio, wandb, or ",
        ),
        (["nowhere.py:Mine"], {}, "no such file nowhere.py"),
        (["MINE:Yours"], {}, "has no 'Yours'"),
        (["MINE"], {"MINE": {"colour": 1}}, "logging.options.*unexpected keyword argument 'colour'"),
        (["MINE"], {"wandb": {}}, "logging.options.wandb: wandb is not in trainer.callbacks"),
    ],
)
def test_a_bad_name_or_option_fails_before_anything_is_written(tmp_path, mine, names, options, message):
    def real(text):
        return text.replace("MINE", mine.rpartition(":")[0]) if ":" in text else text.replace("MINE", mine)

    keys = {"trainer.callbacks": [real(n) for n in names], "logging.options": {real(k): v for k, v in options.items()}}
    with pytest.raises(ConfigError, match=message):
        gxpo.train(steps=1, out=tmp_path / "run", set=SMALL | keys)
    assert not (tmp_path / "run").exists()


def test_a_file_is_not_executed_when_a_run_is_only_shown(tmp_path):
    path = tmp_path / "loud.py"
    path.write_text("raise SystemExit('run')\nclass Mine: pass\n")
    with usercode.unexecuted():
        dispatch.check([f"{path}:Mine"])
        with pytest.raises(ConfigError, match="has no 'Yours'"):
            dispatch.check([f"{path}:Yours"])


def test_a_missing_package_names_the_extra(monkeypatch):
    for name in ("wandb", "trackio", "tensorboard"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
        with pytest.raises(gxpo.errors.MissingExtra, match=rf"pip install 'gxpo\[{name}\]'"):
            make([name])
