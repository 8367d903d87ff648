"""Keeps torch.compile from compiling the hooks themselves, where training code that it compiles runs them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from torch._C._dynamo import eval_frame

PACKAGES: Final = ("accumaudit.hooks", "accumaudit.ledger")

_skipped: set[CodeType] = set()


def leave_hooks_alone() -> None:
    """Tell the compiler to run every function of the hooks as it is.

    Only frames that are run in their own right are told of; what the compiler inlines it may trace, and
    `unreal` keeps that silent.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGES):
            for code in _codes(module):
                if code not in _skipped:
                    _skipped.add(code)
                    _skip(code)


def _skip(code: CodeType) -> None:
    if hasattr(eval_frame, "set_code_exec_strategy"):
        skip, default = eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT
        eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(skip, default))
    else:  # before torch 2.7
        getattr(eval_frame, "skip_code")(code)  # noqa: B009 - not in this version's types


def _codes(owner: ModuleType | type) -> Iterator[CodeType]:
    """The code of every function and method that is defined here, those inside others too."""
    for value in list(vars(owner).values()):
        for part in (value, getattr(value, "fget", None), getattr(value, "__func__", None)):
            if isinstance(part, FunctionType) and part.__module__ == _module_of(owner):
                yield from _inside(part.__code__)
        if isinstance(value, type) and value.__module__ == _module_of(owner):
            yield from _codes(value)


def _module_of(owner: ModuleType | type) -> str:
    return owner.__name__ if isinstance(owner, ModuleType) else owner.__module__


def _inside(code: CodeType) -> Iterator[CodeType]:
    yield code
    constants: tuple[Any, ...] = code.co_consts
    for constant in constants:
        if isinstance(constant, CodeType):
            yield from _inside(constant)
