"""The doctor's remedies in TRL's and verl's keys can be carried out there: fields, values and methods."""

import ast
import importlib.util
import re

import pytest

from gxpo.adapters import available
from gxpo.adapters.convert import WITHOUT_EFFECT
from gxpo.adapters.trl_config import DEFAULTS
from gxpo.doctor.remedies import remedy_table

TRL, VERL = remedy_table("trl"), remedy_table("verl")
PAIR = re.compile(r"([\w.+@/]+)=('[^']*'|\[[^\]]*\]|\{[^}]*\}|[\w.\-/]+)")
# arguments of GRPOTrainer, of train(), of vLLM or of models, not fields of GRPOConfig
ELSEWHERE = {"processing_class", "tokenizer.eos_token", "method", "resume_from_checkpoint", "is_trainable", "tokenize",
             "add_generation_prompt",
             "model.generation_config.eos_token_id"}  # fmt: skip
FIELDS = {"ref_model_sync_steps", "load_best_model_at_end", "metric_for_best_model", "save_only_model",
          "model_init_kwargs", "num_generations_eval"}  # fmt: skip  # further ones


def pairs(line):
    return [(name, value.rstrip(".")) for name, value in PAIR.findall(line)]


def literal(value):
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value


def test_every_field_of_a_trl_remedy_is_one():
    listed_names = {name for lines in TRL.values() for line in lines for name, _ in pairs(line)}
    assert len(listed_names) > 20 and listed_names - ELSEWHERE - FIELDS <= {*DEFAULTS, *WITHOUT_EFFECT}


def test_every_method_of_a_remedy_works_there():
    trl = [v.strip("'") for lines in TRL.values() for line in lines for n, v in pairs(line) if n == "method"]
    assert len(trl) >= 2
    assert all(row.works and not row.given for row in available.available("trl", trl))
    text = " ".join(line for lines in VERL.values() for line in lines)
    verl = re.findall(r"(adv_estimator|loss_mode)=gxpo/(\w+)", text)
    assert len(verl) >= 2
    for key, name in verl:
        (row,) = available.available("verl", [name])
        assert {"adv_estimator": "advantage", "loss_mode": "loss"}[key] in row.parts


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed")
@pytest.mark.parametrize("name", TRL)
def test_the_installed_trl_takes_them(name, tmp_path):
    from trl import GRPOConfig

    for line in TRL[name]:
        expected = {n: literal(v) for n, v in pairs(line) if n not in ELSEWHERE}
        expected = {n: v for n, v in expected.items() if v != "gradient_accumulation_steps" and n != "bf16"}
        groups = expected.get("num_generations", 8)
        if "load_best_model_at_end" in expected:
            expected |= {"eval_strategy": "steps", "eval_steps": 500}
        usual = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "per_device_train_batch_size": groups}
        if " or " not in line:  # one after the other where there are several
            GRPOConfig(**{**usual, **expected})
        for n, v in pairs(line):
            if n in expected and n not in ("load_best_model_at_end", "metric_for_best_model"):
                assert getattr(GRPOConfig(**{**usual, n: literal(v)}), n) == literal(v)
