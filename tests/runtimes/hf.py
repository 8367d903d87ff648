"""Trainings by transformers.Trainer, on one process or two; models are made from configurations."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from accelerate.state import AcceleratorState, GradientState  # type: ignore[import-untyped]  # it ships no types
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional
from torch.utils.data import IterableDataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)

from accumaudit.demo.data import IGNORED
from accumaudit.hooks.hf_trainer import AccumauditCallback
from tests.loops import VOCABULARY
from tests.recorded import updates
from tests.trainings import environment

STEPS: Final = 3
BATCH: Final = 2
BATCHES: Final = 8
"""Micro-batches of a rank in an epoch: windows of 3, 3 and 2."""
LENGTH: Final = 12

Row = dict[str, Tensor]


def rows(count: int, seed: int = 0, valid: int | None = None, first: bool = False) -> list[Row]:
    """Rows of token ids, each with another number of labels that count: 1 to 10, or `valid`.

    The first of a row is a prompt's, which has no label, unless `first`.
    """
    generator = torch.Generator().manual_seed(seed)
    made = []
    for number in range(count):
        ids = torch.randint(0, VOCABULARY, (LENGTH,), generator=generator)
        labels = ids.clone()
        labels[1 + (valid or 1 + (7 * number + number // 5) % 10) :] = IGNORED
        if not first:
            labels[0] = IGNORED
        made.append({"input_ids": ids, "labels": labels})
    return made


def llama() -> LlamaForCausalLM:
    """One layer, the same each time."""
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=LENGTH,
        )
    )


def deaf_llama() -> LlamaForCausalLM:
    """It says that it is not to be told what to divide by."""
    model: Any = llama()
    model.accepts_loss_kwargs = False
    return model  # type: ignore[no-any-return]  # a Llama


class OwnModel(nn.Module):
    """A model of the user's own, which returns its loss: each position has its label."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.hidden = nn.Linear(16, 16)
        self.head = nn.Linear(16, VOCABULARY)

    def logits(self, ids: Tensor) -> Tensor:
        states: Tensor = self.head(torch.tanh(self.hidden(self.embedding(ids))))
        return states

    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(
            self.logits(ids).flatten(0, 1), labels.flatten(), ignore_index=IGNORED
        )


class Plain(OwnModel):
    """It takes no further keywords."""

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": self.loss(input_ids, labels)}


class Ignoring(OwnModel):
    """It takes any keyword, and looks at none."""

    def forward(self, input_ids: Tensor, labels: Tensor, **_others: Any) -> dict[str, Tensor]:
        return {"loss": self.loss(input_ids, labels)}


class Shifting(OwnModel):
    """It predicts the next token, and divides by what it is told: that counts first labels too."""

    def forward(
        self, input_ids: Tensor, labels: Tensor, num_items_in_batch: Any = None, **_others: Any
    ) -> dict[str, Tensor]:
        logits = self.logits(input_ids)
        if num_items_in_batch is None:
            return {"loss": mean_loss(logits, labels)}
        return {"loss": mean_loss(logits, labels, "sum") / num_items_in_batch}


def classifier(labels: int = 3) -> BertForSequenceClassification:
    """One of transformers' own whose forward takes any keyword, and ignores what it is to divide by."""
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=LENGTH,
    )
    config.num_labels = labels
    torch.manual_seed(0)
    return BertForSequenceClassification(config)


def classified(count: int) -> list[Row]:
    """Rows of token ids with one label each."""
    return [row | {"labels": row["input_ids"][0] % 3} for row in rows(count)]


def regressor() -> BertForSequenceClassification:
    """The same, for a number."""
    return classifier(labels=1)


def measured(count: int) -> list[Row]:
    """Rows of token ids with a number each."""
    return [row | {"labels": row["input_ids"][0] / 3} for row in rows(count)]


class MeanTrainer(Trainer):
    """Its loss is the mean over a micro-batch."""

    def compute_loss(  # type: ignore[override]  # it looks at none of the others
        self, model: Any, inputs: Any, return_outputs: bool = False, **_others: Any
    ) -> Any:
        logits = model(input_ids=inputs["input_ids"]).logits
        loss = mean_loss(logits, inputs["labels"])
        return (loss, {"logits": logits}) if return_outputs else loss


class ScaledMeanTrainer(MeanTrainer):
    """The same, and it says so."""

    loss_is_scaled_for_ga = False


def mean_loss(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    return functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction=reduction
    )


