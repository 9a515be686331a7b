"""YAML 1.2, `--set`, origins, line numbers, and the resolved file."""

import dataclasses
import json
import math
import warnings
from typing import Literal, get_args, get_origin

import pytest

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.parts import registry
from gxpo.parts.definition import STAGES, SettingValue, show, stage_of
from gxpo.parts.settings import FIELDS, RUN_KEYS
from gxpo.training import config


def write(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


def test_yaml_1_2_scalars(tmp_path):
    path = write(tmp_path, "optim: {lr: 1e-6}\nmodel: off\ntask: yes\nseed: 010\n")
    s = config.load(path).settings
    assert s.optim.lr == 1e-6 and s.model == "off" and s.task == "yes" and s.seed == 10


def test_nested_and_dotted_keys_mean_the_same(tmp_path):
    a = config.load(write(tmp_path, "credit: {scale: none}\ntasks: {per_step: 3}\n"))
    b = config.load(write(tmp_path, "credit.scale: none\ntasks.per_step: 3\n"))
    assert a.settings == b.settings and a.method.credit == b.method.credit


def test_empty_sections_state_nothing(tmp_path):
    empty = "trainer: {}\nobjective: {kl: {}}\nweight: {}\nreward: {}\ncredit: {}\ntasks: {options: {}}\n"
    plain = config.load(write(tmp_path, "method: dr_grpo\n"))
    for text, sets in ((empty, []), ("", ["trainer={}", "credit={}"]), (f"{empty}phases: [{{weight: {{}}}}]\n", [])):
        actual = config.load(write(tmp_path, f"method: dr_grpo\n{text}"), sets)
        assert actual.settings.model_copy(update={"phases": []}) == plain.settings
        assert {k: s.value for k, s in actual.method.keys.items()} == {k: s.value for k, s in plain.method.keys.items()}
    below = "credit: {part: gae, lam: 0.5}\ntrainer.steps: 3\n"
    actual = config.load(write(tmp_path, below), ["credit={}", "trainer={}"])
    assert actual.method.credit.lam == 0.5 and actual.settings.trainer.steps == 3


def test_an_empty_file_is_refused(tmp_path):
    for text in ("", "# model: tiny\n"):
        with pytest.raises(ConfigError, match="an empty file; a configuration has at least model and task"):
            config.load(write(tmp_path, text))


def test_order_and_origins(tmp_path):
    path = write(tmp_path, "method: dr_grpo\noptim:\n  lr: 0.1\nobjective:\n  clip_low: 0.1\n")
    resolved = config.load(path, ["optim.lr=0.2", "objective.horizon=7.0"])
    origin = {k: s.origin for k, s in resolved.keys.items()}
    assert resolved.settings.optim.lr == 0.2 and origin["optim.lr"] == "--set"
    assert origin["objective.clip_low"] == f"{path}:5"
    assert origin["credit.scale"] == "dr_grpo"
    assert origin["seed"] == "default" and origin["objective.horizon"] == "--set"


def test_compat_stands_between_methods_and_file(tmp_path):
    path = write(tmp_path, "method: grpo\ncompat: trl\n")
    assert config.load(path).method.credit.eps == 1e-4
    assert config.load(path, ["credit.eps=1e-3"]).method.credit.eps == 1e-3


def test_paper_defaults_reach_the_run_s_settings_below_the_file(tmp_path):
    path = write(tmp_path, "method: grpo@paper\n")
    assert config.load(path).settings.optim.lr == 1e-6
    assert config.load(path, ["optim.lr=0.5"]).settings.optim.lr == 0.5


def test_the_resolved_file_resolves_to_the_same_run(tmp_path):
    given_text = (
        "method: dapo+tis\nscoring.weights: {correct: 1, format: 0.5}\ntasks.options.digits: 3\noptim.lr: 1e-5\n"
    )
    first = config.load(write(tmp_path, given_text))
    again = config.load(write(tmp_path, first.to_yaml()))
    assert again.settings == first.settings
    for stage in ("credit", "weights", "terms", "rollout", "rewards", "update"):
        assert getattr(again.method, stage) == getattr(first.method, stage)
    assert again.settings.scoring.weights == {"correct": 1.0, "format": 0.5}


@pytest.mark.parametrize(
    ("text", "sets", "message"),
    [
        ("methd: grpo\n", [], r"run.yaml:1: unknown key 'methd'; did you mean 'method'"),
        ("seed: 0\ncredit:\n  centre: mean\n", [], r"unknown key 'credit.centre'; did you mean 'credit.center'\? .*:3"),
        ("seed: 1\noptim:\n  lr: fast\n", [], r"run.yaml:3: optim.lr: .*number.*fast"),
        ("seed: -1\n", [], r"run.yaml:1: seed: .*greater than or equal to 0"),
        ("seed: 1.5\n", [], r"seed: .*integer"),
        ("trainer: {steps: off}\n", [], r"trainer.steps: .*integer"),
        ("learner: {dtype: float8}\n", [], r"learner.dtype"),
        ("a: [1\n", [], r"run.yaml:\d+: not YAML"),
        ("- 1\n", [], r"is a mapping"),
        ("seed: 1\nseed: 2\n", [], r"not YAML: .*duplicate"),
        ("optim: {lr: 1.0}\noptim.lr: 2.0\n", [], r"run.yaml:2: optim.lr is set twice"),
        ("method: gigpo+opo\n", [], r"gigpo sets credit=relative and opo sets credit=length_weighted"),
        ("", ["optim.lr"], r"write --set KEY=VALUE"),
        ("", ["objective.clip_lo=0.1"], r"did you mean 'objective.clip_low'"),
        ("method: 3\n", [], r"method=3"),
        ("compat: [a]\n", [], r"compat=\['a'\] is not a name"),
        ("credit: {eps: .nan}\n", [], r"credit.eps=nan \(.*run.yaml:1\): it must be a finite number"),
        ("", ["objective.clip_high=.inf"], r"objective.clip_high=inf \(--set\): it must be a finite number"),
        ("", ["optim.lr=1e999"], r"--set: optim.lr: numbers must be finite \(got inf\)"),
        ("", ["optim.betas=[0.9, .nan]"], r"optim.betas: numbers must be finite"),
        ("", ["optim.betas=[0.9]"], r"optim.betas.*2 items"),
        ("", ["optim.betas=[0.9, 1.0]"], r"optim.betas.*less than 1"),
        ("tasks: {options: {share: .inf}}\n", [], r"run.yaml:1: tasks.options: numbers must be finite"),
        ("", ["scoring.weights={correct: .nan}"], r"scoring.weights: numbers must be finite"),
        ("", ["seed=" + "9" * 5000], r"--set seed: a value can't be read: .*5000 digits"),
        ("", ["seed=" + "[" * 5000], r"--set seed:1: lists and mappings are nested"),
        ("", ['chat.system="\\ud800"'], r"--set chat.system: '\\ud800' is not valid Unicode"),
        ("tasks.options.digits: 3\ntasks: {options: {digits: 2}}\n", [], r"run.yaml:2: tasks.options is set twice"),
        ("tasks: {options: {digits: 2}}\ntasks.options.digits: 3\n", [], r"run.yaml:2: tasks.options.digits is set t"),
        (
            "reward: math\n",
            ["scoring.weights.format=1"],
            r"--set: scoring.weights.format: reward is math, which has no entries .*:1",
        ),
        ("", ["tasks.optoins.digits=3"], r"unknown key 'tasks.optoins.digits'"),
        ("seed: 0\nobjectiv: gspo\n", [], r"run.yaml:2: unknown key 'objectiv'; did you mean 'objective'"),
        ("seed: 0\nobjectiv: {}\n", [], r"run.yaml:2: unknown key 'objectiv'; did you mean 'objective'"),
        ("trainr: {}\n", [], r"run.yaml:1: unknown key 'trainr'; did you mean 'trainer"),
        ("credit: {scal: dr_grpo}\n", [], r"unknown key 'credit.scal'; did you mean 'credit.scale'\? .*:1"),
        ("weight.mismatc: tis\n", [], r"neither grpo nor tis has this key; did you mean 'weight.mismatch'\? .*:1"),
        ("", ["weights=tis"], r"--set: unknown key 'weights'; did you mean 'weight'"),
        ("", ["credit={scal: dr_grpo}"], r"unknown key 'credit.scal'; did you mean 'credit.scale'\? \(--set\)"),
        (
            "phases: [{method: grpo, objectiv: gspo}]\n",
            [],
            r"phase 1: phases\[1\]: unknown key 'objectiv'; .*'objective'",
        ),
        ("phases: [{method: grpo, credit.scal: gspo}]\n", [], r"phase 1: unknown key 'credit.scal'; .*'credit.scale'"),
        ("phases: [{method: grpo, untill: x}]\n", [], r"unknown key 'untill'; did you mean 'until'"),
        ("phases: [{method: dpo}]\ncredit.scal: gspo\n", [], r":2: unknown key 'credit.scal' in every phase"),
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
        (
            "scoring.weights: {correct: 1}\n",
            ["scoring.weights.my.py:f=0.5"],
            "scoring.weights",
            {"correct": 1, "my.py:f": 0.5},
            "{path}:1, --set",
        ),
    ],
)
def test_an_entry_of_a_mapping_is_a_key(tmp_path, text, sets, key, value, origin):
    path = write(tmp_path, text)
    stated_config = config.load(path, sets).keys[key]
    assert (stated_config.value, stated_config.origin) == (value, origin.format(path=path))


def test_rewards_of_the_method_stand_beside_weights(tmp_path):
    nested = (
        "scoring: {weights: {correct: 1.0}}\nreward:\n  shape: {overlong: {buffer: 0.5}}\n  add: {overlong: overlong}\n"
    )
    dotted = "scoring.weights: {correct: 1.0}\nreward.shape.overlong.buffer: 0.5\nreward.add.overlong: overlong\n"
    a, b = (config.load(write(tmp_path, text)) for text in (nested, dotted))
    assert a.settings.rewards == b.settings.rewards == {"correct": 1.0}
    assert a.method.shapes == b.method.shapes and a.method.shapes["overlong"].buffer == 0.5
    assert list(a.method.rewards) == list(b.method.rewards) == ["overlong"]
    assert a.keys["reward.shape.overlong.buffer"].origin.endswith(":3")


def test_keys_from_python_are_the_same_keys():
    given_settings = {"tasks.options": {"a": 1}, "tasks.options.b": 2.0, "scoring.weights.format": 1}
    resolved = config.resolve({k: SettingValue(v, "argument") for k, v in given_settings.items()})
    assert resolved.settings.tasks.options == {"a": 1, "b": 2.0} and resolved.settings.rewards == {"format": 1.0}
    for value, message in ((math.nan, "must be finite"), ("\udcff", "Unicode"), (2**70, "64 bits")):
        with pytest.raises(ConfigError, match=f"^argument: tasks.options: .*{message}"):
            config.resolve({"tasks.options": SettingValue({"x": [value]}, "argument")})


@pytest.mark.parametrize("method", ["epo", "hi_agent", "hicra", "hiper", "grpo_d+tis", "passk"])
def test_what_a_method_brings_is_read_back(tmp_path, method):
    first = config.resolve({"method": SettingValue(method, "--set")})
    again = config.load(write(tmp_path, first.to_yaml()))
    assert {k: show(s.value) for k, s in first.keys.items()} == {
        k: show(tuple(s.value) if isinstance(first.keys[k].value, tuple) else s.value) for k, s in again.keys.items()
    }


# ---------------------------------------------------------------- nested and dotted keys, in every section and form
def another(key, entry):
    """A value of a setting that is not its default."""
    given_settings = {"chat.template": "none", "optim.betas": [0.5, 0.5], "learner.device": "cpu", "sampling.servers": "http://x",
             "scoring.options": {"judge": {"a": 1}}, "scoring.weights": {"my.py:f": 0.5},
             "learner.choices": {"head": "blocks"}}  # fmt: skip
    if key in given_settings:
        return given_settings[key]
    hint, default = entry.annotation, entry.default
    words = [w for h in (hint, *get_args(hint)) if get_origin(h) is Literal for w in get_args(h) if w != default]
    if words:
        return words[0]
    if isinstance(default, bool):
        return not default
    if isinstance(default, (int, float)):
        return type(default)(default + 1) if key != "sampling.top_p" else 0.5
    if isinstance(default, list):
        entries = {"phases": {"steps": 2}, "env.mcp": {"command": ["x"], "allow": ["y"]}}
        return [entries.get(key, "x")]
    if isinstance(default, dict):
        return {"judge_tokens": 2} if key == "logging.prices" else {"x": {"y": 1}}
    return "x" if str in (hint, *get_args(hint)) else 2


SETTINGS = {key: another(key, entry) for key, entry in FIELDS.items() if key != "reward"}
STAGED = {
    "credit": "gae", "credit.lam": 0.5, "credit.add.mine": "relative",
    "credit.add.mine.eps": 0.5,
    "weight.mine": "truncated", "weight.mine.cap": 0.25, "rollout": "independent", "rollout.group_size": 3,
    "segment": "delimiter", "segment.text": "|", "reward.shape.overlong": "overlong",
    "reward.shape.overlong.buffer": 0.5,
    "reward.add.overlong.buffer": 0.25, "signal.mine": "task_mean", "objective": "policy_gradient",
    "objective.surrogate": "dual_clip", "objective.clip_low": 0.125, "objective.ratio": "sequence",
    "objective.kl.coef": 0.5,
    "objective.kl.control": "schedule", "objective.kl.control.shape": "cosine", "objective.entropy.coef": 0.125,
    "objective.context": "sampled", "update": "epochs", "update.epochs": 2,
    "tasks.sampler": "band", "tasks.sampler.low": 0.25, "tasks.sampler.levels": [1, 2],
    "likelihood": "elbo", "likelihood.points": 3,
}  # fmt: skip
SECTIONS = {}
for _key, _value in {**SETTINGS, **STAGED}.items():
    _section = stage_of(_key) or (_key.split(".")[0] if "." in _key else "the top")
    SECTIONS.setdefault(_section, {})[_key] = _value


def nested(keys):
    """Dotted keys as mappings within mappings; what names a part beside its options is `part`."""
    out = {}
    for key, value in keys.items():
        words, inner = key.split("."), out
        if any(k.startswith(f"{key}.") for k in keys):
            words.append("part")
        for word in words[:-1]:
            inner = inner.setdefault(word, {})
        inner[words[-1]] = value
    return out


@pytest.mark.parametrize("section", SECTIONS)
def test_every_form_of_the_same_keys_is_the_same_run(tmp_path, section):
    """YAML, --set and Python, dotted and nested, of every key of a section."""
    keys = SECTIONS[section]
    tree = nested(keys)
    as_set = {k: json.dumps(v) for k, v in keys.items()}, {k: json.dumps(v) for k, v in tree.items()}
    forms = {
        "dotted file": config.load(write(tmp_path, "".join(f"{k}: {v}\n" for k, v in as_set[0].items()))),
        "nested file": config.load(write(tmp_path, "".join(f"{k}: {v}\n" for k, v in as_set[1].items()))),
        "dotted --set": config.load(None, [f"{k}={v}" for k, v in as_set[0].items()]),
        "nested --set": config.load(None, [f"{k}={v}" for k, v in as_set[1].items()]),
        "dotted Python": config.resolve({k: SettingValue(v, "argument") for k, v in keys.items()}),
        "nested Python": config.resolve({k: SettingValue(v, "argument") for k, v in tree.items()}),
    }
    actual = {form: {k: show(s.value) for k, s in r.keys.items()} for form, r in forms.items()}
    for form, resolved in actual.items():
        assert resolved == actual["dotted file"], form
    assert {k: actual["dotted file"][k] for k in keys} == {k: show(v) for k, v in keys.items()}
    assert all("default" not in r.keys[k].origin for r in forms.values() for k in keys)
    if section in STAGES:
        a, b = (gxpo.method("grpo", x).keys for x in (keys, tree))
        assert {k: show(s.value) for k, s in a.items()} == {k: show(s.value) for k, s in b.items()}


def test_every_setting_and_every_stage_is_among_the_sections():
    assert {k for keys in SECTIONS.values() for k in keys} >= RUN_KEYS.keys() - {"reward"}
    assert SECTIONS.keys() == {"the top", *STAGES, *(k.split(".")[0] for k in RUN_KEYS if "." in k)}
    assert all(SETTINGS[k] != FIELDS[k].default for k in SETTINGS)


def test_no_key_is_a_section_of_settings_and_a_part():
    sections = {k.split(".")[0] for k in RUN_KEYS if "." in k}
    assert not sections & {*STAGES, *(k for k in RUN_KEYS if "." not in k)}


def test_options_of_parts_are_not_named_as_sections_below_them():
    below = {"credit": {"add"}, "objective": {"add", "kl", "entropy", "gate", "ratio", "context"}}
    for _, slot, table in registry.PLACES:
        for name, kind in table.items():
            options = {f.name for f in dataclasses.fields(kind)} - (
                {"gate", "ratio"} if name in TERMS_OF_A_GATE else set()
            )
            assert not options & ({"part"} | below.get(slot.split(".")[0], set())), (slot, name)


TERMS_OF_A_GATE = ("policy_gradient", "inner_layer")  # what `objective.surrogate` and `objective.ratio` are given to


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"credit": {"eps": 1.0}, "credit.eps": 2.0}, "credit.eps is set twice"),
        ({"credit": {"part": "gae"}, "tasks": {"part": 1}}, "unknown key 'tasks.part'"),
    ],
)
def test_nested_keys_that_can_t_be(given, said):
    with pytest.raises(ConfigError, match=said):
        config.resolve({k: SettingValue(v, "argument") for k, v in given.items()})


