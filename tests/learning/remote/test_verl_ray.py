"""The controller of verl's Ray workers on a stand-in for Ray; with Ray and verl: scripts/checks/check_verl_ray.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gxpo.base.errors import CheckpointError, ConfigError, ModelError
from gxpo.learning.remote import verl_ray
from gxpo.learning.remote.verl_ray import RayVerlEngine


class RayError(Exception):
    pass


class GetTimeoutError(RayError):
    pass


class RayTaskError(RayError):
    def __init__(self, cause: Exception) -> None:
        super().__init__(f"a trace of many lines\n{cause}")
        self.cause = cause


class Ray:
    """As much of Ray as the controller asks: nodes with cores, and a `get` that may raise."""

    exceptions = SimpleNamespace(RayError=RayError, GetTimeoutError=GetTimeoutError, RayTaskError=RayTaskError)

    def __init__(self, cores: list[int], free: int | None = None, raises: Exception | None = None) -> None:
        self.cores, self.free, self.raises = cores, sum(cores) if free is None else free, raises

    def nodes(self) -> list[dict[str, Any]]:
        dead = {"Alive": False, "Resources": {"CPU": 64}}
        return [dead, *({"Alive": True, "Resources": {"CPU": float(n)}} for n in self.cores)]

    def available_resources(self) -> dict[str, float]:
        return {"CPU": float(self.free)}

    def get(self, references: list[Any], timeout: float) -> list[Any]:
        if self.raises is not None:
            raise self.raises
        return references


def engine(ray: Ray) -> Any:
    engine: Any = object.__new__(RayVerlEngine)
    engine._ray, engine.timeout = ray, 5.0
    return engine


def test_workers_without_room_are_refused() -> None:
    verl_ray._check_room(Ray([4, 2]), 2, 2, "CPU")
    verl_ray._check_room(Ray([4]), 2, 2, "CPU")  # two bundles of one node
    for ray, words in (
        (Ray([3, 1]), r"have \[3, 1\]: lower them"),
        (Ray([4, 4], free=3), "3 of the Ray cluster's are"),
    ):
        with pytest.raises(ConfigError, match=words):
            verl_ray._check_room(ray, 2, 2, "CPU")


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (GetTimeoutError(), "verl's workers did not run within 5 seconds"),
        (RayTaskError(ValueError("first\nthe cause")), "verl's workers could not run: the cause"),
        (RayTaskError(CheckpointError("no such file")), "no such file"),
        (RayError("long\nthe actor died"), "one has ended: the actor died; gxpo resume continues"),
    ],
)
def test_what_ray_raises_is_a_line(raised: Exception, words: str) -> None:
    with pytest.raises(
        ModelError if not isinstance(getattr(raised, "cause", 0), CheckpointError) else CheckpointError
    ) as (error):
        engine(Ray([2], raises=raised))._results("run", [1])
    assert words in str(error.value) and "\n" not in str(error.value)
    assert engine(Ray([2]))._results("run", (1, 2)) == [1, 2]


def test_parameters_are_fetched_in_buckets() -> None:
    size = verl_ray.BUCKET // 2
    shapes = [("a", size), ("b", size), ("c", 1), ("d", 3 * size), ("e", 1)]
    assert list(verl_ray._buckets(shapes)) == [["a", "b"], ["c"], ["d"], ["e"]]
