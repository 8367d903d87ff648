"""The denominator counts positions that have no loss: prompts and masked answers."""

from __future__ import annotations

from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K2",
    code="ACC110",
    reports=(
        "ServiceNow/Fast-LLM#426",
        "mosaicml/composer#3273",
    ),
    elsewhere={
        "Lightning": OWN_LINES,
        "DeepSpeed": OWN_LINES,
    },
)
for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "unscored-tokens-in-denominator", first=1)


@FAULT.on("Trainer", first=1)
def trainer(folder: str, honest: bool) -> None:
    from tests.runtimes import hf

    hf.train("default" if honest else "own shift", folder)
