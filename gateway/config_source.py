"""Where a setting stands in the YAML file: lines, repeated keys, `${NAME}`, msgspec errors in plain words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import yaml

Step = str | int


class ConfigError(Exception):
    """What is wrong in the config, where, and what to do: ready to be shown."""


class Source:
    """The file as YAML nodes, which know their lines."""

    def __init__(self, name: str, root: yaml.Node, fields: Callable[[Sequence[Step]], Sequence[str]]) -> None:
        """`fields` lists the settings that exist at a place of the file."""
        self.name, self.root, self._fields = name, root, fields

    def error(self, message: str, path: Sequence[Step], key: str | None = None) -> ConfigError:
        return ConfigError(f"{self.name} line {self._line(path, key)}: {message}")

    def explain(self, message: str) -> ConfigError:
        """msgspec's words (``… unknown field `x` - at `$.backends[0]` ``) with line and nearest name."""
        what, _, where = message.partition(" - at ")
        steps = _steps(where.strip("`")) if where else []
        at = _dotted(steps)
        unknown = re.search(r"unknown field `(.*)`", what)
        if unknown:
            field = unknown[1]
            near = difflib.get_close_matches(field, self._fields(steps), n=1)
            hint = f", did you mean {near[0]}?" if near else f" (known: {', '.join(self._fields(steps))})"
            return self.error(f"{at + '.' if at else ''}{field}: unknown field{hint}", steps, field)
        what = what[:1].lower() + what[1:]
        return self.error(
            f"{at}: {what}" if at else f"the file must be settings, as `listen: …`: {what}", steps
        )

    def _line(self, path: Sequence[Step], key: str | None) -> int:
        node = self.root
        for step in path:
            if isinstance(node, yaml.MappingNode):
                node = next((v for k, v in node.value if k.value == step), node)
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
        if key is not None and isinstance(node, yaml.MappingNode):
            node = next((k for k, _ in node.value if k.value == key), node)
        return int(node.start_mark.line) + 1

    def refuse_repeats(self) -> None:
        """YAML lets the last of two equal keys win: one of the two settings would be lost silently."""
        for node in _walk(self.root):
            if isinstance(node, yaml.MappingNode):
                seen: set[str] = set()
                for key, _ in node.value:
                    if isinstance(key, yaml.ScalarNode) and key.value in seen and key.value != "<<":
                        line = key.start_mark.line + 1
                        raise ConfigError(f"{self.name} line {line}: {key.value} is given twice")
                    seen.add(str(key.value))

    def with_env(self, value: Any, environ: Mapping[str, str]) -> Any:  # noqa: ANN401 (YAML)
        """`value` with every `${NAME}` filled in. Raises ConfigError, and RecursionError.

        What an anchor names stays one object: ten lines of anchors can stand for a billion values.
        """
        done: dict[int, Any] = {}

        def fill(value: Any, at: tuple[Step, ...]) -> Any:  # noqa: ANN401
            if isinstance(value, str):
                return self._filled(value, environ, at)
            if id(value) not in done:
                if isinstance(value, dict):
                    done[id(value)] = {k: fill(v, (*at, k)) for k, v in value.items()}
                elif isinstance(value, list):
                    done[id(value)] = [fill(v, (*at, i)) for i, v in enumerate(value)]
                else:
                    return value
            return done[id(value)]

        return fill(value, ())

    def _filled(self, value: str, environ: Mapping[str, str], at: tuple[Step, ...]) -> str:
        def variable(match: re.Match[str]) -> str:
            if match[1] not in environ:
                raise self.error(f"{_dotted(at)}: the environment has no {match[1]}", at)
            return environ[match[1]]

        return re.sub(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", variable, value)


def _walk(node: yaml.Node, seen: set[int] | None = None) -> Iterator[yaml.Node]:
    seen = set() if seen is None else seen
    if id(node) in seen:  # an anchor used again
        return
    seen.add(id(node))
    yield node
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _walk(key, seen)
            yield from _walk(value, seen)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _walk(value, seen)


def _steps(where: str) -> list[Step]:
    """msgspec's `$.backends[0].aliases[...]` as steps."""
    found = re.findall(r"\.([A-Za-z_]\w*)|\[(\d+)\]", where)
    return [name or int(index) for name, index in found]


def _dotted(steps: Sequence[Step]) -> str:
    return "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps).lstrip(".")
