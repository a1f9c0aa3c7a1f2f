"""Where a request's parameters are checked: in the server, before the request is queued, so that a mistake is a 400.

vLLM asks every logits processor whether it can do what a request wants. This one is none otherwise: it changes no logits.
"""

from typing import Any

from setblock.integrations.vllm import vllm_api
from setblock.integrations.vllm.parameters import Served, admitted, refuse_unsupported


class BlockAdmission(vllm_api.LogitsProcessor):
    """Checks parameters, fills in a calibrated setting, and tells vLLM's scheduler how long a request's blocks are."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Check a request.

        Raises:
            ParameterError: a `ValueError`, whose text vLLM sends back.
        """
        refuse_unsupported(sampling_params)
        sampling_params.extra_args = admitted(sampling_params, Served.here)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """No logits of any request are changed."""
        return False

    def apply(self, logits: Any, ctx: Any) -> Any:
        """The logits as they are."""
        return logits
