"""Read YAML that holds only what JSON can hold, with each key once and no aliases."""

from __future__ import annotations

import json
from typing import Any

import yaml

from datamask.errors import SettingsError, is_utf8, one_line


class _PlainYAML(yaml.SafeLoader):
    yaml_implicit_resolvers = {  # noqa: RUF012 - as in its base
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse aliases and repeated keys. See `yaml.composer.Composer`."""
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            raise _refusal("an alias; write its value here", mark)
        node = super().compose_node(parent, index)
        lines: dict[str, int] = {}
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            name, mark = str(key.value), key.start_mark
            if name in lines:
                raise _refusal(f"key `{name}` was given in line {lines[name]} already", mark)
            lines[name] = mark.line + 1
        return node


def _refusal(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.composer.ComposerError(problem=problem, problem_mark=mark)


def read_yaml(text: str | bytes, origin: str) -> Any:
    """Read plain data from YAML; dates stay text. Messages begin with *origin*.

    Raises:
        SettingsError: it is not YAML, gives a key twice, has an alias, or holds what JSON cannot.
    """
    where = ""
    if isinstance(text, str) and not is_utf8(text):
        raise SettingsError(f"{origin}: not UTF-8 in this locale; set PYTHONUTF8=1 if it is")
    try:
        value = _PlainYAML(text).get_single_data()
        json.dumps(value, ensure_ascii=False).encode()
        return value
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = str(error.problem)
    except Exception as error:  # YAML's constructors raise errors of many kinds.
        reason = str(error)
    raise SettingsError(f"{origin}{where}: not YAML ({one_line(reason)[:200]}); fix it")
