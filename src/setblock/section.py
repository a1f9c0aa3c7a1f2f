"""Define a section of a recipe, which has its keys and no others.

Knows how a key that is not among them is reported. Knows nothing of what the keys mean.
"""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from setblock.errors import did_you_mean

UNKNOWN_KEY = "unknown_key"
"""Type of the error; its context has the `key` and a `hint`."""


class Section(BaseModel):
    """Serve as the base of every section: fixed once read, and strict about its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, content: Self | dict[str, Any]) -> Self | dict[str, Any]:
        # Pydantic's own error names the key, but not those that there are.
        for key in content if isinstance(content, dict) else ():
            if key not in cls.model_fields:
                hint = did_you_mean(str(key), cls.model_fields) or f"; there are {', '.join(cls.model_fields)}"
                raise PydanticCustomError(UNKNOWN_KEY, "unknown key {key}{hint}", {"key": str(key), "hint": hint})
        return content
