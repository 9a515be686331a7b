"""Fixtures of the adapters' tests."""

import pytest

from gxpo.training import config


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def resolved(here):
    """Resolve a converted configuration as `gxpo train` does."""

    def resolve(converted):
        (here / "run.yaml").write_text(converted.text("a file"))
        return config.resolve(config.read(here / "run.yaml"))

    return resolve
