"""The forward goes through the module inside the wrapper, so no gradient is ever reduced."""

from __future__ import annotations

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from accumaudit.demo.data import Batch
from accumaudit.demo.loop import Loop
from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K7",
    code="ACC501",
    reports=(
        "jingyaogong/minimind#853",
        "bytetriper/RAE#40",
    ),
    elsewhere={
        "torch": "a single process has no other ranks",
        "FSDP1": "the module inside meets parameters that are still sharded, and torch raises",
        "FSDP2": "the wrapper is the module itself",
        "Trainer": "it calls the wrapper; a loss function that calls the module inside: not trained",
        "Accelerate": OWN_LINES,
        "Lightning": "it runs the training step inside the wrapper's forward",
        "DeepSpeed": "the engine reduces the gradients of all parameters, whoever calls the module",
    },
)


class Bypassing(Loop):
    """The loss is that of the module inside."""

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        assert isinstance(self.model, DistributedDataParallel)
        logits = self.model.module(batch.input_ids, batch.attention_mask)
        return logits.flatten(0, 1), batch.labels.flatten()


FAULT.by_demo("DDP", Bypassing, first=1)
