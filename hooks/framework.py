"""The classes of a framework that its adapter watches, and what a version of it does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accumaudit.hooks import patches
from accumaudit.hooks.wrappers import Wrap

if TYPE_CHECKING:
    from accumaudit.hooks.recorder import Recorder


class Framework:
    """Puts wrappers on a framework's methods; they are taken back with all other patches.

    A wrapper serves every recorder of the process: it finds its own by the object that it is called on.

    Args:
        name: of the package.
        version: the one that is installed.
    """

    def __init__(self, name: str, version: str) -> None:
        self._name = name
        self._version = version
        self._lacking: list[str] = []

    def patch(self, owner: type, method: str, wrap: Wrap, *, loses: str) -> None:
        """Wrap a method where the class has it from.

        Args:
            owner: the class.
            method: its name.
            wrap: makes the wrapper of the original.
            loses: what is not recorded where there is no such method.
        """
        if callable(getattr(owner, method, None)):
            patches.watch_class(owner, method, wrap)
        else:
            self._lacks(f"{owner.__name__}.{method}", loses)

    def has(self, instance: object, name: str, *, loses: str) -> bool:
        """Whether an object has an attribute, without asking for its value; what goes without it is told."""
        found = hasattr(type(instance), name) or name in vars(instance)
        if not found:
            self._lacks(f"{type(instance).__name__}.{name}", loses)
        return found

    def _lacks(self, name: str, loses: str) -> None:
        self._lacking.append(f"{self._name} {self._version} has no {name}: no record of {loses}")

    def tell(self, recorder: Recorder) -> None:
        """Mark in the records what could not be watched."""
        for lack in self._lacking:
            recorder.not_recorded(lack)
