"""YAML that makes no objects: what has a tag of its own is read as the plain value that it is written as."""

from __future__ import annotations

from typing import Any

import yaml


class _Plain(yaml.SafeLoader):
    def untagged(self, _suffix: str, node: yaml.Node) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self.construct_mapping(node, deep=True)
        if isinstance(node, yaml.SequenceNode):
            return self.construct_sequence(node, deep=True)
        return node.value


_Plain.add_multi_constructor("", _Plain.untagged)


def load(text: str) -> Any:
    """The value of a document; None where it is no YAML."""
    try:
        return yaml.load(text, Loader=_Plain)
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError):
        return None
