# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Making one piece of content shorter: texts, arguments of calls, images and files."""

import json
import re
from collections.abc import Iterable
from typing import Any

from haystack.dataclasses import FileContent, ImageContent

# So many digits at most, since Python refuses to read numbers of thousands of them.
_MARKER = re.compile(r"\[\.\.\. ([0-9][0-9,]{0,17}) characters removed \.\.\.\]")
_MAX_DEPTH = 40
_MAX_NAME_CHARACTERS = 80
_ATTEMPTS = 3
# A list or an object of so many characters is never flattened.
_SMALL = 40


def shortened(text: str, limit: int) -> str:
    """
    Keep the head and the tail of a text, with a marker between them that says how much went.

    A text that was shortened before keeps a single marker, whose number adds up.

    ### Usage example

    ```python
    from haystack_compaction.conversation.shortening import shortened

    assert shortened("a" * 500 + "z" * 500, 50) == "aaaaaaaa[... 984 characters removed ...]zzzzzzzz"
    ```

    :param text: Any text.
    :param limit: How many characters it may have, the marker included. What is left has at least a marker.
    :returns: The shortened text, or the text itself where that would be no shorter.
    """
    if len(text) <= limit:
        return text
    head, removed, tail = _ends(text)
    room = max(limit - len(_marker(len(text) + removed)), 0)
    head_room = max((room + 1) // 2, room - len(tail))
    kept_head = head[:head_room]
    kept_tail = tail[len(tail) - min(max(room - len(kept_head), 0), len(tail)) :]
    # Two surrogates that belong together are cut as one character.
    if kept_head and "\ud800" <= kept_head[-1] <= "\udbff":
        kept_head = kept_head[:-1]
    if kept_tail and "\udc00" <= kept_tail[0] <= "\udfff":
        kept_tail = kept_tail[1:]
    removed += len(head) - len(kept_head) + len(tail) - len(kept_tail)
    result = f"{kept_head}{_marker(removed)}{kept_tail}"
    return result if len(result) < len(text) else text


def with_short_strings(value: Any, limit: int, *, _depth: int = 0) -> Any:
    """
    Shorten the strings in a JSON value, however deep they are. Keys, structure and other values stay.

    :param value: What `json.loads` returns. It is left as it is.
    :param limit: How many characters a string may have.
    :returns: The value with shorter strings.
    """
    if isinstance(value, str):
        return shortened(value, limit)
    if _depth > _MAX_DEPTH:
        return value
    if isinstance(value, dict):
        return {key: with_short_strings(entry, limit, _depth=_depth + 1) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [with_short_strings(entry, limit, _depth=_depth + 1) for entry in value]
    return value


def strings_in(value: Any) -> list[str]:
    """
    Return all strings in a JSON value that are no keys, however deep they are.

    :param value: What can be written as JSON, and so does not contain itself.
    :returns: The strings, in no particular order.
    """
    strings: list[str] = []
    stack = [value]
    while stack:
        entry = stack.pop()
        if isinstance(entry, str):
            strings.append(entry)
        elif isinstance(entry, dict):
            stack.extend(entry.values())
        elif isinstance(entry, (list, tuple)):
            stack.extend(entry)
    return strings


def shortened_arguments(arguments: dict[str, Any], limit: int) -> dict[str, Any]:
    """
    Shorten the arguments of a call. They stay an object that can be written as JSON.

    The longest strings are cut first, down to a common length. Where the structure itself is too large, what stands
    below the top-level keys becomes shortened text, and at last the object as a whole.

    :param arguments: The arguments. They are left as they are.
    :param limit: How many characters they may have as JSON.
    :returns: The shortened arguments, or the same object where nothing can be gained.
    """
    text = json_text(arguments)
    if text is None or len(text) <= limit:
        return arguments
    flat = {key: _flat(entry) for key, entry in arguments.items()}
    best: dict[str, Any] = {}
    for form in (arguments, flat, {"truncated": text}):
        shorter = _with_even_strings(form, limit)
        if not best or _length(shorter) < _length(best):
            best = shorter
        if _length(shorter) <= limit:
            break
    return best if _length(best) < len(text) else arguments


def described(part: ImageContent | FileContent) -> str:
    """
    Say what an image or a file is that is no longer there.

    :param part: The image or file.
    :returns: A short text with its name, where it has one, and its type.
    """
    kind, name = (
        ("Image", str(part.meta.get("file_path") or part.meta.get("filename") or ""))
        if isinstance(part, ImageContent)
        else ("File", part.filename or "")
    )
    details = [name[-_MAX_NAME_CHARACTERS:], part.mime_type or ""]
    return f"[{' '.join([kind, *filter(None, details)])} removed]"


def json_text(value: Any) -> str | None:
    """A value as JSON, or None where it can't be written as such."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return None


def even_cap(sizes: Iterable[int], room: int) -> int:
    """
    Find the largest cap that makes things fit when everything larger is cut down to it.

    :param sizes: The sizes of the things.
    :param room: What they may take together.
    :returns: The cap, at least 0; the largest size when all fit as they are.
    """
    ordered = sorted(sizes)
    for position, size in enumerate(ordered):
        share = room // (len(ordered) - position)
        if size > share:
            return max(share, 0)
        room -= size
    return ordered[-1] if ordered else 0


def _flat(entry: Any) -> Any:
    """A list or an object as the text of it, unless it is small."""
    text = json_text(entry) or ""
    return text if isinstance(entry, (dict, list, tuple)) and len(text) > _SMALL else entry


def _with_even_strings(arguments: dict[str, Any], limit: int) -> dict[str, Any]:
    """The arguments with their longest strings cut to a common length, so that they fit if their structure does."""
    strings = strings_in(arguments)
    lengths = [len(string) for string in strings]
    written = sum(_length(string) - 2 for string in strings)
    room = limit - (_length(arguments) - written)
    shorter: dict[str, Any] = arguments
    for _ in range(_ATTEMPTS):
        # A string takes more characters as JSON, more of them where it has quotes or line breaks.
        shorter = with_short_strings(arguments, even_cap(lengths, room * sum(lengths) // max(written, 1)))
        excess = _length(shorter) - limit
        if excess <= 0 or room <= 0:
            break
        room -= excess
    return shorter


def _ends(text: str) -> tuple[str, int, str]:
    """What may stay of a text at its beginning and its end, and how much went between them before."""
    markers = list(_MARKER.finditer(text))
    if not markers:
        middle = len(text) // 2
        return text[:middle], 0, text[middle:]
    start, end = markers[0].start(), markers[-1].end()
    between = end - start - sum(len(marker[0]) for marker in markers)
    return text[:start], between + sum(int(marker[1].replace(",", "")) for marker in markers), text[end:]


def _marker(removed: int) -> str:
    return f"[... {removed:,} characters removed ...]"


def _length(value: Any) -> int:
    return len(json_text(value) or "")
