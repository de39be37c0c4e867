"""The page in Chromium: nothing on the console, nothing wider than a phone, and what its script adds."""

from __future__ import annotations

import json
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from headrace_doctor.doctor.html import render_html
from support import doctor_records as records

CHROMIUM = shutil.which("chromium")

WIDTHS = (360, 390, 1280)
ATTEMPTS = 4  # of 60 s: on a busy machine Chromium misses the load event now and then

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on PATH"),
]

# A page that holds the report in frames as wide as screens, and writes what it finds there.
FRAMES = """<!doctype html><meta charset="utf-8"><pre></pre><script>
const examine = (view) => {
  const page = view.document;
  const right = page.documentElement.clientWidth;
  const found = {
    width: right,
    scroll: page.documentElement.scrollWidth,
    wide: [...page.body.querySelectorAll("*")].filter((e) => !e.ownerSVGElement)
      .filter((e) => e.getBoundingClientRect().right > right + 0.5).map((e) => e.outerHTML.slice(0, 80)),
    sheet: view.getComputedStyle(page.body).maxWidth,
  };
  view.Blob = function (parts) { found.record = parts.join(""); };
  view.URL.createObjectURL = () => "#";
  page.getElementById("download").click();
  return found;
};
for (const width of WIDTHS) {
  const frame = document.createElement("iframe");
  frame.style = `border: 0; width: ${width}px; height: 800px`;
  frame.src = "report.html";
  document.body.append(frame);
}
// All of it within the event: Chromium takes the document as it is right after.
addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map((frame) => examine(frame.contentWindow));
  document.querySelector("pre").textContent = JSON.stringify(found);
});
</script>""".replace("WIDTHS", str(list(WIDTHS)))


def opened(folder: Path, html: str) -> tuple[list[dict[str, Any]], list[str]]:
    """What the script found in each frame, and what went to the console."""
    (folder / "report.html").write_text(html, encoding="utf-8")
    (folder / "frames.html").write_text(FRAMES, encoding="utf-8")
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--allow-file-access-from-files", "--enable-logging=stderr"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-extensions"]
    command += ["--disable-dev-shm-usage", "--no-first-run", "--timeout=30000"]
    for attempt in range(ATTEMPTS):
        profile = f"--user-data-dir={folder / f'profile{attempt}'}"  # one that was killed leaves it locked
        # Into files: processes that Chromium leaves behind for a while would keep pipes open.
        with (folder / "page").open("w") as page, (folder / "console").open("w") as console:
            whole = [*command, profile, "--dump-dom", (folder / "frames.html").as_uri()]
            try:
                subprocess.run(whole, stdout=page, stderr=console, timeout=60, check=True)
                break
            except subprocess.TimeoutExpired:
                if attempt == ATTEMPTS - 1:
                    raise
    told = (folder / "console").read_text(errors="replace")
    written = (folder / "page").read_text(encoding="utf-8").split("<pre>", 1)[1].split("</pre>", 1)[0]
    assert written, told
    return json.loads(unescape(written)), [line for line in told.splitlines() if "CONSOLE" in line]


@pytest.mark.parametrize("name", records.ALL)
def test_the_page_fits_and_works(name: str, tmp_path: Path) -> None:
    diagnosis = records.ALL[name]()
    frames, console = opened(tmp_path, render_html(diagnosis))
    assert console == []
    assert [(f["width"], f["scroll"], f["wide"]) for f in frames] == [(width, width, []) for width in WIDTHS]
    assert {f["sheet"] for f in frames} == {"992px"}  # the page's style was applied
    assert json.loads(frames[0]["record"])["command"] == list(diagnosis.command)


def test_a_foreign_script_or_picture_is_refused(tmp_path: Path) -> None:
    """This is what the console of the other tests would hold."""
    foreign = '<img src="https://example.com/x.png"><script>1</script>'
    _, console = opened(tmp_path, render_html(records.empty()).replace("<footer>", f"{foreign}<footer>"))
    assert sum("Content Security Policy" in line for line in console) == 2 * len(WIDTHS)
