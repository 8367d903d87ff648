"""accumaudit: is the training that runs the training that was meant?

`attach` records a run, one record for each optimizer update on each rank; the command
`accumaudit check` judges the records, and `Ledger` opens them in Python. `accumaudit.testing` is for
tests. Importing this package loads neither torch nor duckdb.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accumaudit import testing
    from accumaudit.hooks import Audit, FaultFoundError, attach
    from accumaudit.hooks.accelerate_loop import attach_accelerate
    from accumaudit.hooks.deepspeed_engine import attach_deepspeed
    from accumaudit.opened import Ledger, LedgerError

__version__ = "0.1.0"
__all__ = [
    "Audit",
    "FaultFoundError",
    "Ledger",
    "LedgerError",
    "__version__",
    "attach",
    "attach_accelerate",
    "attach_deepspeed",
    "testing",
]

_LAZY = {
    "attach": "accumaudit.hooks",
    "attach_accelerate": "accumaudit.hooks.accelerate_loop",
    "attach_deepspeed": "accumaudit.hooks.deepspeed_engine",
    "Audit": "accumaudit.hooks",
    "FaultFoundError": "accumaudit.hooks",
    "Ledger": "accumaudit.opened",
    "LedgerError": "accumaudit.opened",
}


def __getattr__(name: str) -> object:
    if name == "testing":
        return importlib.import_module("accumaudit.testing")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'accumaudit' has no attribute {name!r}")
