"""A limit on the cost of a study ends its run in time, is not spent twice, and costs no number of the map."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from undisturbed import numbers, reference

from isoloss import cli, session
from isoloss.run.ledger import Ledger
from isoloss.run.limits import Spending

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.long]

STUDY = """
from isoloss import AdamW, Decoder, Evaluation, Linear, Log, SpamLang, Steps, Study

study = Study(
    name="limited",
    question="Does it stop in time?",
    task=SpamLang(vocab_size=32, sequence_length=4),
    model=Decoder(width=16, depth=1, attention_heads=2),
    head=Linear(),
    optimizer=AdamW(learning_rate=1e-2),
    budget=Steps(600, batch_size=8),
    axes={"optimizer.learning_rate": Log(1e-3, 1e-1, points=6)},
    evaluation=Evaluation(sequences=32, points=24),
)
"""
TRIALS = 6
HOUR = 3600.0


class Clock:
    """A clock on which every trial takes an hour, however fast this machine is: half of it to its first checkpoint."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.now = ledger, 0.0

    def __call__(self) -> float:
        begun = bool(list(Path(self.ledger.root, "checkpoints").glob("*.pt")))
        self.now = max(self.now, HOUR * len(self.ledger.finished()) + HOUR / 2 * begun)
        return self.now


@pytest.fixture
def ray_ends() -> Iterator[None]:
    yield
    import ray

    ray.shutdown()


def isoloss(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str]:
    """Run the command in this process, whose Ray every call shares; return exit code and all it printed."""
    monkeypatch.setattr(sys, "argv", ["isoloss", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out + err


def test_a_run_stops_at_its_limit_and_goes_on_under_a_higher_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ray_ends: None
) -> None:
    (tmp_path / "limited.py").write_text(STUDY)
    undisturbed = reference(tmp_path / "limited.py", tmp_path / "reference", workers=1)
    ledger = Ledger(tmp_path / ".isoloss/ledger/limited")
    monkeypatch.setattr(session, "Spending", partial(Spending, clock=Clock(ledger)))
    monkeypatch.chdir(tmp_path)
    run = "run", "limited.py", "--slots", "1", "--checkpoint-seconds", "0.1", "--tracking-uri", "http://127.0.0.1:9"
    limit = 2.5 + 30 / HOUR
    code, output = isoloss(capsys, monkeypatch, *run, "--max-gpu-hours", f"{limit}")
    assert code == 1, output
    # After two trials half an hour is left, and the third starts; then 30 seconds, less than the 35 of a stop.
    done, spent = ledger.finished(), ledger.spent("cpu").hours
    assert len(done) == 2
    assert [path.stem in done for path in Path(ledger.root, "checkpoints").iterdir()] == [False]
    assert spent == pytest.approx(2.5)
    said = "stopped at the limit of 2.508 slot-hours (2.5 spent); 2 of 6 trials have a result; "
    assert f"{said}raise --max-gpu-hours to go on" in output
    assert "run the same command" not in output
    before = {path.name: path.stat().st_mtime_ns for path in Path(ledger.root, "results").iterdir()}

    code, output = isoloss(capsys, monkeypatch, *run, "--max-cost", f"{limit * 2.5}", "--price", "2.5")
    assert (code, output.count("\n")) == (1, 1), output
    assert output.startswith("isoloss: stopped at the limit of 6.27 (6.25 spent, at 2.50 an hour); 2 of 6 trials")
    assert (ledger.finished(), ledger.spent("cpu").hours) == (done, spent)
    _, output = isoloss(capsys, monkeypatch, "plan", "limited.py", "--json")
    assert json.loads(output)["hours_spent"] == spent

    code, output = isoloss(capsys, monkeypatch, *run, "--max-gpu-hours", "10")
    assert code == 0, output
    assert ledger.spent("cpu").hours == pytest.approx(TRIALS)
    after = {path.name: path.stat().st_mtime_ns for path in Path(ledger.root, "results").iterdir()}
    assert {name: after[name] for name in before} == before, "a finished trial was trained again"
    assert numbers(ledger, tmp_path / ".isoloss/reports/limited/trials.parquet") == undisturbed
