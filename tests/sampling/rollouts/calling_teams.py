"""Teams whose planner calls with every text, so that a model that has never learnt anything calls as well."""

from gxpo.sampling.rollouts.graph import Call, Graph, Role, Texts


def length(texts: Texts, scores: object) -> float:
    return float(len(texts["worker"]) % 2)


asking = Graph(
    (Role("planner", answer="{planner}", running=True, calls=(Call("worker", "(.)", max_calls=1),)),),
    helpers=(Role("worker", "{request}", local=length),),
)
searching = Graph(
    (
        Role(
            "planner",
            answer="{planner}",
            running=True,
            calls=(Call("local", "(.)", max_calls=1), Call("web", "..", max_calls=1)),
        ),
    ),
    helpers=(Role("local", "{request}"), Role("web", "{request}")),
)
