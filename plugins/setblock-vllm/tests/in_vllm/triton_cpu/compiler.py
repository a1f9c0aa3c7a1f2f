"""The compiler part: there is none."""

from types import ModuleType
from typing import Any

from triton.backends.compiler import BaseBackend, GPUTarget


class CPUBackend(BaseBackend):
    """Compiles nothing."""

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        """The CPU alone."""
        return target.backend == "cpu"

    def hash(self) -> str:
        """A name, as there are no versions."""
        return "interpreter"

    def parse_options(self, options: dict[str, Any]) -> object:
        """Options change nothing."""
        return options

    def add_stages(self, stages: dict[str, Any], options: object, language: Any) -> None:
        """No stages."""

    def load_dialects(self, context: Any) -> None:
        """No dialects."""

    def get_module_map(self) -> dict[str, ModuleType]:
        """No modules of its own."""
        return {}
