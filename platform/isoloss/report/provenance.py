"""Where a report's numbers come from: the study's settings, what it cost, on what it ran, and how to run it again."""

from __future__ import annotations

import html
import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from isoloss.outcome import Curve
from isoloss.report.page import Section
from isoloss.report.tables import number, table
from isoloss.study import Study, Trial

SECONDS = ("seconds", "measuring_seconds", "saving_seconds")
NOT_SETTINGS = (*SECONDS, "resumed_at")
"""What of a result's ``machine`` differs from trial to trial."""

OPTIONS = {"device": "--device", "dtype": "--dtype", "threads": "--threads", "workers": "--workers-per-slot"}
"""The options of ``isoloss run`` that decide the arithmetic, by their name in a result's ``machine``."""

PACKAGES = ("isoloss", "numpy", "scipy", "pandas", "pyarrow", "plotly")

RUN_AGAIN = """from pathlib import Path
from isoloss import Study
study = Study.from_json(Path(__file__).with_name("study.json").read_text())
"""


@dataclass(frozen=True)
class Ran:
    """One finished trial, as far as its provenance goes: its configuration, its curve, and what it ran on."""

    trial: Trial
    curve: Curve
    machine: Mapping[str, Any]

    @property
    def flops(self) -> float:
        """Floating-point operations of the updates that it came to and of measuring its held-out loss."""
        trial = self.trial
        measured = len(self.curve.step) * trial.task.held_out_tokens(trial.evaluation.sequences)
        return trial.flops_per_token * (trial.tokens(self.curve.step[-1]) + measured / 3)


def provenance_section(study: Study, ran: list[Ran]) -> Section:
    """Return the section: cost, hardware and versions, the study as JSON, and the command that runs it again."""
    parts = []
    if ran:
        parts += ["<h3>Cost</h3>", _cost(ran), "<h3>Hardware</h3>", _hardware(ran)]
    written = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    parts += [
        f'<p class="note">Report written with Python {platform.python_version()}, {html.escape(written)}.</p>',
        "<h3>Settings</h3><p>The whole definition of the study; fields that are left out have their defaults.</p>",
        f"<details><summary>The study as JSON</summary><pre>{html.escape(study.to_json())}</pre></details>",
        "<h3>To run it again</h3><p>With the text above in study.json, and these lines but the last in study.py beside "
        "it, the last line trains the study again; a corpus that it names is prepared before.</p>",
        f"<pre>{html.escape(RUN_AGAIN)}\n{html.escape(command(ran))}</pre>",
    ]
    return Section("Settings, cost and provenance", parts)


def command(ran: list[Ran]) -> str:
    """Return the command that trains the study's trials again, with the settings that most of them had."""
    known = Counter(
        tuple((name, one.machine[name]) for name in (*OPTIONS, "compile") if name in one.machine) for one in ran
    )
    simulated = sorted({str(one.machine["simulated"]) for one in ran if "simulated" in one.machine})
    if simulated:
        return f"isoloss simulate study.py --from ...   # these trials were simulated from {', '.join(simulated)}"
    settings = dict(known.most_common(1)[0][0]) if known else {}
    options = [f"{option} {settings[name]}" for name, option in OPTIONS.items() if name in settings]
    return " ".join(["isoloss run study.py", *options, *(["--compile"] if settings.get("compile") else [])])


def _cost(ran: list[Ran]) -> str:
    tokens = sum(one.trial.tokens(one.curve.step[-1]) for one in ran)
    rows = [
        ["trials finished", number(len(ran))],
        ["tokens trained on", number(tokens)],
        ["floating-point operations (6 a parameter and token, Kaplan et al. 2020; and measuring)",
         f"{sum(one.flops for one in ran):.3g}"],
    ]  # fmt: skip
    timed = [one.machine for one in ran if "seconds" in one.machine]
    if timed:
        workers = sum(machine["seconds"] * machine.get("workers", 1) for machine in timed)
        virtual = " (virtual: they were simulated)" if any("simulated" in machine for machine in timed) else ""
        rows.append([f"seconds of {len(timed):,} trials{virtual}", number(sum(one["seconds"] for one in timed))])
        rows.append(["the same times workers, in hours", number(workers / 3600)])
    for name, text in (("measuring_seconds", "of them measuring"), ("saving_seconds", "of them saving checkpoints")):
        if any(name in machine for machine in timed):
            rows.append([f"{text}, seconds", number(float(sum(one.get(name, 0.0) for one in timed)))])
    resumed = sum(one.machine.get("resumed_at", 0) > 0 for one in ran)
    rows.append(["trials that went on from a checkpoint", number(resumed)])
    return table("What the finished trials cost", ["what", "how much"], rows)


def _hardware(ran: list[Ran]) -> str:
    names = sorted({name for one in ran for name in one.machine if name not in NOT_SETTINGS})
    kinds = Counter(tuple(number(one.machine.get(name)) for name in names) for one in ran)
    rows = [[number(count), *kind] for kind, count in sorted(kinds.items())]
    return table("What the finished trials ran on", ["trials", *(name.replace("_", " ") for name in names)], rows)
