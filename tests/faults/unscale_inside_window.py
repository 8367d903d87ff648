"""The gradients are unscaled, to be clipped, before the last micro-step has added its scaled ones."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K6",
    code="ACC702",
    reports=("huggingface/accelerate#641",),
    elsewhere={},
)
for runtime in ("torch", "DDP", "FSDP1", "FSDP2"):
    FAULT.by_demo(runtime, "unscale-inside-window", first=1, twin="unscaled-without-clip")
