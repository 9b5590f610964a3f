# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
Writes behind the examples of the pages what they print.

Run `python docs/outputs.py` after a change that alters it, and look at the difference before you keep it.
"""

import contextlib
import io
import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
EXAMPLE = re.compile(r"```python\n(?P<code>.*?)^```\n\n```text\n(?P<output>.*?)^```\n", re.MULTILINE | re.DOTALL)


def main() -> None:
    """Rewrite the pages."""
    sys.path.insert(0, str(DOCS.parent / "examples"))
    for page in sorted(DOCS.glob("**/*.md")):
        text = page.read_text(encoding="utf-8")
        page.write_text(EXAMPLE.sub(with_output, text), encoding="utf-8")


def with_output(example: re.Match[str]) -> str:
    """Run an example and return it with what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(example["code"], "example", "exec"), {"__name__": "example"})
    return f"```python\n{example['code']}```\n\n```text\n{printed.getvalue()}```\n"


if __name__ == "__main__":
    main()
