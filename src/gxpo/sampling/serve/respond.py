"""Answer queued calls: encode their prompts, sample them in one batch, record tokens and log-probs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gxpo.base.usercode import described
from gxpo.parts.protocols import Completion, Request, Sampling, Session
from gxpo.sampling.serve.history import Choice, Prompt
from gxpo.sampling.serve.queue import Call, CallQueue
from gxpo.sampling.serve.refusal import TOO_LONG, Refused, too_long


@dataclass(frozen=True)
class _Wanted:
    """A prompt of a call, and how it is sampled."""

    call: Call
    prompt: Prompt
    request: Request
    sampling: Sampling


def respond(
    queue: CallQueue, calls: Sequence[Call], session: Session, fields: Callable[[Completion], dict[str, Any]]
) -> None:
    """Samples replies to the calls and gives them to the clients; those with the same settings in one batch.

    fields  what a record's turn says of a completion
    """
    wanted: list[_Wanted] = []
    for call in calls:
        try:
            wanted += _wanted(call, session)
        except Refused as refused:
            if refused.code == TOO_LONG:
                call.attempt.limit = call.attempt.limit or "context"
            call.attempt.calls -= call.asked.size
            queue.answered(call)
            call.give(refused)
    found: dict[_Wanted, list[Completion]] = {}
    for sampling in dict.fromkeys(w.sampling for w in wanted):
        together = [w for w in wanted if w.sampling == sampling]
        found |= zip(together, session.sample([w.request for w in together], sampling), strict=True)
    for call in dict.fromkeys(w.call for w in wanted):
        samples = [(w.prompt, found[w]) for w in wanted if w.call is call]
        answer = _record_samples(call, samples, fields)
        call.attempt.history.overridden += bool(call.asked.overridden)
        queue.answered(call)
        call.give(answer)


def _record_samples(
    call: Call, samples: Sequence[tuple[Prompt, list[Completion]]], fields: Callable[[Completion], dict[str, Any]]
) -> list[Choice] | Refused:
    """The samples written down, as the client gets them. What can't be read as a reply is recorded all the same, and
    costs this call alone."""
    choices: list[Choice] = []
    try:
        for prompt, completions in samples:
            choices += call.attempt.history.take(prompt, completions, [fields(c) for c in completions])
    except Exception as error:
        return Refused(f"the reply can't be read: {described(error)}", status=500)
    return choices


def _wanted(call: Call, session: Session) -> list[_Wanted]:
    """What the call wants sampled; `Refused` where one of its prompts can't be gone on from."""
    asked, attempt, limit = call.asked, call.attempt, session.episode.max_context
    prompts = attempt.history.prompts(asked, call.drafts)
    if longest := max((len(p.ids) for p in prompts if len(p.ids) >= limit), default=0):
        for prompt in prompts:
            attempt.history.drop(prompt)
        raise too_long(f"{longest} tokens", limit)
    wanted = []
    for prompt in prompts:
        room = min(asked.max_tokens or limit, session.sampling.max_new_tokens, limit - len(prompt.ids))
        stop = tuple(dict.fromkeys((*session.sampling.stop, *asked.stop)))
        sampling = dataclasses.replace(session.sampling, max_new_tokens=room, stop=stop)
        streams = tuple(
            dataclasses.replace(attempt.stream, path=(*attempt.stream.path, digest), turn=1 + number)
            for digest, number in attempt.history.streams(prompt, asked.n)
        )
        keep = (f"{attempt.name}/{prompt.lane}",) if asked.n == 1 else ()
        wanted.append(_Wanted(call, prompt, Request(prompt.ids, streams, keep=keep), sampling))
    return wanted
