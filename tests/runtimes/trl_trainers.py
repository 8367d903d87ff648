"""Trainings by TRL: tiny models from configurations, and a tokenizer of a dozen words, made here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import torch
from datasets import Dataset  # type: ignore[import-untyped]  # it ships no types
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Trainer, TrainerCallback
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from tests.runtimes.hf import digest, quiet, recording, settings

WORDS: Final = ("the", "cat", "dog", "sees", "eats", "a", "bird", "fish", "and", "now")
SPECIAL: Final = ("<pad>", "<eos>", "<unk>")


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a word."""
    vocabulary = {word: place for place, word in enumerate((*SPECIAL, *WORDS))}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # its own
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def model() -> LlamaForCausalLM:
    """One layer, the same each time."""
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(SPECIAL) + len(WORDS),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=64,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
        )
    )


def text(number: int) -> str:
    """A text of 2 to 8 words."""
    return " ".join(WORDS[(3 * number + 7 * place) % len(WORDS)] for place in range(2 + number % 7))


def fine_tuning(folder: Path, callbacks: list[TrainerCallback], rows: int, **options: Any) -> Trainer:
    """Supervised, over the tokens of texts."""
    return SFTTrainer(
        model=model(),
        args=SFTConfig(
            output_dir=str(folder / "out"), **settings() | {"bf16": False, "max_length": 32} | options
        ),
        train_dataset=Dataset.from_dict({"text": [text(number) for number in range(rows)]}),
        processing_class=tokenizer(),
        callbacks=callbacks,
    )


def preferences(folder: Path, callbacks: list[TrainerCallback], rows: int, **options: Any) -> Trainer:
    """Chosen and rejected answers, against a model of reference."""
    return DPOTrainer(
        model=model(),
        ref_model=model(),
        args=DPOConfig(output_dir=str(folder / "out"), **settings() | {"bf16": False} | options),
        train_dataset=Dataset.from_dict(
            {
                "prompt": [text(number) for number in range(rows)],
                "chosen": [" " + text(number + 1) for number in range(rows)],
                "rejected": [" " + text(number + 2) for number in range(rows)],
            }
        ),
        processing_class=tokenizer(),
        callbacks=callbacks,
    )


def policy(folder: Path, callbacks: list[TrainerCallback], rows: int, **options: Any) -> Trainer:
    """Two answers to each prompt, generated and rewarded."""
    start = folder / "start"
    model().save_pretrained(start)  # a reference is loaded from where the model came from
    return GRPOTrainer(
        model=str(start),
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=str(folder / "out"),
            **settings() | {"bf16": False, "num_generations": 2, "max_completion_length": 6} | options,
        ),
        train_dataset=Dataset.from_dict({"prompt": [text(number) for number in range(rows)]}),
        processing_class=tokenizer(),
        callbacks=callbacks,
    )


def reward(completions: list[str], **_others: Any) -> list[float | None]:
    """More of different words is better, and not all answers are alike."""
    return [len(set(text.split())) + place % 3 for place, text in enumerate(completions)]


CASES: Final[dict[str, tuple[Any, dict[str, Any]]]] = {
    "sft": (fine_tuning, {}),
    "sft, packed": (fine_tuning, {"packing": True, "max_length": 16}),
    "sft, without padding": (fine_tuning, {"padding_free": True, "max_length": None}),
    "sft, smoothed": (fine_tuning, {"label_smoothing_factor": 0.1}),
    "sft, by probability": (fine_tuning, {"loss_type": "dft"}),
    "dpo": (preferences, {}),
    "dpo, reference before": (preferences, {"precompute_ref_log_probs": True}),
    "grpo": (policy, {"gradient_accumulation_steps": 2}),
    "grpo, twice": (policy, {"gradient_accumulation_steps": 2, "num_iterations": 2}),
    "grpo, several updates a generation": (
        policy,
        {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "beta": 0.1},
    ),
}


def train(case: str, folder: str, hooks: bool = True) -> str:
    """Train a case and return a digest of the parameters; runs on each rank."""
    make, options = CASES[case]
    rows = 16 * int(os.environ.get("WORLD_SIZE", "1"))
    with quiet():
        trainer = make(Path(folder), [recording(Path(folder))] if hooks else [], rows, **options)
        trainer.train()
    return digest(trainer.model)
