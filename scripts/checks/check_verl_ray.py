"""gxpo's engine over a Ray worker group of verl, on CPUs: `scripts/checks/check_verl_ray.py --python VERL_PYTHON`.

VERL_PYTHON has verl 0.9.1, Ray and what gxpo needs (`pip install torch verl==0.9.1 ray uvicorn fastapi pillow`). A Ray
cluster of one or more nodes, all on this machine, is started and ended. One controller drives two workers: conformance
and the start-up probe against gxpo's learner; a training run; the same run cut and resumed; a worker that is killed.
Exit status 1 where something differs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
WORKERS = 2
RUN = {
    "task": "arithmetic", "method": "grpo", "tasks.per_step": 2, "rollout.group_size": 4, "sampling.max_new_tokens": 5,
    "eval.every": 0, "eval.tasks": 2, "trainer.checkpoint_every": 1, "optim.lr": 0.01, "chat.template": "none",
    "reward": f"{ROOT / 'tests' / 'training' / 'parity_reward.py'}:parity",
}  # fmt: skip


@contextmanager
def cluster(nodes: int) -> Iterator[dict[str, Any]]:
    """Start a Ray cluster of so many nodes on this machine, with `WORKERS` cores in all; yield the settings of a run on
    it."""
    from ray.cluster_utils import Cluster

    cores = WORKERS // nodes
    ray_cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cores, "object_store_memory": 100 << 20})
    try:
        for _ in range(nodes - 1):
            ray_cluster.add_node(num_cpus=cores, object_store_memory=100 << 20)
        ray_cluster.wait_for_nodes()
        yield {
            "cluster.backend": "verl", "cluster.address": ray_cluster.address, "cluster.train.nodes": nodes,
            "cluster.train.gpus_per_node": cores,
        }  # fmt: skip
    finally:
        ray_cluster.shutdown()


def checks(folder: Path, nodes: int) -> bool:
    import gxpo
    from check_skyrl import save_tiny_model
    from check_verl_engine import compare_engine
    from gxpo.base.errors import GxpoError
    from gxpo.learning.remote.verl_ray import RayVerlEngine

    torch.set_num_threads(1)
    model = folder / "model"
    save_tiny_model(model)
    good = True

    def say(right: bool, line: str) -> None:
        nonlocal good
        good &= right
        print(f"{'ok ' if right else 'NOT'} {line}", flush=True)

    with cluster(nodes) as where:
        start_time = time.perf_counter()
        engine = RayVerlEngine(model, address=where["cluster.address"], nodes=nodes, per_node=WORKERS // nodes)
        print(f"     {WORKERS} workers on {nodes} nodes; made in {time.perf_counter() - start_time:.0f} s", flush=True)
        good &= compare_engine(engine, model, lambda line: print(line, flush=True))
        engine.close()

        keys = {**RUN, "model": str(model)}
        local = gxpo.train(steps=3, out=folder / "local", set=keys)
        calm = gxpo.train(steps=3, out=folder / "calm", set={**keys, **where})
        gxpo.train(steps=2, out=folder / "cut", set={**keys, **where})
        cut = gxpo.resume(folder / "cut", steps=3)
        norms = [[row["grad_norm"] for row in run.metrics] for run in (local, calm)]
        norm_gap = max(abs(a / b - 1) for a, b in zip(*norms, strict=True))
        say(norm_gap < 1e-5, f"gradient norms {norms[1]}: {norm_gap:.1e} from the local run's")
        prints = [[row["weights_fingerprint"] for row in run.metrics] for run in (calm, cut)]
        say(prints[0] == prints[1], f"fingerprints of the resumed run {prints[1]}")
        gap = max(row["sampler_gap"] for row in calm.metrics)
        say(gap < 1e-4, f"sampler and learner {gap:.1e} nats apart at most")
        manifest = json.loads((folder / "calm" / "checkpoints" / "step-000003" / "manifest.json").read_text())
        files = [name for name in manifest["files"] if name.startswith("engine/model_")]
        say(len(files) == WORKERS, f"checkpoint with {files}")

        def kill(row: dict[str, Any]) -> None:
            if row["step"] == 1:
                victim = next(iter(worker_pids()))
                os.kill(victim, signal.SIGKILL)

        try:
            gxpo.train(steps=3, out=folder / "killed", set={**keys, **where}, watch=kill)
            say(False, "a killed worker was not noticed")
        except GxpoError as error:
            say("one has ended" in str(error) and "\n" not in str(error), f"a killed worker: {error}")
        resumed = gxpo.resume(folder / "killed", steps=3)
        resumed_prints = [row["weights_fingerprint"] for row in resumed.metrics]
        say(resumed_prints == prints[0], f"fingerprints after its resumption {resumed_prints}")
    return good


def worker_pids() -> Iterator[int]:
    """Yield the processes of the workers of clusters that this process started."""
    import psutil

    for node in psutil.Process().children(recursive=True):
        if "PolicyWorker" in " ".join(node.cmdline()):
            yield node.pid


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="interpreter of an environment that has verl and Ray (default: this one)")
    parser.add_argument("--nodes", type=int, choices=(1, 2), default=1)
    arguments = parser.parse_args()
    if arguments.python:
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "scripts"), os.environ.get("PYTHONPATH", "")])
        quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"}
        env = {**os.environ, **quiet, "PYTHONPATH": paths.rstrip(os.pathsep), "GLOO_SOCKET_IFNAME": "lo"}
        command = [arguments.python, __file__, "--nodes", str(arguments.nodes)]
        return subprocess.run(command, env=env, cwd=tempfile.gettempdir()).returncode
    with tempfile.TemporaryDirectory() as folder:
        return 0 if checks(Path(folder), arguments.nodes) else 1


if __name__ == "__main__":
    sys.exit(main())
