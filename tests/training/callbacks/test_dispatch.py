"""The callback protocol: order of the calls, what is given, exceptions, stopping, what a resumed run gives back."""

import warnings

import pytest
from tests.training.callbacks.parity import REWARD, SMALL

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.training.callbacks import Callback, Dispatcher


class Listening(Callback):
    def __init__(self):
        self.said = []

    def on_start(self, run):
        self.said.append(("start", run.step, run.resumed))

    def on_step(self, row, run):
        self.said.append(("step", row["step"], "eval_accuracy" in row, run.path.name))

    def on_evaluation(self, figures, run):
        self.said.append(("evaluation", figures["step"], len(run.evaluations)))

    def on_samples(self, samples, run):
        self.said.append(("samples", samples[0]["set"], samples[0]["step"]))

    def on_end(self, run, error):
        self.said.append(("end", run.step, error))


def train(path, *callbacks, steps=3, **keys):
    return gxpo.train(reward=REWARD, steps=steps, out=path, set=SMALL | keys, callbacks=callbacks)


def test_the_calls_of_a_run_in_their_order(tmp_path):
    one = Listening()
    train(tmp_path / "run", one)
    assert one.said == [
        ("start", 0, False),
        ("evaluation", 0, 1), ("samples", "eval", 0), ("step", 0, True, "run"),
        ("step", 1, False, "run"),
        ("evaluation", 2, 2), ("samples", "eval", 2), ("samples", "train", 2), ("step", 2, True, "run"),
        ("evaluation", 3, 3), ("samples", "eval", 3), ("samples", "train", 3), ("step", 3, True, "run"),
        ("end", 3, None),
    ]  # fmt: skip


def test_a_table_of_samples_has_the_best_and_the_worst_of_a_group(tmp_path):
    tables = []

    class Reading(Callback):
        def on_samples(self, samples, run):
            tables.append(samples)

    run = train(tmp_path / "run", Reading(), **{"logging.samples": 2, "eval.every": 0})
    assert [len(table) for table in tables] == [2, 2, 2, 2]  # before, step 2, after, step 3
    best, worst = tables[-1]
    assert best["prompt"] == worst["prompt"] and best["reward"] == 1.0 and worst["reward"] == 0.0
    assert best["advantage"] > 0 > worst["advantage"] and best["tokens"] == 2
    left, right = best["prompt"].rstrip("=").split("+")
    assert best["answer"] == str(int(left) + int(right))
    assert best["completion"].removesuffix(" [cut]") in {r["turns"][0]["action_text"] for r in run.samples}


def test_what_a_callback_raises_is_said_once_counted_and_costs_no_step(tmp_path):
    class Failing(Callback):
        def on_step(self, row, run):
            raise ValueError("out of ink")

    class Dead(Callback):
        def on_start(self, run):
            raise OSError("no printer")

        def on_step(self, row, run):
            raise AssertionError("it is not called again")

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run = train(tmp_path / "run", Failing(), Dead())
    texts = [str(w.message) for w in said if "callback" in str(w.message)]
    assert [t for t in texts if "Failing: on_step: ValueError: out of ink" in t and "the run goes on" in t]
    assert [t for t in texts if "Dead: on_start: OSError: no printer" in t and "not called again" in t]
    assert len(texts) == 3 and "Failing: 4 of its calls raised an exception" in texts[-1]
    assert run.step == 3 and run.trainer.calls.failures == {"Failing": 4, "Dead": 1}


def test_a_callback_can_stop_the_run_which_is_saved(tmp_path):
    class Enough(Callback):
        def on_step(self, row, run):
            if row["step"] == 2:
                run.stop("two are enough")

    run = train(tmp_path / "run", Enough(), steps=9)
    assert run.step == 2 and run.stopped == "two are enough"
    assert gxpo.resume(run.path, steps=3).step == 3  # without the callback


def test_the_end_is_called_with_what_ended_the_run(tmp_path):
    one = Listening()

    def watch(row):
        if row["step"] == 1:
            raise RuntimeError("watch is not a callback")

    with pytest.raises(RuntimeError, match="watch is not"):
        gxpo.train(reward=REWARD, steps=3, out=tmp_path / "run", set=SMALL, callbacks=[one], watch=watch)
    assert one.said[-1][:2] == ("end", 1) and isinstance(one.said[-1][2], RuntimeError)


def test_a_resumed_run_gives_back_the_state_of_the_checkpoint(tmp_path):
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
    assert again.said[0] == ("start", 2, True) and again.seen == 1 + 5


def test_a_class_or_anything_else_is_refused():
    with pytest.raises(ConfigError, match="the class Listening is no callback: give an instance"):
        Dispatcher({}, [Listening])
    with pytest.raises(ConfigError, match="int is no callback"):
        Dispatcher({}, [3])


def test_two_of_a_class_have_names_of_their_own():
    named = {"wandb": Callback()}
    assert list(Dispatcher(named, [Listening(), Listening()]).parts) == ["wandb", "Listening", "Listening-2"]
