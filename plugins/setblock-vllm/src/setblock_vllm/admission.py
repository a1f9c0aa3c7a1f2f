"""The check of a request's parameters in the server, before the request is queued, so that a mistake is a 400.

vLLM lets every logits processor validate a request's parameters. This one does only that: it changes no logits.
"""

from typing import Any

from setblock_vllm import vllm_api
from setblock_vllm.parameters import Served, admitted, refuse_unsupported


class BlockAdmission(vllm_api.LogitsProcessor):
    """Check parameters, fill in a calibrated setting, and give vLLM's scheduler the length of a request's blocks."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Check a request, or raise `ParameterError`, a `ValueError` whose text vLLM sends back."""
        refuse_unsupported(sampling_params)
        sampling_params.extra_args = admitted(sampling_params, Served.here)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Change no request's logits."""
        return False

    def apply(self, logits: Any, ctx: Any) -> Any:
        """Return the logits unchanged."""
        return logits
