"""Errors of the endpoint, in the shape of OpenAI's API."""

from __future__ import annotations

from typing import Any

from gxpo.base.usercode import one_line


class Refused(Exception):
    """A call that is not answered; `status` is HTTP's, `code` and `param` are as in OpenAI's API."""

    def __init__(self, message: str, *, status: int = 400, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param

    def body(self) -> dict[str, Any]:
        """The answer's JSON."""
        kind = {401: "authentication_error", 403: "permission_error"}.get(self.status, "invalid_request_error")
        kind = "server_error" if self.status >= 500 else kind
        return {"error": {"message": one_line(str(self)), "type": kind, "param": self.param, "code": self.code}}


TOO_LONG = "context_length_exceeded"


def too_long(prompt: str, limit: int) -> Refused:
    """The error of a prompt of so many tokens, or characters, that no action fits behind it."""
    return Refused(
        f"This model's maximum context length is {limit} tokens, and the prompt has {prompt}: shorten the messages "
        "(env.max_context, or the model's positions)",
        code=TOO_LONG,
        param="messages",
    )
