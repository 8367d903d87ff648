"""The micro-steps left over at the end of an epoch are added to the first update of the next."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor
from torch.nn import functional

from accumaudit.demo.data import IGNORED, Batch
from accumaudit.demo.loop import Loop, Window
from tests.faults.registry import EQUAL, Fault

FAULT = Fault(
    kind="K1",
    code="ACC206",
    reports=("WalkingMeatAxolotl/AnimaLoraStudio#305", "timoschick/pet#25"),
    elsewhere={
        "Lightning": "it steps at the end of the data; with manual optimization: not trained",
    },
)


class CountedAnew(Loop):
    """A step at every fourth batch of an epoch; what is left over is neither applied nor cleared."""

    def train_epochs(self, epochs: Iterable[int]) -> None:
        for epoch in epochs:
            self.sampler.set_epoch(epoch)
            for number, batch in enumerate(self.loader, start=1):
                window = Window([batch], batch.valid_tokens)
                self.micro_step(number, batch, window)
                if number % self.settings.accumulation_steps == 0:
                    self.unscale()
                    self.clip()
                    self.step(window)
                    self.clear()

    def reduction(self, number: int, window: Window) -> AbstractContextManager[None]:
        last = number % self.settings.accumulation_steps == 0
        return nullcontext() if last else self.no_sync()

    def loss(self, batch: Batch, window: Window) -> Tensor:
        logits, labels = self.forward(batch)
        mean = functional.cross_entropy(logits, labels, ignore_index=IGNORED)
        return mean / self.settings.accumulation_steps


SETTINGS = {**EQUAL, "warmup_updates": None}
for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(
        runtime,
        CountedAnew,
        first=4,
        observed=1.5,
        twin="mean-of-equal-lengths",
        settings=SETTINGS,
        also={"ACC205"},
    )


@FAULT.on("DeepSpeed", first=3, severity="note", also={"ACC205"})
def deepspeed(folder: str, honest: bool) -> None:
    from tests.runtimes.deepspeed import train
    from tests.runtimes.rows import EQUAL

    if honest:
        train(folder, 2, valid=(EQUAL,), epochs=2)
    else:
        train(folder, 2, valid=(EQUAL + EQUAL[:2],), epochs=2)


@FAULT.on("Trainer", first=3)
def trainer(folder: str, honest: bool) -> None:
    from tests.runtimes import hf

    hf.train("default" if honest else "no length", folder)
