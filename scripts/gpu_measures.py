"""Measurements of `scripts/gpu.py` on random weights of named shapes: numbers, speed, the same step in TRL."""

from __future__ import annotations

import copy
import json
import math
import tempfile
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from gpu import Figures

QWEN = {"vocab_size": 151936, "max_position_embeddings": 32768, "tie_word_embeddings": True, "rope_theta": 1e6}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "qwen2.5-0.5b": {**QWEN, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
                     "num_attention_heads": 14, "num_key_value_heads": 2},
    "qwen2.5-1.5b": {**QWEN, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
                     "num_attention_heads": 12, "num_key_value_heads": 2},
    "qwen2.5-7b": {**QWEN, "vocab_size": 152064, "tie_word_embeddings": False, "hidden_size": 3584,
                   "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
                   "num_key_value_heads": 4},
    "toy": {**QWEN, "vocab_size": 101, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2},
}  # fmt: skip
GROUP = 8  # samples of a prompt


def functions_of(device: str) -> Any:
    """Return torch's module of functions of a device, such as torch.cuda; None for a CPU."""
    return None if device == "cpu" else torch.get_device_module(device)


def clock(device: str) -> float:
    """Return the seconds once the device has done what it was given."""
    if (functions := functions_of(device)) is not None:
        functions.synchronize()
    return time.perf_counter()


class Peak:
    """Largest memory, MiB, that torch has allocated on the GPU since this was made, and what was held before."""

    def __init__(self, device: str) -> None:
        self.functions = functions_of(device)
        if self.functions is not None:
            self.functions.reset_peak_memory_stats()
            self.before = self.functions.memory_allocated()

    def figures(self) -> dict[str, float]:
        if self.functions is None:
            return {}
        peak = self.functions.max_memory_allocated()
        return {"peak_mib": peak / 2**20, "above_model_mib": (peak - self.before) / 2**20}


def random_model(name: str, device: str, dtype: torch.dtype) -> Any:
    """Make a Qwen2 of that shape with random weights; the same on every device."""
    return copy.deepcopy(random_weights(name)).to(dtype).to(device).eval()


@lru_cache(maxsize=1)
def random_weights(name: str) -> Any:
    """Make the model in float32 on the host: drawing half a billion numbers takes seconds, and figures share them."""
    import transformers

    torch.manual_seed(0)
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SHAPES[name], dtype=torch.float32))


def random_forest(vocabulary: int, groups: int, prompt: int, new: int, seed: int = 0, group: int = GROUP) -> Any:
    """Make groups of `group` completions of random tokens, every second one right."""
    from gxpo import Forest

    generator = torch.Generator().manual_seed(seed)

    def ids(n: int) -> list[int]:
        return torch.randint(3, vocabulary, (n,), generator=generator).tolist()

    completions = [[ids(new) for _ in range(group)] for _ in range(groups)]
    rewards = [[float(i % 2) for i in range(group)]] * groups
    return Forest.from_completions([ids(prompt) for _ in range(groups)], completions, rewards)


# ---------------------------------------------------------------- c: numbers
METHODS = ("grpo", "dr_grpo", "gspo", "cispo", "gvpo")


def numerics(figures: Figures) -> None:
    """Compare loss and gradient of five methods with the CPU's in float32; log-probs of sampler and learner."""
    shape, groups, prompt, new = ("toy", 2, 3, 5) if figures.toy else ("qwen2.5-0.5b", 2, 24, 24)
    cpu_results: dict[str, Any] = {}  # the CPU's, made when the first figure needs them
    for dtype in ("float32", "bfloat16"):
        for method in METHODS:
            figures.take(
                f"numerics:gradient/{shape}/{method}/{dtype}",
                lambda method=method, dtype=dtype: against_cpu(
                    figures,
                    cpu_results,
                    shape,
                    random_forest(SHAPES[shape]["vocab_size"], groups, prompt, new),
                    method,
                    dtype,
                ),
            )
    cpu_results.clear()
    for dtype in ("float32", "bfloat16"):
        for layout in ("packed", "flat"):
            figures.take(
                f"numerics:sampler_gap/{shape}/{layout}/{dtype}",
                lambda dtype=dtype, layout=layout: sampler_gap(figures, shape, dtype, layout),
            )


