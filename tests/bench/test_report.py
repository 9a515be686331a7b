"""Tables and pictures of rows that are given."""

import pytest

from gxpo.bench import report
from gxpo.bench.results import Results
from gxpo.errors import ConfigError

MACHINE = {"processor": "Z80", "cores": 2, "threads": 1, "torch": "2.13", "gpu": None, "peer": {"trl": "1.16"}}


def row(name, own, other, **more):
    return {
        "name": name,
        "ratio": other / own,
        "spread": [0.9 * other / own, 1.1 * other / own],
        "gxpo": {"seconds": own, "tokens_per_s": 100 / own},
        "trl": {"seconds": other},
        **more,
    }


def unique(tokens):
    """A step takes 0.1 s and 2 ms a token."""
    return row(f"unique/{tokens}", 0.1 + 0.002 * tokens, 1.0, unique_tokens=tokens)


def test_the_table_says_machine_versions_and_how_to_read_it(capsys):
    rows = [row("tiny/16", 0.5, 1.25, unique_token_ratio=1.41), row("tiny/256", 1.0, 4.0, busy=True, note="why [so]")]
    report.table(Results("peer", MACHINE, rows), "more is faster")
    printed = capsys.readouterr().out
    first, *rest = printed.splitlines()
    assert first == "peer: Z80, 2 cores, threads: 1, torch 2.13, both sides with trl 1.16; more is faster"
    (line,) = [x for x in rest if "tiny/16" in x]
    assert line.split() == ["tiny/16", "2.50", "2.25..2.75", "gxpo", "/", "trl", "0.5", "1.25", "200", "1.41"]
    assert "4.00*" in printed and "not to be quoted" in printed and "tiny/256: why [so]" in printed
    assert "memory" not in printed and "agrees" not in printed


def test_rows_without_two_sides(capsys):
    rows = [{"name": "full/8/step1", "ratio": 1.0, "difference": 2e-7, "loss_difference": 1e-9, "agrees": False}]
    report.table(Results("agreement", {}, rows), "")
    assert "1.000000" in (printed := capsys.readouterr().out) and "2e-07" in printed and "NO" in printed


def test_a_line_through_points_on_a_line():
    start, slope, r2 = report.fitted([(100, 0.3), (1000, 2.1), (3000, 6.1)])
    assert (start, slope, r2) == pytest.approx((0.1, 0.002, 1.0))


def test_a_line_through_points_beside_it():
    """Least squares by hand: x 0 1 2, y 0 1 0: slope 0, start 1/3, nothing explained."""
    assert report.fitted([(0, 0.0), (1, 1.0), (2, 0.0)]) == pytest.approx((1 / 3, 0.0, 0.0), abs=1e-12)


def test_pictures_are_equal_for_equal_rows_and_show_them(tmp_path):
    rows = [unique(100), unique(3000), row("lonely", 1.0, 0.5)]
    for name in ("a.svg", "b.svg"):
        report.plot(Results("update", MACHINE, rows), tmp_path / name, "more is faster")
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert all(f"<!-- {shown} -->" in text for shown in ("lonely", "unique/3000", "more is faster", "0.50"))
    assert "100 ms + 2000.0 us per token, r2 = 1.0000" in text


def test_rows_of_one_size_get_no_line(tmp_path):
    report.plot(Results("update", MACHINE, [unique(100)]), tmp_path / "a.svg", "")
    assert "per token" not in (tmp_path / "a.svg").read_text()
    report.plot(Results("update", MACHINE, [unique(100)]), tmp_path / "a.png", "")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_what_can_not_be_drawn(tmp_path):
    with pytest.raises(ConfigError, match=r"must end in \.svg, \.png"):
        report.plot(Results("update", MACHINE, [unique(100)]), tmp_path / "a.gif", "")
    with pytest.raises(ConfigError, match="no rows"):
        report.plot(Results("update", MACHINE), tmp_path / "a.svg", "")
