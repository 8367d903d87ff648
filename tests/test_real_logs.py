"""Real logs by other people: each is recognised, and no finding says more than its file proves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from accumaudit import importers
from accumaudit.engine.catalogue import load_rules
from accumaudit.engine.findings import AuditReport, RunReport
from accumaudit.engine.judge import audit
from accumaudit.ledger.reader import Ledger
from tests.real_logs import real_logs

pytestmark = pytest.mark.slow

FORMATS = {
    "deepspeed": "deepspeed",
    "fairseq": "fairseq",
    "hf_stdout": "hf_stdout",
    "hf_trainer_state": "trainer_state",
    "lightning_csv": "lightning_csv",
    "llamafactory": "llamafactory",
    "logbook": "logbook",
    "mae_jsonl": "mae",
    "megatron": "megatron",
    "ms_swift": "ms_swift",
    "tfevents": "tensorboard",
    "torchtitan": "torchtitan",
}
"""Of the logs in each folder."""

OTHER_FORMATS = {
    "llmc-main.log": "llmc",
    "modded-2024-06-AdamW.log": "llmc",
    "modded-2024-10-SOAP.txt": "modded_nanogpt",
    "modded-2024-11-FlexAttention.txt": "modded_nanogpt",
    "modded-2025-02-RuleTweak.txt": "modded_nanogpt",
    "nanogpt-wandb-bn1klkfl.output.log": "nanogpt",
    "nanogpt-wandb-mw8ngzqq.output.log": "nanogpt",
    "nanogpt-wandb-vgpqdf1r.output.log": "nanogpt",
    "seis-log.csv": "nanogpt_csv",
    "seis-train_ctx4k.log": "nanogpt",
    "titan-llama3_cuda-0b39f2.losses.txt": "torchtitan_losses",
    "titan-llama3_rocm-1a1d3c.losses.txt": "torchtitan_losses",
    "chatglm-lora.latest.output.log": "hf_stdout",
    "chatglm-lora.latest.wandb-summary.json": "wandb_summary",
    "nanogpt-bn1klkfl.wandb-summary.json": "wandb_summary",
    "nanogpt-kt2awly2.wandb-summary.json": "wandb_summary",
    "nanogpt-mw8ngzqq.wandb-summary.json": "wandb_summary",
    "nanogpt-vgpqdf1r.wandb-summary.json": "wandb_summary",
}
"""Where a folder holds several."""

OTHER_COUNTS = {
    "ccks-e25-lr1e-4.stdout.txt": (1191, "the list counts a dict of settings too"),
    "webqsp-lora-e200.stdout.txt": (840, "the list counts four dicts of settings too"),
    "swift-ds-full-epoch.stdout.log": (295, "the list counts 17 dicts of settings too"),
    "swift-first-try-crash.stdout.log": (
        0,
        "the list counts dicts of settings alone",
    ),
    "rope-engines-v3.metrics.csv": (80, "a row of the rate and a row of the loss are one record"),
    "chatglm-lora.latest.output.log": (1, "the summary of the training is printed in it"),
}
"""Records of files that the list counts otherwise, and why.

