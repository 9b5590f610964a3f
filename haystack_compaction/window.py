# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""A model's context window, and how it is to be used."""

from dataclasses import dataclass, replace

from haystack_compaction.checks import given, require_at_least, require_flags, require_numbers
from haystack_compaction.compactors.base import Compactor

# The share of the window that is kept free for the reply, unless the user says how much.
_RESERVED_SHARE = 0.05

# With a target smaller than this, in tokens, the newest steps leave little for what a digest has to tell.
_ROOM_TO_TELL = 6_000


@dataclass(frozen=True, kw_only=True)
class Window:
    """
    A model's context window and how it is to be used.

    :param context_window: The size of the window in tokens, at least 1.
    :param compact_at: The share of the window at which compaction starts, greater than `compact_to` and at most 1.
    :param compact_to: The share of the window that compaction aims for, greater than 0.
    :param reserve_tokens: The tokens kept free for the reply, at least 0 and less than the window; None for 5 % of the
        window, or what `compact_at` leaves of it where that is less.
    :param last_resort: Whether the largest contents are shortened, or the oldest messages removed where that is not
        enough, when a request would not fit even so.
    :param repair: Whether a broken history is repaired before a model sees it.
    :param merge_notes: Whether a note goes into the user message beside it, for templates that want roles to alternate.
    :raises ValueError: If a setting is out of its range.
    """

    context_window: int
    compact_at: float = 0.7
    compact_to: float = Compactor.compact_to
    reserve_tokens: int | None = None
    last_resort: bool = True
    repair: bool = True
    merge_notes: bool = False

    def __post_init__(self) -> None:
        require_at_least(1, context_window=self.context_window)
        require_numbers(compact_at=self.compact_at, compact_to=self.compact_to)
        require_flags(last_resort=self.last_resort, repair=self.repair, merge_notes=self.merge_notes)
        require_at_least(0, **given(reserve_tokens=self.reserve_tokens))
        if not 0 < self.compact_to < self.compact_at <= 1:
            raise ValueError(
                f"`compact_to` and `compact_at` must satisfy 0 < compact_to < compact_at <= 1, got "
                f"compact_to={self.compact_to} and compact_at={self.compact_at}. A conversation that is compacted to "
                f"its own trigger would be compacted again at every step."
            )
        if self.reserve_tokens is not None and self.reserve_tokens >= self.context_window:
            raise ValueError(
                f"`reserve_tokens` must be less than the window of {self.context_window}, got {self.reserve_tokens}."
            )

    @property
    def usable(self) -> int:
        """The largest request that leaves room for the reply, in tokens."""
        if self.reserve_tokens is not None:
            return self.context_window - self.reserve_tokens
        # Who asks for compaction at 97 % of the window wants it at 97 % and not earlier.
        return int(self.context_window * max(1 - _RESERVED_SHARE, self.compact_at))

    @property
    def trigger(self) -> float:
        """The size of a request from which on it is compacted, in tokens."""
        return min(self.context_window * self.compact_at, self.usable)

    @property
    def target(self) -> int:
        """The size of a request that compaction aims for, in tokens."""
        return int(min(self.context_window * self.compact_to, self.usable))

    def narrowed(self, tokens: int) -> "Window":
        """
        Return the window as it is once a provider has said that it is smaller.

        :param tokens: What a request may take at most, in tokens.
        :returns: A window no larger than that, used in the same way.
        """
        size = max(min(self.context_window, tokens), 1)
        reserved = self.reserve_tokens
        return replace(self, context_window=size, reserve_tokens=reserved if (reserved or 0) < size else None)


def preferred_target(compactor: object, context_window: int) -> float:
    """
    Return the share of the window to compact to, for a user who names none.

    :param compactor: Any compactor.
    :param context_window: The size of the window in tokens.
    :returns: Its `compact_to` where it has one, but no less than leaves room for the newest steps and a digest; 0.4
        otherwise.
    :raises ValueError: If the window is smaller than 1.
    """
    require_at_least(1, context_window=context_window)
    usual = Compactor.compact_to
    return max(float(getattr(compactor, "compact_to", usual)), min(usual, _ROOM_TO_TELL / context_window))
