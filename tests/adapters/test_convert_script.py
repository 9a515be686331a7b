"""TRL scripts and notebooks are read without being run: values, their lines, and what stays open."""

import json
from pathlib import Path

import pytest

from gxpo.adapters import convert_script
from gxpo.adapters.convert import convert_trl
from gxpo.base.errors import ConfigError


def read(text, name="x.py"):
    Path(name).write_text(text)
    return convert_script.read(Path(name))


def test_a_notebook_is_read_by_cells(here):
    cells = [
        {"cell_type": "markdown", "source": ["# words"]},
        {"cell_type": "code", "source": ["%pip install trl\n", "!nvidia-smi\n", "rank = 8\n"]},
        {"cell_type": "code", "source": [
            "model, tokenizer = FastLanguageModel.from_pretrained(model_name='unsloth/Qwen3-4B', load_in_4bit=True)\n",
            "model = FastLanguageModel.get_peft_model(model, r=rank, lora_alpha=rank * 2)\n",
            "trainer = GRPOTrainer(model=model, reward_funcs=[f], args=GRPOConfig(optim='adamw_8bit'))",
        ]},
    ]  # fmt: skip
    Path("nb.ipynb").write_text(json.dumps({"cells": cells}))
    actual = convert_trl("nb.ipynb")
    assert actual.keys["model"] == "unsloth/Qwen3-4B"
    assert (actual.keys["learner.lora_rank"], actual.keys["learner.lora_alpha"]) == (8, 16.0)
    where = {message: at for at, message in actual.notes}
    assert where["optim='adamw_8bit': gxpo steps with AdamW"] == "cell 3 line 3"
    note = "load_in_4bit: gxpo trains adapters on float32 or bfloat16 weights, or over NF4: set learner.base=nf4"
    assert where[note] == "cell 3 line 1"


def test_a_name_that_is_given_again_has_the_value_it_had_then(here):
    Path("x.py").write_text(
        "from unsloth import FastLanguageModel\nfrom trl import GRPOConfig\nn = 2\n"
        "args = GRPOConfig(num_generations=n, per_device_train_batch_size=1, beta=later)\nn = 3\n"
    )
    actual = convert_trl("x.py")
    assert actual.keys["rollout.group_size"] == 2 and actual.keys["tasks.per_step"] == 1
    assert ("line 4", "unsloth makes it 2: whole groups of num_generations") in actual.notes
    assert actual.open["objective.kl.coef"] == "beta, line 4: later is code of another file"


def test_a_file_that_is_no_trl_script_says_so(here):
    Path("x.py").write_text("print(1)\n")
    with pytest.raises(ConfigError, match=r"x\.py: there is neither a GRPOConfig nor a GRPOTrainer in it"):
        convert_trl("x.py")
    Path("y.py").write_text("def f(:\n")
    with pytest.raises(ConfigError, match=r"y\.py: line 1: not Python"):
        convert_trl("y.py")
    with pytest.raises(ConfigError, match="no such file"):
        convert_trl("z.yaml")


def test_constants_are_computed_and_calls_stay_open(here):
    source = read(
        "from trl import GRPOConfig\nimport os\nn = 2 * 3 + 1\nk = {'beta': -0.5}\n"
        "args = GRPOConfig(num_generations=n, seed=int('4'), run_name=os.getlogin(), output_dir=f'out-{n}', **k)\n"
    )
    assert {name: v.value for name, v in source.settings.items()} == {
        "num_generations": 7, "output_dir": "out-7", "beta": -0.5, "seed": 4, "run_name": "???",
    }  # fmt: skip
    assert source.settings["num_generations"].where == "line 5"
    assert source.settings["run_name"].note == "`os.getlogin()` is known when the script runs"


def test_a_name_that_a_loop_changes_has_no_value(here):
    source = read("from trl import GRPOConfig\nn = 2\nfor x in y():\n  n += 1\nargs = GRPOConfig(num_generations=n)\n")
    assert source.settings["num_generations"].is_open
    assert source.settings["num_generations"].note == "the loop in line 3 changes `n` (line 3)"


def test_names_bound_in_a_circle_have_no_value(here):
    source = read("from trl import GRPOConfig\na = a\nargs = GRPOConfig(seed=a, beta=0.5)\n")
    assert source.settings["seed"].is_open and source.settings["beta"].value == 0.5


def test_a_trainer_at_the_top_level_is_unguarded(here):
    top = "from trl import GRPOTrainer, GRPOConfig\ndef f(completions): return [0.0]\n"
    inside = "    GRPOTrainer('m', f, GRPOConfig())\n"
    assert not read(top + "GRPOTrainer('m', f, GRPOConfig())\n").is_guarded
    assert read(top + "def main():\n" + inside).is_guarded
    assert read(top + "if __name__ == '__main__':\n" + inside).is_guarded
    actual = read(top + "def main():\n" + inside)
    assert actual.parts["model"].value == "m" and [kind for kind, _ in actual.rewards] == ["function"]


def test_the_first_of_two_configurations_is_taken(here):
    source = read("from trl import GRPOConfig\na = GRPOConfig(seed=1)\nb = GRPOConfig(seed=2)\n")
    assert source.settings["seed"].value == 1
    assert source.open == [("line 3", "a second GRPOConfig: the first one is taken")]


def test_an_assignment_to_a_field_after_the_call_counts(here):
    source = read("from trl import GRPOConfig\nargs = GRPOConfig(beta=0.1)\nargs.beta = 0.3\n")
    assert (source.settings["beta"].value, source.settings["beta"].where) == (0.3, "line 3")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            "def a():\n    def b():\n        GRPOTrainer()\n",
            r"line 3: GRPOTrainer\(...\) is in code that is never called",
        ),
        (
            "class MyGRPOTrainer(GRPOTrainer):\n    pass\n",
            "line 1: MyGRPOTrainer is a class of a trainer, which nothing",
        ),
        ("from a import f\nf(reward_funcs=[len])\n", r"line 2: f\(reward_funcs=...\) is code of another file"),
        ("def length_reward(completions):\n    pass\n", r"a reward in it \(line 1: length_reward\) and no trainer"),
        (
            "from a import GRPOTrainer\nGRPOTrainer(1, 2)\n",
            "line 2: GRPOTrainer is of a, not of TRL, and is given no GRPO",
        ),
        ("class GRPOTrainer:\n    pass\nGRPOTrainer(1)\n", "line 3: GRPOTrainer is a class of this file, not of TRL"),
    ],
)
def test_a_file_without_a_trainer_of_trl_is_refused_by_name(here, script, words):
    Path("x.py").write_text(script)
    with pytest.raises(ConfigError, match=words):
        convert_trl("x.py")
