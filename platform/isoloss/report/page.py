"""One self-contained page of sections with figures: it draws offline, prints, and shows in MLflow's sandboxed frame.

plotly.js travels inside the page once, compressed, and the browser unpacks it. The bundle beside this module is the
file ``plotly-cartesian.min.js`` of the npm package ``plotly.js-cartesian-dist-min`` (MIT licence, in
``plotly-cartesian.LICENSE``), at the version that the plotly package in use expects, compressed by zopfli.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from plotly.offline import get_plotlyjs, get_plotlyjs_version

BUNDLE = "plotly-cartesian.min.js.gz"

STYLE = """
:root { color-scheme: light }
body { font: 14px/1.45 Helvetica, Arial, sans-serif; color: #222; background: #fff; margin: 20px auto; max-width: 980px;
  padding: 0 16px }
h1 { font-size: 20px; margin: 0 } h2 { font-size: 17px; margin: 30px 0 6px; border-top: 1px solid #ccc;
  padding-top: 12px } h3 { font-size: 14px; margin: 16px 0 4px }
p { margin: 4px 0; max-width: 800px } .facts, .note { color: #555 } .note { font-size: 12.5px }
a { color: #0059a8 } :focus-visible { outline: 3px solid #0059a8; outline-offset: 2px }
.skip { position: absolute; left: -999px } .skip:focus { left: 16px; top: 8px; background: #fff; padding: 4px 8px }
nav ul { list-style: none; padding: 0; margin: 10px 0 0; font-size: 13px } nav li { display: inline-block;
  margin-right: 16px }
ul.said { margin: 4px 0; padding-left: 18px; max-width: 860px } ul.said li { margin-bottom: 3px }
.scroll { overflow-x: auto; margin: 8px 0 }
figure { margin: 12px 0 } .drawing { min-height: 40px } .drawing:empty::before { content: "drawing …"; color: #666 }
.failed { color: #a00 }
ul.legend { list-style: none; padding: 0; margin: 10px 0; font-size: 12.5px; columns: 2; column-gap: 28px }
ul.legend li { break-inside: avoid; margin: 0 0 4px; padding-left: 38px; text-indent: -38px }
ul.legend .mark { display: inline-block; width: 30px; margin-right: 8px; text-indent: 0; text-align: center;
  font-weight: bold; border: 1px solid #0002; box-sizing: border-box; print-color-adjust: exact;
  -webkit-print-color-adjust: exact }
table { border-collapse: collapse; font-size: 12.5px; font-variant-numeric: tabular-nums }
caption { text-align: left; color: #555; padding-bottom: 4px }
th { text-align: left; font-weight: normal; padding: 3px 14px 3px 0; vertical-align: top }
thead th { font-weight: bold; border-bottom: 1px solid #222; vertical-align: bottom }
td, tbody th { border-bottom: 1px solid #ddd } td { padding: 3px 14px 3px 0; vertical-align: top }
details { margin: 8px 0 } summary { cursor: pointer } pre { font-size: 12px; white-space: pre-wrap;
  overflow-wrap: anywhere; background: #f6f6f6; padding: 8px; margin: 6px 0 }
@page { size: A4 landscape; margin: 10mm }
@media print { body { margin: 0 } nav, .skip, .modebar-container { display: none } .scroll { overflow: visible }
  h2, h3, caption { break-after: avoid } thead, tr, figure { break-inside: avoid } figure { zoom: 0.85 } }
"""

# The text of the page stays readable when a figure fails; the reason then stands where the figure would. The buttons
# are listed because plotly's own choice has one that uploads the data to its cloud. plotly measures texts in a picture
# of its own, which says nothing. Paper cannot be unfolded.
SCRIPT = """
(async () => {
  const fail = (place, error) => {
    place.classList.add("failed");
    place.textContent = "The figure could not be drawn (" + error + "); it needs a browser of 2023 or later.";
  };
  const places = [...document.querySelectorAll(".drawing")];
  try {
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), c => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.appendChild(script);
  } catch (error) {
    places.forEach(place => fail(place, error));
    return;
  }
  for (const place of places) {
    try {
      const drawn = JSON.parse(document.getElementById(place.dataset.figure).textContent);
      await Plotly.newPlot(place, drawn.data, drawn.layout, {
        displaylogo: false, displayModeBar: "hover", plotlyServerURL: "",
        modeBarButtons: [["toImage"], ["zoom2d", "pan2d", "resetScale2d"]],
      });
    } catch (error) {
      fail(place, error);
    }
  }
  document.getElementById("js-plotly-tester")?.setAttribute("aria-hidden", "true");
})();
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(one => { one.open = true; }));
"""

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class Drawing:
    """A figure as plotly's JSON (``data`` and ``layout``), and in plain words what it shows."""

    figure: Mapping[str, Any]
    alternative: str


@dataclass(frozen=True)
class Section:
    """What stands under one heading: HTML and figures, in their order. Titles differ within a page."""

    title: str
    parts: Sequence[str | Drawing]

    @property
    def anchor(self) -> str:
        """The name by which links reach the section."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


@cache
def bundle() -> bytes:
    """Return plotly.js, gzipped: the small bundle when its version is the one expected, else the installed full one."""
    packed = (resources.files("isoloss.report") / BUNDLE).read_bytes()
    if bundle_version(packed) == get_plotlyjs_version():
        return packed
    return gzip.compress(get_plotlyjs().encode(), mtime=0)


def bundle_version(packed: bytes) -> str:
    """Return the version that a gzipped plotly.js states in its first lines."""
    head = gzip.decompress(packed)[:200].decode()
    return head.partition(") v")[2].partition("\n")[0].strip()


def embedded(value: Any) -> str:
    """Return JSON that no text inside can end early: every ``<``, ``>`` and ``&`` is written as its code."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def page(title: str, question: str, facts: str, sections: Sequence[Section]) -> str:
    """Return the page; ``title``, ``question``, ``facts`` and the sections' titles are plain text."""
    figures = [part for section in sections for part in section.parts if isinstance(part, Drawing)]
    names = {id(figure): f"figure-{number}" for number, figure in enumerate(figures, 1)}
    links = "".join(f'<li><a href="#{one.anchor}">{html.escape(one.title)}</a></li>' for one in sections)
    scripts = ""
    if figures:
        data = [
            f'<script type="application/json" id="{names[id(one)]}">{embedded(one.figure)}</script>' for one in figures
        ]
        packed = f'<script type="text/plain" id="plotly">{base64.b64encode(bundle()).decode()}</script>'
        scripts = "\n".join([*data, packed, f"<script>{SCRIPT}</script>"])
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header>
<h1>{html.escape(title)}</h1>
<p>{html.escape(question)}</p>
<p class="facts">{html.escape(facts)}</p>
<nav aria-label="Contents"><ul>{links}</ul></nav>
</header>
<main id="main" tabindex="-1">
{"".join(_section(one, names) for one in sections)}
</main>
{scripts}
</body>
</html>
"""


def _section(section: Section, names: Mapping[int, str]) -> str:
    parts = "\n".join(part if isinstance(part, str) else _place(part, names[id(part)]) for part in section.parts)
    return (
        f'<section aria-labelledby="{section.anchor}">\n<h2 id="{section.anchor}">{html.escape(section.title)}</h2>\n'
        f"{parts}\n</section>\n"
    )


def _place(figure: Drawing, name: str) -> str:
    """Return the place where the page's script draws a figure."""
    words = html.escape(figure.alternative)
    return (
        '<figure><div class="scroll" tabindex="0" role="group" aria-label="Figure, scrolls sideways">'
        f'<div role="img" aria-label="{words}">'
        f'<div class="drawing" aria-hidden="true" data-figure="{name}"></div></div></div>'
        f"<noscript><p>{words}</p></noscript></figure>"
    )
