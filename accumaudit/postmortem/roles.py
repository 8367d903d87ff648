"""What a rule's fault can do to a training: what may be a cause, and what only follows from one."""

from __future__ import annotations

from typing import Final

from accumaudit.postmortem.model import Role

_FAMILIES: Final[dict[str, Role]] = {"ACC8": "record", "ACC9": "symptom"}
"""By what the codes of a family begin with."""

_ROLES: Final[dict[str, Role]] = {
    "ACC109": "symptom",  # that nothing stopped it is a fault; that a loss was not finite has a cause
    "ACC305": "record",  # told by where the schedule ended: it says nothing of a single update
    "ACC309": "symptom",  # steps that were skipped, seen from the rates
    "ACC503": "cost",
    "ACC504": "cost",
    "ACC506": "cost",
    "ACC704": "symptom",
    "ACC801": "cause",  # an update that was lost or done twice
    "ACC803": "symptom",
    "ACC805": "cause",
    "ACC811": "cause",
    "ACC903": "cause",
    "ACC904": "record",
    "ACC905": "cause",
}
"""Where the family's does not fit."""

ON_SKIPS: Final = frozenset({"ACC302"})
"""Rules whose faults lie on skipped attempts alone: they follow from whatever made the steps be skipped."""


def role(code: str) -> Role:
    """The role of a rule; somebody's own is taken for a cause."""
    return _ROLES.get(code) or _FAMILIES.get(code[:4], "cause")
