"""The moving average of the parameters is updated in every micro-step, and forgets too fast."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K18",
    code="ACC805",
    reports=("ultralytics/yolov5#3681",),
    elsewhere={
        "FSDP1": "its model cannot be copied, as torch's average does",
        "FSDP2": "its model cannot be copied, as torch's average does",
        "Trainer": "it keeps no average",
        "Lightning": "the average is the user's own there, as in a loop by hand",
        "DeepSpeed": "the engine keeps no average",
    },
)


for runtime in ("torch", "DDP", "Accelerate"):
    FAULT.by_demo(runtime, "ema-cadence", first=1, twin="average-of-updates")
