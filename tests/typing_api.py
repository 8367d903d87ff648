"""The public interface as a user's type checker sees it: mypy reads this file, nothing runs it."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

import accumaudit
from accumaudit.engine.ignoring import Ignore


def attaches(model: nn.Module, optimizer: Optimizer, scheduler: LRScheduler, log_dir: Path) -> None:
    """A handle, usable in a with-statement or closed by hand; one optimizer or several."""
    with accumaudit.attach(model, optimizer, scheduler=scheduler, log_dir=log_dir) as audit:
        same: accumaudit.Audit = audit
    other: accumaudit.Audit = accumaudit.attach(model, [optimizer, optimizer], log_dir="runs/first")
    other.close()
    same.close()


def tells(audit: accumaudit.Audit, loss: Tensor) -> None:
    """Numbers and tensors alike."""
    audit.declare(accumulation_steps=4, planned_updates=100)
    audit.report(global_valid_tokens=1024, global_step=3, loss=loss)
    audit.observe_loss(loss, valid_tokens=loss.sum(), reduction="sum")
    audit.mark("checkpoint", name="last.pt")


def asks(audit: accumaudit.Audit) -> dict[str, float]:
    """Plain values come back."""
    audit.load_state_dict(audit.state_dict())
    version: str = accumaudit.__version__
    counts = {found.code: float(found.count) for found in audit.findings() if found.severity == "error"}
    return audit.metrics() | counts | {version: 0.0}


def stops(model: nn.Module, optimizer: Optimizer) -> str:
    """The error says what was found."""
    try:
        with accumaudit.attach(model, optimizer, log_dir="runs/first", watch=True, stop_on="warning"):
            return ""
    except accumaudit.FaultFoundError as error:
        return " ".join(found.advice for found in error.findings)


def opens(run: Path) -> list[str]:
    """Columns, rows, frames and verdicts."""
    with accumaudit.Ledger.open(run, "runs/second") as ledger:
        short: float = ledger.windows.pandas()["microbatches"].min()
        codes: list[str] = [row["code"] for row in ledger.findings]
        rows: int = len(ledger.sql("SELECT 1")) + ledger.updates.arrow().num_rows
        statuses = [verdict.status for run in ledger.check().runs for verdict in run.verdicts]
    return [*codes, *statuses, f"{short} {rows}"]


def shows(run: Path) -> list[str]:
    """Charts are plotly's figures; a post-mortem has fields."""
    with accumaudit.Ledger.open(run) as ledger:
        figure = ledger.plot("loss", "learning_rate", run="first", optimizer=0, x="tokens")
        figure.write_html("loss.html")
        ledger.windows.plot("attempt_id", "loss", "total_weight").update_layout(height=300)
        told = ledger.post_mortem("first")
        codes = [suspect.verdict.code for suspect in told.suspects]
        comparison = ledger.compare("first", "second", by="tokens", tolerance=1e-4)
    return [*told.verdict, *codes, *comparison.verdict]


def tests(model: nn.Module, optimizer: Optimizer, run: Path) -> None:
    """A function, a captured training, a ledger or a folder."""

    def train(log_dir: Path) -> None:
        with accumaudit.attach(model, optimizer, log_dir=log_dir):
            pass

    accumaudit.testing.assert_clean(train, judged=["ACC101"]).summary()
    known = Ignore(rule="ACC101", run="first", updates="1-4", reason="mended since")
    accumaudit.testing.assert_clean(run, fail_on="error", ignore={"ACC205", known})
    with accumaudit.testing.capture(model, [optimizer], accumulation_steps=4) as training:
        training.audit.mark("checkpoint", name="last.pt")
    accumaudit.testing.assert_clean(training)
    with accumaudit.testing.record(train) as ledger:
        first: int | None = accumaudit.testing.assert_finds(ledger, "ACC101").first_update
    verdicts: list[bool | None] = accumaudit.testing.faults("ACC101", run)
    assert verdicts or first
