"""The hooks: they watch a torch training loop and write one record for each optimizer update.

They import the standard library and torch alone.
"""

from __future__ import annotations

from accumaudit.hooks.attaching import attach
from accumaudit.hooks.audit import Audit
from accumaudit.hooks.watching import FaultFoundError, Finding

__all__ = ["Audit", "FaultFoundError", "Finding", "attach"]
