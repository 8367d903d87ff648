"""The tokens that are reported count padding and prompts, which have no loss."""

from __future__ import annotations

from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K16",
    code="ACC807",
    reports=(
        "huggingface/transformers#29889",
        "huggingface/transformers#35529",
        "unslothai/unsloth-zoo#873",
        "pytorch/torchtitan#4192",
    ),
    elsewhere={
        "Lightning": OWN_LINES,
        "DeepSpeed": OWN_LINES,
    },
)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "tokens-mean-something-else", first=1)


@FAULT.on(
    "Trainer",
    first=1,
    found=2,
    why_later="a count may go on from an earlier run's, so it is judged by its rise",
)
def trainer(folder: str, honest: bool) -> None:
    from tests.runtimes import hf

    hf.fit(folder, include_num_input_tokens_seen=not honest)
