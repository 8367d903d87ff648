"""Gradients are clipped after each micro-step, before the window's gradient is whole."""

from __future__ import annotations

from typing import Any

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K5",
    code="ACC401",
    reports=(
        "huggingface/transformers#1563",
        "facebookresearch/lingua#59",
        "huggingface/accelerate#641",
        "tenstorrent/tt-metal#17568",
    ),
    elsewhere={
        "Trainer": "it clips once for each update; a clip in a callback: not trained",
        "DeepSpeed": "the engine clips once for each update; a clip of the loop's own: not trained",
    },
)
LIMIT = {"max_grad_norm": 0.1}
"""So low that the first call of every window takes effect; a higher one leaves many windows as they are."""

for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "clip-per-micro-step", first=1, settings=LIMIT)


@FAULT.on("Lightning", first=1)
def lightning(folder: str, honest: bool) -> None:
    from tests.runtimes.lightning import fit
    from tests.runtimes.rows import EQUAL

    if honest:
        fit(folder, valid=EQUAL, gradient_clip_val=1.0)
    else:
        fit(folder, valid=EQUAL, gradient_clip_val=1.0, callbacks=[_clipping()])


def _clipping() -> Any:
    from torch.nn.utils import clip_grad_norm_

    from tests.runtimes.lightning import library

    def clip(_trainer: Any, module: Any) -> None:
        clip_grad_norm_(module.parameters(), 1.0)

    return library("lightning.pytorch.callbacks").LambdaCallback(on_after_backward=clip)
