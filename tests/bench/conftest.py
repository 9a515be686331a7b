"""The tiny model in a directory, as the sides of a measurement load it."""

import pytest

from gxpo.bench import plan


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench")
    plan.save_models(str(path), ["tiny"])
    return path
