# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The errors that are meant to reach the user; whatever else fails is logged and worked around."""


class CompactionError(RuntimeError):
    """A compactor failed that was told to raise then, such as a summarizer with `raise_on_failure=True`."""


class ContextWindowError(ValueError):
    """What may not be removed or shortened is larger than the model's context window."""