One record joins the scalars of a step: those of event files are counted in test_import_events.
"""


def listed() -> dict[str, int]:
    """The number of records of each file, as the list beside them counts."""
    rows = re.finditer(
        r"^\| `([^`]+)` \| \d+ \| (\d+)( scalars)?",
        (real_logs() / "INDEX.md").read_text("utf-8"),
        re.MULTILINE,
    )
    return {row[1]: int(row[2]) for row in rows if not row[3]}


def path_of(name: str) -> Path:
    (path,) = real_logs().rglob(name)
    return path


def test_every_file_is_recognised_and_counted() -> None:
    wrong = []
    for name, count in listed().items():
        path = path_of(name)
        expected, _ = OTHER_COUNTS.get(name, (count, ""))
        format_, counted = recognised_and_counted(path)
        # A log may hold no record and still be known by its heading.
        meant = OTHER_FORMATS.get(name, FORMATS.get(path.parent.name)) if format_ or expected else None
        if (format_, counted) != (meant, expected):
            wrong.append((name, format_, counted, meant, expected))
    assert wrong == []


def recognised_and_counted(path: Path) -> tuple[str | None, int]:
    log = importers.Log(path)
    recognised = importers.recognise(log)
    if recognised.format is None:
        assert recognised.looks_like
        return None, 0
    return recognised.format.name, importers.read(log, recognised.format, lambda _: None)[0]


@pytest.fixture(scope="module")
def report(logs: Ledger) -> AuditReport:
    return audit(logs, load_rules())


def found(run: RunReport) -> Iterator[tuple[str, str]]:
    for verdict in run.with_status("failed"):
        yield verdict.code, verdict.severity


SKIPS = "the rates follow the schedule of fewer steps than global_step counts"
COUNTER = "skipped steps are told, and the step counts them"
BROKEN_OFF = "it ends before the steps that it plans, and no summary follows"
TAIL = "1,907 micro-batches an epoch at accumulation 4, and the last record is at epoch 24.96 of 25"

FINDINGS: dict[str, dict[str, tuple[str, str]]] = {
    "dschat-step1-opt1.3b-gbs128.log": {"ACC804": ("note", COUNTER)},
    "dschat-step2-dpo-opt350m-gbs32.log": {"ACC804": ("note", COUNTER)},
    "mhmoe-test.log": {"ACC808": ("note", "100 of the 300,000 updates of its settings")},
    "mhmoe-train.log": {"ACC808": ("note", "17,000 of the 300,000 updates of its settings")},
    "ccks-e25-lr1e-4.stdout.txt": {"ACC309": ("note", SKIPS), "ACC808": ("note", TAIL)},
    "ccks-e25-lr1e-4.trainer_state.json": {"ACC309": ("note", SKIPS), "ACC808": ("note", TAIL)},
    "ccks-e25-lr1e-4.trainer_log": {"ACC309": ("note", SKIPS)},  # the accumulation is not in it
    "ccks-e25-lr1e-4.ckpt11000.trainer_state.json": {"ACC309": ("note", SKIPS)},
    "ccks-e50.trainer_log": {"ACC309": ("note", SKIPS)},
    "webqsp-lora-e200.stdout.txt": {"ACC808": ("note", "begun again after 2,120 of 21,600")},
    "webqsp-lora-e200.stdout.txt#2": {"ACC309": ("note", SKIPS), "ACC808": ("note", BROKEN_OFF)},
    "whisper-lv2-ja.final.trainer_state.json": {"ACC309": ("note", SKIPS)},
    "whisper-lv2-ja.last-checkpoint.trainer_state.json": {"ACC309": ("note", SKIPS)},
    "mistral-translator.trainer_log": {"ACC904": ("note", "it has a token count, which stays 0")},
    "sft-two-writers.trainer_log": {
        "ACC806": ("warning", "every step stands twice, with losses of its own"),
        "ACC808": ("note", "the last line says 6,565 of 6,566"),
    },
    "swift-ds-full-epoch.stdout.log": {"ACC902": ("note", "norms of 390 and 790 among norms of about 9")},
    "ds-full-epoch.logging": {"ACC902": ("note", "norms of 390 and 790 among norms of about 9")},
    "bs-meg-n4.out": {"ACC804": ("note", COUNTER), "ACC808": ("note", BROKEN_OFF)},
    "bs-meg-n64.out": {"ACC804": ("note", COUNTER), "ACC808": ("note", BROKEN_OFF)},
    "bs-meg-n8.out": {"ACC804": ("note", COUNTER), "ACC808": ("note", BROKEN_OFF)},
    "bs-meg-perf-n16.out": {"ACC804": ("note", COUNTER), "ACC808": ("note", BROKEN_OFF)},
    "bs-megds-ds-off.out": {"ACC808": ("note", BROKEN_OFF)},
    "bs-megds-zero-n16.out": {"ACC808": ("note", BROKEN_OFF)},
    "mds-watch-recollect-restart.log#2": {"ACC808": ("note", BROKEN_OFF)},
    "ga2-gbs8.logging": {"ACC808": ("note", BROKEN_OFF)},
    "ga8-gbs32.logging": {"ACC808": ("note", BROKEN_OFF)},
    "swift-ga8-gbs32": {"ACC808": ("note", BROKEN_OFF)},
    "nanogpt-wandb-bn1klkfl.output.log": {"ACC808": ("note", "a traceback stands after step 1,330 of 5,000")},
    "titan-run105-lbs240.log": {"ACC808": ("note", "out of memory after step 1 of 10")},
}
"""What each run is found to have, with the severity and why its file proves it; all others are silent."""


def test_no_finding_says_more_than_its_file_proves(report: AuditReport) -> None:
    expected = {
        run_id: {code: severity for code, (severity, _) in codes.items()}
        for run_id, codes in FINDINGS.items()
    }
    assert {run.run_id: dict(found(run)) for run in report.runs if dict(found(run))} == expected


def test_no_rule_breaks(report: AuditReport) -> None:
    assert report.summary()["broken"] == 0


def messages(report: AuditReport, code: str) -> dict[str, str]:
    return {
        run.run_id: verdict.finding.message
        for run in report.runs
        for verdict in run.with_status("failed")
        if verdict.code == code and verdict.finding is not None
    }


def test_silent_skips_are_counted_and_placed(report: AuditReport) -> None:
    """Three logs of one run give one answer."""
    said = messages(report, "ACC309")
    places = (
        "4 skips: between 4,000 and 4,010, between 4,860 and 4,870, between 8,860 and 8,870, between 10,860"
    )
    for name in ("stdout.txt", "trainer_state.json", "trainer_log"):
        assert said[f"ccks-e25-lr1e-4.{name}"].startswith(places)
    assert said["whisper-lv2-ja.final.trainer_state.json"].startswith(
        "4 skips: 2 by 25, between 100 and 125, between 350 and 375"
    )


def test_an_epoch_that_windows_do_not_divide(report: AuditReport) -> None:
    assert messages(report, "ACC808")["ccks-e25-lr1e-4.trainer_state.json"].startswith(
        "24.96 of 25 epochs: 1,907 micro-batches are no multiple of 4"
    )


def test_skips_that_the_log_tells_are_counted(report: AuditReport) -> None:
    counted = {run.run_id: (run.attempts, run.skipped) for run in report.runs if run.skipped}
    assert counted == {
        "dschat-step1-opt1.3b-gbs128.log": (7_360, 139),
        "dschat-step2-dpo-opt350m-gbs32.log": (2_350, 21),  # no line of it says overflow
        "mhmoe-train.log": (17_097, 97),
        "bs-meg-n4.out": (200, 19),
        "bs-meg-n64.out": (60, 19),
        "bs-meg-n8.out": (200, 19),
        "bs-meg-perf-n16.out": (3, 3),
    }


def test_what_a_format_lacks_is_not_checked(report: AuditReport) -> None:
    state = next(run for run in report.runs if run.run_id == "ccks-e25-lr1e-4.trainer_state.json")
    reasons = {verdict.code: verdict.reason for verdict in state.with_status("not_checked")}
    assert reasons["ACC101"] == "trainer_state.json holds no micro-batches"
    assert reasons["ACC401"] == "trainer_state.json holds no order of events"
