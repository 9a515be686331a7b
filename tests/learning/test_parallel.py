"""Two processes over gloo give the gradient, the outputs and the step of one."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).parents[2]


def work(folder: Path) -> None:
    """What each process does; alone, it gives what the two are measured against."""
    from tests.learning.llamas import clean_llama, random_forest
    from tests.learning.test_base import NAMES, losses

    from gxpo.base import runtime
    from gxpo.learning.torch import TorchLearner

    forest = random_forest(8)
    learner = TorchLearner(clean_llama(), lr=0.01, tokens_per_microbatch=40)
    x = learner.outputs(forest, NAMES)
    out = {f"outputs/{n}": v for n, v in x.items()}
    credit = torch.linspace(-1, 1, forest.n_entries, dtype=torch.float64)
    for couples, loss in losses(forest, x["logprob"] + 0.1, credit).items():
        for name, g in learner.gradient(forest, loss, names=NAMES, couples=couples).items():
            out[f"{couples}/{name}"] = g
        info = learner.step(forest, loss, names=NAMES, couples=couples)
        out[f"loss/{couples}"] = torch.tensor(info.loss, dtype=torch.float64)
        assert info.microbatches >= runtime.world()
    before, far = learner.snapshot(), torch.ones(forest.n_entries, dtype=torch.float64)
    far[-1] = torch.inf  # in one micro-batch, so that one process alone sees it before the gradients are summed
    skipped = learner.step(forest, lambda x: (far * x["logprob"]).sum()).nonfinite
    assert skipped and all(torch.equal(x, before[n]) for n, x in learner.snapshot().items())
    out |= {f"after/{n}": v for n, v in learner.snapshot().items()}
    gathered = runtime.gather(bytes([runtime.rank()]) * (3 * runtime.rank()))
    assert gathered == [bytes([r]) * (3 * r) for r in range(runtime.world())]
    save_file(out, folder / f"world{runtime.world()}rank{runtime.rank()}.safetensors")


@pytest.mark.thorough
def test_two_processes_equal_one(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.learning.test_parallel", str(tmp_path)],
            env={**shared, "RANK": str(rank), "WORLD_SIZE": "2"},
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    work(tmp_path)
    for process in processes:
        _, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
    one, first, second = (load_file(tmp_path / f"world{w}rank{r}.safetensors") for w, r in ((1, 0), (2, 0), (2, 1)))
    assert one.keys() == first.keys() == second.keys()
    for name, expected in one.items():
        assert torch.equal(first[name], second[name])
        assert float((first[name] - expected).norm()) <= 1e-12 * max(float(expected.norm()), 1e-3), name


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    work(Path(sys.argv[1]))
    torch.distributed.destroy_process_group()