def loss_and_gradient(shape: str, forest: Any, method: str, device: str, dtype: str) -> tuple[float, dict[str, Any]]:
    """Return loss and gradient (on the CPU) of one optimiser step whose proximal policy is a little off the current
    one."""
    import gxpo
    from gxpo.learning.torch import TorchLearner

    m = gxpo.method(method).fill(horizon=64.0, max_length=64, total_steps=1)
    model = random_model(shape, "cpu", torch.float32).to(getattr(torch, dtype)).to(device)
    learner = TorchLearner(model, lr=0.0, device=device, tokens_per_microbatch=4096)
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(forest.n_entries, generator=generator, dtype=torch.float64)
    proximal = 0.3 * noise - math.log(SHAPES[shape]["vocab_size"])
    credit, record = m.advantages(forest, signals={}), {}

    def loss(x: Mapping[str, Any]) -> Any:
        policy = gxpo.PolicyTokens(x["logprob"], proximal, proximal, proximal_logprob=proximal)
        out = m.loss(forest, policy, advantages=credit).value
        record["loss"] = float(out.detach())
        return out

    gradient = {n: x.float().cpu() for n, x in learner.gradient(forest, loss, couples="step").items()}
    return record["loss"], gradient


def against_cpu(
    figures: Figures, cpu_results: dict[str, Any], shape: str, forest: Any, method: str, dtype: str
) -> dict[str, float]:
    if method not in cpu_results:
        cpu_results.clear()
        cpu_results[method] = loss_and_gradient(shape, forest, method, "cpu", "float32")
    (loss, gradient), (device_loss, device_gradient) = (
        cpu_results[method],
        loss_and_gradient(shape, forest, method, figures.device, dtype),
    )
    squares = sum(float((device_gradient[n] - x).double().square().sum()) for n, x in gradient.items())
    products = sum(float((device_gradient[n].double() * x.double()).sum()) for n, x in gradient.items())
    norms = [sum(float(x.double().square().sum()) for x in g.values()) ** 0.5 for g in (gradient, device_gradient)]
    return {
        "loss_cpu_float32": loss,
        "loss": device_loss,
        "gradient_norm": norms[1],
        "gradient_relative_difference": squares**0.5 / norms[0],
        "gradient_cosine": products / (norms[0] * norms[1]),
    }


def sampler_gap(figures: Figures, shape: str, dtype: str, layout: str) -> dict[str, float]:
    """Return the nats between the log-probs that the engine and the learner give the sampled tokens."""
    from gxpo.learning.torch import TorchLearner

    model = random_model(shape, figures.device, getattr(torch, dtype))
    learner: Any = TorchLearner(model, lr=0.0, device=figures.device, layout=layout)
    prompts, new = (2, 6) if figures.toy else (4, 128)
    requests, answers = sample(model, figures.device, prompts * GROUP, prompt=16, new=new)
    forest = sampled_forest(requests, answers)
    gap = (learner.outputs(forest)["logprob"] - forest.path_behaviour_logprob).abs()
    return {"mean_nats": float(gap.mean()), "largest_nats": float(gap.max()), "tokens": gap.numel()}


