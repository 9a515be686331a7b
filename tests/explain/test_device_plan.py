"""Whether a run fits a GPU that is not there, and the settings by which it does."""

import json
import re

import pytest
from tests import command_line

from gxpo import config
from gxpo.base.errors import ConfigError
from gxpo.explain import memory
from gxpo.explain.device_plan import SHARE, device_plan, training_of
from gxpo.explain.memory import GPUS
from gxpo.models.shape import KNOWN, SOURCES
from gxpo.parts.definition import SettingValue


def resolved(**keys):
    keys = {"model": "qwen2.5-0.5b"} | {name.replace("__", "."): value for name, value in keys.items()}
    return config.resolve({name: SettingValue(value, "test") for name, value in keys.items()})


def plan_of(gpu, context=None, **keys):
    run = resolved(**keys)
    return device_plan(KNOWN[run.settings.model], run, training_of(run, context), gpu)


def test_sizes_of_a_run():
    t = training_of(resolved(rollout__group_size=4, tasks__per_step=3, sampling__max_new_tokens=100), 130)
    # a tree is a prompt of 30 tokens and 4 answers of 100; a step has three, and 12 samples
    assert (t.prompt, t.context, t.row, t.microbatch) == (30, 130, 430, 1290)
    assert (t.samples, t.prompts, t.kept_tokens) == (12, 3, 0)
    assert training_of(resolved(learner__layout="flat"), 130).row == 130
    assert training_of(resolved(learner__optimiser="lion"), 130).optimiser_states == 1


def test_parts_of_half_a_billion_parameters():
    n = KNOWN["qwen2.5-0.5b"].parameters
    update = plan_of("h100")["update"]
    assert (update["parameters"], update["gradients"], update["optimiser"]) == (4 * n, 4 * n, 8 * n)
    half = plan_of("h100", learner__dtype="bfloat16", objective__kl__coef=0.1)["update"]
    # a float32 copy and two moments; a reference in 16 bits
    assert (half["parameters"], half["optimiser"], half["reference"]) == (2 * n, 12 * n, 2 * n)
    rounded = plan_of("h100", learner__dtype="bfloat16", learner__states="bfloat16")["update"]
    assert (rounded["gradients"], rounded["optimiser"]) == (2 * n, 4 * n)


def test_advice_makes_it_fit():
    plan = plan_of("t4")
    assert plan["fits"] == {"update": False, "sampling": True}
    (line,) = [x for x in plan["advice"] if x.startswith("set ")]
    keys = dict(part.split("=") for part in line.removeprefix("set ").partition(":")[0].split(" and "))
    assert list(keys) == ["learner.tokens_per_microbatch"]
    fitting = plan_of("t4", learner__tokens_per_microbatch=int(keys["learner.tokens_per_microbatch"]))
    assert all(fitting["fits"].values()) and memory.total(fitting["update"]) <= SHARE * GPUS["t4"].memory
    assert not plan_of("t4", learner__tokens_per_microbatch=2 * int(keys["learner.tokens_per_microbatch"]))["fits"][
        "update"
    ]


def test_nf4_takes_half_a_byte_of_a_linear_weight_and_a_128th_part_more():
    shape = KNOWN["qwen2.5-7b"]
    # 28 layers: queries and output 3584 x 3584, keys and values 512 x 3584, three matrices of 18944 x 3584
    linear = 28 * (2 * 3584 * 3584 + 2 * 512 * 3584 + 3 * 18944 * 3584)
    keys = {"model": "qwen2.5-7b", "learner__dtype": "bfloat16", "learner__lora_rank": 16}
    dense, quantised = (plan_of("4090", **keys, **more)["update"] for more in ({}, {"learner__base": "nf4"}))
    assert dense["parameters"] == 2 * shape.parameters
    # half a byte; a byte for 64 weights; 4 bytes for 256 of those
    expected = 2 * (shape.parameters - linear) + linear // 2 + linear // 64 + linear // 4096
    assert quantised["parameters"] == pytest.approx(expected, rel=1e-6)
    # 70 billion weights of 2 bytes fit no h100, and of half a byte they do
    large = plan_of("h100", **{**keys, "model": "llama-3.1-70b"})
    (line,) = [x for x in large["advice"] if x.startswith("set ")]
    assert re.fullmatch(
        r"set (learner.tokens_per_microbatch=\d+ and )?learner.base=nf4: then it takes .* at most", line
    )
    with pytest.raises(ConfigError, match="experts are not: leave it out"):
        plan_of("h200", model="gpt-oss-20b", learner__lora_rank=16, learner__base="nf4")


def test_a_t4_has_no_bfloat16():
    advice = plan_of("t4", learner__dtype="bfloat16")["advice"]
    assert "a t4 has no bfloat16 in hardware: set learner.dtype=float32" in advice
    assert not any("bfloat16" in line for line in plan_of("l4", learner__dtype="bfloat16")["advice"])
    assert not any("dtype=bfloat16" in line for line in plan_of("t4", model="qwen2.5-7b")["advice"])


def test_what_fits_nowhere_names_a_larger_gpu_and_shards():
    (line,) = [x for x in plan_of("t4", model="llama-3.1-70b")["advice"] if "no settings" in x]
    assert (
        "cluster.backend=fsdp" in line and "h100" in line and "l4" not in line.partition(";")[2].partition("would")[0]
    )


def test_a_mixture_is_adapted_on_attention():
    advice = plan_of("h100", model="qwen3-30b-a3b")["advice"]
    assert any("learner.lora_rank=16 and learner.lora_targets=[q_proj" in line for line in advice)
    adapted = plan_of("h200", model="gpt-oss-20b", learner__dtype="bfloat16", learner__lora_rank=16)
    assert all(adapted["fits"].values()) and any("not counted here" in line for line in adapted["advice"])


def test_an_environment_without_a_limit_needs_a_context():
    with pytest.raises(ConfigError, match="state its tokens with --context"):
        training_of(resolved(task="frozenlake"), None)
    assert training_of(resolved(task="frozenlake"), 500).kept_tokens > 0


def test_sources_are_known_for_every_known_size():
    assert set(SOURCES) == set(KNOWN)


def test_the_command():
    code, text, _ = command_line.run(
        ("plan", "--gpu", "T4", "--set", "model=qwen2.5-0.5b", "--set", "learner.lora_rank=16")
    )
    assert code == 0 and "t4: 15.8 GB" in text and "adapters of rank 16" in text
    assert "(sizes of Qwen/Qwen2.5-0.5B)" in text and "prompts of 256 tokens (assumed: --context)" in text
    code, text, _ = command_line.run(("plan", "--gpu", "l4", "--set", "model=qwen3-0.6b", "--context", "900", "--json"))
    plan = json.loads(text)["device"]
    assert code == 0 and plan["training"]["context"] == 900 and plan["gpu"] == "l4"
    code, text, _ = command_line.run(("plan", "--gpu", "h100", "--set", "model=qwen2.5-7b", "--links", "2"))
    assert code == 0 and "publication" in text
