"""Recommendations: names of symptoms, order by measurement and evidence."""

from types import SimpleNamespace

import pytest

from gxpo.base.errors import ConfigError
from gxpo.explain.advice import find, measurement_of, recommendations
from gxpo.explain.symptoms import SYMPTOMS

SYMPTOM = "all-wrong groups"


def measured(advice, verdict, difference=0.1):
    """A measurement of an advice's keys, as `gxpo.doctor.evidence` reads them."""
    keys = {"method": advice.method, **dict(s.split("=", 1) for s in advice.sets)}
    sickness = SYMPTOMS[SYMPTOM].sicknesses[0]
    return SimpleNamespace(
        sickness=sickness, keys=keys, verdict=verdict, difference=difference, figures=f"said of {verdict}"
    )


def order(*measurements):
    return [row["method"] for row in recommendations(SYMPTOM, measurements)]


def test_case_hyphens_and_underscores_do_not_matter():
    assert find("ALL_wrong  Groups") == find("all-wrong-groups") == SYMPTOM


def test_unknown_words_list_the_symptoms():
    with pytest.raises(ConfigError, match=r"no symptom is called 'xyzzy'.*'entropy collapse'"):
        find("xyzzy")


def test_what_helped_is_first_and_what_harmed_is_last():
    first, second, *_ = SYMPTOMS[SYMPTOM].advice
    unmeasured = order()
    assert {first.method, second.method} <= set(unmeasured)
    assert order(measured(first, "harmed"), measured(second, "helped"))[0] == second.method
    assert order(measured(first, "harmed"), measured(second, "helped"))[-1] == first.method


def test_the_larger_gain_comes_first():
    first, second, *_ = SYMPTOMS[SYMPTOM].advice
    assert order(measured(first, "helped", 0.1), measured(second, "helped", 0.3))[:2] == [second.method, first.method]
    assert order(measured(first, "helped", 0.3), measured(second, "helped", 0.1))[:2] == [first.method, second.method]


def test_a_measurement_counts_for_its_keys_alone():
    first, second, *_ = SYMPTOMS[SYMPTOM].advice
    of_first = measured(first, "helped")
    assert measurement_of(SYMPTOM, first, [of_first]) is of_first
    assert measurement_of(SYMPTOM, second, [of_first]) is None
    assert measurement_of("length growth", first, [of_first]) is None
    row = next(r for r in recommendations(SYMPTOM, [of_first]) if r["method"] == first.method)
    assert row["measured"] == {"verdict": "helped", "said": "said of helped"}
