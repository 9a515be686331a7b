"""Choice of the engine: the configured one, or the fastest that is installed and fits."""

from dataclasses import replace

import pytest

from gxpo.base.errors import ConfigError
from gxpo.parts.protocols import Sampling
from gxpo.sampling.engines.choose import Run, choose

RUN = Run("smollm2-135m", "LlamaForCausalLM", "bfloat16", "cpu", 1, 1, Sampling())


def yes(python):
    return True


def no(python):
    return False


def test_auto_takes_vllm_where_it_is_installed():
    assert choose("auto", RUN, has_vllm=yes).engine == "vllm"
    local_choose = choose("auto", RUN, python="/opt/vllm/bin/python", has_vllm=yes)
    assert (local_choose.engine, local_choose.reason) == ("vllm", "it is installed in /opt/vllm/bin/python")
    away = choose("auto", RUN, has_vllm=no)
    assert (away.engine, away.reason) == ("torch", "vllm is not installed")


@pytest.mark.parametrize(
    "change, words",
    [
        ({"model": "tiny"}, "in process"),
        ({"model": "tiny:cold"}, "in process"),
        ({"architecture": "MambaForCausalLM"}, "MambaForCausalLM has not been tried"),
        ({"dtype": "float64"}, "float64"),
        ({"device": "cuda:0"}, "has not been measured"),
        ({"policies": 2}, "2 policies"),
        ({"processes": 4}, "of its own"),
        ({"sampling": Sampling(top_p=0.9)}, "top_p without top_k"),
        ({"sampling": Sampling(top_k=1000)}, "top_k=1000"),
        ({"sampling": Sampling(temperature=0.001)}, "0.001"),
    ],
)
def test_auto_takes_torch_with_a_reason_where_vllm_does_not_fit(change, words):
    choice = choose("auto", replace(RUN, **change), has_vllm=yes)
    assert choice.engine == "torch" and words in choice.reason


def test_a_configured_engine_is_taken_or_refused():
    assert choose("torch", RUN, has_vllm=yes).engine == "torch"
    assert choose("vllm", replace(RUN, model="tiny", device="cuda"), has_vllm=yes).engine == "vllm"
    assert choose("openai", RUN, servers=["http://localhost:8000/v1"]).engine == "openai"


@pytest.mark.parametrize(
    "asked, change, given, words",
    [
        ("vllm", {}, {"has_vllm": no}, "has no vllm; name an interpreter that has in sampling.engine_python"),
        ("vllm", {"policies": 2}, {"has_vllm": yes}, "2 policies, adapters of one model; set sampling.engine=torch"),
        ("vllm", {"dtype": "float64"}, {"has_vllm": yes}, "does not run float64"),
        ("openai", {}, {}, "needs sampling.servers"),
        ("openai", {"policies": 3}, {"servers": "http://x/v1"}, "3 policies"),
        ("auto", {}, {"servers": "http://x/v1"}, "is used with sampling.engine=openai"),
        ("torch", {}, {"python": "/opt/vllm/bin/python"}, "is the interpreter of vLLM"),
    ],
)
def test_refusals_name_the_setting(asked, change, given, words):
    with pytest.raises(ConfigError, match=words):
        choose(asked, replace(RUN, **change), **given)
