"""Cut and regenerate (Search-R2, SCOPE, IPO): an attempt keeps its steps before the flawed one and goes on there."""

from __future__ import annotations

import dataclasses
import math
import random
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.models.chat.messages import messages_of, opened, with_system
from gxpo.parts.functions import user_function
from gxpo.parts.protocols import Completion, Request, Sampling, Session, StreamKey, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.attempts import Episode, Fork
from gxpo.sampling.rollouts.build import Count, Limit, RolloutPart, Text, action
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.first_error import call_each, first_below, first_hopeless, step_scores
from gxpo.sampling.rollouts.reference import in_tokens
from gxpo.sampling.rollouts.wording import Wording, check_template

REFINER = "refiner"
QUESTION = """{prompt}

An attempt at this, step by step:
{steps}

Which is the first wrong step? Answer with its number, or with 0 if no step is wrong.
"""


def step_begins(tokens: Sequence[int], delimiter: str, decode: Callable[[Sequence[int]], str]) -> list[int]:
    """Return the index of the token at which each step of an action begins; a step ends with the delimiter.

    A token that reaches beyond a delimiter belongs to the step that it begins. The index is found by bisection in the
    lengths of decoded prefixes. An action without tokens has one step, which begins at 0.

    >>> words = {1: "a", 2: ",", 3: "bc", 4: ",d"}
    >>> step_begins([1, 3, 2, 1, 4, 3], ",", lambda ids: "".join(words[i] for i in ids))
    [0, 3, 4]
    """
    text, begins, at = decode(tokens), [0], 0
    while (delimiter_at := text.find(delimiter, at)) >= 0 and (at := delimiter_at + len(delimiter)) < len(text):
        begin = bisect_right(range(len(tokens) + 1), at, key=lambda i: len(decode(tokens[:i]))) - 1
        if begins[-1] < begin < len(tokens):
            begins.append(begin)
    return begins


def least_probable(logprobs: Sequence[float], begins: Sequence[int]) -> int:
    """Return the step (from 0) with the lowest mean log-prob of its tokens, the first on ties.

    >>> least_probable([-0.1, -0.3, -2.0, -0.1, -0.9], [0, 2, 4])
    1
    """
    ends = [*begins[1:], len(logprobs)]
    means = [sum(logprobs[b:e]) / max(e - b, 1) for b, e in zip(begins, ends, strict=True)]
    return means.index(min(means))


def flawed_step(reply: str, n_steps: int) -> int | None:
    """Parse the step (from 0) that a reply names: its first number, counted from 1. None: no such step.

    >>> flawed_step("step 2.", 3), flawed_step("0", 3), flawed_step("7", 3), flawed_step("all good", 3)
    (1, None, None, None)
    """
    match = re.search(r"-?\d+", reply)
    number = int(match[0]) if match else 0
    return number - 1 if 1 <= number <= n_steps else None


