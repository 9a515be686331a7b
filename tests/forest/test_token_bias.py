"""Biases of tokens: dense values, hashes, records, forests that are joined and cut."""

import json
import math

import numpy as np
import pytest
import torch

from gxpo.base.errors import RecordError
from gxpo.forest.forest import Forest
from gxpo.forest.records import dump, load
from gxpo.forest.token_bias import TokenBias, from_records, penalised, to_records

INF = math.inf
MASK = bytes([0b00010110, 0b00000001])  # ids 1, 2, 4 and 8


def forest(bias: TokenBias) -> Forest:
    """Two trajectories of one prompt; the first action's tokens have a bias, the second's a penalty."""
    biases, penalty = (
        to_records({bias.key: bias}, [bias.key]),
        torch.tensor([[0.5, 0.0, 1.0, 0.0]], dtype=torch.float64),
    )
    turns = [
        {"action": [4, 2], "extras": {"bias": torch.tensor([bias.key, -1])}, "biases": biases},
        {"action": [4], "extras": {"penalty": penalty}},
    ]
    records = [
        {"schema": "gxpo.rollouts/1", "group": "g", "id": name, "prompt": [7, 8], "turns": [turn], "reward": 1.0}
        for name, turn in zip("ab", turns, strict=True)
    ]
    return Forest.from_records(records)


def test_a_bias_adds_values_and_forbids_the_rest_of_a_mask():
    dense = TokenBias.of({2: 1.5, 4: -INF, 9: 3.0}, MASK).dense(12)
    expected = [-INF, 0.0, 1.5, -INF, -INF, -INF, -INF, -INF, 0.0, -INF, -INF, -INF]
    assert dense.tolist() == expected
    assert TokenBias.of({2: 1.5, 4: -INF, 9: 3.0}, MASK).at(torch.arange(12)).tolist() == expected
    assert TokenBias.of({2: 1.5}).at(torch.tensor([2, 2, 30])).tolist() == [1.5, 1.5, 0.0]
    assert TokenBias.of({}, MASK).at(torch.tensor([8, 15, 16, 900])).tolist() == [0.0, -INF, -INF, -INF]
    with pytest.raises(ValueError, match=r"names the id 9; the vocabulary has 0 to 8"):
        TokenBias.of({9: 1.0}).dense(9)


def test_equal_biases_have_equal_hashes_and_others_have_not():
    biases = [TokenBias.of({1: 2.0}), TokenBias.of({1: 2.5}), TokenBias.of({2: 2.0}), TokenBias.of({1: 2.0}, MASK),
              TokenBias.of({}, MASK), TokenBias.of({}, MASK[:1])]  # fmt: skip
    assert len({bias.key for bias in biases}) == len(biases)
    assert TokenBias.of({3: 1.0, 1: 2.0}).key == TokenBias.of({1: 2.0, 3: 1.0}).key
    assert all(0 <= bias.key < 1 << 63 for bias in biases)


def test_records_of_a_bias_are_json_and_are_checked():
    bias = TokenBias.of({3: 0.25, 5: -INF}, MASK)
    record = to_records({bias.key: bias}, [bias.key, -1, bias.key])
    assert list(record) == [str(bias.key)] and record[str(bias.key)]["values"] == [0.25, None]
    (back,) = from_records(json.loads(json.dumps(record))).values()
    assert back.key == bias.key and torch.equal(back.dense(20), bias.dense(20))
    edited = {str(bias.key): {**record[str(bias.key)], "values": [0.5, None]}}
    with pytest.raises(ValueError, match="is not the hash of its contents"):
        from_records(edited)
    for broken in ({"ids": [3]}, {"ids": [3, 3], "values": [1, 1]}, {"allowed": "@"}, {"ids": [-1], "values": [1]}, 5):
        with pytest.raises(ValueError, match=r"has|is not"):
            from_records({"1": broken})


def test_a_forest_with_biases_survives_files_and_changes_of_shape(tmp_path):
    one, two = forest(TokenBias.of({9: 1.0})), forest(TokenBias.of({}, MASK))
    dump(one, tmp_path / "a.jsonl")
    back = load(tmp_path / "a.jsonl")
    key = TokenBias.of({9: 1.0}).key
    assert list(back.biases) == [key] and back.biases[key].values.tolist() == [1.0]
    assert torch.equal(back.extras["bias"], one.extras["bias"])
    assert torch.equal(back.extras["penalty"].nan_to_num(-7.0), one.extras["penalty"].nan_to_num(-7.0))
    both = Forest.concat([one, two])
    assert set(both.biases) == {key, TokenBias.of({}, MASK).key}
    for shape in (both.select([2, 0]), both.flatten(), both.select([2, 0]).in_context("sampled")):
        named = shape.extras["bias"][shape.path_token]
        assert sorted(named[named >= 0].tolist()) == sorted(both.biases)
        assert set(shape.biases) >= set(named[named >= 0].tolist())
    # an id of a token whose bias is not there would make wrong ratios
    (record, _) = one.to_records()
    del record["turns"][0]["biases"]
    with pytest.raises(RecordError, match=f"turns.0..biases lacks {key}, which extras.bias names"):
        Forest.from_records([record])


def test_records_without_biases_are_read_as_before():
    record = {"schema": "gxpo.rollouts/1", "group": "g", "id": "a", "turns": [{"action": [1]}], "reward": None}
    read = Forest.from_records([record])
    assert read.biases == {} and read.extras == {} and "biases" not in read.to_records()[0]["turns"][0]


def test_penalties_by_hand():
    # ids 0 and 2 were seen, 2 twice in the reply. repetition 2: 3 / 2 = 1.5 and -1 * 2 = -2; then 2 * .25 + .5 is taken
    logits, count = torch.tensor([[3.0, 3.0, -1.0]]), torch.tensor([[0.0, 0.0, 2.0]])
    out = penalised(logits, count, torch.tensor([[True, False, True]]), torch.tensor([[0.5, 0.25, 2.0]]))
    assert out.tolist() == [[1.5, 3.0, -3.0]]
    assert np.allclose(penalised(logits, count, count > 0, torch.tensor([[0.0, 0.0, 1.0]])), logits)
