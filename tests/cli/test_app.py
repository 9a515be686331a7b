"""Commands of the entry point: errors are one line and exit code 2, with nothing half-written."""

import json
import os
import signal
import time
from importlib.metadata import version
from pathlib import Path

import pytest
from tests import started
from tests.cli.small_run import config, refused, run

import gxpo
from gxpo.methods import METHODS
from gxpo.training import checkpoint

KEYED = {"server": "https://collect.example/v1", "model": "m", "key_from": "AWS_SECRET_ACCESS_KEY"}


@pytest.mark.parametrize("allowed", [[], ["--allow-key", "AWS_SECRET_ACCESS_KEY@api.example"]])
@pytest.mark.parametrize(
    "sets",
    [
        ['scoring.weights={"judge": 1}', f"scoring.options={json.dumps({'judge': KEYED})}"],
        ["method=prorag", *(f"signal.step_judge.{name}={value}" for name, value in KEYED.items())],
        [
            "sampling.engine=openai",
            f"sampling.servers={KEYED['server']}",
            "sampling.engine_options={key_from: AWS_SECRET_ACCESS_KEY}",
        ],
    ],
    ids=["judge", "step_judge", "engine"],
)
def test_a_file_alone_sends_no_variable_anywhere(tmp_path, monkeypatch, sets, allowed):
    monkeypatch.setenv("GXPO_ALLOW_KEY", "")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    arguments = ["train", config(tmp_path), *(x for s in sets for x in ("--set", s)), *allowed]
    refused(tmp_path, arguments, "--allow-key AWS_SECRET_ACCESS_KEY@collect.example")


@pytest.mark.parametrize("command", ["train", "plan", "resume", "eval", "signal"])
def test_the_user_allows_a_key(tmp_path, monkeypatch, command):
    monkeypatch.setenv("GXPO_ALLOW_KEY", "A@api.example")
    code, _, err = run(command, tmp_path / "none", *["none"] * (command == "signal"), "--allow-key", "B")
    assert code == 2 and "Traceback" not in err and os.environ["GXPO_ALLOW_KEY"] == "A@api.example B"


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["method=grop"], "unknown method 'grop'; did you mean 'grpo'"),
        (["method=gigpo+opo"], "gigpo sets credit=relative and opo sets credit=length_weighted"),
        (["credit.centre=mean"], "unknown key 'credit.centre'; did you mean 'credit.center'"),
        (["optim.lr=fast"], "optim.lr: input should be a valid number (got fast)"),
        (["trainer.steps=0"], "trainer.steps"),
        (["task=arithmetics"], "did you mean 'arithmetic'"),
        (["task=reasoning_gym:gdc"], "gcd"),
        (["model=./nowhere"], "no such model directory"),
        (["reward=nowhere.py:f"], "nowhere.py"),
        (["reward=corect"], "did you mean"),
        (["method=dr_grpo+cispo"], "dr_grpo sets objective.aggregate=sequence_sum"),
        (["learner.device=cudo"], "cudo"),
        (["optim.schedule=linear", "optim.warmup_steps=9"], "schedule"),
    ],
)
def test_bad_settings(tmp_path, sets, message):
    flags = [x for s in sets for x in ("--set", s)]
    refused(tmp_path, ["train", config(tmp_path), *flags], message)


