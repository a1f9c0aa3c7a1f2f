"""How many tokens a pass feeds a request, by load.

A pass that feeds few tokens takes as long as reading the weights does, whatever it feeds. One that feeds many takes time for
each token. So requests share about as many tokens as cost little. What is cut from a request is first the new block, then the
draft that is checked. The tokens of an answer don't depend on it.
"""

from collections.abc import Iterable
from typing import Any

from setblock_vllm import vllm_api
from setblock_vllm.options import pass_tokens
from setblock_vllm.parameters import fed_at_least


def make_scheduler(*, vllm_config: Any, **arguments: Any) -> Any:
    """Return vLLM's scheduler for such models, extended. vLLM calls this in place of a class."""
    is_async = vllm_config.scheduler_config.async_scheduling
    base = vllm_api.DiffusionAsyncScheduler if is_async else vllm_api.DiffusionScheduler
    scheduler = type("BlockScheduler", (SharedPasses, base), {})(vllm_config=vllm_config, **arguments)
    scheduler.pass_tokens = pass_tokens(vllm_config)
    return scheduler


class SharedPasses:
    """A mixin of one of vLLM's schedulers."""

    pass_tokens: int

    def schedule(self, *arguments: Any, **named: Any) -> Any:
        """Schedule the next pass as vLLM does, with what each request is fed cut first."""
        share_pass(self.running, self.pass_tokens)  # type: ignore[attr-defined]
        return super().schedule(*arguments, **named)  # type: ignore[misc]


def share_pass(requests: Iterable[Any], pass_tokens: int) -> None:
    """Cut what running requests are about to be fed, so that all together are fed at most `pass_tokens`, if each can be fed so
    little. All have the same share; what some don't need is the others'. vLLM's `spec_token_ids` are its placeholders for what
    a request is fed."""
    fed = []
    for request in requests:
        if size := len(request.spec_token_ids):
            fed.append((size, min(size, fed_at_least(request.sampling_params, size)), request))
    fed.sort(key=lambda each: (each[0], -each[1]))  # what is left over by one is shared by those after it
    for number, (size, least, request) in enumerate(fed):
        share = max(least, min(size, pass_tokens // (len(fed) - number)))
        request.spec_token_ids = request.spec_token_ids[:share]
        pass_tokens -= share
