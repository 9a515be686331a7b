"""Error responses of calls, in the format of OpenAI's API."""

from __future__ import annotations

from typing import Any

from gxpo.base.usercode import one_line


class Refused(Exception):
    """Call that gets an error response: an HTTP `status`, with `code` and `param` as in OpenAI's API."""

    def __init__(self, message: str, *, status: int = 400, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param

    def body(self) -> dict[str, Any]:
        """JSON of the response."""
        kind = {401: "authentication_error", 403: "permission_error"}.get(self.status, "invalid_request_error")
        kind = "server_error" if self.status >= 500 else kind
        return {"error": {"message": one_line(str(self)), "type": kind, "param": self.param, "code": self.code}}


TOO_LONG = "context_length_exceeded"


def too_long(prompt: str, limit: int) -> Refused:
    """Build the error for a prompt that leaves no room for a reply; `prompt` is its size, as "99 tokens"."""
    return Refused(
        f"This model's maximum context length is {limit} tokens, and the prompt has {prompt}: shorten the messages "
        "(env.max_context, or the model's positions)",
        code=TOO_LONG,
        param="messages",
    )
