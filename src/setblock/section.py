"""Define what has its keys and no others: a section of a recipe, the body of a request.

Knows how a key that is not among them is reported. Knows nothing of what the keys mean.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from setblock.errors import did_you_mean

UNKNOWN_KEY = "unknown_key"
"""Type of the error; its context has the `key`, the one that is `near`, as part of a message, and all that are `known`."""


class Section(BaseModel):
    """Serve as the base: fixed once read, and strict about its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, content: Any) -> Any:
        # Pydantic's own error names the key, but not those that there are. Runs after the checks of classes below.
        for key in content if isinstance(content, Mapping) else ():
            if key not in cls.model_fields:
                shown = str(key).encode(errors="backslashreplace").decode()  # it may be no Unicode
                near = did_you_mean(shown, cls.model_fields)
                told = {"key": shown, "near": near, "known": ", ".join(cls.model_fields)}
                raise PydanticCustomError(UNKNOWN_KEY, "unknown key", told)
        return content
