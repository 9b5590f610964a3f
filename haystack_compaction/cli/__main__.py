# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""`python -m haystack_compaction.cli` is `haystack-compaction`."""

from haystack_compaction.cli import main

main()
