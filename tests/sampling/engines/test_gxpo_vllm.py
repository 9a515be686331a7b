"""vLLM worker program: messages, checksums, prompts with pictures; it runs where gxpo is not installed."""

import array
import subprocess
import sys

import pytest
import torch
from torch import nn

from gxpo.sampling.engines.in_vllm.gxpo_vllm import (
    checksum,
    decode,
    encode,
    misread_prompts,
    prompts_of,
    vector_checksums,
)
from gxpo.sampling.engines.vllm_process import PROGRAM


def test_a_single_bit_changes_the_checksum():
    x = torch.randn(7, 5)
    y = x.clone()
    y.view(torch.int32)[3, 2] ^= 1
    assert checksum(x) == checksum(x.clone()) == checksum(x.t().contiguous().t()) != checksum(y)
    assert checksum(torch.zeros(0)) == 0


def test_a_message_is_decoded_as_it_was_encoded():
    raw = {"a": ("int32", array.array("i", [1, -2, 3]).tobytes()), "none": ("float32", b""),
           "b": ("int64", array.array("q", [2**62]).tobytes())}  # fmt: skip
    header, arrays = decode(encode({"do": "sample", "words": "été"}, raw))
    assert (header["do"], header["words"]) == ("sample", "été")
    assert {n: x.tolist() for n, x in arrays.items()} == {"a": [1, -2, 3], "none": [], "b": [2**62]}
    assert sys.byteorder == "little"


def test_the_program_imports_without_gxpo():
    """It runs where gxpo is not installed: -I leaves this project's paths out."""
    code = f"import runpy, sys; runpy.run_path({PROGRAM!r}, run_name='w'); sys.exit('gxpo' in sys.modules)"
    assert subprocess.run([sys.executable, "-I", "-S", "-c", code], timeout=60, check=False).returncode == 0


def test_checksums_add_words_and_leftover_bytes():
    # 11 bytes: one word of eight ones is 0x0101010101010101, then 2 + 3 + 4
    raw = torch.tensor([1] * 8 + [2, 3, 4], dtype=torch.uint8)
    assert checksum(raw) == 0x0101010101010101 + 9


def test_only_equal_vectors_are_compared_after_a_load():
    """Names that vLLM packs, other shapes and other dtypes have no counterpart; matrices may be split."""
    model = nn.Module()
    model.norm = nn.Parameter(torch.tensor([1.0, 2.0]))
    model.bias = nn.Parameter(torch.tensor([3.0]))
    model.proj = nn.Parameter(torch.zeros(2, 2))
    model.packed = nn.Parameter(torch.zeros(2))
    sent = {"norm": torch.zeros(2), "bias": torch.zeros(2), "proj": torch.zeros(2, 2)}
    assert vector_checksums(model, sent) == {"norm": checksum(torch.tensor([1.0, 2.0]))}


def integers(*values):
    return array.array("i", values)


def test_prompts_are_salted_with_the_stamp():
    message = {"tokens": integers(5, 6, 7), "lengths": integers(1, 2)}
    assert prompts_of({}, message, 4) == [
        {"prompt_token_ids": [5], "cache_salt": "gxpo-4"},
        {"prompt_token_ids": [6, 7], "cache_salt": "gxpo-4"},
    ]


def test_pictures_are_named_by_reference_and_stamp():
    pytest.importorskip("PIL")
    header = {"pictures": [["a", 1, 2], ["b", 1, 1]], "shown": [[1, [1, 0]]]}
    pixels = array.array("B", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    arrays = {"tokens": integers(5, 6), "lengths": integers(1, 1), "pixels": pixels}
    text, pictured = prompts_of(header, arrays, 4)
    assert "multi_modal_data" not in text
    assert pictured["multi_modal_uuids"] == {"image": ["b/4", "a/4"]}
    second, first = pictured["multi_modal_data"]["image"]
    assert (first.size, first.tobytes()) == ((2, 1), bytes([1, 2, 3, 4, 5, 6]))
    assert (second.size, second.tobytes()) == ((1, 1), bytes([7, 8, 9]))


def test_a_misread_prompt_is_named_with_its_first_difference():
    header = {"shown": [[0, [0]], [2, [0]], [3, [0]]]}
    arrays = {"expanded": integers(1, 9, 2, 1, 9, 9, 5, 6), "expanded_lengths": integers(3, 3, 2)}
    read = {0: [1, 9, 2], 2: [1, 9, 8], 3: [5, 6, 7]}  # equal; another id at place 2; one id too many
    assert misread_prompts(header, arrays, read) == [[2, 2], [3, 2]]
    assert misread_prompts({}, {}, {}) == []
