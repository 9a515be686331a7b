"""Texts that are said again in other contexts keep their pictures: tasks of teams, tools' answers after a summary."""

from types import SimpleNamespace

from tests.properties.vision.families import picture

from gxpo.base import media
from gxpo.environments.rewards.judged import prompt_of
from gxpo.models.chat import PlainChat
from gxpo.models.chat.messages import prompt_messages
from gxpo.parts.protocols import EpisodeRules, Task
from gxpo.sampling.rollouts.context import Context
from gxpo.sampling.rollouts.graph import Graph, Role
from gxpo.sampling.rollouts.team import Walk
from gxpo.sampling.rollouts.team_policies import TeamPolicies
from gxpo.training.models import character_tokenizer

TOKENIZER = character_tokenizer("<image>")
CHAT = PlainChat(TOKENIZER, lambda ref: media.ids(ref, 4))


def shown(number):
    return [{"type": "text", "text": "what is it? "}, {"type": "image", "image": picture(number)}]


TASK = Task("t", ({"role": "user", "content": shown(0)},), "red")


def test_every_role_of_a_team_sees_the_tasks_picture():
    graph = Graph((Role("solver", "{prompt}", answer="{solver}"), Role("critic", "look: {prompt} {solver}")))
    session = SimpleNamespace(
        chat=CHAT,
        system=None,
        encode=lambda task: tuple(CHAT.start(prompt_messages(CHAT, None, task.prompt)).context),
    )
    walk = Walk(TeamPolicies(graph, "shared", ()), TASK, session)
    assert media.refs_in(walk.context) == (picture(0),)
    assert media.refs_in(walk._open(graph["critic"]).ids) == (picture(0),)


def test_a_tools_answer_keeps_its_picture_behind_a_summary():
    context = Context(CHAT, EpisodeRules(context="summary", window=1), "Look.")
    context.open(shown_to("user", 0))
    context.act(TOKENIZER("go", add_special_tokens=False).input_ids)
    context.observe([{"role": "tool", "content": shown(1)}])
    assert context.summarising and media.refs_in(context.ids) == (picture(0), picture(1))
    context.act(TOKENIZER("so far", add_special_tokens=False).input_ids)
    context.summarise("so far")
    assert media.refs_in(context.ids) == (picture(1),)


def shown_to(role, number):
    return [{"role": role, "content": shown(number)}]


def test_judges_read_a_pictures_name():
    assert prompt_of(TASK) == f"what is it? {media.label(picture(0))}"
