"""Print a page as PDF with the browser that is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from ..errors import BadRun

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "msedge")
PATIENCE = 120  # seconds; a page takes one or two


def write_pdf(path: str | Path, page: str) -> Path:
    """Print an HTML page into a PDF file with headless Chromium or Chrome, without network access."""
    path = Path(path)
    browser = os.environ.get("TACIT_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise BadRun(
            "PDF needs Chromium or Chrome, and none was found. Install one, set TACIT_BROWSER, or write "
            ".html and print it from a browser."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "page.html"), Path(folder, "page.pdf")
        source.write_text(page, encoding="utf-8")
        root = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium has no sandbox for root
        command = [
            *(
                browser,
                "--headless",
                *root,
                "--disable-gpu",
                "--no-first-run",
                "--disable-background-networking",
            ),
            *("--disable-component-update", "--disable-sync", f"--user-data-dir={folder}/profile"),
            *("--no-pdf-header-footer", f"--print-to-pdf={made}", source.as_uri()),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        if not made.is_file():
            raise BadRun(
                f"{browser} did not write the PDF: {done.stderr.strip()[-200:]}. Write .html instead."
            )
        shutil.move(made, path)
    return path
