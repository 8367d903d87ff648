"""accumaudit: is the training that runs the training that was meant?

`attach` records a run, one record for each optimizer update on each rank; the command
`accumaudit check` judges the records. Importing this package loads neither torch nor duckdb.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accumaudit.hooks import Audit, attach

__version__ = "0.1.0"
__all__ = ["Audit", "__version__", "attach"]


def __getattr__(name: str) -> object:
    if name in ("attach", "Audit"):
        from accumaudit import hooks

        return getattr(hooks, name)
    raise AttributeError(f"module 'accumaudit' has no attribute {name!r}")