@pytest.mark.slow
def test_a_user_s_credit_notes_in_a_line_what_it_replaces(tmp_path):
    (tmp_path / "mine.py").write_text("def own(forest, signals, step):\n    return forest.path_token * 0.0\n")
    sets = ["--set", "method=rloo", "--set", f"credit={tmp_path}/mine.py:own"]
    line = f"rloo: nothing of it is left: credit.center, credit.scale gave way to credit={tmp_path}/mine.py:own [--set]"
    code, out, err = run("train", config(tmp_path), "--dry-run", *sets)
    assert code == 0 and line in out.splitlines(), err
    code, out, err = run("train", config(tmp_path), *sets, "--out", tmp_path / "out")
    assert code == 0 and line in (out + err).splitlines()
    code, out, err = run("export", tmp_path / "out", tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert code == 0 and "Not so in this run: nothing of it is left" in card and "mean_{j != i}" not in card


@pytest.mark.slow
def test_a_run_that_could_score_nothing_says_so_and_fails(tmp_path):
    (tmp_path / "mine.py").write_text("def score(completion):\n    raise ValueError('no good')\n")
    sets = ["--set", f"reward={tmp_path}/mine.py:score", "--out", tmp_path / "out"]
    code, out, err = run("train", config(tmp_path), *sets)
    assert code == 1 and err.count("gxpo: warning: nothing is learned: all 4 rollouts of step 1 were unscored") == 1
    problem = "nothing is learned: all 8 rollouts of the first 2 steps were unscored (reward"
    assert problem in out and "ValueError: no good (mine.py line 2)" in out
    code, out, _ = run("resume", tmp_path / "out", "--json")
    assert code == 1 and json.loads(out)["problem"].startswith("nothing is learned: all 8 rollouts")


def test_a_run_without_any_signal_says_so(tmp_path):
    (tmp_path / "mine.py").write_text("def score(completion):\n    return 0.0\n")
    sets = ["--set", f"reward={tmp_path}/mine.py:score", "--out", tmp_path / "out"]
    code, out, err = run("train", config(tmp_path), *sets)
    assert code == 0 and "nothing is learned: all 4 groups of the first 2 steps had zero signal" in out
    assert err.count("gxpo: warning: nothing is learned") == 1


def test_a_mistake_in_a_part_of_the_users_own_is_placed_there(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("import torch\n\ndef credit(forest, signals, step):\n    return torch.ones(2) @ torch.ones(3)\n")
    sets = ["--set", f"credit={mine}:credit", "--out", tmp_path / "out"]
    code, _, err = run("train", config(tmp_path), *sets)
    assert code == 2 and err.count("\n") == 1 and "a bug in gxpo" not in err
    assert err.startswith("gxpo: RuntimeError: ") and f"({mine} line 4, in credit; --debug shows" in err


def test_versions_and_the_option_that_shows_tracebacks():
    code, out, _ = run("--version")
    assert (
        code == 0
        and out == f"gxpo {gxpo.__version__}, torch {version('torch')}, transformers {version('transformers')}\n"
    )
    assert "--debug" in run("--help")[1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"WORLD_SIZE": "abc"}, "WORLD_SIZE is 'abc', not a whole number"),
        ({"RANK": "-1"}, "RANK is '-1', not a whole number"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "WORLD_SIZE is 2 and RANK 2"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2 and RANK None"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "abc"}, "MASTER_PORT is 'abc'"),
    ],
)
def test_what_torchrun_never_sets(tmp_path, monkeypatch, given, message):
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    refused(tmp_path, ["train", config(tmp_path)], message)


def test_a_missing_file(tmp_path):
    refused(tmp_path, ["train", tmp_path / "no.yaml"], "no.yaml: no such file")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"prompt": "1+1=", "answer": "2"}\n{"prompt": \n', "tasks.jsonl, line 2"),
        ('{"prompt": "1+1="}\n', "leaves no held-out task"),
        ('{"answer": "2"}\n', "prompt"),
        ("", "tasks.jsonl"),
    ],
)
def test_bad_task_files(tmp_path, lines, message):
    path = tmp_path / "tasks.jsonl"
    path.write_text(lines)
    refused(tmp_path, ["train", config(tmp_path), "--set", f"task={path}"], message)


