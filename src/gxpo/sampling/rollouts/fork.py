"""`Fork`: a new attempt that leaves another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gxpo.parts.protocols import StreamKey

if TYPE_CHECKING:
    from gxpo.sampling.rollouts.build import Episode


class Fork(NamedTuple):
    """A new attempt that leaves another before one of its turns, or within that turn's action.

    base   the attempt that is left; it keeps its own turns
    turn   from 0, inherited turns counted; in an environment also the turn that the base is about to take. A sample of
           a prompt has turn 0 alone
    key    the random stream from there on: `dataclasses.replace(base.key, path=(*base.key.path, 0))`. Attempt and path
           are the last part of its id, "GROUP/3.0", which no other attempt may have
    name   a name among the step's attempts that no other one has
    token  0: before the turn; else it leaves the turn's action after so many of its tokens, which it has as its own
    info   what its record says under `info`
    anew   all that came before, the first `token` tokens of the action included, is its prompt: the record begins here,
           nothing of it is trained or read by rewards (an environment goes on where it stood), and the policy acts,
           whoever acted in the base
    """

    base: Episode
    turn: int
    key: StreamKey
    name: str
    token: int = 0
    info: Mapping[str, Any] = {}
    anew: bool = False
