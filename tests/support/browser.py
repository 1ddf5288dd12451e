"""A page in headless Chromium, where one is installed: what it draws, and what it complains of."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FOUND = next((path for path in map(shutil.which, NAMES) if path), None)
# Of the host, not of the page: no session bus, no GPU, no sandbox in a container.
_OF_THE_HOST = re.compile(r"dbus|bus\.cc|gpu|vaapi|GL|sandbox|fontconfig|Fontconfig|crashpad", re.I)

_PROBE = """
<script>
window.problems = [];
addEventListener("error", e => problems.push(String(e.message || e.target)), true);
addEventListener("securitypolicyviolation", e => problems.push("refused: " + e.blockedURI));
addEventListener("load", () => {
  const wide = document.documentElement.clientWidth;
  const found = {width: wide, scroll: document.documentElement.scrollWidth,
    problems, ground: getComputedStyle(document.body).backgroundColor};
  parent.postMessage(JSON.stringify(found), "*");
});
</script>
"""
# A window of headless Chromium has at least 500 pixels; a frame in it can be as narrow as a phone.
_FRAME = """<!DOCTYPE html><html><body style="margin:0">
<script>
addEventListener("message", message => {
  const told = document.createElement("pre");
  told.id = "found";
  told.textContent = message.data;
  document.body.append(told);
});
</script>
<iframe src="PAGE" style="border:0;width:WIDTHpx;height:2000px"></iframe>
</body></html>
"""


def look(page: str, folder: Path, width: int, *options: str) -> dict:
    """What a page is in a window of so many pixels: see the script.

    The copy that is looked at may run the script; all else that the page forbids stays forbidden.
    """
    copy = folder / f"looked-at-{width}.html"
    policy = "default-src 'none'"
    allowed = page.replace(policy, f"{policy}; script-src 'unsafe-inline'", 1)
    copy.write_text(allowed.replace("<style>", _PROBE + "<style>", 1), "utf-8")
    frame = folder / f"frame-{width}.html"
    frame.write_text(_FRAME.replace("PAGE", copy.name).replace("WIDTH", str(width)), "utf-8")
    command = [FOUND, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'browser'}", "--window-size=1280,2000", *options]
    done = subprocess.run(
        [*command, frame.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    assert found, done.stderr[-2000:]
    log = [line for line in done.stderr.splitlines() if "ERROR" in line or "CONSOLE" in line]
    return {
        **json.loads(unescape(found[1])),
        "log": [line for line in log if not _OF_THE_HOST.search(line)],
    }
