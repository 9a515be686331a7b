"""Tables of rows that are given."""

from gxpo.bench import results
from gxpo.bench.results import Results

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


def test_the_table_says_machine_versions_and_how_to_read_it(capsys):
    rows = [row("tiny/16", 0.5, 1.25, unique_token_ratio=1.41), row("tiny/256", 1.0, 4.0, busy=True, note="why [so]")]
    results.table(Results("peer", MACHINE, rows), "more is faster")
    printed = capsys.readouterr().out
    first, *rest = printed.splitlines()
    assert first == "peer: Z80, 2 cores, threads: 1, torch 2.13, both sides with trl 1.16; more is faster"
    (line,) = [x for x in rest if "tiny/16" in x]
    assert line.split() == ["tiny/16", "2.50", "2.25..2.75", "gxpo", "/", "trl", "0.5", "1.25", "200", "1.41"]
    assert "4.00*" in printed and "not to be quoted" in printed and "tiny/256: why [so]" in printed
    assert "memory" not in printed and "agrees" not in printed


def test_rows_without_two_sides(capsys):
    rows = [{"name": "full/8/step1", "ratio": 1.0, "difference": 2e-7, "loss_difference": 1e-9, "agrees": False}]
    results.table(Results("agreement", {}, rows), "")
    assert "1.000000" in (printed := capsys.readouterr().out) and "2e-07" in printed and "NO" in printed
