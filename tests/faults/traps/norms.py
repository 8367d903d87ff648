"""Norms that are not what their place suggests, while what is clipped is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

import accumaudit
from accumaudit.demo.loop import Loop, Window
from tests.faults.registry import trap
from tests.faults.traps.trainings import Table, train, without_hooks


@trap(
    "T07",
    on="Trainer",
    tempts=("ACC404", "ACC902", "ACC904"),
    unjudged={"ACC404": "trainer_state.json holds no order of events"},
    log=True,
)
def norm_before_the_clip(folder: str) -> None:
    """Trainer logs the norm before it clips, which lies above max_grad_norm for ever."""
    from tests.runtimes.hf import make_trainer, quiet

    with quiet():
        trainer = make_trainer(Path(folder), batches=6, num_train_epochs=30, max_grad_norm=0.01)
        trainer.train()
        trainer.save_state()


@trap("T07", on="torch", tempts=("ACC401", "ACC404"), notes=("ACC406",))
def clip_in_every_update(folder: str) -> None:
    """Every norm lies above the limit, and every update is clipped to it."""
    train(folder, "plain", max_grad_norm=0.05, accumulation_steps=2, batches=8, epochs=26)


class LocalNorm(Loop):
    """Reads the norm of this rank's shards, where the clip works with that of all shards."""

    def clip(self) -> None:
        assert self.settings.max_grad_norm is not None
        norm: Any = nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm)
        self.norm = float(norm.to_local())


class LocalNormLogged(LocalNorm):
    """Logs it."""

    def attach(self, **instead: Any) -> accumaudit.Audit:
        self.table = Table(self.log_dir, learning_rate=self.settings.learning_rate, max_grad_norm=1.25)
        return super().attach(**instead)

    def step(self, window: Window) -> None:
        super().step(window)
        self.table.write(
            rank=self.rank,
            optimizer_update_id=self.updates,
            step=self.updates,
            learning_rate=self.optimizer.param_groups[0]["lr"],
            grad_norm=self.norm,
        )


@trap(
    "T08",
    on="FSDP2",
    tempts=("ACC404", "ACC604"),
    unjudged={"ACC604": "the ledger holds no attempt of several ranks that DDP"},
)
def norm_of_own_shards(folder: str) -> None:
    """The norm that a clip returns is read without full_tensor(): each rank has that of its own shards."""
    train(folder, "fully-shard", own=[LocalNorm])


@trap(
    "T08",
    on="FSDP2",
    tempts=("ACC604", "ACC902", "ACC904"),
    unjudged={"ACC604": "the table of updates holds no"},
    log=True,
)
def logged_norm_of_own_shards(folder: str) -> None:
    """Each rank logs the norm of its own shards, as a part of the norm that clips."""
    without_hooks(folder, "fully-shard", own=[LocalNormLogged], epochs=9)


class LimitOfHistory(Loop):
    """The limit is the median of the norms so far, so that every second update is clipped."""

    norms: tuple[float, ...] = (10.0,)

    def clip(self) -> None:
        limit = sorted(self.norms)[len(self.norms) // 2]
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.norms = (*self.norms, float(norm))


@trap("T07", on="torch", tempts=("ACC401", "ACC404"))
def limit_of_history(folder: str) -> None:
    """The limit moves with the norms of the updates before."""
    train(folder, "plain", own=[LimitOfHistory])


class TwoLimits(Loop):
    """Two parts of the model are clipped by norms of their own."""

    def clip(self) -> None:
        parameters = list(self.model.parameters())
        nn.utils.clip_grad_norm_(parameters[:3], 0.2)
        nn.utils.clip_grad_norm_(parameters[3:], 0.5)


@trap("T07", on="torch", tempts=("ACC104", "ACC401"))
def two_limits(folder: str) -> None:
    """The norm of all gradients lies above each limit: two parts of the model are clipped apart."""
    train(folder, "plain", own=[TwoLimits])
