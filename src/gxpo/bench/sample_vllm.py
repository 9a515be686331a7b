"""gxpo's vLLM engine against vLLM alone: same prompts, lengths and vLLM settings, log-probs on both sides.

Both hold vLLM in a process of the interpreter that has it. gxpo's samples have a seed each and a check of the weights'
stamp; those of vLLM alone have neither. Prompts are new in every round, so a prefix is found in the cache only where
samples of one round share it.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from gxpo.bench import vllm_alone
from gxpo.bench.machine import TICKS
from gxpo.bench.runner import BenchError, Case, Side
from gxpo.bench.sample import Round, Work, _counter, _model, _prompts, _requests, _speed

WORKS = (Work("smollm2", 8, 32), Work("smollm2", 64, 32), Work("smollm2", 64, 256))
LENGTH = 512  # tokens of a context


def cases(folder: str, python: str, quick: bool = False) -> list[Case]:
    """Rows `vllm/...`.

    folder  holds the model "smollm2" (`plan.save_models`)
    python  interpreter of an environment with vLLM; gxpo need not be there
    """
    rows = []
    for work in (Work("smollm2", 8, 32, new=8),) if quick else WORKS:
        arguments = work.arguments(folder) | {"python": python}
        gxpo_side, vllm_side = (
            Side(n, f"{__name__}:{f}", arguments) for n, f in (("gxpo+vllm", "engine"), ("vllm", "bare_vllm"))
        )
        rows.append(Case(f"vllm/{work.name}", gxpo_side, vllm_side))
    return rows


def engine(path: str, dtype: str, work: dict[str, Any], python: str) -> Round:
    """Sample with `VllmEngine`; the weights don't change, so they are sent once."""
    from gxpo.parts.protocols import Sampling
    from gxpo.sampling.engines.vllm import VllmEngine

    arguments = {"max_model_len": LENGTH}
    vllm_engine = VllmEngine(
        _model(path, dtype), None, python=python, batch_rows=work["rows"], stop_ids=(), arguments=arguments
    )
    sampling, step, pid = Sampling(max_new_tokens=work["new"]), _counter(), vllm_engine.process.pid

    def once() -> dict[str, Any]:
        number = step()
        # New prompts in each round, or the prefix cache would answer from the round before.
        prompts = _prompts(path, work["rows"] // work["group"], work["length"], number)
        requests = _requests(prompts, work["group"], number)
        timed = _Timed(pid)
        out = vllm_engine.sample(requests, sampling)
        return timed.figures(sum(len(c.tokens) for group in out for c in group))

    return once


def bare_vllm(path: str, dtype: str, work: dict[str, Any], python: str) -> Round:
    """Sample with `vllm.LLM`."""
    from gxpo.sampling.engines.vllm_process import environment

    # vLLM runs in its own interpreter, which needs no gxpo; requests and answers are lines of JSON.
    process = subprocess.Popen(
        [python, "-I", vllm_alone.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    arguments = {
        "model": path,
        "dtype": dtype,
        "max_model_len": LENGTH,
        "max_num_seqs": work["rows"],
        "enable_prefix_caching": True,
        # As `VllmEngine` sets it on a CPU.
        "enforce_eager": True,
        "block_size": 32,
        "generation_config": "vllm",
    }

    def ask(line: Any) -> dict[str, Any]:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(line) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise BenchError(f"vLLM alone ended with exit status {process.wait()}; its output is above")
        return json.loads(answer)

    ask({"arguments": arguments, "new": work["new"]})
    step = _counter()

    def once() -> dict[str, Any]:
        # New prompts in each round, as on the other side.
        prompts = _prompts(path, work["rows"] // work["group"], work["length"], step())
        rows = [prompt for prompt in prompts for _ in range(work["group"])]
        timed = _Timed(process.pid)
        return timed.figures(ask(rows)["tokens"])

    return once


class _Timed:
    """Seconds since it was made, and the core seconds of this process and of vLLM's.

    The worker sees its own process alone, so its figure of the memory would say nothing: it is given as 0.
    """

    def __init__(self, pid: int) -> None:
        self._pid, self._cpu, self._start = pid, self._cpu_seconds(pid), time.perf_counter()

    def figures(self, tokens: int) -> dict[str, Any]:
        seconds = time.perf_counter() - self._start
        cpu_seconds = self._cpu_seconds(self._pid) - self._cpu
        return {"seconds": seconds, "cpu_seconds": cpu_seconds, "memory_mb": 0.0, **_speed(tokens, seconds)}

    @staticmethod
    def _cpu_seconds(pid: int) -> float:
        """utime and stime, fields 14 and 15 of /proc/PID/stat, the second of which may hold blanks."""
        stat = Path(f"/proc/{pid}/stat")
        stat_fields = stat.read_text().rpartition(")")[2].split() if stat.exists() else []
        return time.process_time() + (sum(int(x) for x in stat_fields[11:13]) / TICKS)
