"""What a loop saves and takes up again, with the audit's own counts beside the training's."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from accumaudit.demo.loop import Loop

State = dict[str, Any]


class CheckpointedLoop(Loop):
    """A loop that can say where it stands, and go on from there."""

    def state(self) -> State:
        return deepcopy(
            {
                "updates": self.updates,
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
                "scaler": self.scaler.state_dict(),
                "audit": self.audit.state_dict(),
            }
        )

    def restore(self, state: State) -> None:
        self.updates = state["updates"]
        self.model.load_state_dict(state["model"])
        self.restore_optimizer(state)
        self.restore_schedule(state)
        self.restore_scaler(state)
        self.restore_audit(state)

    def restore_optimizer(self, state: State) -> None:
        self.optimizer.load_state_dict(state["optimizer"])

    def restore_schedule(self, state: State) -> None:
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])

    def restore_scaler(self, state: State) -> None:
        self.scaler.load_state_dict(state["scaler"])

    def restore_audit(self, state: State) -> None:
        self.audit.load_state_dict(state["audit"])
