# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What a conversation is made of. Knows nothing of tokens and nothing of strategies."""
