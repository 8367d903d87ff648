"""Small exercises in text, made up from a seed: prompts masked, answers of very different lengths."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

IGNORED = -100
"""The label of a position that has no loss: prompts and padding."""

PADDING = 0
ALPHABET = "\n abcdefghijklmnopqrstuvwxyz0123456789+=,.:?"
VOCABULARY_SIZE = len(ALPHABET) + 1

WORDS = ("sum", "window", "gradient", "rank", "token", "step", "rate", "norm", "loss", "schedule")


class Exercise(NamedTuple):
    """A prompt, which the model reads, and the answer that it learns to write."""

    prompt: str
    answer: str


class Batch(NamedTuple):
    """Padded sequences; the label of a position is the token that follows it."""

    input_ids: Tensor
    attention_mask: Tensor
    labels: Tensor

    @property
    def valid_tokens(self) -> int:
        """The positions whose loss counts."""
        return int((self.labels != IGNORED).sum())


def addition(generator: random.Random) -> Exercise:
    """Two small numbers: an answer of one or two characters."""
    left, right = generator.randrange(50), generator.randrange(50)
    return Exercise(f"{left}+{right}=", f"{left + right}\n")


def spelling(generator: random.Random) -> Exercise:
    """A word, letter by letter: an answer of some ten characters."""
    word = generator.choice(WORDS)
    return Exercise(f"spell {word}: ", ",".join(word) + "\n")


def counting(generator: random.Random) -> Exercise:
    """Numbers in order: an answer of up to sixty characters."""
    first, length = generator.randrange(20), generator.randint(8, 20)
    numbers = ",".join(str(first + offset) for offset in range(length))
    return Exercise(f"count {length} from {first}: ", f"{numbers}\n")


def recital(generator: random.Random, length: int) -> Exercise:
    """The list of words from some place on: an answer of exactly so many characters."""
    start = generator.randrange(len(WORDS))
    text = " ".join(WORDS[start:] + WORDS) + "\n"
    return Exercise("recite: ", (text * (length // len(text) + 1))[:length])


class Exercises(Dataset[Exercise]):
    """So many exercises from one seed; all answers are of one length where `answer_length` says so."""

    def __init__(self, rows: int, *, seed: int, answer_length: int | None = None) -> None:
        generator = random.Random(seed)
        if answer_length is None:
            kinds = (addition, spelling, counting)
            self.rows = [generator.choice(kinds)(generator) for _ in range(rows)]
        else:
            self.rows = [recital(generator, answer_length) for _ in range(rows)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Exercise:
        return self.rows[index]


def encode(text: str) -> list[int]:
    """One token a character; 0 is kept for padding."""
    return [ALPHABET.index(character) + 1 for character in text]


def collate(exercises: Sequence[Exercise]) -> Batch:
    """Pad the exercises to the longest; only the characters of an answer get a label."""
    texts = [encode(exercise.prompt + exercise.answer) for exercise in exercises]
    width = max(map(len, texts)) - 1
    input_ids = torch.full((len(texts), width), PADDING)
    labels = torch.full((len(texts), width), IGNORED)
    for row, (exercise, text) in enumerate(zip(exercises, texts, strict=True)):
        input_ids[row, : len(text) - 1] = torch.tensor(text[:-1])
        first = len(exercise.prompt) - 1
        labels[row, first : len(text) - 1] = torch.tensor(text[first + 1 :])
    return Batch(input_ids, (input_ids != PADDING).long(), labels)
