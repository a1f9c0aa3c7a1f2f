"""The base class of models with a fixed set of keys, such as a section of a recipe or the body of a request."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from setblock.errors import did_you_mean

UNKNOWN_KEY = "unknown_key"
"""Pydantic's type of the error. Its context has the unknown `key`, the nearest known one (`near`, as part of a message) and all
`known` keys."""


class Section(BaseModel):
    """A frozen model that rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, content: Any) -> Any:
        # Pydantic's own error names the key, but not the known ones. Runs after the checks of subclasses.
        for key in content if isinstance(content, Mapping) else ():
            if key not in cls.model_fields:
                shown = str(key).encode(errors="backslashreplace").decode()  # it may not be valid Unicode
                near = did_you_mean(shown, cls.model_fields)
                context = {"key": shown, "near": near, "known": ", ".join(cls.model_fields)}
                raise PydanticCustomError(UNKNOWN_KEY, "unknown key", context)
        return content
