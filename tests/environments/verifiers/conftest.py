"""A folder with the environments of the tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.environments.verifiers.library_envs import MODULES


@pytest.fixture(scope="session")
def library_envs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if sys.version_info < (3, 11):
        pytest.skip("verifiers needs Python 3.11")
    folder = tmp_path_factory.mktemp("envs")
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    return folder
