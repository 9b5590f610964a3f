# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Reports as one HTML file that needs nothing else: `data.py` is what one holds, `page.py` writes it."""