@dataclass
class _Attempt:
    """An attempt through its revisions, and the refiner's turns about it."""

    name: str
    episode: Episode
    steps: list[tuple[int, int]] = field(default_factory=list)  # where each begins: the turn, and the token in it
    logprobs: list[list[float]] = field(default_factory=list)  # of each turn's whole action
    refiner_turns: list[dict[str, Any]] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    flaw: int | None = None  # the step to cut at; None: accepted
    draft: Episode | None = None  # the attempt before its cuts
    suffix: str = ""  # what is written after the cut, where the policy does not write it
    n_inserted: int = 0  # tokens of `insert` before the place to go on from

    def stream(self, turn: int = 0) -> StreamKey:
        return dataclasses.replace(self.episode.key, path=(len(self.cuts) + 1,), turn=turn)

    def pieces(self, values: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        """Regroup values of turns [turn][token] by steps."""
        both = zip(self.steps, [*self.steps[1:], (len(values), 0)], strict=True)
        return [values[turn][token : end if at == turn else None] for (turn, token), (at, end) in both]


@part("cut_and_regenerate", stage="rollout")
@dataclass(frozen=True)
class CutAndRegenerate(RolloutPart):
    """Attempts that are cut before a flawed step and regenerated from there, up to `revisions` times.

    `cut_at` chooses the flawed step:
      "refiner"          the policy, asked under a prompt of its own, answers with the step's number. Question and
                         answer are a turn of agent "refiner" with its own context in the same trajectory, so that it
                         shares the trajectory's credit. 0 or no number of a step accepts the attempt as it is.
      "uniform"          any step, with equal probability, in every revision
      "low_probability"  the step with the lowest mean log-prob of its tokens, in every revision
      "judge"            the first step with a score below `threshold`; without one the attempt is accepted
      "continuations"    the first step after which none of `samples` continuations is right, or, if the attempt failed,
                         its last one. The continuations are charged as discarded
      "phrase"           at the first match of `phrases`, wherever steps end; without one the attempt is accepted

    A revised attempt is a declared fork inside the action of the one before it: old and new tokens have the log-probs
    under which they were sampled. Attempts that were cut are not in the forest and are charged to
    `session.budget.discarded`. A revised one has origin "correction"; info["cuts"] holds the tokens before each cut.
    It is scored on its own answer, without the refiner's words. Held-out tasks are attempted once, without a refiner.
    In an environment the steps are turns: it is taken back to before the flawed one, and info["cuts"] holds the turns
    before each cut.

    group_size      attempts a task
    revisions       most cuts of an attempt
    delimiter       text that ends a step
    template        the refiner's prompt: {prompt}, and {attempt} or {steps}, which are numbered from 1, a line each
    refiner_tokens  most tokens of the refiner's answer
    score           of "judge": FILE.py:NAME, a function of (task's text, steps, observations) that gives a score from 0
                    to 1, or None, for each step, as `signal.step_judge.score`
    samples         of "continuations": how many from each step
    cut             "all"; "failed": attempts whose verdict is known and wrong. Both judges never cut a right one
    writer          writer of what follows a cut: "policy", or FILE.py:NAME, a function of (task, text before the cut)
                    that gives the rest of the answer as a text, or None. Its tokens have no log-prob under a sampler
                    (`objective.on_unknown_behaviour`); an answer that gets too long is not revised
    keep            "newest"; "right": the attempt stays as it was where its last version is not right; "pairs": each
                    attempt that was cut and its last version are a group of two, GROUP/NUMBER, and others are left out
                    (with no cut in a step all are kept as they are)
    phrases         of "phrase": regular expressions
    insert          text that is written after the cut, before the rest; it has no log-prob under a sampler either
    """

    group_size: Count = 8
    revisions: Limit = 1
    cut_at: Literal["refiner", "uniform", "low_probability", "judge", "continuations", "phrase"] = "refiner"
    delimiter: Text = "\n"
    template: str = QUESTION
    refiner_tokens: Count = 8
    score: Any = ""
    threshold: float = 0.5
    samples: Count = 8
    cut: Literal["all", "failed"] = "all"
    writer: Any = "policy"
    keep: Literal["newest", "right", "pairs"] = "newest"
    phrases: list[str] = field(default_factory=list)
    insert: str = ""

    provides = ("states",)

    def __post_init__(self) -> None:
        check_template("rollout.template", self.template, ("prompt",), ("attempt", "steps"))
        if (self.cut_at == "phrase") != bool(self.phrases):
            raise ConfigError("rollout.phrases are what rollout.cut_at=phrase looks for: set both, or neither")
        for phrase in self.phrases:
            try:
                re.compile(phrase)
            except re.error as error:
                raise ConfigError(f"rollout.phrases has {phrase!r}, no regular expression: {error}") from None
        if self.insert and self.writer != "policy":
            raise ConfigError("rollout.insert is written before the policy's rest, and rollout.writer writes all of it")

    def check_sampling(self, sampling: Sampling) -> None:
        """Raise ConfigError for a judge or writer that can't be used, and for sampling that it can't be read under."""
        if self.cut_at == "judge":
            user_function(self.score, "rollout.score")
        if self.writer != "policy":
            user_function(self.writer, "rollout.writer")
            if sampling.top_k or sampling.top_p < 1:
                raise ConfigError("rollout.writer writes tokens that top-k and top-p may exclude: leave these out")

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        for key, is_set in (("by", self.writer != "policy"), ("insert", bool(self.insert)), ("phrases", self.phrases)):
            if is_set and session.envs is not None:
                raise ConfigError(
                    f"rollout.{key} is of the text of an answer, and these tasks are episodes: leave it out"
                )
        with Play(session, restorable=True, at_once=True) as play:
            first = play.begin([draw.attempts(self.group_size) for draw in play.draws(tasks)])
            play.finish(first)
            # scored under their own ids, so that an attempt that stays as it is is not judged again
            failures = self._failed_episodes(first, play) if self._needs_verdicts else set(first)
            # ids of earlier versions get a suffix: the final record takes the attempt's own id
            attempts = [_Attempt(e.id, e, draft=e) for e in first]
            for attempt in attempts:
                attempt.episode.label = f"{attempt.name}/cut0"
                attempt.logprobs = [turn["logprob"] for turn in attempt.episode.turns]
            active = [a for a in attempts if a.episode.failure is None and a.episode in failures]
            for revision in range(self.revisions):
                if revision and self._needs_verdicts and active:
                    failures = self._failed_episodes([attempt.episode for attempt in active], play)
                    active = [attempt for attempt in active if attempt.episode in failures]
                for attempt in active:
                    attempt.steps = self._step_starts(attempt.episode, play)
                self._find_flaws(active, play)
                active = [attempt for attempt in active if attempt.flaw is not None]
                if self.writer != "policy":
                    active = self._write_suffixes(active, play)
                if self.insert:
                    active = self._insert(active, play)
                if not active:
                    break
                self._regenerate(active, play)
                session.budget.discarded += len(active)
            if self.keep == "right":
                self._undo_failures([attempt for attempt in attempts if attempt.cuts], play)
            # a final record forks from its newest version, so all versions are read, and only the final ones selected
            sampling = dataclasses.asdict(session.sampling)
            records = [e.record(sampling) for e in play.episodes]
            forest = Forest.from_records(records + [self._final_record(a, sampling) for a in attempts])
            if self.keep == "pairs" and any(a.cuts for a in attempts):
                return self._pairs(forest, attempts, play)
            forest = forest.select(range(len(records), len(records) + len(attempts)))
            return session.score(forest, [self._own_text(a.episode, session) for a in attempts])

    def _pairs(self, forest: Forest, attempts: Sequence[_Attempt], play: Play) -> Forest:
        """Select each attempt that was cut and its newest version, as a group of two; score both."""
        # in the forest all episodes come first, in the order in which they were begun, then the newest versions
        place = {episode: row for row, episode in enumerate(play.episodes)}
        rows, texts, groups = [], [], []
        for i, a in enumerate(attempts):
            assert a.draft is not None
            if a.cuts:
                rows += [place[a.draft], len(place) + i]
                texts += [self._own_text(e, play.session) for e in (a.draft, a.episode)]
                groups += [f"{a.draft.group}/{a.draft.key.attempt}"] * 2
        # attempts without a cut are left out, and of the others the draft, which was charged, is kept
        play.session.budget.discarded += len(attempts) - len(rows)
        return play.session.score(forest.select(rows).replace(group=groups), texts)

    def _step_starts(self, episode: Episode, play: Play) -> list[tuple[int, int]]:
        """Return the (turn, token) at which each step begins: a turn of an episode, a delimited piece of an answer."""
        if play.world:
            return [(turn, 0) for turn in range(len(episode.turns))]
        return [(0, token) for token in step_begins(episode.action_tokens(0), self.delimiter, play.session.decode)]

    def _find_flaws(self, active: Sequence[_Attempt], play: Play) -> None:
        """Set the flawed step of each attempt."""
        ask = {
            "refiner": self._ask_refiner, "judge": self._ask_judge, "continuations": self._try_continuations,
            "phrase": self._find_phrases,
        }  # fmt: skip
        if self.cut_at in ask:
            ask[self.cut_at](active, play)
            return
        for attempt in active:
            if self.cut_at == "uniform":
                attempt.flaw = random.Random(repr(attempt.stream())).randrange(len(attempt.steps))
            else:
                pieces = attempt.pieces(attempt.logprobs)
                flat = [x for piece in pieces for x in piece]
                attempt.flaw = least_probable(flat, [0, *accumulate(map(len, pieces))][:-1])

    @property
    def _needs_verdicts(self) -> bool:
        return self.cut == "failed" or self.keep == "right" or self.cut_at == "continuations"

    def _failed_episodes(self, episodes: Sequence[Episode], play: Play) -> set[Episode]:
        """Return the attempts whose verdict is known and wrong."""
        return {e for e, success in zip(episodes, self._verdicts(episodes, play), strict=True) if success < 1}

    @staticmethod
    def _verdicts(episodes: Sequence[Episode], play: Play) -> list[float]:
        """Score these attempts, in the order in which they were begun; return their verdicts, nan unknown."""
        forest = play.session.score(play.forest(episodes))
        forest.need_verdicts("rollout cut_and_regenerate")
        return forest.success.tolist()

    def _undo_failures(self, revisions: Sequence[_Attempt], play: Play) -> None:
        """Restore the version before its cuts of each attempt whose newest version is not right."""
        if not revisions:
            return
        # the forest has its episodes in the order in which they were begun
        by_place = sorted(revisions, key=lambda a: play.episodes.index(a.episode))
        verdicts = self._verdicts([a.episode for a in by_place], play)
        for attempt, success in zip(by_place, verdicts, strict=True):
            if not success >= 1 and attempt.draft is not None:
                attempt.episode, attempt.cuts = attempt.draft, []

    def _ask_judge(self, active: Sequence[_Attempt], play: Play) -> None:
        """Ask the judge for scores of each attempt's steps; one that it can't score is accepted."""
        views = []
        for a in active:
            steps, texts = self._step_texts(a, play)
            prompt = a.episode.turns[0].get("observation_text") or a.episode.task.prompt
            text = prompt if isinstance(prompt, str) else play.session.decode(a.episode.context.ids)
            views.append((text, steps, ["", *texts[:-1]]))
        answers = call_each(user_function(self.score, "rollout.score"), "rollout.score", views)
        for a, scores in zip(active, answers, strict=True):
            a.flaw = first_below(step_scores(scores, len(a.steps)), self.threshold)

    def _try_continuations(self, active: Sequence[_Attempt], play: Play) -> None:
        """Continue each attempt `samples` times after each of its steps but the last, and see which are right."""
        forks, places = [], []
        for a in active:
            for i, (turn, token) in list(enumerate(a.steps))[1:]:
                for k in range(self.samples):
                    key = dataclasses.replace(a.stream(), path=(len(a.cuts) + 1, i, k))
                    forks.append(Fork(a.episode, turn, key, f"{key.task}/{a.name}/{len(a.cuts)}.{i}.{k}", token))
                    places.append((a.name, i - 1))
        twins = play.fork(forks)
        play.finish(twins)
        verdicts = self._verdicts(twins, play) if twins else []
        successes = {place for place, success in zip(places, verdicts, strict=True) if success >= 1}
        play.session.budget.discarded += len(twins)
        for a in active:
            a.flaw = first_hopeless([(a.name, i) in successes for i in range(len(a.steps) - 1)])

    def _find_phrases(self, active: Sequence[_Attempt], play: Play) -> None:
        """Find the first phrase in each attempt; the step to cut at begins with it."""
        decode = play.session.decode
        for a in active:
            tokens = a.episode.action_tokens(0)
            matches = [m for phrase in self.phrases if (m := re.search(phrase, decode(tokens)))]
            a.flaw = None
            if matches:
                at = min(m.start() for m in matches)
                token = bisect_right(range(len(tokens) + 1), at, key=lambda i: len(decode(tokens[:i]))) - 1
                # a token that holds the phrase's beginning is cut off with it
                a.steps, a.flaw = [(0, 0), (0, token)][token == 0 :], int(token > 0)

    def _insert(self, active: Sequence[_Attempt], play: Play) -> list[_Attempt]:
        """Write `insert` after each cut, as a fork that is left behind it; return the attempts with room for it."""
        tokens = list(play.session.tokenize(self.insert))
        limit = play.session.sampling.max_new_tokens
        fitting = [a for a in active if len(self._before_cut(a)) + len(tokens) < limit]
        forks = []
        for a in fitting:
            key = dataclasses.replace(a.stream(), path=(len(a.cuts) + 1, 0))
            forks.append(Fork(a.episode, 0, key, f"{key.task}/{a.name}/insert{len(a.cuts)}", len(self._before_cut(a))))
        episodes = play.fork(forks)
        play.take(episodes, [Completion(tokens, [math.nan] * len(tokens), "none") for _ in episodes])
        for a, episode in zip(fitting, episodes, strict=True):
            before = len(self._before_cut(a))
            a.logprobs = [[*a.logprobs[0][:before], *([math.nan] * len(tokens))]]
            a.episode, a.steps, a.flaw = episode, [(0, 0), (0, before + len(tokens))], 1
            a.n_inserted = len(tokens)
        return fitting

    def _write_suffixes(self, active: Sequence[_Attempt], play: Play) -> list[_Attempt]:
        """Have the rest of each attempt written; return those for which there is one that fits."""
        session = play.session
        views = [(a.episode.task, session.decode(self._before_cut(a))) for a in active]
        suffixes = call_each(user_function(self.writer, "rollout.writer"), "rollout.writer", views)
        fitting = []
        for a, suffix in zip(active, suffixes, strict=True):
            if not isinstance(suffix, str) or not suffix:
                continue
            n_tokens = len(self._before_cut(a)) + len(in_tokens(suffix, session).tokens)
            if n_tokens <= session.sampling.max_new_tokens:
                a.suffix = suffix
                fitting.append(a)
        return fitting

    @staticmethod
    def _before_cut(a: _Attempt) -> list[int]:
        assert a.flaw is not None
        turn, token = a.steps[a.flaw]
        return a.episode.action_tokens(turn)[:token]

    def _ask_refiner(self, active: Sequence[_Attempt], play: Play) -> None:
        """Ask the refiner about each attempt; one whose question leaves no room for an answer is accepted."""
        session = play.session
        questions = [(attempt, self._question(attempt, play)) for attempt in active]
        for attempt in active:
            attempt.flaw = None
        questions = [
            (a, context) for a, context in questions if len(context) + self.refiner_tokens <= play.rules.max_context
        ]
        requests = [Request(context, (a.stream(turn=-1 if play.world else 1),)) for a, context in questions]
        short = dataclasses.replace(session.sampling, max_new_tokens=self.refiner_tokens)
        replies = session.sample(requests, short) if requests else []
        for (attempt, context), (reply,) in zip(questions, replies, strict=True):
            attempt.flaw = flawed_step(session.decode(reply.tokens), len(attempt.steps))
            info = {"flawed": None if attempt.flaw is None else attempt.flaw + 1}
            attempt.refiner_turns.append({**action(reply), "agent": REFINER, "context": list(context), "info": info})

    def _question(self, attempt: _Attempt, play: Play) -> tuple[int, ...]:
        """Build the refiner's prompt for an attempt."""
        session, episode = play.session, attempt.episode
        steps, observations = self._step_texts(attempt, play)
        steps = ["\n".join(filter(None, pair)) for pair in zip(steps, observations, strict=True)]
        step_lines = "\n".join(f"{i}. {step}" for i, step in enumerate(steps, 1))
        wording = Wording(self.template, {"attempt": play.transcript(episode), "steps": step_lines})
        if not play.world:
            return session.encode(wording.of_task(episode.task))
        opening_messages = opened(play.envs.instructions, messages_of(episode.turns[0]["observation_text"]))
        return session.chat.start(
            with_system(session.chat, session.system, wording.of_messages(opening_messages))
        ).context

    @staticmethod
    def _step_texts(attempt: _Attempt, play: Play) -> tuple[list[str], list[str]]:
        """Return the text of each step, and in an environment what was observed after it ("" on prompts)."""
        episode = attempt.episode
        step_tokens = attempt.pieces([episode.action_tokens(turn) for turn in range(len(episode.turns))])
        steps = [play.session.decode(piece) for piece in step_tokens]
        return steps, list(play.observations_after(episode)) if play.world else [""] * len(steps)

    def _regenerate(self, active: Sequence[_Attempt], play: Play) -> None:
        """Cut each attempt at its flawed step, and play it on from there."""
        forks = []
        for a in active:
            assert a.flaw is not None
            turn, token = a.steps[a.flaw]
            forks.append(
                Fork(a.episode, turn, a.stream(), f"{a.episode.key.task}/{a.name}/cut{len(a.cuts) + 1}", token)
            )
        episodes = play.fork(forks)
        for a, fork, episode in zip(active, forks, episodes, strict=True):
            a.cuts.append(fork.turn if play.world else fork.token - a.n_inserted)
            episode.label = f"{a.name}/cut{len(a.cuts)}"
        if self.writer == "policy":
            play.finish(episodes)
        else:
            play.take(episodes, [in_tokens(a.suffix, play.session) for a in active])
        for a, fork, episode in zip(active, forks, episodes, strict=True):
            # log-probs of whole actions: those before the cut are the earlier version's
            new_logprobs = [turn["logprob"] for turn in episode.turns[fork.turn :]]
            new_logprobs[0] = [*a.logprobs[fork.turn][: fork.token], *new_logprobs[0]]
            a.episode, a.logprobs = episode, [*a.logprobs[: fork.turn], *new_logprobs]

    @staticmethod
    def _final_record(a: _Attempt, sampling: dict[str, Any]) -> dict[str, Any]:
        """Build the final record of an attempt: a fork after all of its newest version, with the refiner's turns."""
        line = a.episode.record(sampling)
        line.pop("prompt", None)
        return {
            **line,
            "id": a.name,
            "fork": {"of": a.episode.id, "turn": len(a.episode.turns) - 1, "token": None},
            "turns": a.refiner_turns,
            "origin": "correction" if a.cuts else "policy",
            "info": {**line["info"], **({"cuts": a.cuts} if a.cuts else {})},
        }

    @staticmethod
    def _own_text(episode: Episode, session: Session) -> str:
        """Return the text to judge: the attempt's own words, without the refiner's."""
        return session.decode([token for turn in range(len(episode.turns)) for token in episode.action_tokens(turn)])