def test_a_model_directory_without_weights(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    refused(tmp_path, ["train", config(tmp_path), "--set", f"model={model}"], "no weights")


def test_resume_of_what_is_no_run(tmp_path):
    code, _, err = run("resume", tmp_path)
    assert code == 2 and "config.yaml" in err and err.count("\n") == 1


def test_train_eval_resume_and_report(tmp_path):
    out = tmp_path / "run"
    code, text, err = run("train", config(tmp_path), "--out", out)
    assert code == 0, err
    assert "held-out accuracy" in text and (out / "report.html").is_file()
    code, text, _ = run("eval", out, "--json", "--tasks", 3, "--samples", 2)
    figures = json.loads(text)
    assert code == 0 and figures["step"] == 2 and figures["eval_tasks"] == 3 and 0 <= figures["eval_pass_at_2"] <= 1
    code, text, _ = run("resume", out, "--steps", 3, "--json")
    assert code == 0 and json.loads(text)["steps"] == 3
    (out / "config.yaml").write_text((out / "config.yaml").read_text().replace("seed: 0", "seed: 1"))
    code, _, err = run("resume", out)
    assert code == 2 and "not the configuration of its checkpoint" in err and err.count("\n") == 1


@pytest.mark.slow
def test_export_and_a_run_from_another(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("train", config(tmp_path), "--out", "first")[0] == 0
    code, text, _ = run("export", "first", "model", "--json")
    assert code == 0 and json.loads(text)["bytes"]["model.safetensors"] > 1e6
    code, text, _ = run("export", "first", "one", "--step", 1, "--dtype", "bfloat16")
    assert code == 0 and text.startswith("one: README.md, ")
    for flags, message in (
        (["model"], "not empty"),
        (["new", "--adapter"], "no adapter"),
        (["x", "--step", 5], "1, 2"),
    ):
        code, _, err = run("export", "first", *flags)
        assert code == 2 and message in err and err.count("\n") == 1, err
    code, text, _ = run("train", "--from", "first", "--set", "trainer.steps=1", "--dry-run", "--json")
    keys = json.loads(text)["keys"]
    assert code == 0 and keys["task"]["origin"] == "first/config.yaml:3" and keys["trainer.steps"]["origin"] == "--set"
    code, text, err = run("train", "--from", "first", "--set", "trainer.steps=1", "--json")
    assert code == 0 and json.loads(text)["out"] == "first-2", err
    code, _, err = run("train", "--from", "first", "--set", "learner.lora_rank=2")
    assert code == 2 and "does not fit" in err and err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["first", "first-2", "model", "one", "run.yaml"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("exact", 0), ("contains", 1)])
def test_check_reward(tmp_path, name, code):
    path = tmp_path / "mine.py"
    path.write_text(
        "def exact(completion, answer): return completion == answer\n"
        "def contains(completion, answer): return answer in completion\n"
    )
    actual, text, _ = run("check-reward", f"{path}:{name}", "--task", "arithmetic", "--n", 5, "--strict")
    assert actual == code and ("no finding" in text) == (code == 0) and "median" not in text and "latency" in text
    actual, text, _ = run("check-reward", f"{path}:{name}", "--task", "arithmetic", "--n", 5, "--json")
    assert actual == 0 and bool(json.loads(text)["findings"]) == bool(code)
    actual, _, err = run("check-reward", f"{path}:{name}", "--task", "arithmetics")
    assert actual == 2 and "did you mean 'arithmetic'" in err and err.count("\n") == 1


@pytest.mark.slow
def test_methods_and_schema():
    code, text, _ = run("methods", "--json")
    rows = json.loads(text)
    assert code == 0 and {r["name"] for r in rows} == set(METHODS)
    assert {"name", "title", "arxiv", "stages", "formula", "evidence", "defaults", "needs", "requires", "cost"} <= set(
        rows[0]
    )
    code, text, _ = run("methods", "gspo")
    assert code == 0 and "refuses" in text and "objective.ratio" in text
    assert run("methods", "gspo", "--bibtex")[1].startswith("@misc{gspo,")
    code, _, err = run("methods", "gsop")
    assert code == 2 and "gspo" in err
    code, text, _ = run("schema")
    schema = json.loads(text)
    assert code == 0 and {"schema", "group", "id", "turns"} <= set(schema["required"])


def test_help_has_an_example_for_every_command():
    for command in (
        "demo",
        "train",
        "resume",
        "eval",
        "methods",
        "schema",
        "plan",
        "export",
        "check-reward",
        "check-template",
    ):
        code, text, _ = run(command, "--help")
        assert code == 0 and f"gxpo {command}" in text.replace("\n", " "), command


TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_check_template(tmp_path):
    code, text, _ = run("check-template", "tiny:cold")
    assert code == 0 and text.startswith("fails") and "no chat template" in text
    assert run("check-template", "tiny:cold", "--strict")[0] == 1
    path = tmp_path / "chat.jinja"
    path.write_text(TEMPLATE)
    code, text, _ = run("check-template", "tiny:cold", "--template", path, "--json", "--strict")
    verdicts = {check["name"]: check["verdict"] for check in json.loads(text)["checks"]}
    assert code == 0 and json.loads(text)["ok"] and verdicts["turns"] == verdicts["renders"] == "ok"
    assert verdicts["forgery"] == "ok"  # the name of a special token typed out stays text
    code, _, err = run("check-template", "./nowhere")
    assert code == 2 and "no such model directory" in err and err.count("\n") == 1


# ---------------------------------------------------------------- no room for the checkpoint
def test_no_space_left_while_checkpointing(tmp_path, monkeypatch):
    out = tmp_path / "run"
    real = checkpoint.save

    def full(*arguments, **named):
        if arguments[1] == 2:
            monkeypatch.setattr(os, "fsync", lambda d: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        return real(*arguments, **named)

    monkeypatch.setattr(checkpoint, "save", full)
    code, _, err = run("train", config(tmp_path), "--out", out)
    monkeypatch.undo()
    assert code == 2 and "No space left" in err and err.count("\n") == 1
    assert checkpoint.latest(out).name == "step-000001"
    assert run("resume", out)[0] == 0 and checkpoint.latest(out).name == "step-000002"


@pytest.mark.slow
def test_a_file_size_limit_while_checkpointing(tmp_path):
    out = tmp_path / "run"
    limited = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, 2**18)); "
        "from gxpo.cli.app import main; main()"
    )
    done = started.run(["-c", limited, "train", config(tmp_path), "--out", out])
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and "File too large" in done.stderr
    assert not list(out.glob("checkpoints/*"))


TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "launcher"),
    [
        (signal.SIGINT, []),
        pytest.param(signal.SIGTERM, [], marks=pytest.mark.thorough),
        pytest.param(signal.SIGTERM, TORCHRUN, marks=pytest.mark.thorough),
    ],
)
def test_a_signal_saves_and_says_how_to_go_on(tmp_path, number, launcher):
    """It goes to the whole process group: under torchrun, which passes it on, each process has it twice."""
    out = tmp_path / "run"
    environment = {**os.environ, "PYTHONPATH": str(Path(gxpo.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    sets = ["--set", "trainer.steps=5000", "--set", "trainer.checkpoint_every=0"]
    command = [*launcher, "-m", "gxpo.cli.app", "train", str(config(tmp_path)), "--out", str(out), *sets]
    metrics = out / "metrics.jsonl"
    with started.Started(command, env=environment, start_new_session=True) as running:
        while running.poll() is None and not (metrics.is_file() and metrics.stat().st_size):
            time.sleep(0.05)
        os.killpg(running.pid, number)
        text, errors = running.communicate()
    assert f"gxpo resume {out}" in text.replace("\n", " "), errors
    assert launcher or running.returncode == 128 + number
    done = len(metrics.read_text().splitlines())
    assert 0 < done < 5000 and checkpoint.latest(out).name == f"step-{done:06d}"


# ---------------------------------------------------------------- rewards that misbehave
REWARDS = """
import os, time

def nan(completion): return float("nan")
def text(completion): return "good"
def raises(completion): raise ValueError("no")
def hangs(completion): time.sleep(1000)
def dies(completion): os._exit(3)
def sometimes(completion, task): return float("nan") if sum(map(ord, completion)) % 3 == 0 else 1.0
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [("nan", "nonsense"), ("text", "nonsense"), ("raises", "raised"), ("hangs", "timeout"), ("dies", "died")],
)
def test_a_reward_that_misbehaves_costs_its_trajectories_alone(tmp_path, name, kind):
    path = tmp_path / "mine.py"
    path.write_text(REWARDS)
    trained = gxpo.train(
        "tiny:cold",
        "arithmetic",
        "grpo",
        1,
        f"{path}:{name}",
        out=tmp_path / "run",
        set={
            "tasks.per_step": 1,
            "rollout.group_size": 2,
            "sampling.max_new_tokens": 3,
            "eval.tasks": 1,
            "scoring.timeout": 1.5,
        },
    )
    (row,) = trained.metrics
    assert row["unscored"] == 2 and row["empty_steps"] == 1 and row["reward_mean"] is None
    assert trained.trainer.rewards.counts[kind] > 2  # evaluations are counted there, too
    kinds = ("raised", "nonsense", "timeout", "died", "limit")
    assert {k: row[f"scoring_{k}"] for k in kinds} == {k: 2 * (k == kind) for k in kinds}
    assert all(r["reward"] is None for r in trained.samples)


def test_unscored_trajectories_are_counted_and_never_zero(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(REWARDS)
    trained = gxpo.train(
        "tiny:cold",
        "arithmetic",
        "grpo",
        2,
        f"{path}:sometimes",
        out=tmp_path / "run",
        set={"tasks.per_step": 4, "rollout.group_size": 4, "sampling.max_new_tokens": 3, "eval.tasks": 2},
    )
    rows = trained.metrics
    assert 0 < sum(r["unscored"] for r in rows) < 32
    assert all(r["reward_mean"] == 1.0 for r in rows)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train"], "gxpo demo needs none of them"),
        (["train", "run.yml"], "run.yml: no such file; did you mean 'run.yaml'?"),
        (["train", "data.jsonl"], "--set task=data.jsonl; gxpo tasks data.jsonl shows what is in it"),
        (["train", "run.yaml", "--set", "num_generations=8"], "did you mean 'rollout.group_size'?"),
        (["train", "run.yaml", "--set", "args.learning_rate=1"], "did you mean 'optim.lr'?"),
        (["train", "run.yaml", "--set", "model=tiny", "--set", "task=data.jsonl"], "model=smollm2-135m (from PyPI)"),
        (["train", "run.yaml", "--set", "reward=mine.py"], "as in mine.py:FUNCTION"),
        (["resume", "runs/none"], "runs holds no run (gxpo train CONFIG makes one)"),
        (["tasks", "sokoban"], "gxpo check-env sokoban plays some"),
    ],
)
def test_an_error_says_what_to_type_next(tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    config(tmp_path)
    rows = [json.dumps({"prompt": f"{i}+1", "answer": str(i + 1)}) for i in range(40)]
    (tmp_path / "data.jsonl").write_text("\n".join(rows))
    code, _, err = run(*arguments)
    assert code == 2 and said in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "key"), [("--lr", "optim.lr"), ("--learning-rate", "optim.lr"), ("--group-size", "rollout.group_size")]
)
def test_an_option_that_is_a_setting(tmp_path, option, key):
    code, _, err = run("train", config(tmp_path), option, "1")
    assert code == 2 and f"--set {key}=VALUE" in " ".join(err.replace("│", " ").split())


def test_train_needs_no_file_where_the_command_line_says_enough(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("train", "--set", "model=tiny:cold", "--set", "trainer.steps=3", "--dry-run", "--json")
    assert code == 0 and json.loads(out)["plan"]["steps"] == 3
