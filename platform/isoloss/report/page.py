"""One self-contained page around a figure: it draws offline, and inside MLflow's sandboxed frame.

plotly.js travels inside the page, compressed, and the browser unpacks it. The bundle beside this module is the file
``plotly-cartesian.min.js`` of the npm package ``plotly.js-cartesian-dist-min`` (MIT licence, in
``plotly-cartesian.LICENSE``), at the version that the plotly package in use expects, compressed by zopfli.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
from functools import cache
from importlib import resources
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs, get_plotlyjs_version

BUNDLE = "plotly-cartesian.min.js.gz"

STYLE = """
:root { color-scheme: light }
body { font: 14px/1.45 Helvetica, Arial, sans-serif; color: #222; background: #fff; margin: 20px auto; max-width: 980px;
  padding: 0 16px }
h1 { font-size: 19px; margin: 0 } h2 { font-size: 15px; margin: 22px 0 6px }
p { margin: 4px 0; max-width: 800px } .facts, .note { color: #555 } .note { font-size: 12.5px }
figure { margin: 12px 0; overflow-x: auto } #figure:empty::before { content: "drawing …"; color: #777 }
ul.legend { list-style: none; padding: 0; margin: 10px 0; font-size: 12.5px; columns: 2; column-gap: 28px }
ul.legend li { break-inside: avoid; margin: 0 0 4px; padding-left: 38px; text-indent: -38px }
ul.legend .mark { display: inline-block; width: 30px; margin-right: 8px; text-indent: 0; text-align: center;
  font-weight: bold; border: 1px solid #0002; box-sizing: border-box; print-color-adjust: exact;
  -webkit-print-color-adjust: exact }
table { border-collapse: collapse; font-size: 12.5px; font-variant-numeric: tabular-nums }
th { text-align: left; border-bottom: 1px solid #222; padding: 3px 14px 3px 0; vertical-align: bottom }
td { border-bottom: 1px solid #ddd; padding: 3px 14px 3px 0; vertical-align: top }
ul.bands { margin: 4px 0; padding-left: 18px; font-size: 12.5px; max-width: 800px }
.failed { color: #a00 }
@page { size: A4 landscape; margin: 10mm }
@media print { body { margin: 0 } .modebar-container { display: none } figure { overflow: visible } }
"""

# The text of the page stays readable when the figure fails; the reason then stands where the figure would. The buttons
# are listed because plotly's own choice has one that uploads the data to its cloud.
SCRIPT = """
(async () => {
  const place = document.getElementById("figure");
  try {
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), c => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.appendChild(script);
    const drawn = JSON.parse(document.getElementById("data").textContent);
    await Plotly.newPlot(place, drawn.data, drawn.layout, {
      displaylogo: false, displayModeBar: "hover", plotlyServerURL: "",
      modeBarButtons: [["toImage"], ["zoom2d", "pan2d", "resetScale2d"]],
    });
  } catch (error) {
    place.className = "failed";
    place.textContent = "The figure could not be drawn (" + error + "); it needs a browser of 2023 or later.";
  }
})();
"""

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


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


def page(title: str, question: str, facts: str, body: str, figure: go.Figure | None, alternative: str) -> str:
    """Return the page; ``title``, ``question``, ``facts`` and ``alternative`` are plain text, ``body`` is HTML.

    ``alternative`` tells in words what the figure shows. Without a figure the page holds text alone.
    """
    drawing = scripts = ""
    if figure is not None:
        drawing = (
            f'<figure role="img" aria-label="{html.escape(alternative)}"><div id="figure"></div>'
            f"<noscript>{html.escape(alternative)}</noscript></figure>"
        )
        scripts = (
            f'<script type="application/json" id="data">{embedded(figure.to_plotly_json())}</script>\n'
            f'<script type="text/plain" id="plotly">{base64.b64encode(bundle()).decode()}</script>\n'
            f"<script>{SCRIPT}</script>"
        )
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
<h1>{html.escape(title)}</h1>
<p>{html.escape(question)}</p>
<p class="facts">{html.escape(facts)}</p>
{drawing}
{body}
{scripts}
</body>
</html>
"""
