"""Ledger of an asynchronous run: what edits, losses, cut lines and resumes do to it."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.training.killed_run import KEYS, REWARD, lines, train

import gxpo
from gxpo.base.errors import CheckpointError
from gxpo.training import checkpoint
from gxpo.training.asynchronous.ledger import Ledger, read

AHEAD: dict[str, Any] = {"async__max_staleness": 1}


def ledger(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "rollouts" / "ledger.jsonl").read_text().splitlines()]


def used(out: Path) -> list[int]:
    """Places in the order in which steps used them."""
    return [place for line in ledger(out) if line["event"] == "consume" for place in line["places"]]


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path: Path) -> None:
    train(tmp_path / "run", steps=1, **AHEAD)
    path = tmp_path / "run" / "rollouts" / "ledger.jsonl"
    full_value = read(path)
    path.write_bytes(path.read_bytes() + b'{"event": "disp')
    assert read(path) == full_value and len(full_value) == 2
    path.write_bytes(b"nonsense\n" + path.read_bytes())
    with pytest.raises(CheckpointError, match=r"ledger.jsonl:1: not a line of a ledger"):
        read(path)


# ---------------------------------------------------------------- edits by hand
@pytest.fixture(scope="module")
def ahead(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A run that ended after step 2 with the groups of step 3 sampled, and the lines of one that went on."""

    def stop(row: dict[str, Any]) -> bool:
        return row["step"] == 2

    keys = KEYS | {"async.max_staleness": 2}
    out = tmp_path_factory.mktemp("ahead") / "run"
    gxpo.train("tiny:cold", "arithmetic", "grpo", 4, REWARD, out=out, set=keys, watch=stop, progress="none")
    calm = out.parent / "calm"
    shutil.copytree(out, calm)
    gxpo.resume(calm, progress="none")
    return out, lines(calm)


def _edits(out: Path) -> dict[str, tuple[Path, Callable[[list[bytes]], list[bytes]], str]]:
    """Changes of the lines of a file, and what the error says of each."""
    log = out / "rollouts" / "ledger.jsonl"
    group = sorted((out / "rollouts" / ".groups").rglob("*.jsonl"))[-1]  # of a step that was not trained
    finish = next(i for i, line in enumerate(ledger(out)) if line["event"] == "finish")
    at = rf"ledger\.jsonl:{finish + 1}: was changed, or a line before it was added, moved or lost"
    last = r"ledger\.jsonl: lines that it had at the checkpoint are lost, as of step 2"
    bare = [json.dumps({k: v for k, v in line.items() if k != "digest"}).encode() + b"\n" for line in ledger(out)]
    return {
        "a line edited": (log, lambda x: _put(x, finish, x[finish].replace(b'"version": ', b'"version": 1')), at),
        "a figure edited": (log, lambda x: _put(x, finish, re.sub(rb'tokens": \d+', b'tokens": 7', x[finish])), at),
        "a line removed": (log, lambda x: x[:finish] + x[finish + 1 :], at),
        "lines moved": (log, lambda x: [*x[:finish], x[finish + 1], x[finish], *x[finish + 2 :]], at),
        "a line doubled": (log, lambda x: x[: finish + 1] + x[finish:], at.replace(f"{finish + 1}", f"{finish + 2}")),
        "the first lines removed": (log, lambda x: x[2:], r"ledger\.jsonl:1: was changed, or"),
        "the last lines removed": (log, lambda x: x[:-4], last),
        "the last line cut": (log, lambda x: _put(x, len(x) - 1, x[-1][:-9]), last),
        "digests removed": (log, lambda x: bare, last),
        "a digest removed": (log, lambda x: _put(x, finish, bare[finish]), rf":{finish + 1}: has no digest"),
        "nothing left": (log, lambda x: [], last),
        "no text": (log, lambda x: _put(x, finish, b"\xff\xfe\xff\n"), rf":{finish + 1}: has no digest"),
        "a reward edited": (
            group,
            lambda x: _put(x, 1, re.sub(rb'"reward": [\d.]+', b'"reward": 5.0', x[1])),
            r"jsonl:2",
        ),
        "a space added": (group, lambda x: _put(x, 0, b" " + x[0]), r"jsonl:1: was changed since it was written"),
        "a rollout removed": (group, lambda x: x[:-1], r"jsonl:2: was changed .*\(1 lines instead of 2\)"),
        "a rollout doubled": (group, lambda x: [*x, x[-1]], r"jsonl:3: was changed .*\(3 lines instead of 2\)"),
        "rollouts moved": (group, lambda x: x[::-1], r"jsonl:1: was changed .* delete it, and gxpo resume samples"),
        "a rollout cut": (group, lambda x: _put(x, 1, x[1][:40]), r"jsonl:2: was changed since it was written"),
    }


