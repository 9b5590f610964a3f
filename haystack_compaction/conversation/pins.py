# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Rules by which messages are pinned that nobody has marked one by one."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from haystack import logging
from haystack.core.serialization import default_from_dict, default_to_dict
from haystack.dataclasses import ChatMessage
from haystack.utils.callable_serialization import deserialize_callable, serialize_callable

from haystack_compaction.checks import given, require_functions, require_names
from haystack_compaction.conversation.notes import is_note, is_pinned

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PinRules:
    """
    Which messages are pinned, besides those marked with `pin`: those for which any of the rules holds.

    A pinned call or result keeps its whole step. What compaction wrote is never pinned by a rule.

    ### Usage example

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import PinRules, SlidingWindowCompactor

    rules = PinRules(texts=[r"(?i)\\bnever\\b"], tools=["read_policy"], meta_keys=["legal_hold"])
    messages = [
        ChatMessage.from_user("Never deploy on a Friday."),
        ChatMessage.from_assistant("I won't. " * 50),
        ChatMessage.from_user("Deploy!"),
    ]
    result = SlidingWindowCompactor(pinned=rules).run(messages=messages, target_tokens=40)
    assert messages[0] in result["messages"]
    ```

    :param texts: Regular expressions that are searched for in what system, user and assistant say; not in the results
        of tools.
    :param tools: Names of tools whose calls and results are pinned.
    :param meta_keys: Keys of a message's `meta` that pin it when their value is true.
    :param predicate: A function that is given a message and returns whether it is pinned. One that raises is logged
        and pins nothing.
    :raises ValueError: If a rule is none of these.
    """

    texts: Sequence[str] = ()
    tools: Sequence[str] = ()
    meta_keys: Sequence[str] = ()
    predicate: Callable[[ChatMessage], bool] | None = None

    def __post_init__(self) -> None:
        require_names(texts=self.texts, tools=self.tools, meta_keys=self.meta_keys)
        require_functions(**given(predicate=self.predicate))
        for pattern in self.texts:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"`texts` must hold regular expressions, got {pattern!r}: {error}.") from error

    def hold_for(self, message: ChatMessage) -> bool:
        """
        Return whether a message is pinned, by its mark or by one of the rules.

        :param message: The message.
        :returns: Whether no compactor may remove or rewrite it.
        """
        if is_pinned(message):
            return True
        try:
            return not is_note(message) and self._any_holds_for(message)
        except Exception:
            logger.exception("A rule of {rules} failed; it pins nothing.", rules=self)
            return False

    def to_dict(self) -> dict[str, Any]:
        """
        Serialize the rules.

        :returns: A dictionary that `from_dict` takes.
        """
        return default_to_dict(
            self,
            texts=list(self.texts),
            tools=list(self.tools),
            meta_keys=list(self.meta_keys),
            predicate=None if self.predicate is None else serialize_callable(self.predicate),
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "PinRules":
        """
        Deserialize the rules.

        :param data: What `to_dict` returned.
        :returns: The rules.
        """
        options = data.get("init_parameters", {})
        if options.get("predicate") is not None:
            options["predicate"] = deserialize_callable(options["predicate"])
        rules: PinRules = default_from_dict(cls, data)
        return rules

    def _any_holds_for(self, message: ChatMessage) -> bool:
        return (
            any(re.search(pattern, text) for pattern in self.texts for text in message.texts)
            or (bool(self.tools) and any(tool in self.tools for tool in _tools_of(message)))
            or any(message.meta.get(key) for key in self.meta_keys)
            or (self.predicate is not None and bool(self.predicate(message)))
        )


def require_pin_rules(**options: PinRules | None) -> None:
    """
    Refuse what are no rules of pins.

    :param options: The options by name.
    :raises ValueError: If one of them is neither rules nor None; the message names it.
    """
    for name, value in options.items():
        if value is not None and not isinstance(value, PinRules):
            raise ValueError(f"`{name}` must be `PinRules(...)`, got {value!r}.")


def _tools_of(message: ChatMessage) -> list[str]:
    results = [result.origin.tool_name for result in message.tool_call_results]
    return [*results, *(call.tool_name for call in message.tool_calls)]
