"""`gxpo.train` in a real Jupyter kernel: the progress in the cell's output, the stop button, the run that is left."""

import json
import os
from pathlib import Path

import pytest
from tests.training.callbacks.parity import REWARD, SMALL

import gxpo

pytest.importorskip("ipykernel")
KernelManager = pytest.importorskip("jupyter_client").KernelManager

TRAIN = "run = gxpo.train(reward={reward!r}, steps={steps}, out={out!r}, set={keys!r})"
WAIT = 120


class Kernel:
    """A kernel with a cell that has been started."""

    def __init__(self):
        self.manager = KernelManager(kernel_name="python3")
        environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(gxpo.__file__).parents[1])}
        self.manager.start_kernel(env=os.environ | environment)
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=WAIT)

    def outputs(self, code, until=None):
        """What a cell puts out, by the types of messages; the kernel is interrupted when `until` says so."""
        mine = self.client.execute(code)
        actual, interrupted = [], False
        while True:
            message = self.client.get_iopub_msg(timeout=WAIT)
            if message["parent_header"].get("msg_id") != mine:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return actual
            actual.append((kind, content))
            if until is not None and not interrupted and until(actual):
                self.manager.interrupt_kernel()
                interrupted = True

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def kernel():
    one = Kernel()
    yield one
    one.close()


def errors(found):
    return ["\n".join(content["traceback"]) for kind, content in found if kind == "error"]


def bars(found):
    """The HTML of the one output, as it was and each time that it was updated."""
    kinds = ("display_data", "update_display_data")
    return [c["data"]["text/html"] for k, c in found if k in kinds and "<progress" in c["data"].get("text/html", "")]


@pytest.mark.thorough
def test_cell_updates_one_bar_and_the_stop_button_saves_the_run(kernel, tmp_path):
    out = str(tmp_path / "run")
    cell = "import gxpo\n" + TRAIN.format(reward=REWARD, steps=500, out=out, keys=SMALL)
    found = kernel.outputs(cell, until=lambda found: len(bars(found)) > 2)  # not every step is drawn
    assert errors(found) == []
    drawn_bars = bars(found)
    assert [kind for kind, _ in found].count("display_data") == 1 and len(drawn_bars) > 2
    assert all(name in drawn_bars[-1] for name in ("reward_mean", "zero_signal_groups", "eval_accuracy", out))
    text = "".join(content["text"] for kind, content in found if kind == "stream")
    assert "stopping after this step; once more to stop at once" in text and "\x1b" not in text
    stopped = [content for kind, content in kernel.outputs("print(run.step, run.stopped)") if kind == "stream"]
    step, why = stopped[0]["text"].split()
    assert why == "interrupted" and 2 <= int(step) < 500
    assert f"interrupted at step {step}, which is saved: gxpo.resume({out!r}) goes on" in text
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, int(step) + 1))
    more = kernel.outputs(f"run = gxpo.resume({out!r}, steps={int(step) + 1})\nprint(run.step, run.stopped)")
    assert errors(more) == [] and f"{int(step) + 1} None" in "".join(c.get("text", "") for _, c in more)