def _put(lines_: list[bytes], at: int, line: bytes) -> list[bytes]:
    assert line != lines_[at]
    return [*lines_[:at], line, *lines_[at + 1 :]]


@pytest.mark.slow
def test_changed_groups_and_lines_are_not_trained(tmp_path: Path, ahead: tuple[Path, list[dict[str, Any]]]) -> None:
    state = checkpoint.newest_state(ahead[0])["async"]["ledger"]
    wrong = []
    for name, (path, edit, why) in _edits(ahead[0]).items():
        out = tmp_path / name
        (out / "rollouts").mkdir(parents=True)
        shutil.copytree(ahead[0] / "rollouts", out / "rollouts", dirs_exist_ok=True)
        changed = out / path.relative_to(ahead[0])
        changed.write_bytes(b"".join(edit(changed.read_bytes().splitlines(keepends=True))))
        before = changed.read_bytes()
        try:
            Ledger(out).rewind(2, state)
            wrong.append((name, "no error"))
        except CheckpointError as error:
            wrong += [] if re.search(why, str(error)) and changed.read_bytes() == before else [(name, str(error))]
    assert wrong == []


@pytest.mark.slow
def test_a_changed_group_ends_the_run_until_it_is_deleted(
    tmp_path: Path, ahead: tuple[Path, list[dict[str, Any]]]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(ahead[0], out)
    path = sorted((out / "rollouts" / ".groups").rglob("*.jsonl"))[-1]
    path.write_bytes(re.sub(rb'"reward": [\d.]+', b'"reward": 0.5', path.read_bytes()))
    with pytest.raises(CheckpointError, match=r"jsonl:1: was changed since it was written"):
        gxpo.resume(out, progress="none")
    path.unlink()
    with pytest.warns(UserWarning, match="the records of 1 finished groups are missing: they are sampled again"):
        gxpo.resume(out, progress="none")
    assert [row["step"] for row in lines(out)] == [1, 2, 3, 4] and used(out) == list(range(8))


def test_a_file_changed_during_the_run_is_detected(tmp_path: Path, ahead: tuple[Path, list[dict[str, Any]]]) -> None:
    shutil.copytree(ahead[0] / "rollouts", tmp_path / "rollouts")
    own_ledger = Ledger(tmp_path)
    own_ledger.rewind(2, checkpoint.newest_state(ahead[0])["async"]["ledger"])
    place = next(e.place for e in own_ledger.entries.values() if e.state == "finished")
    assert own_ledger.rollouts(place).n_trajectories == 2
    side = own_ledger.records_path(place).with_suffix(".safetensors")
    side.write_bytes(b"")
    with pytest.raises(CheckpointError, match=f"{side.name}: is none of the files that"):
        own_ledger.rollouts(place)
    side.unlink()
    own_ledger.records_path(place).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"jsonl:1: was changed .* \(0 lines instead of 2\)"):
        own_ledger.rollouts(place)


def test_a_rewritten_ledger_fits_each_earlier_checkpoint(
    tmp_path: Path, ahead: tuple[Path, list[dict[str, Any]]]
) -> None:
    """The ledger is written anew by each resume; checkpoints from before that still have their digests in it."""
    shutil.copytree(ahead[0] / "rollouts", tmp_path / "rollouts")
    states = [checkpoint.state_of(checkpoint.at_step(ahead[0], s))["async"]["ledger"] for s in (1, 2)]
    assert len(states[0]["marks"]) == 1 and states[1]["marks"][0] == states[0]["marks"][0]
    for step in (2, 2, 1, 1):
        Ledger(tmp_path).rewind(step, states[step - 1])
    with pytest.raises(CheckpointError, match="are lost, as of step 2"):
        Ledger(tmp_path).rewind(2, states[1])  # of a line that the run has left: its checkpoints go, too


@pytest.mark.slow
def test_a_run_without_digests_resumes_alike_with_a_warning(
    tmp_path: Path, ahead: tuple[Path, list[dict[str, Any]]]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(ahead[0], out)
    log = out / "rollouts" / "ledger.jsonl"
    plain = [{k: v for k, v in line.items() if k not in ("digest", "files")} for line in ledger(out)]
    log.write_text("".join(json.dumps(line) + "\n" for line in plain))
    state = out / "checkpoints" / "step-000002" / "state.json"
    content = json.loads(state.read_text())
    del content["async"]["ledger"]
    state.write_text(json.dumps(content))
    manifest = state.with_name("manifest.json")
    files = json.loads(manifest.read_text())
    digest = hashlib.sha256(state.read_bytes()).hexdigest()
    files["files"]["state.json"] = {"size": state.stat().st_size, "sha256": digest}
    manifest.write_text(json.dumps(files))
    with pytest.warns(UserWarning, match=r"finished groups have no digests"):
        gxpo.resume(out, progress="none")
    assert lines(out) == ahead[1]
