"""The words of the trade that manuals of rules use, each said in a sentence."""

from __future__ import annotations

import re
from typing import Final

WORDS: Final = {
    "accumulation count": "how many micro-steps a full window has (gradient_accumulation_steps)",
    "attempt": "a call of the optimizer's step, whether it changed the parameters or was skipped",
    "clip": "shortens a gradient whose norm is above a limit, and leaves others alone",
    "closure": "a function given to optimizer.step(), which runs forwards and backwards itself",
    "data rank": "a rank that reads data of its own; others share a batch or a part of the model",
    "digest": "a short number computed from much data: equal digests mean equal data",
    "horizon": "the number of updates after which a schedule is at its end",
    "launch": "one start of the training program; a run that was resumed has several",
    "layout": "which ranks share data, parameters or a model: data, tensor, context, pipeline parallel",
    "ledger": "the record that the hooks write while a run trains",
    "local SGD": "each rank steps by itself, and the parameters are averaged from time to time",
    "loss scale": "what a mixed-precision loss is multiplied by; the gradients are divided by it again",
    "micro-batch": "what one micro-step reads",
    "micro-step": "one forward and one backward; several make a window",
    "moment": "an average over past gradients that Adam keeps of each parameter",
    "norm": "the length of a gradient: the root of the sum of its squares",
    "note": "a finding that may be meant, and is told without failing a check",
    "not judged": "the rule says neither that there is a fault nor that there is none",
    "probe": "a few entries of one parameter and of its gradient, recorded at every step",
    "rank": "one of the processes that train together",
    "reduced": "added up or averaged over the ranks, so that all of them hold the same",
    "replica": "a rank that is meant to hold the same parameters as another",
    "scaler": "what chooses the loss scale, and skips steps that overflow (torch.amp.GradScaler)",
    "shard": "the part of the parameters, or of the gradient, that one rank keeps",
    "tail": "the short window that is left at the end of the data",
    "total weight": (
        "the weights of all tokens in the gradient of an update, added up; 1 for the mean over them"
    ),
    "update": "a step of the optimizer that changed the parameters",
    "valid token": "a position that has a loss: its label is neither padding nor masked",
    "warm-up": "the updates at the start of a schedule, in which the rate climbs to its peak",
    "window": "the micro-steps whose gradients go into one step of the optimizer",
    "wrapper": "what reduces the gradients for the loop: DDP, FSDP or an engine such as DeepSpeed",
}

_FORMS: Final = {"clip": r"clip(s|ped|ping)?", "reduced": r"reduc(e|es|ed|tion|tions)"}
"""Words that do not only take an s."""


def explained(text: str) -> dict[str, str]:
    """The words that a text uses, with what they mean."""
    return {
        word: meaning
        for word, meaning in WORDS.items()
        if re.search(rf"\b{_FORMS.get(word, rf'{word}s?')}\b", text, re.IGNORECASE)
    }
