# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The documentation builds without a warning, and its pages load nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="needs the extra `dev`")
pytest.importorskip("material", reason="needs the extra `dev`")
pytest.importorskip("mkdocstrings", reason="needs the extra `dev`")

ROOT = Path(__file__).parent.parent
LOADED = re.compile(r'<(?:script|img|iframe|source)[^>]*\ssrc="?(?P<src>[^">\s]+)|<link(?P<link>[^>]*)>')
HREF = re.compile(r'href="?(?P<href>[^">\s]+)')
# What a browser does not load by itself.
OTHER_LINKS = re.compile(r'rel="?(?:canonical|next|prev)')


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_pages_load_nothing_from_elsewhere(site):
    loaded = []
    for page in site.rglob("*.html"):
        for match in LOADED.finditer(page.read_text(encoding="utf-8")):
            if match["src"]:
                loaded.append(match["src"])
            elif not OTHER_LINKS.search(match["link"]) and (href := HREF.search(match["link"])):
                loaded.append(href["href"])
    assert loaded
    assert not [address for address in loaded if re.match(r"(?:https?:)?//", address)]
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style


def test_the_reference_is_made_from_the_docstrings(site):
    page = (site / "reference" / "hook" / "index.html").read_text(encoding="utf-8")
    assert "The share of the window at which compaction starts" in page
    assert ":param" not in "".join(page.read_text(encoding="utf-8") for page in site.rglob("*.html"))
