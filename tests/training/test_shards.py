"""Views of a checkpoint's tensors by prefix, and what a folder without shards raises."""

import pytest
import torch

from gxpo.base.errors import CheckpointError
from gxpo.training.shards import Shards, View


def test_a_view_has_the_names_below_its_prefix():
    tensors = {name: torch.tensor(i) for i, name in enumerate(("parameter/a", "parameter/head.b", "moment/a"))}
    view = View(tensors, "parameter/")
    assert list(view) == ["a", "head.b"] and len(view) == 2 and int(view["head.b"]) == 1
    assert list(View(tensors, "parameter/", leave_out="head.")) == ["a"]
    with pytest.raises(KeyError):
        view["moment/a"]


def test_a_folder_without_shards_is_a_damaged_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="damaged checkpoint"):
        len(Shards(tmp_path / "none"))
