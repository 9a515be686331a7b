"""Choice of the inference engine: the configured one, or the fastest that is installed and fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gxpo.base.errors import ConfigError
from gxpo.parts.protocols import Sampling
from gxpo.sampling.engines.remote_requests import LEAST_TEMPERATURE
from gxpo.sampling.engines.vllm import MOST_TOP_K
from gxpo.sampling.engines.vllm_process import can_import, interpreter

# Architectures with the same parameter names in transformers and in the checkpoints that vLLM reads. Small random
# models of each gave the same log-probs in float32 on both sides (vLLM 0.32).
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

    model         model name in the settings;   architecture  class of the loaded model
    dtype         dtype of its parameters;   device  device of the learner ("cpu", "cuda:0")
    policies      number of policies that are sampled
    processes     number of processes of torch.distributed
    has_vision    True if the model reads pictures
    own_pictures  name of gxpo's own processor of pictures; None: one of transformers
    base          storage of the weights under adapters (`learner.base`); None: as `dtype`
    """

    model: str
    architecture: str
    dtype: str
    device: str
    policies: int
    processes: int
    sampling: Sampling
    has_vision: bool = False
    own_pictures: str | None = None
    base: str | None = None


@dataclass(frozen=True)
class Choice:
    """Chosen engine ("torch", "vllm", "openai") with the reason in one line."""

    engine: str
    reason: str


def choose(
    engine: str,
    run: Run,
    *,
    python: str | None = None,
    servers: Sequence[str] | str | None = None,
    has_vllm: Callable[[str], bool] = can_import,
) -> Choice:
    """Choose the engine of a run; `ConfigError` if the configured one can't be used.

    engine     "auto" | "torch" | "vllm" | "openai"
    python     interpreter that has vLLM (None: this one);   servers  addresses of OpenAI-compatible servers
    has_vllm   tells if an interpreter has vLLM
    """
    # Settings of another engine would be ignored silently, so they are refused first.
    if servers is not None and engine != "openai":
        raise ConfigError(f"sampling.servers={servers} is used with sampling.engine=openai, and the engine is {engine}")
    if python is not None and engine not in ("auto", "vllm"):
        raise ConfigError(f"sampling.engine_python is the interpreter of vLLM, and sampling.engine is {engine}")
    if engine == "torch":
        return Choice("torch", "it was asked for")
    if engine == "openai":
        if not servers:
            raise ConfigError("sampling.engine=openai needs sampling.servers, as [http://localhost:8000/v1]")
        if reason := policies_reason(run) or pictures_reason(run):
            raise ConfigError(f"sampling.engine=openai can't be used here: {reason}; set sampling.engine=torch")
        return Choice("openai", "it was asked for")
    # A configured vLLM that can't be used is an error; with "auto" the same reasons fall back to torch.
    vllm_python = interpreter(python)
    if engine == "vllm":
        if reason := unsupported_reason(run):
            raise ConfigError(f"sampling.engine=vllm can't be used here: {reason}; set sampling.engine=torch")
        if not has_vllm(vllm_python):
            raise ConfigError(
                f"sampling.engine=vllm: {vllm_python} has no vllm; name an interpreter that has in "
                "sampling.engine_python, or pip install 'gxpo[vllm]'"
            )
        return Choice("vllm", "it was asked for")
    if reason := unsupported_reason(run) or not_automatic_reason(run):
        return Choice("torch", reason)
    if not has_vllm(vllm_python):
        location = "" if python is None else f" in {vllm_python}"
        return Choice("torch", f"vllm is not installed{location}")
    return Choice("vllm", f"it is installed{'' if python is None else f' in {vllm_python}'}")


def is_builtin_model(model: str) -> bool:
    """Return True if a model name means gxpo's built-in tiny model."""
    return model.partition(":")[0] in ("tiny", "tiny-vision", "tokens")


def policies_reason(run: Run) -> str | None:
    """Reason why only an engine in this process can sample (several policies, 4-bit weights); None if there is none."""
    if run.base is not None:
        return f"other engines are sent merged weights, and learner.base={run.base} has them in 4 bits"
    return f"the run has {run.policies} policies, adapters of one model" if run.policies > 1 else None


def pictures_reason(run: Run) -> str | None:
    """Reason why a server can't sample a model that reads pictures; None if the model reads texts."""
    if not run.has_vision:
        return None
    return (
        f"{run.architecture} reads pictures, and /v1/completions takes token ids alone (chat completions take "
        "pictures, and tokenise the text again)"
    )


def unsupported_reason(run: Run) -> str | None:
    """Reason why vLLM can't sample this run; None if it can."""
    s = run.sampling
    if reason := policies_reason(run):
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


def not_automatic_reason(run: Run) -> str | None:
    """Reason why vLLM is not chosen automatically although it could sample; None if it is chosen."""
    if is_builtin_model(run.model):
        return "the tiny model is sampled faster in process"
    if run.has_vision:
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
