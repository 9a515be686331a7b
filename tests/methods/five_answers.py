"""A forest of two groups, of three answers and of two; the third has no reward."""

from gxpo.forest.forest import Forest


def forest(rewards=(1.0, 0.0, None, 1.0, 0.0), **fields):
    answers = Forest.from_completions(
        [[1, 2], [3]],
        [[[4, 5], [6], [7, 7]], [[7, 8, 9], [1]]],
        list(rewards),
        logprobs=[[[-0.1, -0.2], [-0.3], [-1.0, -1.0]], [[-1.0, -1.0, -1.0], [-2.0]]],
    )
    return answers.replace(**fields) if fields else answers
