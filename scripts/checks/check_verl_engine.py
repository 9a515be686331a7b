"""gxpo's engine over verl's FSDP worker, on CPUs: `python scripts/checks/check_verl_engine.py --python VERL_PYTHON`.

VERL_PYTHON has verl 0.9.1 and what gxpo needs (`pip install torch verl==0.9.1 uvicorn fastapi pillow`). Two processes
over gloo hold a model of two layers as FSDP2 shards; conformance and the start-up probe compare them with gxpo's
learner. Exit status 1 where a comparison fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).parents[2]
TEMPERATURES = (1.0, 0.7)


def worker(model: Path) -> bool:
    """Run one of the processes."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    dist.init_process_group("gloo")
    from gxpo.learning.remote.verl import VerlEngine

    start = time.perf_counter()
    engine = VerlEngine(model)
    first = dist.get_rank() == 0
    if first:
        kinds = sorted({type(p).__name__ for p in engine._engine.module.parameters()})
        print(
            f"     {dist.get_world_size()} processes, parameters {kinds}; made in {time.perf_counter() - start:.0f} s"
        )
    good = compare_engine(engine, model, print if first else lambda line: None)
    dist.destroy_process_group()
    return good


def compare_engine(engine: Any, model: Path, say: Callable[[str], None]) -> bool:
    """Check that log-probs and gradients are those of gxpo's learner, and the weights afterwards what they were."""
    from transformers import AutoModelForCausalLM

    from gxpo.conformance.engines import check, forest
    from gxpo.learning.remote import RemoteLearner
    from gxpo.learning.torch import TorchLearner

    standard = TorchLearner(
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa"), lr=0.0
    )
    good, before = True, engine.fingerprint()
    for temperature in TEMPERATURES:
        for result in check(engine, standard, tolerance=1e-5, temperature=temperature):
            good &= result.passed
            say(f"{result} at temperature {temperature}")
        probe_forest, learner = forest(standard.vocabulary, temperature=temperature), RemoteLearner(engine, lr=0.0)

        def loss(x: Mapping[str, Tensor]) -> Tensor:
            return (x["entropy"] * (1 + x["logprob"])).sum()

        expected = standard.gradient(probe_forest, loss, names=("logprob", "entropy"))
        learner.accumulate(probe_forest, loss, names=("logprob", "entropy"))
        gradients = engine.gradients()
        engine.discard()
        gap = torch.cat([(gradients[n] - g).flatten() for n, g in expected.items()]).norm()
        error = float(gap / torch.cat([g.flatten() for g in expected.values()]).norm())
        good &= error < 1e-5
        say(f"{'ok ' if error < 1e-5 else 'NOT'} gradient of entropies: {error:.2e} at temperature {temperature}")
    is_restored = engine.fingerprint() == before
    say(f"{'ok ' if is_restored else 'NOT'} weights after save and load: {before:016x}")
    return good and is_restored


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="interpreter of an environment that has verl (default: this one)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return 0 if worker(arguments.worker) else 1
    with tempfile.TemporaryDirectory() as folder:
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "scripts"), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "PYTHONPATH": paths.rstrip(os.pathsep), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        python = arguments.python or sys.executable
        code = (
            "import sys, pathlib; from check_skyrl import save_tiny_model; save_tiny_model(pathlib.Path(sys.argv[1]))"
        )
        subprocess.run([python, "-c", code, folder], env=env, check=True)
        command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(arguments.processes),
                   __file__, "--worker", folder]  # fmt: skip
        return subprocess.run(command, env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
