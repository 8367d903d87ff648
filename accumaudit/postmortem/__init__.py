"""Why a run went wrong, and from which update on: what its record proves, in the order in which one asks."""

from __future__ import annotations

from accumaudit.postmortem.model import PostMortem
from accumaudit.postmortem.telling import post_mortems

__all__ = ["PostMortem", "post_mortems"]
