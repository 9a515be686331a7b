"""Every key that a remedy or an "enable" line prints is a real one: of gxpo's own registries, or of the settings of
TRL 1.16.0 and of the wheel of verl 0.9.1, in settings_of_trainers.json."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.doctor.logs import log

from gxpo.doctor import RunLog, diagnosis
from gxpo.doctor.readers.keys import trainers
from gxpo.doctor.remedies import FOLDER, SOURCES, foremost, lines_for, remedies, remedy_table
from gxpo.doctor.sickness import SICKNESSES
from gxpo.methods.compose import method
from gxpo.parts import settings
from gxpo.training import config

assert diagnosis  # registers the checks
KNOWN = json.loads((Path(__file__).parent / "settings_of_trainers.json").read_text())
TRL, VERL = KNOWN["trl"], KNOWN["verl"]
ASSIGNED = re.compile(r"(?<![\w.'\"])(\+?[A-Za-z_][\w.]*)=(?!=)('[^']*'|\[[^]]*\]|\{[^}]*\}|[^\s,;:)]*)")
DOTTED = re.compile(r"(?<![\w./'<\[])\+?[a-z_]\w*(?:\.[a-z_]\w*)+(?![\w(/'])")
FILES = re.compile(r".*\.(json|jsonl|yaml|py|jinja|parquet)|e\.g")
# words of Python that are no settings: (line's own) objects, and columns and metrics of the trainers
PYTHON = {
    "trl": {
        "tokenizer.eos_token",
        "model.generation_config.eos_token_id",
        "trainer.train",
        "tokenizer.apply_chat_template",
        "gxpo.adapters.trl",
        "gxpo.adapters.trl.GRPOTrainer",
        "gxpo.adapters.trl.Doctor",
        "method",  # gxpo's GRPOTrainer
        "is_trainable",  # PeftModel.from_pretrained
    },
    "verl": {"VERL_USE_EXTERNAL_MODULES", "gxpo.adapters.verl", "reward_model.ground_truth"},
    "gxpo": set(),
}
METHODS_KEYS = set(method("grpo").keys) | {"method", "reward.add.length", "reward.add.overlong"}
GXPO_KEYS = set(settings.FIELDS) | METHODS_KEYS | {f"reward.add.length.{k}" for k in ("coef", "answers", "scale")}
KEYS = {
    "trl": {n for k in TRL if k not in ("from", "version") for n in TRL[k]},
    "verl": set(VERL["keys"]) | set(VERL["read"]),
    "gxpo": GXPO_KEYS,
}
for patched in ("unsloth", "ms-swift"):
    KEYS[patched], PYTHON[patched] = KEYS["trl"], PYTHON["trl"]
SAID = [
    (s, f"{n}-{i}", line) for s in SOURCES for n, lines in remedy_table(s).items() for i, line in enumerate(lines)
] + [(s, f"enable-{need}", line) for s in ("trl", "verl", "gxpo") for need, line in trainers()[s].lines.items()]


@pytest.mark.parametrize("source", ["trl", "verl", "gxpo", "unsloth", "openrlhf", "prime-rl", "unknown"])
def test_every_sickness_has_a_remedy(source):
    assert [name for name in SICKNESSES if not lines_for(name, source)] == []


@pytest.mark.parametrize("name", ["trl", "verl", "gxpo", "any"])
def test_a_table_of_remedies_is_valid(name):
    """Known sicknesses, each with one line or more: texts without a break, each once, and none is a value of YAML."""
    table = remedy_table(name)
    assert set(table) <= set(SICKNESSES) and len(table) > 30
    for sickness, lines in table.items():
        assert lines and len(set(lines)) == len(lines), sickness
        assert all(isinstance(x, str) and x == " ".join(x.split()) and len(x) > 5 for x in lines), sickness
    assert table is remedy_table(name)  # read once


def test_every_file_of_remedies_is_of_a_trainer_or_for_any():
    assert {p.stem for p in FOLDER.glob("*")} == {*SOURCES, "any"} - {"unsloth", "ms-swift"}


def test_keys_are_real():
    unreal = []
    for source, name, line in SAID:
        unknown = {w for w, _ in ASSIGNED.findall(line)} | set(DOTTED.findall(line))
        unknown = {w.removeprefix("+") for w in unknown if not FILES.fullmatch(w)}
        unreal += [(source, name, key) for key in unknown - KEYS[source] - PYTHON[source]]
    assert unreal == []


def test_long_names_are_real():
    """Words with an underscore, except within quotes."""
    columns = {"completion_ids", "well_formed", "is_trainable", "requires_grad"}
    names = {"_get_train_sampler", "_generate_and_score_completions", "ignore_eos", "pad_token", "eos_token"}
    unreal = []
    for source, name, line in SAID:
        if source in ("trl", "unsloth"):
            words = set(re.findall(r"(?<![\w.'/])[a-z]+(?:_[a-z]+)+(?![\w.'=(])", re.sub("'[^']*'", "", line)))
            unreal += [(source, name, word) for word in words - KEYS["trl"] - columns - names]
    assert unreal == []


def test_the_values_that_verl_names_are_real():
    assigned = [(k.removeprefix("+"), v) for s, _, line in SAID if s == "verl"
                for k, v in ASSIGNED.findall(line)]  # fmt: skip
    assignments = [(k, v) for k, v in assigned if k in VERL["values"] and not v.startswith("gxpo/")]
    assert len(assignments) >= 8
    assert [(k, v) for k, v in assignments if v not in VERL["values"][k]] == []


def test_a_key_that_is_no_key_would_be_seen():
    assert ASSIGNED.findall("max_lenght=3, and top_k=0") == [("max_lenght", "3"), ("top_k", "0")]
    assert "max_lenght" not in KEYS["trl"] and "actor_rollout_ref.actor.clip_grad" not in KEYS["verl"]


@pytest.mark.parametrize(
    "stated",
    [
        [f"{k}={v}"]
        for source, _, line in SAID
        if source == "gxpo"
        for k, v in ASSIGNED.findall(line)
        if not v.startswith("FILE")
    ],
    ids=lambda stated: stated[0],
)
def test_gxpo_takes_what_is_said(stated):
    """Each assignment, as `gxpo plan --set` reads it."""
    assert config.load(None, stated).keys


def test_untested_lines_are_marked_and_name_their_sickness():
    case = RunLog("verl")
    assert remedies(["dead_component"], case) == (
        "call compute_score on a reference answer by hand; mend that part, or remove it (untested here)",
    )
    both = remedies(["no_eos", "truncation"], case)
    assert [line.split(":")[0] for line in both] == ["no_eos", "no_eos", "truncation", "truncation"]


def test_unsloth_takes_trls_keys_but_not_our_trainer():
    assert (
        lines_for("no_diversity", "unsloth")
        == lines_for("no_diversity", "trl")
        == ("temperature=1.0, top_k=0, top_p=1.0",)
    )
    assert len(lines_for("all_wrong", "unsloth")) == len(lines_for("all_wrong", "trl")) - 1
    assert not [x for lines in remedy_table("unsloth").values() for x in lines if "gxpo" in x]


def test_what_helped_is_said_before_what_nobody_has_measured():
    lines = (
        "advantage_sign: look at the sign (untested here)",
        "lr_too_high: clip [measured, no clear change: +.02, 1 task, 12 seeds]",
        "lr_too_high: a third of the rate [measured: +.48, 1 task, 12 seeds]",
    )
    assert foremost(lines, 2) == [lines[2], lines[0]]


def test_a_run_is_not_advised_the_method_that_it_has():
    advised = {
        name: remedies(["all_wrong"], log("gxpo", {"method": name}, reward=0.0)) for name in ("grpo", "ngrpo+tis")
    }
    assert any(line.startswith("method=ngrpo ") for line in advised["grpo"])
    assert not any(line.startswith("method=ngrpo ") for line in advised["ngrpo+tis"])
    assert len(advised["grpo"]) == len(advised["ngrpo+tis"]) + 1


def test_methods_are_withheld_while_scores_are_suspect():
    ids, run = ["all_wrong", "verifier_rejects_right_answers"], log("trl", reward=0.0)
    lines = remedies(ids, run, with_methods=False)
    assert lines[0].startswith("verifier_rejects_right_answers: ")
    assert not any("ngrpo" in line for line in lines) and any("ngrpo" in line for line in remedies(ids, run))