def mean_func(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """A compute_loss_func that divides by the micro-batch's own tokens."""
    return mean_loss(outputs.logits, labels)


def sum_func(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """One that divides by what it is told."""
    total: Tensor = mean_loss(outputs.logits, labels, "sum") / num_items_in_batch
    return total


class Stream(IterableDataset):  # type: ignore[type-arg]  # of rows
    """Rows without a length."""

    def __init__(self, source: list[Row]) -> None:
        self._source = source

    def __iter__(self) -> Iterator[Row]:
        return iter(self._source)


class Fused(OwnModel):
    """It stands in for Liger, which wants a GPU: loss and gradients in one go, and no logits remain."""

    def forward(
        self, input_ids: Tensor, labels: Tensor, num_items_in_batch: Any = None, **_others: Any
    ) -> dict[str, Tensor]:
        states = torch.tanh(self.hidden(self.embedding(input_ids))).flatten(0, 1)
        total: Tensor = FusedLoss.apply(states, self.head.weight, labels.flatten())  # type: ignore[no-untyped-call]
        divisor = (labels != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        return {"loss": total / divisor}


class FusedLoss(torch.autograd.Function):
    """The sum of the losses of the labels that count; its backward only scales what forward made."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, head: Tensor, labels: Tensor) -> Tensor:
        valid = (labels != IGNORED)[:, None]
        logarithms = (states @ head.T).log_softmax(-1)
        chosen = functional.one_hot(labels.clamp(min=0), len(head))
        gradient = (logarithms.exp() - chosen) * valid
        ctx.save_for_backward(gradient @ head, gradient.T @ states)
        return -(logarithms * chosen * valid).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        of_states, of_head = ctx.saved_tensors
        return gradients[0] * of_states, gradients[0] * of_head, None


@dataclass
class Counting:
    """Collates, and counts the labels of each micro-batch that count, without the first of a row."""

    counts: list[int] = field(default_factory=list)
    batches: list[Row] = field(default_factory=list)

    def __call__(self, found: list[Row]) -> Row:
        batch: Row = default_data_collator(found)
        valid = batch["labels"] != IGNORED
        self.counts.append(int(valid[..., 1:].sum()))
        self.batches.append(batch)
        return batch


CASES: Final[dict[str, dict[str, Any]]] = {
    # case: what differs from the default
    "default": {},
    "local counts": {"average_tokens_across_devices": False},
    "no keywords": {"model": Plain},
    "keywords ignored": {"model": Ignoring},
    "func mean": {"compute_loss_func": mean_func},
    "func mean, equal": {"compute_loss_func": mean_func, "valid": 6, "batches": 3},
    "classifier": {"model": classifier, "make_rows": classified, "batches": 6},
    "func sum": {"compute_loss_func": sum_func},
    "override mean": {"trainer": MeanTrainer},
    "override mean, scaled": {"trainer": ScaledMeanTrainer},
    "own shift": {"model": Shifting, "first": True},
    "no length": {"stream": True, "max_steps": 5},
    "smoothed": {"label_smoothing_factor": 0.1},
    "smoothed, no keywords": {"label_smoothing_factor": 0.1, "model": deaf_llama},
    "fused": {"model": Fused, "labels": "labels"},
    "compiled": {"first": True, "torch_compile": True, "torch_compile_backend": "aot_eager"},
    "bfloat16": {"bf16": True},
    "checkpointed": {"gradient_checkpointing": True},
}


def settings() -> dict[str, Any]:
    """Windows of three micro-batches of two rows; the rest is Trainer's default."""
    return {
        "per_device_train_batch_size": BATCH,
        "gradient_accumulation_steps": STEPS,
        "num_train_epochs": 2,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
    }


def make_trainer(
    folder: Path,
    *,
    trainer: type[Trainer] = Trainer,
    model: Callable[[], nn.Module] | None = None,
    compute_loss_func: Any = None,
    data_collator: Any = None,
    stream: bool = False,
    callbacks: list[TrainerCallback] | None = None,
    batches: int = BATCHES,
    valid: int | None = None,
    first: bool = False,
    make_rows: Callable[[int], list[Row]] | None = None,
    **options: Any,
) -> Any:
    """A trainer over rows of which each micro-batch has another number that count."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    make = make_rows or functools.partial(rows, valid=valid, first=first)
    data = make(BATCH * batches * ranks)
    return trainer(
        model=(model or llama)(),
        args=TrainingArguments(output_dir=str(folder / "out"), **settings() | options),
        train_dataset=Stream(data) if stream else data,
        eval_dataset=rows(4, seed=1),
        compute_loss_func=compute_loss_func,
        data_collator=data_collator or default_data_collator,
        callbacks=callbacks,
    )


def recording(folder: Path, **options: Any) -> AccumauditCallback:
    """The callback, with its ledger in the folder itself."""
    return AccumauditCallback(log_dir=folder, summary=False, **options)


def train(case: str, folder: str, hooks: bool = True) -> dict[str, Any]:
    """Train a case; runs on each rank."""
    counting = Counting()
    options = dict(CASES[case])
    labels = options.pop("labels", None)
    with quiet():
        callbacks: list[TrainerCallback] = [recording(Path(folder), labels=labels)] if hooks else []
        trainer = make_trainer(Path(folder), callbacks=callbacks, data_collator=counting, **options)
        trainer.train()
    return {"parameters": digest(trainer.model), "counts": counting.counts}


class On(TrainerCallback):
    """Acts at one event, at one step only or at each."""

    def __init__(self, event: str, action: Callable[..., None], step: int | None = None) -> None:
        def act(_args: Any, state: Any, _control: Any, **kwargs: Any) -> None:
            if step in (None, state.global_step):
                action(**kwargs)

        setattr(self, event, act)


def fit(folder: str, *callbacks: TrainerCallback, audit: dict[str, Any] | None = None, **options: Any) -> Any:
    """Train, recorded in the folder itself, with further callbacks and options of `make_trainer`."""
    with quiet():
        watching = [recording(Path(folder), **(audit or {})), *callbacks]
        trainer = make_trainer(Path(folder), callbacks=watching, **options)
        trainer.train()
    return trainer


class Gradient(TrainerCallback):
    """Keeps the gradient of the first update, before any clip."""

    def on_pre_optimizer_step(self, *_args: Any, **kwargs: Any) -> None:
        if not hasattr(self, "first"):
            self.first = flat_gradient(kwargs["model"])


def flat_gradient(model: nn.Module) -> Tensor:
    gradients = [parameter.grad for parameter in model.parameters()]
    return torch.cat([gradient.flatten().clone() for gradient in gradients if gradient is not None])


def compare_gradients(cases: list[str], folder: str) -> list[float]:
    """Of each case, how far the first update is from what its record says; runs on each rank."""
    return [compare_gradient(case, Path(folder, case)) for case in cases]


def compare_gradient(case: str, folder: Path) -> float:
    """How far the first update's gradient is from its micro-steps' mean gradients, each times its weight."""
    counting, gradient, options = Counting(), Gradient(), dict(CASES[case])
    labels = options.pop("labels", None)
    with quiet():
        trainer = make_trainer(
            folder,
            callbacks=[recording(folder, labels=labels), gradient],
            data_collator=counting,
            max_steps=1,
            max_grad_norm=0.0,
            **options,
        )
        trainer.train()
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    [update] = [record for record in updates(folder) if record["rank"] == rank]
    model = options.get("model", llama)()
    for batch, weight in zip(counting.batches, update["loss_weight"], strict=False):
        (weight / world * mean_of(model, batch, trainer.label_smoother)).backward()
    predicted = flat_gradient(model)
    if dist.is_initialized():
        dist.all_reduce(predicted)
    return float((predicted - gradient.first).norm() / gradient.first.norm())


def mean_of(model: nn.Module, batch: Row, smoother: Any) -> Tensor:
    """The mean loss over a micro-batch's tokens."""
    if smoother is None:
        loss: Tensor = model(**batch)["loss"]
        return loss
    smoothed: Tensor = smoother(model(input_ids=batch["input_ids"]), batch["labels"], shift_labels=True)
    return smoothed


def train_scaled(optim: str, folder: str) -> None:
    """In half precision on a CPU, with a scaler that is put there; the second attempt overflows."""
    with quiet():
        trainer = make_trainer(Path(folder), callbacks=[recording(Path(folder))], optim=optim)
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        trainer.accelerator.native_amp = True
        trainer.accelerator.state._mixed_precision = "fp16"
        forwards = itertools.count(1)

        def overflow(_module: nn.Module, _args: Any, logits: Tensor) -> None:
            if next(forwards) == 2 * STEPS:
                logits.register_hook(lambda gradient: torch.full_like(gradient, math.inf))

        trainer.model.lm_head.register_forward_hook(overflow)
        trainer.train()


def healthy(folder: str) -> None:
    """As Trainer's documentation has it: epochs with a tail, evaluations and checkpoints in between."""
    with quiet():
        make_trainer(
            Path(folder),
            callbacks=[recording(Path(folder))],
            num_train_epochs=3,
            eval_strategy="epoch",
            save_strategy="steps",
            save_steps=2,
            warmup_steps=2,
        ).train()


def digest(model: Any) -> str:
    """Equal where all parameters are equal, bit by bit."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


@contextmanager
def quiet() -> Iterator[None]:
    """The frameworks' own warnings are no errors, and what accelerate keeps for the process ends with it."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"} if dist.is_initialized() else {}
    with warnings.catch_warnings(), environment(**meeting):  # the group is there; accelerate wants to be told
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            AcceleratorState._reset_state(reset_partial_state=True)
            GradientState._reset_state()
