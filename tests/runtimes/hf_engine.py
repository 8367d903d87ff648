"""A Trainer that trains with a DeepSpeed engine, twice: with the callback in a folder, and without.

Run as a module, in a process of its own: both frameworks keep what they were told for all of the process.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

from tests.runtimes import hf
from tests.runtimes.deepspeed import group


def train(folder: Path, stage: int, hooks: bool) -> str:
    """Train with an engine that takes what it can from the trainer; return a digest of the parameters."""
    config = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    trainer = hf.make_trainer(
        folder,
        callbacks=[hf.recording(folder)] if hooks else [],
        deepspeed=config,
        use_cpu=False,  # else accelerate leaves the engine out; there is nothing but the CPU all the same
        optim="adamw_torch",
        eval_strategy="epoch",
    )
    trainer.train()
    return hf.digest(trainer.model)


if __name__ == "__main__":
    os.environ.update(ACCELERATE_USE_DEEPSPEED="true", RANK="0", WORLD_SIZE="1")
    import deepspeed.ops  # type: ignore[import-untyped]  # it ships no types

    logging.getLogger("DeepSpeed").setLevel(logging.CRITICAL)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it wants a compiler
    with group(), hf.quiet():
        digests = [train(Path(sys.argv[1]), int(sys.argv[2]), hooks) for hooks in (True, False)]
    sys.stdout.write("\n" + json.dumps(digests))
