"""Right loops that a careless audit accuses: each does one thing in another way, and none is a fault.

Most are traits: they override one decision, so several of them make one loop (`combined`).
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from accumaudit.demo.registry import VARIANTS, combined

__all__ = ["VARIANTS", "combined"]

KINDS: Final = (
    "losses",
    "windows",
    "gradients",
    "scaling",
    "optimizers",
    "adversaries",
    "reduction",
    "sharding",
    "schedules",
    "averages",
    "resumption",
)

for kind in KINDS:
    import_module(f"{__name__}.{kind}")
