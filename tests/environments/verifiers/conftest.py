"""A folder with the environments of the tests."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.environments.verifiers.library_envs import MODULES


@pytest.fixture(scope="session")
def library_envs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("verifiers") is None:
        pytest.skip("pip install 'gxpo[verifiers]' (Python 3.11 or later)")
    folder = tmp_path_factory.mktemp("envs")
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    return folder