def test_two_words_for_one_setting():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gxpo.method("grpo", {"update.lr": 0.5}).run_keys["optim.lr"].value == 0.5
        assert config.load(None, ["update.lr=0.5"]).settings.update.lr == 0.5
        assert gxpo.method("grpo", {"advantage.scale": "none"}).keys["credit.scale"].value == "none"
    with pytest.raises(ConfigError, match=r"credit\.scale is set twice: std and none"):
        gxpo.method("grpo", {"credit.scale": "std", "advantage.scale": "none"})
    with pytest.raises(ConfigError, match=r"unknown key 'objective\.gate'"):
        gxpo.method("grpo", {"objective.gate": "unclipped"})


def test_one_reward_or_several(tmp_path):
    path = write(tmp_path, "reward: math\n")
    assert config.load(path, ["scoring.weights={format: 1}"]).settings.rewards == {"format": 1.0}
    path = write(tmp_path, "scoring.weights: {format: 1}\n")
    assert config.load(path, ["reward=math"]).settings.rewards == "math"
    assert config.load(path, ["scoring.weights.correct=2"]).settings.rewards == {"format": 1.0, "correct": 2.0}
    assert config.load(None, ["method=ttrl"]).settings.rewards == "majority_vote"
    assert config.load(path, ["method=ttrl"]).settings.rewards == {"format": 1.0}
    assert config.load(None, ["method=fgrpr", "reward=math"]).settings.rewards == "math"
    assert config.load(None, []).settings.rewards is None


