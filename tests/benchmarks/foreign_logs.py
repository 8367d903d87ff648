"""Writes long logs in the grammars of other programs; each line differs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

BLOCK: Final = 2**22
"""Characters that are written at once."""

PERIOD: Final = 997
"""Steps after which losses and norms come again."""


def megatron(step: int) -> str:
    """Megatron-DeepSpeed's line of an iteration."""
    return (
        f" iteration {step:8d}/ 9000000 | consumed samples: {16 * step:12d} | "
        f"consumed tokens: {32768 * step:12d} | elapsed time per iteration (ms): 15165.9 | "
        f"learning rate: {_rate(step):.3E} | global batch size:    16 | "
        f"lm loss: {_loss(step):.6E} | loss scale: 1.0 | grad norm: {_norm(step):.3f} | num zeros: 0.0 | "
        "actual seqlen:  2048 | number of skipped iterations:   0 | number of nan iterations:   0 | "
        "samples per second: 1.055 | tokens per gpu per second (tgs): 135.040 | TFLOPs: 7.97 |\n"
    )


def deepspeed(step: int) -> str:
    """DeepSpeed's lines of a step and of its timer."""
    rate, start = _rate(step), "[2024-04-18 01:46:59,142] [INFO]"
    return (
        f"{start} [logging.py:96:log_dist] [Rank 0] step={10 * step}, skipped=6, lr=[{rate}, {rate}], "
        f"mom=[(0.9, 0.95), (0.9, 0.95)]\n{start} [timer.py:199:stop] epoch=0/micro_step={20 * step}/"
        f"global_step={10 * step}, RunningAvgSamplesPerSec=173.445, CurrSamplesPerSec=171.979, "
        "MemAllocated=3.96GB, MaxMemAllocated=22.95GB\n"
    )


def fairseq(step: int) -> str:
    """fairseq's simple record."""
    return (
        f"2024-06-28 18:40:31 | INFO | train_inner | epoch 001: {50 * step:6d} / 102400000 "
        f"loss={_loss(step):.3f}, nll_loss={_loss(step):.3f}, ppl=120.5, wps=120777, ups=0.23, wpb=524273, "
        f"bsz=256, num_updates={50 * step}, lr={_rate(step):.6g}, gnorm={_norm(step):.3f}, clip=36, "
        "loss_scale=4, train_wall=265, gb_free=11.2, wall=386\n"
    )


def torchtitan(step: int) -> str:
    """torchtitan's record, in colour."""
    return (
        f"[rank0]:[titan] 2024-05-19 20:30:35,751 - root - INFO - \x1b[31mstep: {step:2d}  "
        f"\x1b[32mloss: {_loss(step):8.5f}  \x1b[38;2;180;60;0mgrad_norm: {_norm(step):7.4f}  "
        "\x1b[38;2;54;234;195mmemory: 163.69GiB(91.78%)  \x1b[34mtps: 2,961  \x1b[36mtflops: 249.46  "
        "\x1b[35mmfu: 11.09%\x1b[39m\n"
    )


def nanogpt(step: int) -> str:
    """nanoGPT's record."""
    return f"iter {step}: loss {_loss(step):.4f}, time 52.57ms, mfu 7.09%\n"


def hf_stdout(step: int) -> str:
    """What a Trainer prints between the states of its progress bar."""
    bar = "".join(
        f"\r {part:2d}%|████▏     | {10 * step + part}/9000000 [00:{part:02d}<10:00,  1.05it/s]"
        for part in range(10)
    )
    return (
        f"{bar}\n{{'loss': {_loss(step):.4f}, 'grad_norm': {_norm(step)}, 'learning_rate': {_rate(step)}, "
        f"'epoch': {step / 1000:.2f}}}\n"
    )


def noise(step: int) -> str:
    """A line that says nothing of the training."""
    start = "[2024-04-18 01:46:59,142] [INFO]"
    return f"{start} [stage3.py:{step % 4000}:step] bucket {step} of {_loss(step)} was reduced\n"


def noisy(step: int) -> str:
    """Megatron's records, each among twenty lines that say nothing."""
    return "".join(noise(20 * step + part) for part in range(20)) + megatron(step)


GRAMMARS: Final[dict[str, Callable[[int], str]]] = {
    "megatron": megatron,
    "megatron, noisy": noisy,
    "deepspeed": deepspeed,
    "fairseq": fairseq,
    "torchtitan": torchtitan,
    "nanogpt": nanogpt,
    "hf_stdout": hf_stdout,
}


def write(path: Path, grammar: str, size: int) -> None:
    """Write about so many bytes in a grammar."""
    with path.open("w", encoding="utf-8", newline="") as file:
        for block in _blocks(GRAMMARS[grammar]):
            file.write(block)
            if file.tell() >= size:
                return


def _blocks(record: Callable[[int], str]) -> Iterator[str]:
    step, many = 1, max(1, BLOCK // len(record(1)))
    while True:
        yield "".join(map(record, range(step, step + many)))
        step += many


def _loss(step: int) -> float:
    return 2 + math.sin(step % PERIOD) / 8 + 100 / (100 + step)


def _norm(step: int) -> float:
    return 1.5 + math.cos(step % PERIOD) / 4


def _rate(step: int) -> float:
    return 1e-5 + 9e-5 * max(0.0, 1 - step / 9_000_000)
