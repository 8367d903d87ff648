"""The gradients are unscaled, to be clipped, before the last micro-step has added its scaled ones."""

from __future__ import annotations

from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K6",
    code="ACC702",
    reports=("huggingface/accelerate#641",),
    elsewhere={
        "Trainer": "it unscales once for each update, after the last backward",
        "Accelerate": OWN_LINES,
        "Lightning": "it unscales after the last backward; with manual optimization: not trained",
        "DeepSpeed": "the engine unscales in its step, after the last backward",
    },
)
for runtime in ("torch", "DDP", "FSDP1", "FSDP2"):
    FAULT.by_demo(runtime, "unscale-inside-window", first=1, twin="unscaled-without-clip")
