# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""How big things are."""
