"""What is said of a file that holds no record of a training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from accumaudit import importers
from accumaudit.cli import main
from accumaudit.cli.inputs import SHOWN
from accumaudit.importers import Log
from accumaudit.importers.recognition import QUOTES, Recognised
from tests.real_logs import real_logs

LOG = "".join(
    f" iteration {step}/ 9 | learning rate: 1.0E-04 | lm loss: 2.5E+00 |\n" for step in range(1, 10)
)
TRACE = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\n'
CRASH = "it looks like a crash before the first step: "
BAR = "it shows a progress bar, at 34 of 96 in the end, and no record"
SUMMARY = "it looks like the summary of a run, which holds no steps"
TABLE = "it looks like a table of a, b, c; `--map step=COLUMN,...` says what its columns are"
PROGRAM = (
    "import torch\nfrom torch import nn\nimport os\ndef f():\n    raise\nclass A:\n"
    "    '''\n    ValueError: never\n    '''\n"
)
SETTINGS = "it looks like the hyperparameters of a run; `--args` reads them"

TEXTS = {
    "nothing": ("", "it is empty so far"),
    "blank": (" \n\t\n", "it is empty so far"),
    "prose": ("It rained.\nWe trained.\n", "nothing in it looks like a record of training"),
    "launcher": ("+ torchrun --nproc_per_node=8 train.py\n", "it looks like the output of a launcher"),
    "error": (TRACE + "ValueError: no layer Foo\n", CRASH + "ValueError: no layer Foo"),
    "interrupt": (TRACE + "KeyboardInterrupt", CRASH + "KeyboardInterrupt"),
    "of a rank": (
        "[rank0]:[rank0]: torch.cuda.OutOfMemoryError: full\n",
        CRASH + "torch.cuda.OutOfMemoryError: full",
    ),
    "of a tee": ("[default3]: RuntimeError: NCCL error\n", CRASH + "RuntimeError: NCCL error"),
    "behind a bar": ("  0%|  | 0/9 [00:00<?]\rRuntimeError: a\r\n", CRASH + "RuntimeError: a"),
    "in red": ("\x1b[31mRuntimeError\x1b[0m: a\x1b[0m\n", CRASH + "RuntimeError: a"),
    "the cause, not its echo": (
        "[rank1]: ValueError: x\nworse.errors.ChildFailedError: \n",
        CRASH + "ValueError: x",
    ),
    "memory": (
        "12:00 | WARN | OOM: CUDA out of memory. Tried 1 GiB\n",
        CRASH + "CUDA out of memory. Tried 1 GiB",
    ),
    "arguments": (
        "usage: t.py [-h]\nt.py: error: argument --bf16: no\n",
        CRASH + "t.py: error: argument --bf16: no",
    ),
    "a long error": ("RuntimeError: " + "x" * 500, CRASH + "RuntimeError: " + "x" * 146 + "..."),
    "bar": ("\r 10%|#  | 1/96 [00:01<1:00]\r 35%|###  | 34/96 [10:42<30:50]", BAR),
    "yaml": ("lr: 0.001\nmax_epochs: 100\nweight_decay: 0.05\n", SETTINGS),
    "json": ('{"learning_rate": 1e-5, "seed": 42, "gradient_accumulation_steps": 4}', SETTINGS),
    "card": ("## Training\n\n- learning_rate: 1e-05\n- seed: 42\n- train_batch_size: 8\n", SETTINGS),
    "summary": ('{"epoch": 1.0, "train_loss": 2.5, "train_runtime": 4.1}', SUMMARY),
    "program": (PROGRAM, "it looks like the source of a program"),
    "table": ("a,b,c\n1,2,3\n4,5,6\n", TABLE),
    "one object": (
        '{"name": "a", "version": 1, "packages": 2}',
        "nothing in it looks like a record of training",
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_a_text_looks_like(name: str, tmp_path: Path) -> None:
    text, expected = TEXTS[name]
    path = tmp_path / "file"
    path.write_bytes(text.encode())
    recognised = importers.recognise(Log(path))
    assert recognised.format is None
    assert recognised.looks_like == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("README.md", "The log tells ` iteration 10/ 90 | lm loss: 2.5 |`.\n"),
        ("guide.rst", ".. code::\n\n   iter 0: loss 4.6810, time 52.57ms, mfu 7.09%\n"),
        ("test_parse.py", "LOG = '''\niter 0: loss 4.6810, time 52.57ms, mfu 7.09%\n'''\n"),
        ("chat.jsonl", '{"messages": [{"content": "{\'loss\': 1.0, \'learning_rate\': 1e-5}"}]}\n'),
    ],
)
def test_what_quotes_a_log_is_none(name: str, text: str, tmp_path: Path) -> None:
    """Else the records of an example would be judged."""
    path, log = tmp_path / name, tmp_path / "log.txt"
    path.write_text(text, encoding="utf-8")
    assert importers.recognise(Log(path)) == Recognised(looks_like=QUOTES)
    log.write_text(text if name != "chat.jsonl" else text.replace("messages", "log"), encoding="utf-8")
    assert importers.recognise(Log(log)).format is not None


def test_a_long_text_is_told_by_its_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("ready\n" * 1_000_000 + "RuntimeError: a\nbye\n" * 3, encoding="utf-8")
    assert importers.recognise(Log(path)).looks_like == CRASH + "RuntimeError: a"


def test_by_name_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "crash.log"
    path.write_text(TRACE + "ValueError: no layer Foo\n", encoding="utf-8")
    result = CliRunner().invoke(main, ["check", str(path)])
    assert result.exit_code == 2
    assert f"{path}: no record of a training ({CRASH}ValueError: no layer Foo)" in result.stderr


def test_in_a_folder_it_is_noted(tmp_path: Path) -> None:
    """Those that look alike together, and not more than a few."""
    (tmp_path / "a.log").write_text(LOG, encoding="utf-8")
    (tmp_path / "notes.txt").write_text("It rained.\n", encoding="utf-8")
    (tmp_path / "more.txt").write_text("It rained again.\n", encoding="utf-8")
    for number in range(10):
        (tmp_path / f"z{number}.log").write_text(f"ValueError: {number}\n", encoding="utf-8")
    result = CliRunner().invoke(main, ["check", str(tmp_path), "--format", "json"])
    assert result.exit_code == 0
    lines = result.stderr.splitlines()
    assert len(lines) == SHOWN + 1
    assert lines[0] == (
        f"note: {tmp_path / 'more.txt'} and 1 more: no record of a training "
        "(nothing in it looks like a record of training)"
    )
    assert lines[1] == f"note: {tmp_path / 'z0.log'}: no record of a training ({CRASH}ValueError: 0)"
    assert lines[-1] == "note: 6 more files hold no record of a training"
    no_logs = json.loads(result.stdout)["no_logs"]
    assert len(no_logs) == 12
    assert no_logs[-1] == {"file": str(tmp_path / "z9.log"), "why": f"{CRASH}ValueError: 9"}


REAL = {
    "hf_stdout/chatglm-et.nohup.out": CRASH + "train_bash.py: error: argument --fp16: Truthy",
    "hf_stdout/swift-first-try-crash.stdout.log": CRASH + "ValueError: Could not find the transformer",
    "hf_stdout/adl3-sft.full_training_log.txt": BAR,
    "fairseq/mhmoe-test_bug.log": CRASH + "Ran out of memory with exception: CUDA out of memory. Tried to ",
    "torchtitan/titan-run75-crash.log": CRASH
    + "ValueError: 'mxfp8_cublas' is not a valid MXFP8TrainingRecipe",
    "wandb/nanogpt-crash-o3wk6g8t.output.log": CRASH + "KeyboardInterrupt",
    "wandb/translation-deq.crash.output.log": CRASH + "KeyboardInterrupt",
    "hf_trainer_state/ccks-e25-lr1e-4.train_results.json": SUMMARY,
    "hf_trainer_state/ccks-e25-lr1e-4.training_args.json": SETTINGS,
    "hf_trainer_state/chatglm2-prefix.training_args.txt": SETTINGS,
    "hf_trainer_state/whisper-lv2-ja.README.md": SETTINGS,
    "lightning_csv/gpttt.hparams.yaml": SETTINGS,
    "ms_swift/ds-first.args.json": SETTINGS,
    "nanogpt/nanogpt-wandb-vgpqdf1r.config.yaml": SETTINGS,
    "nanogpt/seis-gpt120m_ctx4k.yaml": SETTINGS,
    "wandb/chatglm-lora.latest.config.yaml": SETTINGS,
}


@pytest.mark.parametrize("name", REAL)
def test_real_files_without_a_record(name: str) -> None:
    recognised = importers.recognise(Log(real_logs() / name))
    assert recognised.format is None
    assert recognised.looks_like.startswith(REAL[name])
