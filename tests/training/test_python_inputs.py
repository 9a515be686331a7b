"""Runs that begin with Python objects: they are in the run directory, and come back from there."""

import json
import shutil
import sys

import pandas
import pytest
import torch
from tests.training.given_rewards import digits, letters, levels
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

import gxpo
from gxpo.base.errors import CheckpointError, ConfigError, GxpoError, ModelError, TaskError
from gxpo.training import config
from gxpo.training.export import export
from gxpo.training.models import character_tokenizer

ROWS = [{"prompt": f"{a}+{b}=", "answer": a + b, "level": a} for a in range(5) for b in range(8)]
EVAL = [{"prompt": f"{a}+9=", "answer": a + 9, "level": a} for a in range(6)]
KEYS = {"tasks.per_step": 2, "rollout.group_size": 2, "eval.tasks": 2, "sampling.max_new_tokens": 4}


def small(**changes):
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaConfig(**{"vocab_size": 100, "max_position_embeddings": 64, **sizes, **changes})


def trained(out, **changes):
    arguments = {"model": "tiny:cold", "task": ROWS, "eval_task": EVAL, "reward": digits, "steps": 2, "set": KEYS}
    return gxpo.train(**arguments | changes, out=out)


def crc(run):
    return [row["weights_fingerprint"] for row in run.metrics]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Four steps of a model object on rows, with two rewards."""
    model, tokenizer = LlamaForCausalLM(small()), character_tokenizer()
    run = gxpo.train(
        model,
        ROWS,
        "dr_grpo",
        4,
        [digits, (levels, 0.25)],
        tokenizer=tokenizer,
        eval_task=EVAL,
        out=tmp_path_factory.mktemp("given") / "run",
        set=KEYS | {"trainer.rollouts_every": 2},
    )
    return run, model, tokenizer


@pytest.mark.slow
def test_the_callers_model_stays_and_the_runs_is_the_trained_one(whole):
    run, model, _ = whole
    assert len(set(crc(run))) > 1
    torch.manual_seed(1)
    for name, x in LlamaForCausalLM(small()).state_dict().items():
        assert torch.equal(x, model.state_dict()[name])
    now = run.trainer.learner.snapshot()
    for name, x in run.model.named_parameters():
        assert (torch.equal(x, now[name].cpu()) and not torch.equal(x, model.get_parameter(name))) or x.dim() == 1
    assert run.tokenizer.decode(run.tokenizer.encode("1+1=", add_special_tokens=False)) == "1+1="


@pytest.mark.slow
def test_run_resumes_to_the_bit_after_its_directory_moved(whole, tmp_path):
    run, model, tokenizer = whole
    short = gxpo.train(
        (model, tokenizer),
        ROWS,
        "dr_grpo",
        2,
        {digits: 1.0, levels: 0.25},
        eval_task=EVAL,
        out=tmp_path / "a",
        set=KEYS,
    )
    assert crc(short) == crc(run)[:2]
    moved = shutil.move(tmp_path / "a", tmp_path / "b")
    assert crc(gxpo.resume(moved, steps=4)) == crc(run)
    assert "run:model" in (tmp_path / "b" / "config.yaml").read_text()
    assert AutoModelForCausalLM.from_pretrained(export(tmp_path / "b", tmp_path / "exported")).num_parameters() > 0
    text = (tmp_path / "exported" / "gxpo.yaml").read_text()
    assert "run:" not in text and str(tmp_path / "b" / "tasks.jsonl") in text
    card = (tmp_path / "exported" / "README.md").read_text()
    assert "# LlamaForCausalLM after 4 steps of dr_grpo on tasks.jsonl" in card


def test_rows_are_kept_with_their_hashes(whole, tmp_path):
    run, *_ = whole
    rows = [json.loads(line) for line in (run.path / "tasks.jsonl").read_text().splitlines()]
    assert rows == ROWS and len((run.path / "held_out.jsonl").read_text().splitlines()) == len(EVAL)
    held_out = {task.prompt for task in run.trainer.source.held_out(100)}
    assert held_out == {row["prompt"] for row in EVAL}
    changed = shutil.copytree(run.path, tmp_path / "copy")
    (changed / "tasks.jsonl").write_text((run.path / "tasks.jsonl").read_text().replace("0+0=", "0+0 ="))
    with pytest.raises(CheckpointError, match=r"changed since the checkpoint .*run:tasks.jsonl; restore"):
        gxpo.resume(changed, steps=5)


def test_a_run_that_has_ended_is_opened_by_its_path(whole):
    run, *_ = whole
    opened = gxpo.Run(run.path)
    assert opened.metrics == run.metrics and opened.step == 4 and opened.problem == run.problem
    assert all(torch.equal(x, run.model.get_parameter(name)) for name, x in opened.model.named_parameters())
    assert str(opened) == str(run) and "dr_grpo, step 4 of 4, held-out" in repr(run)
    with pytest.raises(CheckpointError, match="there is no run"):
        gxpo.Run(run.path / "nothing")


def test_tables_of_a_run(whole):
    run, *_ = whole
    metrics, samples = run.to_pandas(), run.to_pandas("samples")
    assert list(metrics["step"]) == [1, 2, 3, 4] and list(metrics["weights_fingerprint"]) == crc(run)
    assert list(run.to_pandas("evaluations")["step"]) == [0, 4]
    assert isinstance(samples, pandas.DataFrame) and sorted(set(samples["step"])) == [2, 4] and len(samples) == 8
    row = samples.iloc[0]
    task = next(t for t in ROWS if t["prompt"] in row["prompt"])
    assert row["answer"] == str(task["answer"]) and row["reward_digits"] == digits(row["completion"], None)
    assert row["reward"] == row["reward_digits"] + 0.25 * row["reward_levels"]
    assert row["reward_levels"] == levels([row["completion"]], [task["level"]])[0]
    with pytest.raises(ConfigError, match="which is 'rows'"):
        run.to_pandas("rows")


@pytest.mark.slow
def test_pictures_of_a_run(whole, tmp_path):
    run, *_ = whole
    figure = run.plot(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG") and figure._repr_png_().startswith(b"\x89PNG")
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles[:2] == ["Held-out accuracy", "Training reward"]
    html = run._repr_html_()
    assert html.count("<svg") >= 3 and "<script" not in html and "best and worst rollout" in html


def test_no_step_is_no_picture(tmp_path):
    run = trained(tmp_path / "run", watch=lambda row: True)
    shutil.rmtree(run.path / "evaluations")
    (run.path / "evaluations.jsonl").unlink()
    with pytest.raises(ConfigError, match="nothing to plot"):
        run.plot()


def test_what_fails_before_the_first_step_leaves_nothing(tmp_path):
    def nonsense(completions, solution):
        return []

    with pytest.raises(ConfigError, match="asks for 'solution'"):
        trained(tmp_path / "run", model=(LlamaForCausalLM(small()), character_tokenizer()), reward=nonsense)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_input_files_of_a_deleted_directory_are_written_again(tmp_path):
    pair = LlamaForCausalLM(small()), character_tokenizer()

    def watch(row):
        if row["step"] == 1:
            shutil.rmtree(tmp_path / "run")

    with pytest.raises(CheckpointError, match="step 1 is saved"):
        trained(tmp_path / "run", model=pair, watch=watch)
    assert gxpo.resume(tmp_path / "run").step == 2


def test_objects_that_no_file_holds_are_given_again(tmp_path):
    weight = 2.0

    class Source:
        def draw(self, n, step):
            return [{"prompt": f"{step}{i}"} for i in range(n)]

        def held_out(self, n):
            return [{"prompt": "?"}]

    def closure(completion):
        return weight * len(set(completion))

    run = trained(tmp_path / "run", task=Source(), eval_task=None, reward=closure, steps=1)
    keys = config.read(run.path / "config.yaml")
    assert (keys["task"].value, keys["reward"].value) == ("python:Source", "python:closure")
    with pytest.raises(GxpoError, match=r"Python object of the script .*gxpo.resume\(RUN, task=...\)"):
        gxpo.resume(run.path, steps=2)
    with pytest.raises(GxpoError, match=r"Python object of the script .*gxpo.resume\(RUN, reward=...\)"):
        gxpo.resume(run.path, steps=2, task=Source())
    assert gxpo.resume(run.path, steps=2, task=Source(), reward=closure).step == 2
    with pytest.raises(ConfigError, match=r"the reward of .* was a Python object .python:closure.: give it again"):
        gxpo.train(from_run=run.path, task=ROWS)


def test_a_source_of_a_file_is_given_as_a_class(tmp_path, monkeypatch):
    (tmp_path / "my_source.py").write_text(
        "class Source:\n"
        "    def draw(self, n, step):\n        return [{'prompt': f'{step}{i}'} for i in range(n)]\n"
        "    def held_out(self, n):\n        return [{'prompt': '?'}]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import my_source

    run = trained(tmp_path / "run", task=my_source.Source, eval_task=None, reward=letters, steps=1)
    assert config.read(run.path / "config.yaml")["task"].value == f"{tmp_path / 'my_source.py'}:Source"
    assert gxpo.resume(run.path, steps=2).step == 2
    sys.modules.pop("my_source")


@pytest.mark.slow
def test_a_directory_without_a_name_is_a_new_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [str(trained(None, steps=1).path) for _ in range(2)]
    assert names == ["runs/tasks-grpo-seed0", "runs/tasks-grpo-seed0-2"]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (lambda m, t: {"model": m}, ModelError, "tokenizer is missing"),
        (lambda m, t: {"model": (m, None)}, ModelError, "tokenizer is missing"),
        (lambda m, t: {"model": (m, t, t)}, ModelError, r"give \(model, tokenizer\)"),
        (lambda m, t: {"model": "tiny:cold", "tokenizer": t}, ModelError, "tiny:cold brings its own"),
        (lambda m, t: {"model": torch.nn.Linear(2, 2), "tokenizer": t}, ModelError, "a Linear is no model of transf"),
        (lambda m, t: {"model": LlamaForCausalLM, "tokenizer": t}, ModelError, "class LlamaForCausalLM is no model"),
        (lambda m, t: {"model": m, "tokenizer": "gpt2"}, ModelError, "str is no tokenizer"),
        (lambda m, t: {"model": m.half(), "tokenizer": t}, ModelError, "parameters are float16.*model.float"),
        (lambda m, t: {"model": LlamaForCausalLM(small(vocab_size=50)), "tokenizer": t}, ModelError, "resize_token"),
        (
            lambda m, t: {"model": LlamaForSequenceClassification(small()), "tokenizer": t},
            ModelError,
            "give a LlamaFor",
        ),
        (lambda m, t: {"task": []}, TaskError, "task: no tasks in it"),
        (lambda m, t: {"eval_task": [{"promt": "a"}]}, TaskError, "eval_task: no column 'prompt'"),
        (lambda m, t: {"eval_task": ROWS[:2]}, TaskError, "is also in the held-out tasks"),
        (lambda m, t: {"task": ROWS[:1], "eval_task": None}, TaskError, r"leaves no held-out task.*eval_task=\.\.\."),
        (lambda m, t: {"task": lambda: ROWS}, ConfigError, "brings its own held_out"),
        (lambda m, t: {"task": "none.csv"}, TaskError, "none.csv: no such file"),
        (lambda m, t: {"reward": 3}, ConfigError, "reward: 3 is neither a function"),
        (lambda m, t: {"reward": {digits: "much"}}, ConfigError, "scoring.weights"),
    ],
)
def test_unfit_inputs_fail_in_one_line_and_leave_no_files(tmp_path, monkeypatch, given, error, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message) as caught:
        trained(tmp_path / "run", **given(LlamaForCausalLM(small()), character_tokenizer()))
    assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == []


def test_the_api_is_listed():
    assert {"train", "resume", "Run", "method", "Forest", "Task", "errors"} <= set(dir(gxpo))
    assert all(hasattr(gxpo, name) for name in dir(gxpo))
    assert not {"Any", "importlib", "annotations", "TYPE_CHECKING"} & set(dir(gxpo))
