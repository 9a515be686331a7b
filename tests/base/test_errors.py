"""Errors: one line, safe for terminals, with what to change."""

from __future__ import annotations

import sys

import pytest

from gxpo.base.errors import (
    CheckpointError,
    ConfigError,
    GxpoError,
    MethodConflict,
    MissingExtra,
    MissingSignal,
    ModelError,
    NoComponent,
    NoVerdicts,
    SamplersLost,
    did_you_mean,
    need,
    one_of,
)


def test_messages_are_escaped_for_terminals():
    assert "\x1b" not in str(GxpoError("red \x1b[31m")) and "[31m" in str(GxpoError("red \x1b[31m"))
    assert str(CheckpointError("plain text")) == "plain text"


def test_a_missing_signal_is_a_key_error_without_quotes():
    error = MissingSignal("signal 'entropy' is missing")
    assert isinstance(error, KeyError) and str(error) == "signal 'entropy' is missing"


def test_special_cases_are_errors_of_their_general_kind():
    assert issubclass(MethodConflict, ConfigError) and issubclass(SamplersLost, ModelError)
    assert issubclass(ConfigError, GxpoError) and issubclass(ModelError, GxpoError)


def test_no_verdicts_says_what_the_reward_has_to_return():
    error = NoVerdicts("reward length")
    assert (
        str(error) == "reward length needs verdicts, but the reward gives none: let it return {'correct': 0 or 1, ...}"
    )
    assert error.reader == "reward length" and str(NoVerdicts("x", "other words")) == "other words"


def test_no_component_lists_the_components_that_are_there():
    error = NoComponent("credit decoupled", "format", ["correct", "length"])
    assert error.name == "format" and str(error) == (
        "credit decoupled reads component 'format', which no reward computes: let one return it, and give it weight 0 "
        "(there is correct, length)"
    )
    assert str(NoComponent("x", "format", [])).endswith("(there is none)")


def test_the_closest_name_is_proposed():
    assert did_you_mean("grop", ["grpo", "rloo"]) == "; did you mean 'grpo'?"
    assert did_you_mean("credit.centre", ["credit.center", "credit.scale"]) == "; did you mean 'credit.center'?"
    assert did_you_mean("zzz", ["grpo", "rloo"]) == did_you_mean("grpo", []) == ""


def test_among_near_names_the_one_of_like_length_is_proposed():
    """A part of a long name scores as high as the whole of a short one."""
    assert did_you_mean("objectiv", ["objective.surrogate", "objective"]) == "; did you mean 'objective'?"


def test_a_value_that_is_not_allowed_is_an_error_with_all_that_are():
    one_of("optim.schedule", "cosine", ("constant", "cosine"))
    with pytest.raises(ConfigError, match=r"^optim\.schedule is 'cos'; it is one of constant, cosine$"):
        one_of("optim.schedule", "cos", ("constant", "cosine"))


def test_a_needed_module_is_imported():
    assert need("json.decoder", "data") is sys.modules["json.decoder"]


def test_an_absent_package_names_the_extra_that_installs_it():
    with pytest.raises(MissingExtra, match=r"^no_such_package is not installed: pip install 'gxpo\[data\]' \("):
        need("no_such_package.inner", "data")


def test_a_broken_package_is_told_apart_from_an_absent_one(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtra, match=r"broken_package can't be imported: .*no_such_dependency") as raised:
        need("broken_package", "data")
    assert isinstance(raised.value.__cause__, ModuleNotFoundError)
