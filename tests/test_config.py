"""YAML 1.2, `--set`, origins, line numbers, and the resolved file."""

import math

import pytest

from gxpo import config
from gxpo.errors import ConfigError
from gxpo.keys import Stated, show


def write(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


def test_yaml_1_2_scalars(tmp_path):
    path = write(tmp_path, "update: {lr: 1e-6}\nmodel: off\ntask: yes\nseed: 010\n")
    s = config.load(path).settings
    assert s.update.lr == 1e-6 and s.model == "off" and s.task == "yes" and s.seed == 10


def test_nested_and_dotted_keys_mean_the_same(tmp_path):
    a = config.load(write(tmp_path, "credit: {scale: none}\ntasks: {per_step: 3}\n"))
    b = config.load(write(tmp_path, "credit.scale: none\ntasks.per_step: 3\n"))
    assert a.settings == b.settings and a.method.credit == b.method.credit


def test_order_and_origins(tmp_path):
    path = write(tmp_path, "method: dr_grpo\nupdate:\n  lr: 0.1\nobjective:\n  clip_low: 0.1\n")
    resolved = config.load(path, ["update.lr=0.2", "objective.horizon=7.0"])
    origin = {k: s.origin for k, s in resolved.keys.items()}
    assert resolved.settings.update.lr == 0.2 and origin["update.lr"] == "--set"
    assert origin["objective.clip_low"] == f"{path}:5"
    assert origin["credit.scale"] == "dr_grpo"
    assert origin["seed"] == "default" and origin["objective.horizon"] == "--set"


def test_compat_stands_between_methods_and_file(tmp_path):
    path = write(tmp_path, "method: grpo\ncompat: trl\n")
    assert config.load(path).method.credit.eps == 1e-4
    assert config.load(path, ["credit.eps=1e-3"]).method.credit.eps == 1e-3


def test_paper_defaults_reach_the_run_s_settings_below_the_file(tmp_path):
    path = write(tmp_path, "method: grpo@paper\n")
    assert config.load(path).settings.update.lr == 1e-6
    assert config.load(path, ["update.lr=0.5"]).settings.update.lr == 0.5


def test_the_resolved_file_resolves_to_the_same_run(tmp_path):
    given = "method: dapo+tis\nreward: {correct: 1.0, format: 0.5}\ntasks: {options: {digits: 3}}\nupdate.lr: 1e-5\n"
    first = config.load(write(tmp_path, given))
    again = config.load(write(tmp_path, first.to_yaml()))
    assert again.settings == first.settings
    for stage in ("credit", "weights", "terms", "rollout", "rewards", "update"):
        assert getattr(again.method, stage) == getattr(first.method, stage)
    assert again.settings.reward == {"correct": 1.0, "format": 0.5}


@pytest.mark.parametrize(
    ("text", "sets", "message"),
    [
        ("methd: grpo\n", [], r"run.yaml:1: unknown key 'methd'; did you mean 'method'"),
        ("seed: 0\ncredit:\n  centre: mean\n", [], r"unknown key 'credit.centre'; did you mean 'credit.center'\? .*:3"),
        ("seed: 1\nupdate:\n  lr: fast\n", [], r"run.yaml:3: update.lr: .*number.*fast"),
        ("seed: -1\n", [], r"run.yaml:1: seed: .*greater than or equal to 0"),
        ("seed: 1.5\n", [], r"seed: .*integer"),
        ("trainer: {steps: off}\n", [], r"trainer.steps: .*integer"),
        ("learner: {dtype: float8}\n", [], r"learner.dtype"),
        ("a: [1\n", [], r"run.yaml:\d+: not YAML"),
        ("- 1\n", [], r"is a mapping"),
        ("seed: 1\nseed: 2\n", [], r"not YAML: .*duplicate"),
        ("update: {lr: 1.0}\nupdate.lr: 2.0\n", [], r"run.yaml:2: update.lr is set twice"),
        ("method: gigpo+opo\n", [], r"gigpo sets credit=anchor_state and opo sets credit=length_weighted"),
        ("", ["update.lr"], r"write --set KEY=VALUE"),
        ("", ["objective.clip_lo=0.1"], r"did you mean 'objective.clip_low'"),
        ("method: 3\n", [], r"method=3"),
        ("compat: [a]\n", [], r"compat=\['a'\] is not a name"),
        ("credit: {eps: .nan}\n", [], r"credit.eps=nan \(.*run.yaml:1\): it must be a finite number"),
        ("", ["objective.clip_high=.inf"], r"objective.clip_high=inf \(--set\): it must be a finite number"),
        ("", ["update.lr=1e999"], r"--set: update.lr: numbers must be finite \(got inf\)"),
        ("", ["update.betas=[0.9, .nan]"], r"update.betas: numbers must be finite"),
        ("", ["update.betas=[0.9]"], r"update.betas.*2 items"),
        ("", ["update.betas=[0.9, 1.0]"], r"update.betas.*less than 1"),
        ("tasks: {options: {share: .inf}}\n", [], r"run.yaml:1: tasks.options: numbers must be finite"),
        ("", ["reward={correct: .nan}"], r"reward: numbers must be finite"),
        ("", ["seed=" + "9" * 5000], r"--set seed: a value can't be read: .*5000 digits"),
        ("", ["seed=" + "[" * 5000], r"--set seed:1: lists and mappings are nested"),
        ("", ['chat.system="\\ud800"'], r"--set chat.system: '\\ud800' is not valid Unicode"),
        ("tasks.options.digits: 3\ntasks: {options: {digits: 2}}\n", [], r"run.yaml:2: tasks.options is set twice"),
        ("tasks: {options: {digits: 2}}\ntasks.options.digits: 3\n", [], r"run.yaml:2: tasks.options.digits is set t"),
        ("reward: math\n", ["reward.format=1"], r"--set: reward.format: reward is math, which has no entries .*:1"),
        ("", ["tasks.optoins.digits=3"], r"unknown key 'tasks.optoins.digits'"),
    ],
)
def test_bad_files_are_one_line_errors(tmp_path, text, sets, message):
    with pytest.raises(ConfigError, match=message) as caught:
        config.load(write(tmp_path, text), sets)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such file"):
        config.load(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("text", "sets", "key", "value", "origin"),
    [
        ("tasks.options.digits: 3\n", [], "tasks.options", {"digits": 3}, "{path}:1"),
        ("tasks: {options: {a: 1}}\n", ["tasks.options.b=2"], "tasks.options", {"a": 1, "b": 2}, "{path}:1, --set"),
        ("tasks: {options: {a: 1}}\n", ["tasks.options.a=2"], "tasks.options", {"a": 2}, "{path}:1, --set"),
        ("tasks: {options: {a: 1}}\n", ["tasks.options={b: 2}"], "tasks.options", {"b": 2}, "--set"),
        ("", ["tasks.options.a=1", "tasks.options={b: 2}"], "tasks.options", {"b": 2}, "--set"),
        ("", ["tasks.options={b: 2}", "tasks.options.a=1"], "tasks.options", {"a": 1, "b": 2}, "--set"),
        ("chat.kwargs.enable_thinking: false\n", [], "chat.kwargs", {"enable_thinking": False}, "{path}:1"),
        ("sampling: {engine_options: {stale: true}}\n", [], "sampling.engine_options", {"stale": True}, "{path}:1"),
        ("", ["scoring.options.judge.model=m"], "scoring.options", {"judge": {"model": "m"}}, "--set"),
        ("reward: {correct: 1}\n", ["reward.my.py:f=0.5"], "reward", {"correct": 1, "my.py:f": 0.5}, "{path}:1, --set"),
    ],
)
def test_an_entry_of_a_mapping_is_a_key(tmp_path, text, sets, key, value, origin):
    path = write(tmp_path, text)
    stated = config.load(path, sets).keys[key]
    assert (stated.value, stated.origin) == (value, origin.format(path=path))


def test_rewards_of_the_method_stand_beside_weights(tmp_path):
    nested = "reward:\n  correct: 1.0\n  shape: {overlong: {buffer: 0.5}}\n  add: {overlong: overlong}\n"
    dotted = "reward: {correct: 1.0}\nreward.shape.overlong.buffer: 0.5\nreward.add.overlong: overlong\n"
    a, b = (config.load(write(tmp_path, text)) for text in (nested, dotted))
    assert a.settings.reward == b.settings.reward == {"correct": 1.0}
    assert a.method.shapes == b.method.shapes and a.method.shapes["overlong"].buffer == 0.5
    assert list(a.method.rewards) == list(b.method.rewards) == ["overlong"]
    assert a.keys["reward.shape.overlong.buffer"].origin.endswith(":3")


def test_keys_from_python_are_the_same_keys():
    given = {"tasks.options": {"a": 1}, "tasks.options.b": 2.0, "reward.format": 1}
    resolved = config.resolve({k: Stated(v, "argument") for k, v in given.items()})
    assert resolved.settings.tasks.options == {"a": 1, "b": 2.0} and resolved.settings.reward == {"format": 1.0}
    for value, message in ((math.nan, "must be finite"), ("\udcff", "Unicode"), (2**70, "64 bits")):
        with pytest.raises(ConfigError, match=f"^argument: tasks.options: .*{message}"):
            config.resolve({"tasks.options": Stated({"x": [value]}, "argument")})


@pytest.mark.parametrize("method", ["epo", "hi_agent", "hicra", "hiper", "grpo_d+tis", "passk"])
def test_what_a_method_brings_is_read_back(tmp_path, method):
    first = config.resolve({"method": Stated(method, "--set")})
    again = config.load(write(tmp_path, first.to_yaml()))
    assert {k: show(s.value) for k, s in first.keys.items()} == {
        k: show(tuple(s.value) if isinstance(first.keys[k].value, tuple) else s.value) for k, s in again.keys.items()
    }
