"""What each update says of its window as a whole, worked out once, as its record is read."""

from __future__ import annotations

from typing import Final

LONGEST_WORD: Final = 4_000_000
"""Letters of a word that is still written out."""

SUMMED: Final = (
    "valid_tokens",
    "loss_weight",
    "loss_weight_sq",
    "samples",
    "input_positions",
    "attended_positions",
    "masked_positions",
)


def _total(numbers: str) -> str:
    """The sum of a list: NULL where an entry is unknown, and where there is none."""
    return f"CASE WHEN list_count({numbers}) = len({numbers}) THEN list_sum({numbers})::DOUBLE END"


def _either(from_sums: str, from_lists: str) -> str:
    """What the sums say where they stand in place of the lists."""
    return f"CASE WHEN window_sums IS NULL THEN {from_lists} ELSE {from_sums} END"


_UNKNOWN_UNIFORM: Final = """
    len(list_filter(list_zip(weight_uniform, valid_tokens),
                    lambda x: x[1] IS NULL AND x[2] IS DISTINCT FROM 0))
"""
_UNIFORM: Final = f"""
    CASE WHEN list_count(weight_uniform) = len(weight_uniform) OR {_UNKNOWN_UNIFORM} = 0
    THEN coalesce(list_bool_and(weight_uniform), true) END
"""

# 'fb{fb}61fbFB' is ['fb', 'fb}61fbFB']: what stands before, then a group, its copies, and what follows.
_GROUPS: Final = f"""
    list_transform(string_split(events, '{{'), lambda part, i: CASE
        WHEN i = 1 THEN {{'copied': '', 'copies': 0, 'rest': part}}
        WHEN NOT regexp_matches(part, '^[^0-9}}]*\\}}[0-9]') THEN {{'copied': '', 'copies': 0, 'rest': '{{'}}
        ELSE {{'copied': regexp_extract(part, '^([^}}]*)\\}}', 1),
              'copies': coalesce(TRY_CAST(regexp_extract(part, '\\}}([0-9]+)', 1) AS BIGINT), {LONGEST_WORD}),
              'rest': regexp_replace(part, '^[^}}]*\\}}[0-9]+', '')}} END)
"""
_LENGTH: Final = (
    f"list_sum(list_transform({_GROUPS}, lambda g: least(g.copies, {LONGEST_WORD}) * length(g.copied)))"
)
_WRITTEN_OUT: Final = (
    f"array_to_string(list_transform({_GROUPS}, lambda g: repeat(g.copied, g.copies) || g.rest), '')"
)
_EXPANDED: Final = f"""
    CASE WHEN NOT contains(events, '{{') THEN events WHEN {_LENGTH} < {LONGEST_WORD} THEN {_WRITTEN_OUT} END
"""

_EXPRESSIONS: Final = {
    "word": f"CASE WHEN NOT regexp_matches({_EXPANDED}, '[{{}}0-9]') THEN {_EXPANDED} END",
    **{f"window_{name}": _either(f"window_sums.{name}", _total(name)) for name in SUMMED},
    "window_loss": _either(
        "window_sums.loss", f"{_total('token_losses')} / nullif(list_sum(valid_tokens), 0)"
    ),
    "weight_min": _either("window_sums.token_weight_min", "list_min(token_weights)"),
    "weight_max": _either("window_sums.token_weight_max", "list_max(token_weights)"),
    "weights_uniform": _either("window_sums.valid_tokens = 0 OR window_sums.weight_uniform", _UNIFORM),
    "loss_scale_min": _either("window_sums.loss_scale_min", "list_min(loss_scale)"),
    "loss_scale_max": _either("window_sums.loss_scale_max", "list_max(loss_scale)"),
}

LISTS: Final = """
    list_zip(valid_tokens, loss_weight, loss) AS steps,
    list_transform(steps, lambda x: x[2] / nullif(x[1], 0)) AS token_weights,
    list_transform(steps, lambda x: if(x[1] = 0, 0, x[3] * x[1])) AS token_losses
"""
"""Lists that DERIVED wants beside the cleaned fields, and that nobody wants after it."""

DERIVED: Final = ", ".join(f"{expression} AS {name}" for name, expression in _EXPRESSIONS.items())
"""The columns."""
