"""The golden files: against worked numbers of papers and reference code, and against the script that writes them."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from gxpo.base.errors import ConfigError
from gxpo.conformance import golden, names
from gxpo.conformance.properties import FIELDS, PROPERTIES
from gxpo.methods import METHODS

ROOT = Path(__file__).parents[2]

# Worked by hand or read off runs of the systems, to the digits that are given: (method, vector, numbers).
WORKED = [
    ("grpo", "one of four, ddof 1, eps 0", [1.5, -0.5, -0.5, -0.5]),
    ("grpo", "one of four, ddof 1, eps 1e-06", [1.499997, -0.499999, -0.499999, -0.499999]),
    ("grpo", "one of four, ddof 1, eps 0.0001", [1.499700, -0.499900, -0.499900, -0.499900]),
    ("grpo", "one of four, ddof 0, eps 0", [1.732051, -0.577350, -0.577350, -0.577350]),
    ("grpo", "one of eight, ddof 1, eps 0.0001", [2.474174] + [-0.353453] * 7),
    ("grpo", "one of eight, ddof 1, eps 1e-05", [2.474804] + [-0.353543] * 7),
    ("grpo", "one of eight, ddof 1, eps 1e-06", [2.474867] + [-0.353552] * 7),
    ("grpo", "one of eight, ddof 1, eps 1e-09", [2.474874] + [-0.353553] * 7),
    ("grpo", "one of eight, ddof 0, eps 1e-06", [2.645743] + [-0.377963] * 7),
    ("dr_grpo", "one of four", [0.75, -0.25, -0.25, -0.25]),
    ("dr_grpo", "one of eight", [0.875] + [-0.125] * 7),
    ("dr_grpo", "groups of two and three", [0.5, -0.5, 0.666667, -0.333333, -0.333333]),
    ("rloo", "one of four", [1.0, -0.333333, -0.333333, -0.333333]),
    ("rloo", "one of eight", [1.0] + [-0.142857] * 7),
    ("two_grpo", "a winner and a loser", [1.0, -1.0]),
    ("opo", "one of four", [0.9, -0.1, -0.1, -0.1]),
    ("reinforce_pp", "four responses of unequal length", [1.207615, -0.724569, -0.724569, 1.207615]),
    (
        "reinforce_pp_baseline",
        "two groups, one token each",
        [1.620185] + [-0.540062] * 3 + [0.540062] * 3 + [-1.620185],
    ),
    ("gdpo_multi", "two rewards, one group", [1.332031, 0.206077, -0.769054, -0.769054]),
    ("pvpo", "one of four", [0.5, -0.5, -0.5, -0.5]),
    ("aapo", "three of four", [0.779900, -1.499700, 0.499900, 0.779900]),
    ("aapo", "all right", [0.28, 0.28, 0.0, 0.28]),
    ("maxrl", "one of four", [2.999988, -0.999996, -0.999996, -0.999996]),
    ("maxrl", "one of eight", [7.0] + [-1.0] * 7),
    ("mapo", "one of four", [1.875, -0.625, -0.625, -0.625]),
    ("mapo", "one of four, population std", [2.049038, -0.683013, -0.683013, -0.683013]),
    ("mapo", "three of four", [0.458333, 0.458333, 0.458333, -1.375]),
    ("ngrpo", "four wrong", [-0.447213] * 4),
    ("ngrpo", "eight wrong", [-0.333332] * 8),
    ("ngrpo", "one of four", [1.095443, -0.730295, -0.730295, -0.730295]),
    ("mc_grpo", "five values", [1.246883, 0.0, -1.246883, -0.748130, 0.997506]),
    ("mc_grpo", "three of five: the deviation is 0", [0.0, 0.0, 0.0, -1000.0, -1000.0]),
    ("mc_grpo", "one of five: the deviation is 0", [1000.0, 0.0, 0.0, 0.0, 0.0]),
    ("dgpo_math", "one of four", [1.999867, -0.666622, -0.666622, -0.666622]),
    ("dgpo_math", "two of four", [0.999950, 0.999950, -0.999950, -0.999950]),
    ("s_grpo", "two of eight", [1.168332] * 2 + [-0.389444] * 6),
    ("s_grpo", "a lone success counts as noise", [0.0] * 8),
    (
        "bnpo",
        "one, two, three of four",
        [0.680175] + [-0.226725] * 3 + [0.392699] * 2 + [-0.392699] * 2 + [0.226725] * 3 + [-0.680175],
    ),
    ("gpg", "a useful group of three", [2.25, -0.75, -0.75, -0.75] + [0.0] * 8),
    ("passk", "two of eight, k 4", [0.522232] * 2 + [-0.174077] * 6),
    ("passk", "one of eight, k 4", [0.999998] + [-0.142857] * 7),
    ("passk", "k 1 is GRPO with the population std", [1.732047, -0.577349, -0.577349, -0.577349]),
    ("passk", "five of eight, k 4: every subset has one", [0.0] * 8),
    ("pkpo", "two of eight, k 4", [80 / 35] * 2 + [0.0] * 6),
    ("pkpo", "graded rewards, k 2", [0.3, 1.1, 0.0]),
    ("psr_nsr", "one of four", [0.1, -1.0, -1.0, -1.0]),
    ("asymre", "one of four", [0.85, -0.15, -0.15, -0.15]),
    ("adora", "without eps", [0.15, -0.05, -0.05, -0.05]),
    ("grpo_lead", "three of four", [0.522460, 0.473813, 0.427539, -2.237091]),
    ("unlikeliness", "three of four", [0.268866, 0.537732, -1.478762, 0.672165]),
    ("xrpo", "two of four", [1.0, 1.401357, -1.0, -1.0]),
    ("capo_calibration", "two of three", [0.802625, 1.197375, -2.0]),
    ("lens", "all wrong", [-0.022693, -0.004836, 0.008557, 0.018973]),
    ("lens", "one of four", [1.499590, -0.528962, -0.498909, -0.471719]),
    ("edge_grpo", "one of four", [3.749250, -0.624875, -0.416583, -0.312438]),
    ("seed_grpo", "two meanings, even", [0.375, -0.125, -0.125, -0.125]),
    (
        "a_grae",
        "one and three of four, as coded",
        [0.749997, -0.499998, -0.499998, -0.499998, 0.538670, 0.538670, 0.538670, -3.232023],
    ),
    (
        "a_grae",
        "one and three of four, the mirror image",
        [0.591504, -0.394336, -0.394336, -0.394336, 0.197168, 0.197168, 0.197168, -1.183008],
    ),
]
COARSE = {"lens": 5e-6}  # worked without eps


@pytest.mark.parametrize(("method", "name", "numbers"), WORKED, ids=[f"{m}: {n}" for m, n, _ in WORKED])
def test_worked_numbers(method: str, name: str, numbers: list[float]) -> None:
    vector = next(v for v in golden(method).vectors if v.name == name)
    assert list(vector.expected) == pytest.approx(numbers, abs=COARSE.get(method, 1.1e-6), rel=1e-6)


def test_weights_of_the_noise_aware_groups() -> None:
    """S-GRPO's w(k) of n = 8 at q = 0.1 is what its vectors are times GRPO's."""
    table = {1: 0.420883, 2: 0.721110, 4: 0.8, 7: 0.420883}
    for vector in golden("s_grpo").vectors[:4]:
        right = sum(r == 1 for r in vector.rewards)
        p = right / 8
        plain = (1 - p) / math.sqrt(8 / 7 * p * (1 - p))
        assert vector.expected[0] == pytest.approx(table[right] * plain, rel=1e-5)


def test_files_are_what_the_script_writes() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/vectors/make_golden_vectors.py"), "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_the_script_knows_nothing_of_gxpo() -> None:
    paths = [ROOT / "scripts/vectors/make_golden_vectors.py", *(ROOT / "scripts/vectors/golden").glob("*.py")]
    lines = [line.strip() for path in paths for line in path.read_text().splitlines()]
    imported = [line for line in lines if line.startswith(("import ", "from "))]
    assert len(paths) == 8 and len(imported) > 20
    assert not any("gxpo" in line or "torch" in line or "numpy" in line for line in imported)


@pytest.mark.parametrize("method", names())
def test_every_file_is_whole(method: str) -> None:
    entry = golden(method)
    assert entry.method == method and entry.formula and entry.inputs in ("real", "binary")
    assert set(entry.properties) <= set(PROPERTIES)
    assert len({v.name for v in entry.vectors}) == len(entry.vectors)
    per_row = {*FIELDS}
    for vector in entry.vectors:
        n = len(vector.rewards)
        assert len(vector.groups) == len(vector.expected) == n
        assert set(vector.constants) == set(entry.constants)
        assert all(math.isfinite(x) for x in vector.expected)
        assert all(x == 0 for x, r in zip(vector.expected, vector.rewards, strict=True) if r is None)
        assert all(len(value) == n for name, value in vector.fields.items() if name in per_row)
    if method in METHODS:
        assert entry.arxiv == METHODS[method].arxiv


def test_an_unknown_method_is_an_error_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'dr_grpo'"):
        golden("dr_grp")
