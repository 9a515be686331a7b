"""Directories of programs: removed whatever is in them."""

from __future__ import annotations

import json
import os
import tempfile
import warnings

import pytest

from gxpo.environments.rewards import scratch
from gxpo.environments.rewards.scratch import exceeds, fresh_directory, remove

NOBODY = 65534
pytestmark = pytest.mark.skipif(os.name != "posix", reason="there is no local sandbox elsewhere")


def chain(directory, depth, name="d"):
    """Directories in each other, deeper than a path can say."""
    at = os.open(directory, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(os.open("file", os.O_CREAT, dir_fd=at))
    os.close(at)


@pytest.fixture
def directory():
    """One that others may enter; in memory where that is possible: disks take milliseconds for each directory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as path:
        os.chmod(path, 0o755)
        os.mkdir(os.path.join(path, "inside"))
        yield os.path.join(path, "inside")


def as_user(action):
    """What `action` says as somebody for whom modes count: root becomes nobody for it, in a process of its own."""
    if os.getuid():
        return action()
    inbox, outbox = os.pipe()
    child = os.fork()
    if child == 0:
        os.setresuid(NOBODY, NOBODY, NOBODY)
        os.write(outbox, json.dumps(action()).encode())
        os._exit(0)
    os.close(outbox)
    assert os.waitpid(child, 0)[1] == 0
    with open(inbox, "rb") as answer:
        return json.load(answer)


def hand_over(directory):
    """Give a directory and its parent to whom `as_user` becomes."""
    for place, _, _ in os.walk(os.path.dirname(directory)) if os.getuid() == 0 else ():
        os.chown(place, NOBODY, -1)


def test_neither_depth_nor_length_of_paths_hinders_removal(directory):
    chain(directory, 1200)  # deeper than Python's recursion may go
    chain(directory, 40, "n" * 200)  # longer than a path may be
    os.symlink("/", os.path.join(directory, "link"))
    assert remove(directory) == [] and not os.path.exists(directory)


def test_modes_do_not_hinder_removal(directory):
    chain(directory, 3)
    hand_over(directory)
    for path in ("d/d/d", "d/d", "d", ""):
        os.chmod(os.path.join(directory, path), 0)
    assert as_user(lambda: remove(directory)) == [] and not os.path.exists(directory)


def test_what_stays_is_said_once_and_counted(monkeypatch):
    real = os.unlink

    def stuck(path, **keywords):
        if path == "stuck":
            raise PermissionError(1, "Operation not permitted", path)
        real(path, **keywords)

    paths = []
    monkeypatch.setattr(scratch, "LEFTOVERS", scratch.Leftovers())
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", stuck)
        with warnings.catch_warnings(record=True) as catch_warnings:
            warnings.simplefilter("always")
            for _ in range(2):
                with fresh_directory({"stuck": "", "main.py": ""}) as path:
                    paths.append(path)
    assert [os.listdir(path) for path in paths] == [["stuck"]] * 2 and scratch.LEFTOVERS.count == 2
    assert len(catch_warnings) == 1 and f"{paths[0]} can't be removed ([Errno 1] Operation not permitted" in str(
        catch_warnings[0].message
    )
    assert [remove(path) for path in paths] == [[], []]


def test_files_are_counted_and_measured(directory):
    for i in range(5):
        with open(os.path.join(directory, str(i)), "wb") as file:
            file.write(bytes(1 << 16))
    assert not exceeds(directory, 1 << 20, 5) and exceeds(directory, 1 << 20, 4) and exceeds(directory, 1 << 18, 9)
    chain(directory, 30, "n" * 200)
    assert exceeds(directory, 1 << 30, 1 << 20)  # what can't be reached by a path can't be counted


def test_a_directory_that_is_shut_is_counted(directory):
    os.mkdir(hidden := os.path.join(directory, "hidden"))
    open(os.path.join(hidden, "file"), "w").close()
    hand_over(directory)
    os.chmod(hidden, 0)
    assert as_user(lambda: [exceeds(directory, 1 << 20, 1), exceeds(directory, 1 << 20, 2)]) == [True, False]
