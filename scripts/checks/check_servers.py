"""Check what vLLM servers do with published weights: see `python scripts/checks/check_vllm.py --servers 2`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import torch

from check_vllm import CLOSE, SETTINGS, check, gaps
from gxpo.parts.protocols import Completion, Request, Sampling, StreamKey
from gxpo.sampling.engines import in_vllm
from gxpo.sampling.engines.openai import OpenAIEngine
from gxpo.sampling.engines.vllm_process import DEFAULT_ENVIRONMENT

STARTING = 900.0  # seconds
LENGTH = 2048


class Server:
    """A vLLM server on this machine, with random weights until it is given others."""

    def __init__(self, python: str, folder: str, dtype: str, arguments: list[str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.command = [
            python, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--host", "127.0.0.1",
            "--port", str(self.port), "--dtype", dtype, "--logprobs-mode", "processed_logprobs",
            "--max-logprobs", "128", "--load-format", "dummy", "--generation-config", "vllm",
            "--worker-extension-cls", "gxpo_vllm.WeightLoader", *arguments,
        ]  # fmt: skip
        self.environment = {
            **DEFAULT_ENVIRONMENT, **os.environ, "VLLM_SERVER_DEV_MODE": "1",
            "PYTHONPATH": str(Path(in_vllm.__path__[0])),
        }  # fmt: skip
        self.environment.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the script)
        self.process = subprocess.Popen(
            self.command, env=self.environment, stdout=self.log, stderr=self.log, start_new_session=True
        )

    def wait(self) -> None:
        start = time.monotonic()
        while time.monotonic() - start < STARTING:
            if self.process.poll() is not None:
                self.log.seek(0)
                raise SystemExit(f"a server ended: {self.log.read()[-2000:].decode(errors='replace')}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return
            except OSError:
                time.sleep(1.0)
        raise SystemExit(f"a server did not start in {STARTING:g} s")

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def requests_of(prompts: list[tuple[int, ...]], step: int, samples: int = 4) -> list[Request]:
    return [Request(p, tuple(StreamKey(0, step, str(i), a) for a in range(samples))) for i, p in enumerate(prompts)]


def all_gaps(model: Any, requests: list[Request], answers: list[list[Completion]], sampling: Sampling) -> torch.Tensor:
    """Return how far the log-probs of samples are from the model's, in nats."""
    pairs = [(r.prompt, c) for r, group in zip(requests, answers, strict=True) for c in group]
    return torch.cat([gaps(model, prompt, c, sampling.temperature or 1.0) for prompt, c in pairs])


def perturb(model: Any, seed: int) -> None:
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=noise).to(p) * p.float().std() * 0.05)


def checks(engine: OpenAIEngine, servers: list[Server], model: Any, prompts: list[tuple[int, ...]], dtype: str) -> bool:
    """Check what must hold, and print it line by line."""
    good, limit, plain = True, CLOSE[dtype], SETTINGS[0]
    for s in SETTINGS:
        gap = all_gaps(model, requests_of(prompts, 1), engine.sample(requests_of(prompts, 1), s), s)
        words = f"log-probs, T={s.temperature:g} top_k={s.top_k} top_p={s.top_p:g}"
        good &= check(words, float(gap.max()) < limit, f"max {float(gap.max()):.2e} nats over {gap.numel()} tokens")
    before = engine.sample(requests_of(prompts, 1), plain)
    engine.policy_version = 1
    perturb(model, 1)
    start = engine.publish_seconds
    after = engine.sample(requests_of(prompts, 1), plain)
    print(f"     a publication of all weights to {len(servers)} servers takes {engine.publish_seconds - start:.2f} s")
    new_gap, old_gap = (
        all_gaps(model, requests_of(prompts, 1), after, plain),
        all_gaps(model, requests_of(prompts, 1), before, plain),
    )
    good &= check(
        "published weights are what samples",
        float(new_gap.max()) < limit < float(old_gap.max()) and {c.policy_version for g in after for c in g} == {1},
        f"max {float(new_gap.max()):.2e} nats from the new weights' log-probs "
        f"(from before: {float(old_gap.max()):.2e})",
    )
    good &= check(
        "all servers acknowledged",
        all(r.up and r.holds is not None for r in engine.pool.replicas),
        ", ".join(f"{r.url} {r.holds and r.holds.stamp}" for r in engine.pool.replicas),
    )
    if len(servers) > 1:
        good &= check_killed(engine, servers, model, prompts, limit)
    return good


def check_killed(
    engine: OpenAIEngine, servers: list[Server], model: Any, prompts: list[tuple[int, ...]], limit: float
) -> bool:
    """Kill a server while it samples, start it again with random weights, and check that it is given the learner's."""
    requests, sampling = requests_of(prompts, 2, 16), Sampling(max_new_tokens=128)
    timer = threading.Timer(0.5, servers[0].kill)
    timer.start()
    answers = engine.sample(requests, sampling)
    timer.join()
    after = engine.sample(requests_of(prompts, 3), SETTINGS[0])
    gap = torch.cat(
        [all_gaps(model, requests, answers, sampling), all_gaps(model, requests_of(prompts, 3), after, SETTINGS[0])]
    )
    is_whole = [len(group) for group in answers] == [16] * len(prompts)
    failures = engine.figures()["sampler_failures"]
    good = check(
        "a server is killed while it samples",
        is_whole and float(gap.max()) < limit and failures >= 1,
        f"all samples are there, max {float(gap.max()):.2e} nats; {failures:g} failure",
    )
    servers[0].start()
    servers[0].wait()
    first = next(r for r in engine.pool.replicas if r.url == servers[0].url)
    start = time.monotonic()
    while not first.up and time.monotonic() - start < 120:
        time.sleep(0.2)
    gap = all_gaps(
        model, requests_of(prompts, 4, 16), engine.sample(requests_of(prompts, 4, 16), SETTINGS[0]), SETTINGS[0]
    )
    return good & check(
        "it starts again and is given the weights",
        first.up and first.holds is not None and float(gap.max()) < limit,
        f"back {time.monotonic() - start:.1f} s after it was well, max {float(gap.max()):.2e} nats",
    )


def run(python: str, n: int, dtype: str, loaded: Any, prompts: list[tuple[int, ...]], arguments: list[str]) -> bool:
    """Start `n` servers of the loaded model's kind, and check them."""
    with tempfile.TemporaryDirectory(prefix="gxpo-check-") as folder:
        loaded.model.config.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
        servers = [Server(python, folder, dtype, arguments) for _ in range(n)]
        try:
            for server in servers:
                server.wait()
            engine = OpenAIEngine(
                [server.url for server in servers],
                tokenizer=loaded.tokenizer,
                learner=loaded.model,
                weights=folder,
                timeout=120.0,
                notify=print,
            )
            try:
                return checks(engine, servers, loaded.model, prompts, dtype)
            finally:
                engine.close()
        finally:
            for server in servers:
                if server.process.poll() is None:
                    server.kill()
