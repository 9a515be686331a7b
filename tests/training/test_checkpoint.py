"""A kill at any instant, a full disk, a limit on file size and damage: never a wrong or half a checkpoint."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.thorough import some

from gxpo.base.errors import CheckpointError
from gxpo.training import checkpoint

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process")


def tensors(step: int, size: int = 1000) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((size,), float(step)), "random": torch.tensor([step % 256, 255], dtype=torch.uint8)}


def save(run: Path, step: int, keep: int = 2, size: int = 1000) -> Path:
    return checkpoint.save(run, step, tensors(step, size), {"step": step, "nested": {"list": [1, 0.1]}}, keep)


def steps(run: Path) -> list[int]:
    return sorted(int(p.name.removeprefix("step-")) for p in (run / "checkpoints").glob("step-*"))


def hidden(run: Path) -> list[str]:
    return [p.name for p in (run / "checkpoints").iterdir() if p.name.startswith(".")]


def two_checkpoints(path: Path) -> Path:
    """A run directory to copy, with steps 10 and 20."""
    for step in (10, 20):
        save(path / "begun", step)
    return path / "begun"


def loaded_step(run: Path) -> int:
    """The step of the latest checkpoint, after checking that all of it is of that step."""
    path = checkpoint.latest(run)
    actual, state = checkpoint.load(path)
    step = state["step"]
    assert path.name.endswith(f"step-{step:06d}")
    for name, tensor in tensors(step).items():
        assert torch.equal(actual[name], tensor)
    return step


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_tensor_that_is_not_finite_is_refused_by_name(tmp_path: Path, value: float) -> None:
    """Its checksum says nothing: whoever forges a checkpoint writes the manifest too."""
    path = checkpoint.save(tmp_path, 1, {"good": torch.ones(2), "bad": torch.tensor([1.0, value])}, {}, 1)
    with pytest.raises(CheckpointError, match=r"damaged checkpoint: 'bad' in .* has values that are not finite"):
        checkpoint.load(path)


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    base = torch.arange(12, dtype=torch.float64).reshape(3, 4)
    tensors = {
        "scalar": torch.tensor(0.1),
        "empty": torch.zeros(0, 3),
        "base": base,
        "view of it": base[1],
        "not contiguous": base.t(),
        "bfloat16": torch.randn(5).to(torch.bfloat16),
        "flag": torch.tensor([True, False]),
        "wants gradient": torch.nn.Parameter(torch.ones(2)),
    }
    state = {"float": 0.1 + 0.2, "large": 2**60, "text": "\u00e9", "none": None, "tuple": (1, 2), "nan": float("nan")}
    path = checkpoint.save(tmp_path / "new" / "run", 40, tensors, state, 1)
    assert path == tmp_path / "new" / "run" / "checkpoints" / "step-000040"
    assert sorted(p.name for p in path.iterdir()) == ["manifest.json", "state.json", "tensors.safetensors"]
    actual, back = checkpoint.load(path)
    assert actual.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert actual[name].dtype == tensor.dtype and torch.equal(actual[name], tensor)
    assert back["tuple"] == [1, 2] and back["nan"] != back["nan"]
    assert {k: back[k] for k in ("float", "large", "text", "none")} == {k: state[k] for k in list(state)[:4]}


def test_newest_checkpoints_are_kept_and_abandoned_ones_removed(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(tmp_path, step)
    assert steps(tmp_path) == [20, 30]
    save(tmp_path, 25)  # the run went back to 20 and goes on from there
    assert steps(tmp_path) == [20, 25]
    save(tmp_path, 1000000)
    assert steps(tmp_path) == [25, 1000000] and loaded_step(tmp_path) == 1000000
    save(tmp_path, 1000000, keep=1)  # again
    assert steps(tmp_path) == [1000000] and hidden(tmp_path) == []


@pytest.mark.parametrize(
    ("state", "where"),
    [({"a": {3: 1}}, "state.a has the key 3"), ({"a": [0, torch.ones(1)]}, r"state.a\[1\] is a Tensor")],
)
def test_state_that_would_come_back_changed_is_refused(tmp_path: Path, state: dict, where: str) -> None:
    with pytest.raises(CheckpointError, match=where):
        checkpoint.save(tmp_path, 1, {}, state, 1)
    assert not (tmp_path / "checkpoints").exists()


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        checkpoint.latest(tmp_path)
    with pytest.raises(CheckpointError, match=r"manifest.json: No such file"):
        checkpoint.load(tmp_path / "checkpoints" / "step-000001")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "bit in tensors.safetensors": lambda p: flip(p / "tensors.safetensors"),
    "bit in state.json": lambda p: flip(p / "state.json"),
    "cut tensors.safetensors": lambda p: os.truncate(p / "tensors.safetensors", 100),
    "empty state.json": lambda p: os.truncate(p / "state.json", 0),
    "no tensors.safetensors": lambda p: (p / "tensors.safetensors").unlink(),
    "cut manifest.json": lambda p: os.truncate(p / "manifest.json", 50),
    "no manifest.json": lambda p: (p / "manifest.json").unlink(),
    "list as manifest.json": lambda p: (p / "manifest.json").write_text("[]"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_checkpoint_is_named_and_an_older_one_used(tmp_path: Path, kind: str) -> None:
    for step in (10, 20):
        save(tmp_path, step)
    newest = tmp_path / "checkpoints" / "step-000020"
    DAMAGE[kind](newest)
    file = kind.split()[-1]
    with pytest.raises(CheckpointError, match=f"step-000020/{file}") as raised:
        checkpoint.load(newest)
    assert "\n" not in str(raised.value)
    with pytest.warns(UserWarning, match=f"step-000020/{file}.*using the older step-000010"):
        assert checkpoint.latest(tmp_path).name == "step-000010"
    DAMAGE[kind](tmp_path / "checkpoints" / "step-000010")
    with pytest.raises(CheckpointError, match=f"step-000020/{file}.*no older checkpoint"):
        checkpoint.latest(tmp_path)


def test_a_checkpoint_in_another_steps_directory_is_damaged(tmp_path: Path) -> None:
    save(tmp_path, 10).rename(tmp_path / "checkpoints" / "step-000030")
    with pytest.raises(CheckpointError, match="says step 10, its directory step-000030"):
        checkpoint.latest(tmp_path)


def test_leftovers_are_left_alone_by_latest_and_cleaned_by_save(tmp_path: Path) -> None:
    save(tmp_path, 10)
    for name in (".partial-step-000020", ".removed-step-000005"):
        (tmp_path / "checkpoints" / name).mkdir()
        (tmp_path / "checkpoints" / name / "tensors.safetensors").write_bytes(b"half")
    assert loaded_step(tmp_path) == 10 and len(hidden(tmp_path)) == 2
    save(tmp_path, 20)
    assert steps(tmp_path) == [10, 20] and hidden(tmp_path) == []


# ---- kill -9
def forked(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    finally:
        os._exit(0)


def killed_at(call: int, after: bool, work: Callable[[], object]) -> bool:
    """Run `work` in a process that kills itself at its `call`-th change of the disk; False when it has fewer."""

    def child() -> None:
        count = itertools.count()

        def wrap(real: Callable[..., object]) -> Callable[..., object]:
            def deadly(*args: object, **kwargs: object) -> object:
                if next(count) != call:
                    return real(*args, **kwargs)
                if after and real is write:  # half of it
                    write(args[0], args[1][: len(args[1]) // 2])  # type: ignore[index, arg-type]
                elif after:
                    real(*args, **kwargs)
                os.kill(os.getpid(), signal.SIGKILL)
                return None

            return deadly

        write = os.write
        for name in ("open", "write", "fsync", "mkdir", "rename", "unlink", "rmdir", "close"):
            setattr(os, name, wrap(getattr(os, name)))
        work()

    _, status = os.waitpid(forked(child), 0)
    return os.WIFSIGNALED(status)


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize("after", some([False, True], [True]))
@pytest.mark.parametrize(("step", "keep"), some([(30, 2), (20, 1)], [(20, 1)]))  # 20 is there already: it is replaced
def test_killed_at_every_change_of_the_disk(tmp_path: Path, after: bool, step: int, keep: int) -> None:
    seen_actuals = set()
    begun = two_checkpoints(tmp_path)
    for call in itertools.count():
        run = tmp_path / str(call)
        shutil.copytree(begun, run)
        killed = killed_at(call, after, lambda run=run: save(run, step, keep))
        actual = loaded_step(run)
        assert actual in (20, step)
        seen_actuals.add(actual)
        assert set(steps(run)) <= {10, 20, step}
        save(run, 40)  # and the run goes on
        assert steps(run)[-1] == 40 and loaded_step(run) == 40 and hidden(run) == []
        if not killed:
            break
    assert call > 20 and seen_actuals == {20, step}


@pytest.mark.slow
@needs_fork
def test_killed_at_random_moments_of_a_saving_loop(tmp_path: Path) -> None:
    chance = random.Random(0)
    done = tmp_path / "done"
    done.write_text("0")

    def child() -> None:
        for step in itertools.count(int(done.read_text()) + 1):
            save(tmp_path, step, size=1000)
            checkpoint.write_atomic(done, str(step))

    for _ in range(15):
        before = done.read_text()
        pid = forked(child)
        limit = time.monotonic() + 5
        while done.read_text() == before and time.monotonic() < limit:  # under way
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.05))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        finished = int(done.read_text())
        assert loaded_step(tmp_path) in (finished, finished + 1)
        assert finished > int(before)


# ---- no room
def injected(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], call: int, code: int) -> list[int]:
    """From the `call`-th of these system calls on, each fails with `code`; gives a list holding how many there were."""
    count = [0]

    def wrap(real: Callable[..., object]) -> Callable[..., object]:
        def failing(*args: object, **kwargs: object) -> object:
            if real is not os_open or (len(args) > 1 and isinstance(args[1], int) and args[1] & os.O_CREAT):
                count[0] += 1
                if count[0] > call:
                    raise OSError(code, os.strerror(code))
            return real(*args, **kwargs)

        return failing

    os_open = os.open
    for name in names:
        monkeypatch.setattr(os, name, wrap(getattr(os, name)))
    return count


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_full_disk_at_every_change(tmp_path: Path, code: int) -> None:
    names = ("write", "open", "fsync", "mkdir", "rename")
    begun = two_checkpoints(tmp_path)
    for call in itertools.count():
        run = tmp_path / f"{code}-{call}"
        shutil.copytree(begun, run)
        with pytest.MonkeyPatch.context() as patch:
            injected(patch, names, call, code)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # the last call removes what is old
                    save(run, 30)
                saved = True
            except CheckpointError as error:
                message, saved = str(error), False
                assert "\n" not in message
                assert all(word in message for word in (str(run / "checkpoints"), os.strerror(code), "gxpo resume"))
                assert code != errno.ENOSPC or "free space" in message
        if saved:
            break
        # Only the last, the flush of the directory after the rename, can leave a new one.
        assert loaded_step(run) in (20, 30) and steps(run)[:2] == [10, 20]
        assert not [n for n in hidden(run) if n.startswith(".partial")]
        save(run, 40)
        assert steps(run)[-1] == 40 and hidden(run) == []
    assert call > 10


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:7]))
    save(tmp_path, 10)
    assert loaded_step(tmp_path) == 10


def test_interrupted_by_ctrl_c_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    save(tmp_path, 10)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "write", interrupted)
        save(tmp_path, 20)
    assert steps(tmp_path) == [10] and hidden(tmp_path) == []


LIMITED = """
import resource, sys
from pathlib import Path
import torch
from gxpo.base.errors import CheckpointError
from gxpo.training import checkpoint
run = Path(sys.argv[1])
checkpoint.save(run, 10, {"w": torch.ones(1000)}, {"step": 10}, 2)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    checkpoint.save(run, 20, {"w": torch.ones(1_000_000)}, {"step": 20}, 2)
except CheckpointError as error:
    print(error)
    sys.exit(2)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no RLIMIT_FSIZE")