# ---------------------------------------------------------------- d: speed
def random_requests(vocabulary: int, samples: int, *, prompt: int) -> list[Any]:
    """Make requests of random prompts, `GROUP` samples of each."""
    from gxpo.parts.protocols import Request, StreamKey

    generator = torch.Generator().manual_seed(0)
    return [
        Request(
            tuple(torch.randint(3, vocabulary, (prompt,), generator=generator).tolist()),
            tuple(StreamKey(seed=0, step=1, task=str(i), attempt=j) for j in range(GROUP)),
        )
        for i in range(samples // GROUP)
    ]


def sample(model: Any, device: str, samples: int, *, prompt: int, new: int) -> tuple[list[Any], list[list[Any]]]:
    """Sample random prompts; return the requests and the engine's completions, all of full length."""
    from gxpo.parts.protocols import Sampling
    from gxpo.sampling.engines.torch import TorchEngine

    requests = random_requests(model.config.vocab_size, samples, prompt=prompt)
    engine = TorchEngine(model, device=device, stop_ids=())
    return requests, engine.sample(requests, Sampling(max_new_tokens=new))


def sampled_forest(requests: list[Any], answers: list[list[Any]]) -> Any:
    """Build the forest of completions with the log-probs that their engine gave."""
    from gxpo import Forest

    records = [
        {"schema": "gxpo.rollouts/1", "group": f"g{i}", "id": f"{i}.{j}", "prompt": list(request.prompt),
         "turns": [{"action": a.tokens, "logprob": a.logprobs}], "reward": 0.0}
        for i, (request, group) in enumerate(zip(requests, answers, strict=True)) for j, a in enumerate(group)
    ]  # fmt: skip
    return Forest.from_records(records)


def speed(figures: Figures) -> None:
    """Time sampling and whole updates with AdamW in bfloat16, the smaller model first."""
    models = ("toy",) if figures.toy else ("qwen2.5-0.5b", "qwen2.5-1.5b")
    shapes = ((8, 8),) if figures.toy else ((64, 512), (16, 2048), (8, 8192))
    for model in models:
        for samples, length in shapes:
            for layout in ("packed", "flat"):
                figures.take(
                    f"speed:update/{model}/{samples}x{length}/{layout}",
                    lambda m=model, s=samples, n=length, way=layout: update_speed(figures, m, s, n, way),
                )
            figures.take(
                f"speed:sample/{model}/{samples}x{length}",
                lambda m=model, s=samples, n=length: sampling_speed(figures, m, s, n),
            )


def update_speed(figures: Figures, shape: str, samples: int, length: int, layout: str) -> dict[str, Any]:
    """Time the second of two updates on `samples` completions of `length` random tokens after prompts of a quarter of
    it."""
    from gxpo.learning.torch import TorchLearner

    model = random_model(shape, figures.device, torch.bfloat16)
    size = 1024 if figures.toy else max(16384, length + length // 4)
    learner: Any = TorchLearner(model, lr=1e-6, device=figures.device, layout=layout, tokens_per_microbatch=size,
                                states="bfloat16")  # fmt: skip
    forest = random_forest(model.config.vocab_size, samples // GROUP, max(1, length // 4), length)
    credit = torch.linspace(-1, 1, forest.n_entries, dtype=torch.float64)

    def loss(x: Mapping[str, Any]) -> Any:
        return -((x["logprob"] - x["logprob"].detach()).exp() * credit).sum() / forest.n_entries

    learner.step(forest, loss)
    peak, start = Peak(figures.device), clock(figures.device)
    info = learner.step(forest, loss)
    seconds = clock(figures.device) - start
    return {
        "action_tokens_per_s": samples * length / seconds,
        "seconds": seconds,
        "tokens_forward": info.tokens_forward,
        "microbatches": info.microbatches,
        **peak.figures(),
    }


def sampling_speed(figures: Figures, shape: str, samples: int, length: int) -> dict[str, Any]:
    """Time decoding of up to `length` tokens: all of them, or the last 1,024 after a prompt that stands for the
    others."""
    model = random_model(shape, figures.device, torch.bfloat16)
    new = min(length, 1024)
    prompt = max(1, length // 4) + length - new
    sample(model, figures.device, GROUP, prompt=16, new=4)
    peak, start = Peak(figures.device), clock(figures.device)
    sample(model, figures.device, samples, prompt=prompt, new=new)
    seconds = clock(figures.device) - start
    return {"tokens_per_s": samples * new / seconds, "seconds": seconds, "new": new, "prompt": prompt, **peak.figures()}


# ---------------------------------------------------------------- e: TRL
def peer(figures: Figures) -> None:
    """Time steps of gxpo and of TRL's GRPOTrainer on the same random model, prompts and lengths, in bfloat16."""
    shape, prompts, length, new = ("toy", 2, 8, 8) if figures.toy else ("qwen2.5-0.5b", 8, 128, 256)
    with tempfile.TemporaryDirectory() as folder:
        for side in (gxpo_steps, trl_steps):
            name = f"peer:{side.__name__.removesuffix('_steps')}/{shape}/{prompts * GROUP}x{new}"
            figures.take(name, lambda side=side: side(figures, folder, shape, prompts, length, new))


def save_model(folder: str, shape: str) -> str:
    """Save the model as a directory that both sides load, with the tokenizer of digits and letters."""
    from gxpo.training.models import character_tokenizer

    path = Path(folder) / shape
    if not path.exists():
        random_model(shape, "cpu", torch.bfloat16).save_pretrained(path)
        character_tokenizer().save_pretrained(path)
    return str(path)


def questions(n: int, length: int) -> list[str]:
    generator = torch.Generator().manual_seed(0)
    return ["".join(map(str, torch.randint(10, (length,), generator=generator).tolist())) for _ in range(n)]


def even(completion: str) -> float:
    """Reward half of random completions."""
    return float(sum(map(ord, completion)) % 2)


def step_figures(seconds: list[float], peak: Peak, tokens: int) -> dict[str, Any]:
    """Return the figures of the steps after the first, which sets things up."""
    steady = sorted(seconds[1:])[len(seconds[1:]) // 2]
    return {"step_s": steady, "tokens_per_s": tokens / steady, "steps": len(seconds), **peak.figures()}


def gxpo_steps(figures: Figures, folder: str, shape: str, prompts: int, length: int, new: int) -> dict[str, Any]:
    from gxpo.parts.definition import SettingValue
    from gxpo.training import config
    from gxpo.training.loop import Trainer

    tasks = Path(folder) / "tasks.jsonl"
    lines = [json.dumps({"prompt": q, "answer": "0"}) for q in questions(16 * prompts, length)]
    tasks.write_text("\n".join(lines))
    keys = {
        "model": save_model(folder, shape), "task": str(tasks), "method": "grpo@trl", "chat.template": "none",
        "rollout.group_size": GROUP, "tasks.per_step": prompts, "sampling.engine": "torch",
        "sampling.max_new_tokens": new, "optim.lr": 1e-6, "learner.dtype": "bfloat16", "learner.states": "bfloat16",
        "learner.device": figures.device,
    }  # fmt: skip
    resolved = config.resolve({k: SettingValue(v, "gpu") for k, v in keys.items()})
    trainer = Trainer(resolved, out=Path(folder) / "run", reward=even)
    trainer.engine.stop_ids = trainer.chat.stop_ids = ()  # every sample has its full length
    peak, seconds = Peak(figures.device), []
    for _ in range(3):
        start = clock(figures.device)
        trainer.step()
        seconds.append(clock(figures.device) - start)
    trainer.close()
    return step_figures(seconds, peak, prompts * GROUP * new)


def trl_steps(figures: Figures, folder: str, shape: str, prompts: int, length: int, new: int) -> dict[str, Any]:
    import datasets
    import transformers
    import trl

    seconds: list[float] = []
    start = [0.0]

    class Timed(transformers.TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            start[0] = clock(figures.device)

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            seconds.append(clock(figures.device) - start[0])

    def rewards(completion_ids: Any, **columns: Any) -> list[float]:
        return [float(sum(ids) % 2) for ids in completion_ids]

    path = save_model(folder, shape)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, padding_side="left")
    policy = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    generation = {"min_new_tokens": new}
    settings = trl.GRPOConfig(
        output_dir=f"{folder}/trl", max_steps=3, num_generations=GROUP, per_device_train_batch_size=prompts * GROUP,
        max_completion_length=new, generation_kwargs=generation, beta=0.0, temperature=1.0, learning_rate=1e-6,
        gradient_checkpointing=False, bf16=figures.device == "cuda", use_cpu=figures.device == "cpu",
        save_strategy="no", report_to="none", disable_tqdm=True,
    )  # fmt: skip
    data = datasets.Dataset.from_list([{"prompt": q} for q in questions(16 * prompts, length)])
    peak = Peak(figures.device)
    trl.GRPOTrainer(model=policy, args=settings, train_dataset=data, reward_funcs=rewards, processing_class=tokenizer,
                    callbacks=[Timed()]).train()  # fmt: skip
    return step_figures(seconds, peak, prompts * GROUP * new)