def test_keys_over_a_method_that_was_composed_in_python():
    def own(forest, signals, step):
        return forest.to_path(forest.outcome, "R")

    method = gxpo.method("dr_grpo+gspo", {"objective.clip_low": 0.1, "rollout.group_size": 4})
    given_settings = {"credit": own, "rollout.group_size": 2, "optim.lr": 1e-3}
    actual = config.resolve({k: SettingValue(v, "argument") for k, v in given_settings.items()}, composition=method)
    origins = {k: (s.value, s.origin) for k, s in actual.keys.items()}
    assert origins["rollout.group_size"] == (2, "argument") and origins["credit"] == (own, "argument")
    assert origins["objective.clip_low"] == (0.1, "override") and origins["objective.ratio"][1] == "gspo"
    assert origins["optim.lr"] == (1e-3, "argument") and "credit.scale" not in origins
    assert actual.method.name == "dr_grpo+gspo" and method.rollout.group_size == 4  # the caller's stays as it is
    assert gxpo.method(method) is method and gxpo.method(method, {"rollout.group_size": 8}).rollout.group_size == 8
    assert config.resolve(
        {"compat": SettingValue("verl", "argument")}, composition=gxpo.method("grpo")
    ).method.keys == (gxpo.method("grpo", compat="verl").keys)


def test_keys_over_a_method_with_replaced_parts_are_refused():
    changed = dataclasses.replace(gxpo.method("grpo"), weights={})
    with pytest.raises(ConfigError, match=r"credit\.scale: parts of method grpo were replaced after it was composed"):
        config.resolve({"credit.scale": SettingValue("none", "argument")}, composition=changed)
    with pytest.raises(ConfigError, match="set names a method beside method=: leave one out"):
        gxpo.train("tiny:cold", "arithmetic", gxpo.method("grpo"), set={"method": "rloo"})
