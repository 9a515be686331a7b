"""Callbacks by what a configuration calls them."""

import pytest
from tests.training.callbacks.parity import REWARD, SMALL

import gxpo
from gxpo.base import usercode
from gxpo.base.errors import ConfigError
from gxpo.training.callbacks import make, named

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


def test_a_class_of_a_file_by_its_configuration_with_options(tmp_path, mine):
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
def test_what_is_wrong_is_said_before_anything_is_written(tmp_path, mine, names, options, message):
    def real(text):
        return text.replace("MINE", mine.rpartition(":")[0]) if ":" in text else text.replace("MINE", mine)

    keys = {"trainer.callbacks": [real(n) for n in names], "logging.options": {real(k): v for k, v in options.items()}}
    with pytest.raises(ConfigError, match=message):
        gxpo.train(steps=1, out=tmp_path / "run", set=SMALL | keys)
    assert not (tmp_path / "run").exists()


def test_a_file_is_not_run_where_a_run_is_only_shown(tmp_path):
    path = tmp_path / "loud.py"
    path.write_text("raise SystemExit('run')\nclass Mine: pass\n")
    with usercode.unexecuted():
        named.check([f"{path}:Mine"])
        with pytest.raises(ConfigError, match="has no 'Yours'"):
            named.check([f"{path}:Yours"])


def test_a_missing_package_names_the_extra(monkeypatch):
    for name in ("wandb", "trackio", "tensorboard"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
        with pytest.raises(gxpo.errors.MissingExtra, match=rf"pip install 'gxpo\[{name}\]'"):
            make([name])
