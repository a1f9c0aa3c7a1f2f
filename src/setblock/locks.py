"""Locks for objects whose state changes during a call, such as a model in a pass, or a tokenizer: one thread at a time.

A pass sets arguments on objects that all passes of a model share: hooks, the name of its attention function, an adapter's gate.
"""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from threading import RLock
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


class Lock:
    """A reentrant lock. A copy of an object with such a lock gets a new one."""

    def __init__(self) -> None:
        self._lock = RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type["Lock"], tuple[()]]:
        return Lock, ()


_NAME = "_setblock_lock"


def lock_of(owner: Any) -> Lock:
    """Return the lock of an object, which is made at its first use."""
    lock: Lock | None = vars(owner).get(_NAME)
    if lock is None:
        lock = vars(owner).setdefault(_NAME, Lock())  # one atomic operation, so that two threads get the same lock
    return lock


def one_at_a_time(of: Callable[[Any], Any] = lambda owner: owner) -> Callable[[Function], Function]:
    """Decorate a function so that one thread at a time runs it. `of` maps the function's first argument to the object whose
    lock it takes: by default that argument itself."""

    def decorate(function: Function) -> Function:
        first = next(iter(signature(function).parameters))

        @wraps(function)
        def locked(*args: Any, **kwargs: Any) -> Any:
            with lock_of(of(args[0] if args else kwargs[first])):
                return function(*args, **kwargs)

        return cast(Function, locked)

    return decorate
