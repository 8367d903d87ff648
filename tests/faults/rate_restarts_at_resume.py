"""The schedule's state is not taken up at a resume, and the warm-up begins anew."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K13",
    code="ACC306",
    reports=(
        "ultralytics/yolov5#292",
        "deepspeedai/DeepSpeed#3875",
        "torch-points3d/torch-points3d#630",
        "lightly-ai/lightly-train#301",
    ),
    elsewhere={
        "Trainer": "it loads the schedule's state with the optimizer's",
        "Lightning": "it loads the schedule's state with the optimizer's",
        "DeepSpeed": "the engine loads the state of its own schedule; one apart from it: not trained",
    },
)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "rate-break-at-resume", first=1, twin="resumed")
