# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Adding up what calls of models reported to have used."""

from collections.abc import Mapping
from typing import Any


def added_usage(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """
    Add up two usages, such as the `usage` in the `meta` of two replies, nested ones included.

    :param first: The one. It is left as it is.
    :param second: The other. It is left as it is.
    :returns: The sum of the numbers that stand under the same key. Of anything else nothing is kept.
    """
    total: dict[str, Any] = {}
    for key in dict.fromkeys([*first, *second]):
        one, other = first.get(key), second.get(key)
        if isinstance(one, Mapping) or isinstance(other, Mapping):
            nested = added_usage(*(value if isinstance(value, Mapping) else {} for value in (one, other)))
            if nested:
                total[key] = nested
        elif numbers := [value for value in (one, other) if _is_number(value)]:
            total[key] = sum(numbers)
    return total


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
