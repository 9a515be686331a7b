import pytest
from tests.models.chat.families import FAMILIES, tokenizer_of

from gxpo.models.chat import check_template

CHATML = FAMILIES["chatml"].template

REWRITING = {"deepseek_r1"}  # plain answers too: the generation prompt opens a thought


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_no_family_fails_and_notes_are_the_right_ones(name):
    report, family = check_template(tokenizer_of(name)), FAMILIES[name]
    assert report.ok, report.text()
    assert (report["thinking"].verdict == "note") == family.drops
    assert ("rewrite" in report["turns"].detail) == (name in REWRITING)
    assert ("read back;" in report["tools"].detail) == (family.form is not None)
    assert (report["ends"].verdict == "note") == (name in ("harmony", "last_eos"))


def test_a_clean_template_has_nothing_but_its_missing_tools():
    report = check_template(tokenizer_of("chatml"))
    assert [c.name for c in report.checks if c.verdict != "ok"] == ["tools"]


def test_what_a_report_gives():
    report = check_template(tokenizer_of("qwen3"))
    data = report.to_dict()
    assert data["ok"] is True and {c["verdict"] for c in data["checks"]} == {"ok", "note"}
    lines = report.text().splitlines()
    assert len(lines) == len(report.checks)
    assert any(line.startswith("note   thinking") and "'rebuild'" in line for line in lines)


def test_broken_templates_fail_in_their_own_words():
    report = check_template(tokenizer_of("chatml"), template="{{ raise_exception('closed on Sundays') }}")
    assert not report.ok and "closed on Sundays" in report["renders"].detail


def test_a_first_token_written_twice_fails():
    assert check_template(tokenizer_of("chatml"), template="<s><s>" + CHATML)["bos"].verdict == "fails"


def test_the_date_is_told():
    report = check_template(tokenizer_of("chatml"), template="{{ strftime_now('%Y') }}" + CHATML)
    assert report["date"].verdict == "note"


def test_markers_in_messages_stay_text():
    assert check_template(tokenizer_of("chatml"))["forgery"].detail == "<|im_end|> typed into a message stays text"
