"""YAML text to a graph of nodes, by libyaml's parser where PyYAML has it, which is some ten times faster.

Nodes are made here from the parser's events, for both parsers alike, so that depth and number are bounded while they
are made: a file of opening brackets ends at the limit and neither at the end of the stack nor after minutes.
"""

from __future__ import annotations

from typing import Any, NoReturn

import yaml

# An alias may be expanded many times; without a limit nine lines make a billion values.
MAX_VALUES = 100_000
MAX_DEPTH = 40
# PyYAML's own parser reads some 100 kB a second: a longer text that libyaml refuses is not read twice.
READ_TWICE = 100_000

_PREFIX = "tag:yaml.org,2002:"
_PLAIN = (None, "")


class NodeError(yaml.MarkedYAMLError):
    """What PyYAML's composer would refuse, or a limit that is exceeded."""


def compose(text: str) -> yaml.Node | None:
    """The root node of a text with one document; None for an empty one.

    Raises
    ------
    yaml.YAMLError, ValueError, OverflowError
        The text is not YAML, has several documents, or exceeds a limit. What libyaml refuses is read a second time by
        PyYAML's own parser, whose error is then the one: messages do not depend on what is installed. A long text is
        not: there the words are libyaml's.
    """
    fast = getattr(yaml, "CSafeLoader", None)
    if fast is not None:
        try:
            return _Composer(fast(text)).document()
        except NodeError:
            raise  # ours, with the same place and words for both parsers
        except (yaml.YAMLError, ValueError, OverflowError):
            if len(text) > READ_TWICE:
                raise
    return _Composer(yaml.SafeLoader(text)).document()


class _Composer:
    """Nodes from the events of a parser."""

    def __init__(self, loader: Any):
        self.next_event, self.resolve = loader.get_event, loader.resolve
        self.anchors: dict[str, yaml.Node] = {}
        self.tags: dict[str, str] = {}
        self.count = 0

    def document(self) -> yaml.Node | None:
        self.next_event()  # the start of the stream
        if isinstance(self.next_event(), yaml.StreamEndEvent):
            return None
        root = self.node(self.next_event(), 0)
        self.next_event()  # the end of the document
        after = self.next_event()
        if not isinstance(after, yaml.StreamEndEvent):
            self._fail("a second document begins here; a matrix file has one", after)
        return root

    def node(self, event: yaml.Event, depth: int) -> yaml.Node:
        self.count += 1
        if self.count > MAX_VALUES:
            self._fail(f"more than {MAX_VALUES} values", event)
        if depth > MAX_DEPTH:
            self._fail(f"nested deeper than {MAX_DEPTH} levels", event)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                self._fail(f"found undefined alias {event.anchor!r}", event)
            return self.anchors[event.anchor]
        if isinstance(event, yaml.ScalarEvent):
            style = None if event.style in _PLAIN else event.style
            return self._named(yaml.ScalarNode(self._tag(event), event.value, event.start_mark, None, style), event)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(event, depth)
        return self._mapping(event, depth)

    def _sequence(self, event: yaml.Event, depth: int) -> yaml.Node:
        items: list[yaml.Node] = []
        node = self._named(yaml.SequenceNode(_explicit(event) or _PREFIX + "seq", items, event.start_mark), event)
        while not isinstance(inner := self.next_event(), yaml.SequenceEndEvent):
            items.append(self.node(inner, depth + 1))
        return node

    def _mapping(self, event: yaml.Event, depth: int) -> yaml.Node:
        pairs: list[tuple[yaml.Node, yaml.Node]] = []
        node = self._named(yaml.MappingNode(_explicit(event) or _PREFIX + "map", pairs, event.start_mark), event)
        while not isinstance(inner := self.next_event(), yaml.MappingEndEvent):
            key = self.node(inner, depth + 1)
            pairs.append((key, self.node(self.next_event(), depth + 1)))
        return node

    def _named(self, node: yaml.Node, event: yaml.Event) -> yaml.Node:
        if event.anchor is not None:
            if event.anchor in self.anchors:
                first = self.anchors[event.anchor].start_mark.line + 1
                self._fail(f"found duplicate anchor {event.anchor!r}; the first is in line {first}", event)
            self.anchors[event.anchor] = node
        return node

    def _tag(self, event: yaml.ScalarEvent) -> str:
        """The tag of a scalar: what it says, or what YAML 1.1 makes of its plain text."""
        tag = _explicit(event)
        if tag is not None:
            return tag
        if not event.implicit[0]:
            return _PREFIX + "str"
        if event.value not in self.tags:
            self.tags[event.value] = self.resolve(yaml.ScalarNode, event.value, (True, False))
        return self.tags[event.value]

    def _fail(self, message: str, event: yaml.Event) -> NoReturn:
        raise NodeError(problem=message, problem_mark=event.start_mark)


def _explicit(event: yaml.Event) -> str | None:
    return None if event.tag in (None, "!") else event.tag
