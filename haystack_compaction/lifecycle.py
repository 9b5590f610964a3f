# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Warming up and closing what an object holds, where it can be warmed up and closed."""

from collections.abc import Iterable


def warm_up(resources: Iterable[object]) -> None:
    """
    Warm up every resource that has a `warm_up`.

    :param resources: Chat generators, token counters, compactors; None among them is passed over.
    """
    for resource in resources:
        if hasattr(resource, "warm_up"):
            resource.warm_up()


async def warm_up_async(resources: Iterable[object]) -> None:
    """
    Warm up every resource on the serving event loop, those without a `warm_up_async` with their `warm_up`.

    :param resources: Chat generators, token counters, compactors; None among them is passed over.
    """
    for resource in resources:
        if hasattr(resource, "warm_up_async"):
            await resource.warm_up_async()
        else:
            warm_up([resource])


def close(resources: Iterable[object]) -> None:
    """
    Close every resource that has a `close`.

    :param resources: Chat generators, token counters, compactors; None among them is passed over.
    """
    for resource in resources:
        if hasattr(resource, "close"):
            resource.close()


async def close_async(resources: Iterable[object]) -> None:
    """
    Close every resource on the serving event loop, those without a `close_async` with their `close`.

    :param resources: Chat generators, token counters, compactors; None among them is passed over.
    """
    for resource in resources:
        if hasattr(resource, "close_async"):
            await resource.close_async()
        else:
            close([resource])
