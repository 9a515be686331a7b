"""Arguments of `gxpo compare`: what is refused, and the list of suites."""

import json

import pytest
from tests import command_line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare"], "give METHODS and --task"),
        (["compare", "dr_grpo", "--task", "sums", "--suite", "stalled"], "not both"),
        (["compare", "dr_grpo", "--suite", "stalle"], "did you mean"),
        (["compare", "dr_grp", "--task", "sums", "--plan"], "dr_grp"),
        (["compare", "dr_grpo", "--task", "sums", "--budget", "much"], "write tokens"),
        (["compare", "dr_grpo", "--task", "sums", "--tune", "optim.lr"], "KEY=V1,V2"),
        (["compare", "dr_grpo", "--task", "sums", "--on", "moon"], "local or ray"),
    ],
)
def test_errors_say_what_to_change_in_a_line(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, error = command_line.run(words)
    assert code == 2
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_the_suites_are_listed_as_text_and_as_data():
    code, text, _ = command_line.run(["compare", "--suite", "list"])
    names = [s["suite"] for s in json.loads(command_line.run(["compare", "--suite", "list", "--json"])[1])]
    assert code == 0 and "stalled" in names and all(f"{name}: " in text for name in names)