def test_limit_on_file_size(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert done.stdout.count("\n") == 1 and "File too large" in done.stdout and "ulimit -f" in done.stdout
    assert steps(tmp_path) == [10] and hidden(tmp_path) == []
    assert checkpoint.load(checkpoint.latest(tmp_path))[1] == {"step": 10}


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    path = save(tmp_path, 10)
    torch.save(tensors(10), path / "tensors.safetensors")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["tensors.safetensors"] = checkpoint._file_entry(path / "tensors.safetensors")
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"tensors.safetensors is not a safetensors file"):
        checkpoint.load(path)


# ---- single files
def test_write_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.yaml"
    checkpoint.write_atomic(path, "a: \u00e9\n")
    checkpoint.write_atomic(path, b"b: 1\n")
    assert path.read_bytes() == b"b: 1\n"
    for call in range(3):  # open, write, fsync
        with monkeypatch.context() as patch:
            injected(patch, ("open", "write", "fsync"), call, errno.ENOSPC)
            with pytest.raises(CheckpointError, match=r"config.yaml not written: No space left on device; free space"):
                checkpoint.write_atomic(path, "c: 2\n")
        assert path.read_bytes() == b"b: 1\n" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(CheckpointError, match="No such file or directory"):
        checkpoint.write_atomic(tmp_path / "nowhere" / "x", "")
