"""What the vLLM engine does, measured: `python scripts/checks/check_vllm.py --python VLLM_PYTHON [--dtype bfloat16]`.

Prints, for SmolLM2-135M: how far vLLM's log-probs are from the learner's; that an update reaches what is sampled, with
a prompt that vLLM had in its prefix cache; that an answer of old weights is refused; whether the same call gives the
same tokens; and tokens a second, the engine and vLLM alone taking turns. Exit status 1 where a check fails.

With `--servers N` it starts N vLLM servers on this machine instead (0.32, with the worker extension), and checks that
they sample by what is published to them, before and after an update, and that nothing is lost where one is killed:
`scripts/checks/check_vllm.py --python VLLM_PYTHON --servers 2 --server-args "--gpu-memory-utilization 0.2"`; on a CPU
`--server-args "--enforce-eager --block-size 32"`.

With `--pictures` it checks a model that sees instead, of a checkpoint such as SmolVLM-256M-Instruct in a directory:
`scripts/checks/check_vllm.py --python VLLM_PYTHON --model DIRECTORY --pictures`. Samples after one picture, after two,
and in a second turn have the log-probs of the learner, before and after an update of the tower; a placeholder is never
sampled.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from statistics import median
from typing import Any

import numpy as np
import torch

from gxpo.base import media
from gxpo.base.errors import ModelError
from gxpo.models.decoder.vision import triples_of, vision_of
from gxpo.parts.protocols import Completion, Request, Sampling, StreamKey
from gxpo.sampling.engines.remote_requests import seed_of
from gxpo.sampling.engines.vllm import VllmEngine
from gxpo.sampling.engines.vllm_process import DEFAULT_ENVIRONMENT
from gxpo.training import models

CLOSE = {"float32": 1e-3, "bfloat16": 1.0}  # nats at one token; in bfloat16 logits are steps of an eighth
SETTINGS = (
    Sampling(max_new_tokens=32),
    Sampling(temperature=0.7, max_new_tokens=32),
    Sampling(top_k=20, max_new_tokens=32),
    Sampling(top_k=50, top_p=0.9, max_new_tokens=32),
)
ALONE = """
import json, sys, time
from vllm import LLM, SamplingParams
options = json.loads(sys.stdin.readline())
llm = LLM(**options["arguments"])
print("ready", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    llm.reset_prefix_cache()
    start = time.perf_counter()
    if request["plain"]:  # as fast as it goes: several samples of a prompt, no seeds, no log-probs
        params = SamplingParams(n=request["group"], max_tokens=request["new"], ignore_eos=True, detokenize=False)
        out = llm.generate([{"prompt_token_ids": p} for p in request["prompts"]], params, use_tqdm=False)
    else:  # what the engine asks for
        params = [SamplingParams(seed=s, max_tokens=request["new"], ignore_eos=True, detokenize=False, logprobs=0)
                  for s in request["seeds"]]
        prompts = [{"prompt_token_ids": p} for p in request["prompts"] for _ in range(request["group"])]
        out = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    print(json.dumps([seconds, sum(len(c.token_ids) for o in out for c in o.outputs)]), flush=True)
"""


class Alone:
    """vLLM by itself, in a process."""

    def __init__(self, python: str, folder: str, dtype: str) -> None:
        environment = {**DEFAULT_ENVIRONMENT, **os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        environment.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
        self.process = subprocess.Popen(
            [python, "-I", "-c", ALONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        arguments = {
            "model": folder, "dtype": dtype, "max_model_len": 2048, "enforce_eager": True, "max_num_seqs": 256,
            "skip_tokenizer_init": True, "enable_prefix_caching": True, "logprobs_mode": "processed_logprobs",
        }  # fmt: skip
        self._say({"arguments": arguments})
        while self._line() != "ready":
            pass

    def _say(self, line: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("vLLM alone ended")
        return line.strip()

    def rate(self, request: dict[str, Any]) -> float:
        """Return tokens a second."""
        self._say(request)
        line = self._line()
        while not line.startswith("["):
            line = self._line()
        seconds, tokens = json.loads(line)
        return tokens / seconds

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@torch.no_grad()
def gaps(model: Any, prompt: tuple[int, ...], c: Completion, temperature: float) -> torch.Tensor:
    """Return how far the log-probs of a completion are from the learner's, in nats."""
    tokens, vision = torch.tensor([[*prompt, *c.tokens]]), triples_of(model)
    extra = {} if vision is None else {"position_ids": vision.positions(tokens[0].tolist())[0][:, None]}
    logits = model(input_ids=tokens, **extra).logits[0, len(prompt) - 1 : -1].float() / temperature
    if c.support is not None:
        support = torch.from_numpy(c.support)
        allowed = torch.zeros(logits.shape[0], logits.shape[1] + 1, dtype=torch.bool)
        allowed.scatter_(1, support.masked_fill(support < 0, logits.shape[1]), True)
        logits = logits.masked_fill(~allowed[:, :-1], -torch.inf)
    logprob = logits.log_softmax(-1).gather(1, torch.tensor(c.tokens)[:, None]).squeeze(1)
    return (logprob - torch.tensor(c.logprobs)).abs()


def sample_gaps(engine: VllmEngine, requests: list[Request], sampling: Sampling) -> torch.Tensor:
    answers = engine.sample(requests, sampling)
    pairs = [(r.prompt, c) for r, group in zip(requests, answers, strict=True) for c in group]
    return torch.cat([gaps(engine.model, prompt, c, sampling.temperature or 1.0) for prompt, c in pairs])


def check(name: str, good: bool, figures: str) -> bool:
    print(f"{'ok  ' if good else 'FAIL'} {name}: {figures}", flush=True)
    return good


def checks(engine: VllmEngine, prompts: list[tuple[int, ...]], dtype: str) -> bool:
    """Check what must hold, and print it line by line."""
    good = True

    def requests_of(step: int, samples: int = 4) -> list[Request]:
        return [Request(p, tuple(StreamKey(0, step, str(i), a) for a in range(samples))) for i, p in enumerate(prompts)]

    for s in SETTINGS:
        gap = sample_gaps(engine, requests_of(1), s)
        words = f"T={s.temperature:g} top_k={s.top_k} top_p={s.top_p:g}"
        good &= check(
            f"log-probs, {words}",
            float(gap.max()) < CLOSE[dtype],
            f"max {float(gap.max()):.2e}, mean {float(gap.mean()):.2e} nats over {gap.numel()} tokens",
        )
    once, again = engine.sample(requests_of(1), SETTINGS[0]), engine.sample(requests_of(1), SETTINGS[0])
    same = sum(a.tokens == b.tokens for x, y in zip(once, again, strict=True) for a, b in zip(x, y, strict=True))
    print(f"     the same call again gives the same tokens in {same} of {4 * len(prompts)} samples")
    reused = engine.reused_tokens
    before = engine.sample(requests_of(1), SETTINGS[0])
    cached = engine.reused_tokens - reused
    parameters = [p.detach().clone() for p in engine.model.parameters()]
    with torch.no_grad():
        for p in engine.model.parameters():
            p.add_(torch.randn_like(p) * p.float().std() * 0.05)
    gap = sample_gaps(engine, requests_of(1), SETTINGS[0])
    old_gap = torch.cat(
        [gaps(engine.model, p, c, 1.0) for p, group in zip(prompts, before, strict=True) for c in group]
    )
    good &= check(
        "prefix cache after an update",
        float(gap.max()) < CLOSE[dtype] < float(old_gap.max()),
        f"{cached} prompt tokens were cached; after the update max {float(gap.max()):.2e} nats from new weights' "
        f"log-probs (samples from before: {float(old_gap.max()):.2e})",
    )
    with torch.no_grad():
        for p, x in zip(engine.model.parameters(), parameters, strict=True):
            p.copy_(x)
    start = time.perf_counter()
    engine._send()
    print(f"     an update takes {time.perf_counter() - start:.2f} s")
    engine._stamp += 1
    try:
        engine.process.ask({"do": "sample", "stamp": engine._stamp})
        message = "was answered"
    except ModelError as error:
        message = str(error)
    engine._stamp -= 1
    return check("an answer of other weights is refused", "weights are of stamp" in message, message) and good


def check_pictures(engine: VllmEngine, dtype: str) -> bool:
    """Compare log-probs of samples that were shown pictures with the learner's forward; print line by line."""
    vision = vision_of(engine.model)
    if vision is None:
        raise SystemExit(f"{type(engine.model).__name__} reads texts alone: name a model that sees with --model")
    shades = np.random.default_rng(0)
    sizes = [(96, 96), (150, 210), (61, 90)]
    one, two, three = (
        vision.ids(media.PICTURES.put(shades.integers(0, 256, (*size, 3), dtype=np.uint8))) for size in sizes
    )
    words = [tuple(engine.tokenizer.encode(text)) for text in ("User: look at", " and at", " What is it? Assistant:")]
    prompts = [(*words[0], *one, *words[2]), (*words[0], *two, *words[1], *three, *words[2])]

    def compare(name: str, some: list[tuple[int, ...]], step: int) -> tuple[bool, list[list[Completion]]]:
        requests = [Request(p, tuple(StreamKey(0, step, str(i), a) for a in range(4))) for i, p in enumerate(some)]
        answers = engine.sample(requests, SETTINGS[0])
        pairs = [(r.prompt, c) for r, group in zip(requests, answers, strict=True) for c in group]
        gap = torch.cat([gaps(engine.model, prompt, c, 1.0) for prompt, c in pairs])
        message = f"max {float(gap.max()):.2e}, mean {float(gap.mean()):.2e} nats over {gap.numel()} tokens"
        placeholders = {t for _, c in pairs for t in c.tokens} & {*vision.banned}
        return check(name, float(gap.max()) < CLOSE[dtype] and not placeholders, message), answers

    good, answers = compare("pictures, first turn", prompts, 1)
    later = [(*p, *group[0].tokens, *three, *words[2]) for p, group in zip(prompts, answers, strict=True)]
    good &= compare("pictures, second turn", later, 2)[0]
    with torch.no_grad():
        for name, p in engine.model.named_parameters():
            if "vision" in name or "visual" in name:
                p.add_(torch.randn_like(p) * p.float().std().nan_to_num() * 0.05)
    engine.policy_version += 1
    return compare("pictures, after an update of the tower", prompts, 1)[0] and good


def compare_speed(engine: VllmEngine, python: str, folder: str, dtype: str, rounds: int, length: int) -> None:
    """Time the engine and vLLM alone, taking turns."""
    group, new, count = 8, 32, 8
    prompts = [tuple((i * 7919 + j * 104729 + 11) % 40000 + 3 for j in range(length)) for i in range(count)]
    alone = Alone(python, folder, dtype)
    stop_ids, engine.stop_ids = engine.stop_ids, ()
    rates: dict[str, list[float]] = {"engine": [], "vllm, same samples": [], "vllm, plain": []}
    for turn in range(rounds + 1):
        keys = [[StreamKey(0, turn, str(i), a) for a in range(group)] for i in range(count)]
        requests = [Request(p, tuple(k)) for p, k in zip(prompts, keys, strict=True)]
        fields = {
            "prompts": prompts,
            "group": group,
            "new": new,
            "seeds": [seed_of(k) for row in keys for k in row],
        }
        engine._sent = None  # an update outside the clock empties the cache, as `alone` empties its own
        engine._send()
        start = time.perf_counter()
        answers = engine.sample(requests, Sampling(max_new_tokens=new))
        engine_rate = sum(len(c.tokens) for g in answers for c in g) / (time.perf_counter() - start)
        alone_rates = [alone.rate({**fields, "plain": plain}) for plain in (False, True)]
        if turn:  # the first is warm-up
            for name, rate in zip(rates, (engine_rate, *alone_rates), strict=True):
                rates[name].append(rate)
    engine.stop_ids = stop_ids
    alone.close()
    print(f"     tokens/s, {count} prompts of {length} x {group} samples x {new}, {rounds} rounds, "
          f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}")  # fmt: skip
    for name, rate_list in rates.items():
        ratios = [a / b for a, b in zip(rates["engine"], rate_list, strict=True)]
        print(f"     {name:20s} {median(rate_list):7.1f}   engine / this: median {median(ratios):.3f}, "
              f"{min(ratios):.3f} to {max(ratios):.3f}", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]  # it has one
    parser.add_argument("--python", default=sys.executable, help="interpreter that has vLLM")
    parser.add_argument("--dtype", default="bfloat16", choices=tuple(CLOSE))
    parser.add_argument("--rounds", type=int, default=5, help="of the comparison of speed; 0 leaves it out")
    parser.add_argument("--length", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--model", default="smollm2-135m", help="a name or a directory")
    parser.add_argument("--servers", type=int, default=0, help="check so many servers in place of the engine")
    parser.add_argument("--server-args", default="", help="further arguments of each server")
    parser.add_argument("--pictures", action="store_true", help="check pictures, of a model that sees")
    options = parser.parse_args()
    loaded = models.load(options.model, task="arithmetic", dtype=options.dtype)
    texts = ("The capital of France is the city of", "Once upon a time there was a small dragon that " * 5)
    prompts = [tuple(loaded.tokenizer.encode(text)) for text in texts]
    if options.servers:
        import check_servers

        arguments = shlex.split(options.server_args)
        good = check_servers.run(options.python, options.servers, options.dtype, loaded, prompts, arguments)
        raise SystemExit(0 if good else 1)
    longest = min(2048, getattr(loaded.model.config.get_text_config(), "max_position_embeddings", 2048))
    engine = VllmEngine(
        loaded.model,
        loaded.tokenizer,
        python=options.python,
        arguments={"max_model_len": longest},
        notify=print,
    )
    try:
        good = check_pictures(engine, options.dtype) if options.pictures else checks(engine, prompts, options.dtype)
        if options.rounds and not options.pictures:
            with tempfile.TemporaryDirectory() as folder:
                loaded.model.save_pretrained(folder)
                compare_speed(
                    engine,
                    options.python,
                    folder,
                    options.dtype,
                    options.rounds,
                    options.length,
                )
    finally:
        engine.close()
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
