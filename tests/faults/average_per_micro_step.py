"""The moving average of the parameters is updated in every micro-step, and forgets too fast."""

from __future__ import annotations

from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K18",
    code="ACC805",
    reports=(),
    elsewhere={
        "FSDP1": "torch's average copies the model, which raises; a copy from before: not trained",
        "FSDP2": "torch's average copies the model, which raises; a copy from before: not trained",
        "Trainer": "it keeps no average; one in a callback: not trained",
        "Lightning": "its own average is updated once for each step; one by hand: not trained",
        "DeepSpeed": OWN_LINES,
    },
)


for runtime in ("torch", "DDP", "Accelerate"):
    FAULT.by_demo(runtime, "ema-cadence", first=1, twin="average-of-updates")
