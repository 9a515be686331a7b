"""Choice of the inference engine: the configured one, or the fastest that is installed and fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gxpo.base.errors import ConfigError
from gxpo.parts.protocols import Sampling
from gxpo.sampling.engines.remote_requests import LEAST_TEMPERATURE
from gxpo.sampling.engines.vllm import MOST_TOP_K
from gxpo.sampling.engines.vllm_process import can_import, interpreter

# whose parameters have the same names in transformers and in the checkpoints that vLLM reads; small random models of
# each gave the same log-probs in float32 on both sides (vLLM 0.32)
PLAIN = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "SmolLM3ForCausalLM",
    "OlmoForCausalLM",
    "Olmo2ForCausalLM",
    "GraniteForCausalLM",
    "Phi3ForCausalLM",
)


@dataclass(frozen=True)
class Run:
    """Properties of a run that determine its engine.

    model         as the settings name it;   architecture  the class of the model that was loaded
    dtype         of its parameters, and device ("cpu", "cuda:0") where the learner holds them
    policies      how many policies are sampled
    processes     of torch.distributed
    sees          it reads pictures
    own_pictures  name of gxpo's own processor that prepares them; None: one of transformers
    """

    model: str
    architecture: str
    dtype: str
    device: str
    policies: int
    processes: int
    sampling: Sampling
    sees: bool = False
    own_pictures: str | None = None


@dataclass(frozen=True)
class Choice:
    """The chosen engine ("torch", "vllm", "openai"), and why in one line."""

    engine: str
    why: str


def choose(
    asked: str,
    run: Run,
    *,
    python: str | None = None,
    servers: Sequence[str] | str | None = None,
    installed: Callable[[str], bool] = can_import,
) -> Choice:
    """Choose the engine of a run; `ConfigError` if the configured one can't be used.

    asked      "auto" | "torch" | "vllm" | "openai"
    python     interpreter that has vLLM (None: this one);   servers  addresses of OpenAI-compatible servers
    installed  whether an interpreter has vLLM
    """
    if servers is not None and asked != "openai":
        raise ConfigError(f"sampling.servers={servers} is used with sampling.engine=openai, and the engine is {asked}")
    if python is not None and asked not in ("auto", "vllm"):
        raise ConfigError(f"sampling.engine_python is the interpreter of vLLM, and sampling.engine is {asked}")
    if asked == "torch":
        return Choice("torch", "it was asked for")
    if asked == "openai":
        if not servers:
            raise ConfigError("sampling.engine=openai needs sampling.servers, as [http://localhost:8000/v1]")
        if reason := several(run) or blind(run):
            raise ConfigError(f"sampling.engine=openai can't be used here: {reason}; set sampling.engine=torch")
        return Choice("openai", "it was asked for")
    where = interpreter(python)
    if asked == "vllm":
        if reason := impossible(run):
            raise ConfigError(f"sampling.engine=vllm can't be used here: {reason}; set sampling.engine=torch")
        if not installed(where):
            raise ConfigError(
                f"sampling.engine=vllm: {where} has no vllm; name an interpreter that has in sampling.engine_python, "
                "or pip install 'gxpo[vllm]'"
            )
        return Choice("vllm", "it was asked for")
    if reason := impossible(run) or unfit(run):
        return Choice("torch", reason)
    if not installed(where):
        named = "" if python is None else f" in {where}"
        return Choice("torch", f"vllm is not installed{named}")
    return Choice("vllm", f"it is installed{'' if python is None else f' in {where}'}")


def of_the_house(model: str) -> bool:
    """Whether a model is the embedded tiny one."""
    return model.partition(":")[0] in ("tiny", "tiny-vision")


def several(run: Run) -> str | None:
    """Why only an engine in this process can sample."""
    return f"the run has {run.policies} policies, adapters of one model" if run.policies > 1 else None


def blind(run: Run) -> str | None:
    """Why a server can't sample a model that reads pictures; None if the model reads texts."""
    if not run.sees:
        return None
    return (
        f"{run.architecture} reads pictures, and /v1/completions takes token ids alone (chat completions take "
        "pictures, and tokenise the text again)"
    )


def impossible(run: Run) -> str | None:
    """Why vLLM can't sample, in words; None if it can."""
    s = run.sampling
    if reason := several(run):
        return reason
    if run.own_pictures is not None:
        return (
            f"pictures of this {run.architecture} are prepared by gxpo's own {run.own_pictures}, and vLLM knows the "
            "processors of transformers alone"
        )
    if run.dtype not in ("float32", "bfloat16", "float16"):
        return f"vLLM does not run {run.dtype}"
    if 0 < s.temperature < LEAST_TEMPERATURE:
        return f"vLLM's least temperature above 0 is {LEAST_TEMPERATURE:g}, and sampling.temperature={s.temperature:g}"
    if s.truncated_support and s.top_k > MOST_TOP_K:
        return f"vLLM is asked for at most {MOST_TOP_K} possible tokens at a position, and sampling.top_k={s.top_k}"
    return None


def unfit(run: Run) -> str | None:
    """Why vLLM is not chosen automatically; None if it is."""
    if of_the_house(run.model):
        return "the tiny model is sampled faster in process"
    if run.sees:
        return "pictures in vLLM were tried with small random models alone (sampling.engine=vllm tries it)"
    if run.architecture not in PLAIN:
        return f"{run.architecture} has not been tried with vLLM (sampling.engine=vllm tries it)"
    if run.device.partition(":")[0] != "cpu":
        return f"vLLM beside a learner on {run.device} has not been measured (sampling.engine=vllm tries it)"
    if run.processes > 1:
        return "every process would start a vLLM of its own (sampling.engine=vllm does)"
    if run.sampling.top_p < 1 and run.sampling.top_k == 0:
        return "top_p without top_k may leave more tokens possible than vLLM names (sampling.engine=vllm tries it)"
    return None
