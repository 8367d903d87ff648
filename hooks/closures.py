"""Closures that a step is given and that compute the gradients for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def closure_of(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Callable[..., Any] | None:
    """The closure among the arguments of a step, of which the first is the optimizer."""
    given = keywords.get("closure", arguments[1] if len(arguments) > 1 else None)
    return given if callable(given) else None


def with_closure(
    arguments: tuple[Any, ...], keywords: dict[str, Any], closure: Callable[..., Any]
) -> Arguments:
    """The same arguments with another closure."""
    if "closure" in keywords:
        return arguments, {**keywords, "closure": closure}
    return (arguments[0], closure, *arguments[2:]), keywords


class WatchedClosure:
    """Stands in for a closure, and tells each call that begins and each that has returned, by its number."""

    def __init__(
        self, closure: Callable[..., Any], begins: Callable[[int], None], returned: Callable[[int], None]
    ) -> None:
        self._closure = closure
        self._begins = begins
        self._returned = returned
        self._calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the closure itself."""
        self._calls += 1
        self._begins(self._calls)
        result = self._closure(*args, **kwargs)
        self._returned(self._calls)
        return result
