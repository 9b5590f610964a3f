# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Refusing options and inputs of the wrong kind where they are given, rather than where they first do harm."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from haystack.dataclasses import ChatMessage


def given(**options: Any) -> dict[str, Any]:
    """
    Leave out the options that are None, where that stands for a default.

    :param options: The options by name.
    :returns: The others, to be checked.
    """
    return {name: value for name, value in options.items() if value is not None}


def require_at_least(minimum: int, **options: int) -> None:
    """
    Refuse options that are too small.

    :param minimum: The smallest value that is allowed.
    :param options: The options by name.
    :raises ValueError: If one of them is smaller or no whole number; the message names it.
    """
    for name, value in options.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"`{name}` must be a whole number, got {value!r}.")
        if value < minimum:
            raise ValueError(f"`{name}` must be at least {minimum}, got {value}.")


def require_numbers(**options: float) -> None:
    """
    Refuse what is no number.

    :param options: The options by name.
    :raises ValueError: If one of them is anything else; the message names it.
    """
    _require("a number", lambda value: isinstance(value, (int, float)) and not isinstance(value, bool), options)


def require_flags(**options: bool) -> None:
    """
    Refuse what is neither True nor False, such as the text "false" of a settings file.

    :param options: The options by name.
    :raises ValueError: If one of them is anything else; the message names it.
    """
    _require("True or False", lambda value: isinstance(value, bool), options)


def require_texts(**options: str) -> None:
    """
    Refuse what is no text.

    :param options: The options by name.
    :raises ValueError: If one of them is anything else; the message names it.
    """
    _require("a string", lambda value: isinstance(value, str), options)


def require_names(**options: Sequence[str]) -> None:
    """
    Refuse what is no list of names, such as a single one, whose letters would pass for names.

    :param options: The options by name.
    :raises ValueError: If one of them is anything else; the message names it.
    """
    for name, value in options.items():
        if not isinstance(value, (list, tuple, set, frozenset)) or not all(isinstance(item, str) for item in value):
            raise ValueError(f"`{name}` must be a list of strings, got {value!r}.")


def require_method(method: str, **options: object) -> None:
    """
    Refuse what can't do what it is for, such as a class where an object of it is meant.

    :param method: The name of the method that is going to be called.
    :param options: The options by name.
    :raises ValueError: If one of them has no such method; the message names it.
    """
    for name, value in options.items():
        # A list has a method `count`, too.
        is_plain = isinstance(value, type) or type(value).__module__ == "builtins"
        if is_plain or not callable(getattr(value, method, None)):
            raise ValueError(f"`{name}` must be an object with a method `{method}`, got {value!r}.")


def require_functions(**options: Callable[..., Any]) -> None:
    """
    Refuse what can't be called.

    :param options: The options by name.
    :raises ValueError: If one of them can't; the message names it.
    """
    _require("a function", callable, options)


def require_messages(messages: Iterable[Any]) -> None:
    """
    Refuse what is no conversation.

    :param messages: What was given for one.
    :raises ValueError: If it is no list of messages; the message says what it is, or what is in it.
    """
    if not isinstance(messages, (list, tuple)):
        raise ValueError(f"`messages` must be a list of ChatMessage, got {type(messages).__name__}.")
    for index, message in enumerate(messages):
        if not isinstance(message, ChatMessage):
            raise ValueError(
                f"`messages` must be a list of ChatMessage, got {type(message).__name__} at index {index}. Make a "
                f"message of a text with `ChatMessage.from_user`, of a dictionary with `ChatMessage.from_dict`."
            )


def _require(wanted: str, is_right: Callable[[Any], bool], options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if not is_right(value):
            raise ValueError(f"`{name}` must be {wanted}, got {value!r}.")
