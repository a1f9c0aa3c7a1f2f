"""The errors that clients receive: OpenAI's error object, with its status and code."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from setblock.errors import fault_of
from setblock.section import UNKNOWN_KEY

_LATER = {"Retry-After": "1"}  # seconds; passes take milliseconds
_CLOSE = {"Connection": "close"}
_NO_KEY = {"WWW-Authenticate": "Bearer"}
_INVALID = "invalid_request_error"
# By status: a description, OpenAI's `type`, its `code` unless the error has its own, and headers.
_OF_STATUS: dict[int, tuple[str, str, str | None, Mapping[str, str]]] = {
    400: ("A parameter is wrong; `param` names it.", _INVALID, "invalid_value", {}),
    401: ("No API key, or none of this server's.", "authentication_error", "invalid_api_key", _NO_KEY),
    403: ("A page of another site asks; see --allowed-origin.", _INVALID, None, {}),
    404: ("No such model.", _INVALID, None, {}),
    408: ("The body took too long to arrive, or longer than many others.", _INVALID, "timeout", _CLOSE),
    413: ("The body is too large.", _INVALID, "request_too_large", _CLOSE),
    429: ("No room at the moment; see Retry-After.", "rate_limit_error", "rate_limit_exceeded", _LATER),
    500: ("The model or the server failed.", "server_error", None, {}),
    503: ("The server is shutting down.", "server_error", "unavailable", _LATER),
    504: ("The answer took too long.", "server_error", "timeout", {}),
}
DESCRIBED: dict[int | str, dict[str, Any]] = {status: {"description": row[0]} for status, row in _OF_STATUS.items()}


class ApiError(HTTPException):
    """An error that is sent to the client. Its status determines its type and headers. `code` is OpenAI's
    machine-readable code, by default that of the status in `_OF_STATUS`. `param` is the wrong parameter, if the error is about
    one."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        _, self.kind, usual, own = _OF_STATUS.get(status, ("", _INVALID, None, {}))
        super().__init__(status, message, {**own, **(headers or {})})
        self.code, self.param = code or usual, param

    def content(self) -> dict[str, Any]:
        """Return the error as a JSON object."""
        return {"error": {"message": self.detail, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """Return the error as a response, in ASCII: it may quote text that UTF-8 can't encode."""
        return Response(json.dumps(self.content()), self.status_code, self.headers, "application/json")


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error for a client's mistake."""
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, reason: str) -> ApiError:
    """Return the error for a parameter of OpenAI's that has no meaning here."""
    return ApiError(400, f"{param} is not supported: {reason}", param=param, code="unsupported_parameter")


def unavailable() -> ApiError:
    """Return the error of a server that is shutting down."""
    return ApiError(503, "the server is shutting down")


def from_validation(found: Sequence[Mapping[str, Any]]) -> ApiError:
    """Return the error for the first fault that pydantic finds in a body."""
    # pydantic reports a value that may be a word or an object for each of the two: an object is no wrong word
    is_word = [each["type"] == "literal_error" and isinstance(each["input"], Mapping) for each in found]
    error = found[is_word.index(False) if False in is_word else 0]
    place = [str(part) for part in error["loc"] if part not in ("body", "NamedTool") and "[" not in str(part)]
    kind = str(error["type"])
    if place and place[-1] == kind.partition("_")[0]:  # the first of several types that the value may have
        del place[-1]
    param = ".".join(place) or None
    if kind == "json_invalid":
        return bad_request(f"the body must be valid JSON: {error['ctx']['error']}", code="invalid_json")
    if kind == "missing":
        return bad_request(f"{param or 'a JSON body'} is required", param=param, code="missing_required_parameter")
    if isinstance(error.get("input"), bytes):  # FastAPI has not read it
        return bad_request("the body must be JSON: send the header Content-Type: application/json", code="invalid_json")
    if kind == UNKNOWN_KEY:
        param = ".".join([*place, error["ctx"]["key"]])
        message = f"unknown parameter: {param!r}{error['ctx']['near']}"
        return bad_request(message, param=param, code="unknown_parameter")
    return bad_request(fault_of(param or "the body", error), param=param)
