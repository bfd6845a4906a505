"""Simulated studies: a known truth comes back as its map, on a virtual clock, through claims and results as files."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from ledger_contract import ARITHMETIC, small_result, small_study

from isoloss import (
    Choice,
    Curve,
    Decoder,
    Linear,
    Log,
    LowRank,
    Optuna,
    Outcome,
    Prepared,
    Random,
    Study,
    Text,
    Tokens,
    Trial,
    cli,
)
from isoloss.analysis.table import trials_table
from isoloss.errors import UsageError
from isoloss.report.write import parquet, write_report
from isoloss.run.book import Book
from isoloss.run.cost import ASSUMED, seconds
from isoloss.run.ledger import Claim, Ledger, LedgerError
from isoloss.run.simulate import Simulated, Simulation, simulate
from isoloss.run.sources import Replay, Source, load_source
from isoloss.search.plan import plan

RATE, VOCABULARY, RANK, HEAD = "optimizer.learning_rate", "task.vocab_size", "head.rank", "head"


def study(**changes: Any) -> Study:
    fields = {name: getattr(small_study(), name) for name in Study.model_fields}
    return Study(**{**fields, **changes})


def grid(points: int = 4, replicates: int = 1) -> Study:
    return study(axes={RATE: Log(1e-4, 1e-1, points=points), VOCABULARY: Choice(8, 64)}, replicates=replicates)


@dataclasses.dataclass
class Answers:
    """A source for tests: an excess and seconds for each trial; it may stop half way, as Ctrl-C would."""

    excess: Callable[[Any, Trial], float] = lambda cell, trial: 0.0
    seconds: Callable[[Trial], float] = lambda trial: 1.0
    stop_at: int | None = None
    name: str = "answers"
    asked: list[str] = dataclasses.field(default_factory=list)

    def __call__(self, cell: Any, trial: Trial) -> Replay:
        if len(self.asked) == self.stop_at:
            raise KeyboardInterrupt
        self.asked.append(trial.key)
        steps = (0, trial.steps)
        losses = (math.log(trial.task.vocab_size), self.excess(cell, trial))
        return Replay(Curve(steps, losses, (0.0, 0.0), 0.0), self.seconds(trial))


def run(study: Study, ledger: Ledger, source: Source, slots: int = 8, failures: float = 0.0) -> Simulated:
    with ledger.driver(study, {"simulated": source.name}):
        return simulate(Book(study, plan(study), ledger), source, Simulation(slots, failures))


def written(folder: Path, name: str, content: str | pd.DataFrame) -> str:
    path = folder / name
    path.write_bytes(parquet(content)) if isinstance(content, pd.DataFrame) else path.write_text(content)
    return str(path)


def replay(study: Study, where: str, cell: dict[str, Any], replicate: int = 0) -> Replay:
    return load_source(where, study)(cell, study.trial(cell, replicate))


# --- the map

TRUTH = """
import math

def excess(cell, replicate):
    if cell["optimizer.learning_rate"] > 0.05:
        return math.inf if cell["task.vocab_size"] == 64 else 9.0
    return 0.01 * (1 + replicate) if cell["optimizer.learning_rate"] > 5e-3 else 1.0
"""


def test_a_grid_against_a_function_gives_the_functions_map(tmp_path: Path) -> None:
    asked, ledger = grid(replicates=2), Ledger(tmp_path / "ledger")
    summary = run(asked, ledger, load_source(written(tmp_path, "truth.py", f"{TRUTH}") + ":excess", asked))
    table = trials_table(asked, ledger)
    found = {
        (row[RATE], row[VOCABULARY], row["replicate"]): (row["outcome"], row["final_excess"])
        for row in table.to_dict("records")
    }
    expected = {}
    for vocabulary in (8, 64):
        for replicate in (0, 1):
            expected[1e-4, vocabulary, replicate] = expected[1e-3, vocabulary, replicate] = ("plateaued", 1.0)
            expected[1e-2, vocabulary, replicate] = ("converged", 0.01 * (1 + replicate))
            # Nine nats above the floor are above ln 8, the initial loss.
            expected[1e-1, vocabulary, replicate] = (
                ("diverged", 9.0) if vocabulary == 8 else ("nonfinite", math.log(64))
            )
    assert found == expected
    assert (summary.done, summary.total, summary.interrupted, summary.gave_up) == (16, 16, False, {})
    assert {name: count for name, count in summary.outcomes.items() if count} == {
        "plateaued": 8, "converged": 4, "diverged": 2, "nonfinite": 2,
    }  # fmt: skip
    (result,) = (ledger.result(claim.key) for claim in ledger.claims()[:1])
    assert result.machine["simulated"].startswith("truth.py:excess@")
    assert result.trial == next(asked.trials())[1].canonical


@pytest.mark.parametrize("search", [Random(cells=12), Optuna(sampler="TPESampler", cells=12)], ids=lambda s: s.kind)
def test_every_search_is_continued_after_an_interrupt(tmp_path: Path, search: Any) -> None:
    asked = study(axes={RATE: Log(1e-4, 1e-1), VOCABULARY: Choice(8, 64)}, replicates=2, search=search)
    ledger = Ledger(tmp_path)
    first = Answers(lambda cell, trial: cell[RATE], stop_at=9)
    assert run(asked, ledger, first, slots=2).interrupted
    second = Answers(lambda cell, trial: cell[RATE])
    summary = run(asked, ledger, second, slots=2)
    assert (summary.done, summary.interrupted) == (24, False)
    assert len(ledger.claims()) == len(ledger.finished()) == 24


# --- tables

ROWS = pd.DataFrame({RATE: [1e-4, 1e-2], VOCABULARY: [64, 64], "final_excess": [0.9, 0.02]})


def test_a_cell_of_the_table_is_answered_by_its_row(tmp_path: Path) -> None:
    asked = grid(points=3)
    table = pd.DataFrame(
        [
            {RATE: cell[RATE], VOCABULARY: cell[VOCABULARY], "final_excess": 0.1 * number, "floor": 0.25}
            for number, (cell, _) in enumerate(asked.trials())
        ]
    )
    for where in (written(tmp_path, "t.parquet", table), written(tmp_path, "t.csv", table.to_csv(index=False))):
        for number, (cell, trial) in enumerate(asked.trials()):
            curve, taken, distance = load_source(where, asked)(cell, trial)
            assert curve.final_loss == 0.25 + 0.1 * number
            assert (curve.floor, curve.initial_loss) == (0.25, math.log(cell[VOCABULARY]))
            assert (taken, distance) == (None, 0.0)


def test_the_nearest_row_is_nearest_in_the_axes_own_geometry(tmp_path: Path) -> None:
    asked = study(axes={RATE: Log(1e-4, 1e-1), VOCABULARY: Choice(8, 64, 512)}, search=Random(cells=4))
    where = written(tmp_path, "t.parquet", ROWS)
    # 1.1e-3 is far nearer to 1e-4 evenly, and to 1e-2 in the logarithm: log10(1e-2 / 1.1e-3) = 0.9586 of 3 decades.
    found = replay(asked, where, {RATE: 1.1e-3, VOCABULARY: 64})
    assert found.curve.final_excess == 0.02
    assert found.distance == pytest.approx(0.95861 / 3, abs=1e-5)
    # From 8 to 512 are 6 doublings, from 512 to 64 are 3: half of the axis. From 1e-3 to 1e-2 is a third of the other.
    found = replay(asked, where, {RATE: 1.0001e-3, VOCABULARY: 512})
    assert found.distance == pytest.approx(math.hypot(1 / 2, 1 / 3), abs=1e-4)


def test_numbers_of_a_narrow_choice_lie_evenly(tmp_path: Path) -> None:
    asked = study(model=Decoder(width=64, depth=1), head=LowRank(rank=8), axes={RANK: Choice(8, 24, 40)})
    where = written(tmp_path, "t.csv", f"{RANK},final_excess\n14,0.1\n36,0.2\n")
    # 24 is 10 from 14 and 12 from 36 evenly; in the logarithm 36 would be nearer (1.5x, not 1.7x).
    found = replay(asked, where, {RANK: 24})
    assert (found.curve.final_excess, found.distance) == (0.1, 10 / 32)


def test_values_without_an_order_match_exactly(tmp_path: Path) -> None:
    heads = Choice(Linear(), LowRank(rank=4))
    asked = study(axes={HEAD: heads, RATE: Log(1e-4, 1e-1, points=4)})
    rows = [
        {HEAD: "linear()", RATE: 1e-4, "capped_excess": 0.1},
        {HEAD: "low_rank(4)", RATE: 1e-1, "capped_excess": 0.2},
    ]
    where = written(tmp_path, "t.parquet", pd.DataFrame(rows))
    assert replay(asked, where, {HEAD: heads.values[0], RATE: 1e-1}).curve.final_excess == 0.1
    assert replay(asked, where, {HEAD: heads.values[1], RATE: 1e-4}) == replay(
        asked, where, {HEAD: heads.values[1], RATE: 1e-1}
    )._replace(distance=1.0)
    where = written(tmp_path, "half.parquet", pd.DataFrame(rows[:1]))
    with pytest.raises(UsageError, match=r"half.parquet@\w+ has no row with head = low_rank\(4\); it has linear\(\)"):
        load_source(where, asked)


@pytest.mark.parametrize("numbered", [True, False])
def test_replicates_beyond_the_tables_start_over(tmp_path: Path, numbered: bool) -> None:
    table = pd.DataFrame({RATE: [1e-2] * 2, VOCABULARY: [8] * 2, "final_excess": [0.1, 0.2], "replicate": [4, 1]})
    where = written(tmp_path, "t.parquet", table if numbered else table.drop(columns="replicate"))
    asked = grid(replicates=6)
    found = [replay(asked, where, {RATE: 1e-2, VOCABULARY: 8}, number).curve.final_excess for number in range(6)]
    # Numbered 1 and 4: those are matched, the others count through (1, 4). Unnumbered rows are 0 and 1.
    assert found == ([0.2, 0.2, 0.2, 0.1, 0.1, 0.1] if numbered else [0.1, 0.2, 0.1, 0.2, 0.1, 0.2])


def test_a_replayed_report_gives_its_outcomes_and_lengths_again(tmp_path: Path) -> None:
    asked = study(axes={RATE: Choice(1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)})
    rows = [
        # outcome, final excess, ended, steps of 4; the initial loss is ln 8 = 2.08
        ("converged", 0.04, "budget", 4), ("undertrained", 0.5, "budget", 4), ("plateaued", 0.5, "budget", 4),
        ("diverged", 1.5, "budget", 4), ("diverged", 8.0, "above_initial", 3), ("nonfinite", 1.0, "nonfinite", 0),
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=["outcome", "final_excess", "ended", "steps"])
    table[RATE], table["budget_steps"] = [1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0], 4
    source = load_source(written(tmp_path, "t.parquet", table), asked)
    for (outcome, excess, ended, steps), (cell, trial) in zip(rows, asked.trials(), strict=True):
        curve = source(cell, trial).curve
        assert (asked.verdict.judge(curve), curve.ended, curve.step[-1]) == (Outcome(outcome), ended, steps)
        assert curve.final_excess == (excess if steps else math.log(8))
    # Trials that ended early take their share of the cost model's time, one step at least.
    summary = run(asked, Ledger(tmp_path / "ledger"), source, slots=1)
    one = seconds(next(asked.trials())[1], ASSUMED["cpu"])
    assert summary.virtual_seconds == pytest.approx((4 + 3 / 4 + 1 / 4) * one)


# --- the clock

TIMES = {8: 3.0, 16: 5.0, 32: 4.0, 64: 6.0}


def test_virtual_time_is_that_of_the_schedule(tmp_path: Path) -> None:
    asked = study(axes={VOCABULARY: Choice(*TIMES)})
    source = Answers(seconds=lambda trial: TIMES[trial.task.vocab_size])
    summary = run(asked, Ledger(tmp_path), source, slots=2)
    # Two slots: 8 in 0-3, 16 in 0-5, 32 in 3-7, 64 in 5-11. The first is idle from 7 on.
    assert summary.virtual_seconds == 11.0
    assert summary.utilisation == 18 / 22
    again = run(asked, Ledger(tmp_path), source, slots=2)
    assert (again.done, again.virtual_seconds, again.utilisation) == (4, 0.0, None)
    assert len(source.asked) == 4


def test_watchers_hear_of_every_trial_in_the_order_of_time(tmp_path: Path) -> None:
    heard: list[tuple[str, str]] = []

    class Watcher:
        def running(self, claim: Claim) -> None:
            heard.append(("running", claim.key))

        def progress(self, key: str, rows: list[dict[str, Any]]) -> None:
            heard.append((f"steps {[row['step'] for row in rows]}", key))

        def finished(self, key: str) -> None:
            heard.append(("finished", key))

    asked, ledger = study(axes={VOCABULARY: Choice(*TIMES)}), Ledger(tmp_path)
    ticks: list[int] = []
    with ledger.driver(asked, {"simulated": "answers"}):
        book = Book(asked, plan(asked), ledger, [Watcher()])
        source = Answers(seconds=lambda trial: TIMES[trial.task.vocab_size])
        simulate(book, source, Simulation(slots=2), lambda book: ticks.append(book.done))
    sizes = {trial.key: trial.task.vocab_size for _, trial in asked.trials()}
    steps = "steps [0, 4]"
    assert [(what, sizes[key]) for what, key in heard] == [
        ("running", 8), ("running", 16), (steps, 8), ("finished", 8), ("running", 32), (steps, 16), ("finished", 16),
        ("running", 64), (steps, 32), ("finished", 32), (steps, 64), ("finished", 64),
    ]  # fmt: skip
    assert ticks == [1, 2, 3, 4]


# --- stops and failures


def test_a_stopped_simulation_goes_on_to_the_same_results(tmp_path: Path) -> None:
    asked = grid(points=6, replicates=2)
    whole, parts = Ledger(tmp_path / "whole"), Ledger(tmp_path / "parts")
    truth = load_source(written(tmp_path, "truth.py", TRUTH) + ":excess", asked)
    run(asked, whole, truth)

    class Stops:
        name, calls = truth.name, 0

        def __call__(self, cell: Any, trial: Trial) -> Replay:
            self.calls += 1
            if self.calls > 12:
                raise KeyboardInterrupt
            return truth(cell, trial)

    stopped = run(asked, parts, Stops(), slots=4)
    # Four trials are asked for at the start, and one more whenever one ends: the 13th, when 9 have ended.
    assert (stopped.done, stopped.interrupted, stopped.gave_up) == (9, True, {})
    before = {key: (tmp_path / f"parts/results/{key}.arrow").stat().st_mtime_ns for key in parts.finished()}
    summary = run(asked, parts, truth)
    assert (summary.done, summary.interrupted) == (24, False)
    assert all((tmp_path / f"parts/results/{key}.arrow").stat().st_mtime_ns == at for key, at in before.items())
    assert Counter(claim.key for claim in parts.claims()) == Counter(trial.key for _, trial in asked.trials())
    assert parts.finished() == whole.finished()
    for key in whole.finished():
        one, other = (dataclasses.replace(ledger.result(key), machine={}) for ledger in (whole, parts))
        assert one.to_bytes() == other.to_bytes()


def test_trials_whose_machines_fail_are_given_up_and_tried_again(tmp_path: Path) -> None:
    asked = grid(points=50, replicates=2)
    ledgers = [Ledger(tmp_path / name) for name in "ab"]
    summaries = [run(asked, ledger, Answers(), slots, 0.5) for ledger, slots in zip(ledgers, (1, 7), strict=True)]
    lost = set(summaries[0].gave_up)
    # One in 8 of 200: 25, within three standard deviations of 4.7. Which ones, no order of trials changes.
    assert len(lost) == pytest.approx(25, abs=14)
    assert set(summaries[1].gave_up) == lost
    assert summaries[0].done == 200 - len(lost) == sum(summaries[0].outcomes.values())
    assert set(ledgers[0].unfinished()) == lost
    assert not summaries[0].interrupted
    # A trial is delivered 1 + 1/2 + 1/4 times on average; failed deliveries take half of a second on average, so
    # that the 200 trials take 200 * (7/8 * 1 + 7/8 * 1/2) seconds.
    assert summaries[0].virtual_seconds == pytest.approx(262.5, rel=0.1)
    again = run(asked, ledgers[0], Answers())
    assert (again.done, again.gave_up, ledgers[0].unfinished()) == (200, {}, {})


def test_simulated_and_real_trials_never_mix(tmp_path: Path) -> None:
    asked, ledger = grid(), Ledger(tmp_path / "simulated")
    truth = written(tmp_path, "truth.py", TRUTH)
    run(asked, ledger, load_source(f"{truth}:excess", asked))
    with pytest.raises(
        LedgerError, match=r"trained with simulated=truth.py:excess@\w+, and this run asks for device=cpu"
    ):
        ledger.open(asked, ARITHMETIC)
    written(tmp_path, "truth.py", TRUTH.replace("0.01", "0.02"))
    with pytest.raises(LedgerError, match="one map must not mix them"):
        run(asked, ledger, load_source(f"{truth}:excess", asked))
    real = Ledger(tmp_path / "real")
    real.open(asked, ARITHMETIC)
    real.finish(small_result("ab"))
    with pytest.raises(LedgerError, match="trained with device=cpu, dtype=float32, and this run asks for simulated="):
        run(asked, real, load_source(f"{truth}:excess", asked))


def test_a_thousand_trials_take_seconds(tmp_path: Path) -> None:
    asked = grid(points=100, replicates=5)
    started = time.process_time()
    assert run(asked, Ledger(tmp_path), Answers()).done == 1000
    assert time.process_time() - started < 10


# --- the command

FILE = """
from isoloss import AdamW, Choice, Decoder, Linear, Log, SpamLang, Steps, Study

study = Study(
    name="said", question="What is said?", task=SpamLang(vocab_size=8, sequence_length=4),
    model=Decoder(width=8, depth=1, attention_heads=1), head=Linear(), optimizer=AdamW(learning_rate=1e-3),
    budget=Steps(4, batch_size=2), axes={"optimizer.learning_rate": Log(1e-4, 1e-1, points=4),
    "task.vocab_size": Choice(8, 64)},
)
"""
FUNCTIONS = TRUTH + """
def text(cell, replicate):
    return "good"

def fails(cell, replicate):
    return cell["rank"]

def stops(cell, replicate):
    raise KeyboardInterrupt
"""  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "study.py", FILE)
    written(tmp_path, "f.py", FUNCTIONS)
    written(tmp_path, "broken.py", "x = 1\ndef f(:\n")
    head = f"{RATE},{VOCABULARY},final_excess"
    for name, text in {
        "lacks.csv": f"{RATE},final_excess\n1e-3,0.1",
        "result.csv": f"{RATE},{VOCABULARY},loss\n1e-3,8,0.1",
        "word.csv": f"{head}\n1e-3,many,0.1",
        "zero.csv": f"{head}\n0,8,0.1",
        "hole.csv": f"{head}\n,8,0.1",
        "ended.csv": f"{head},ended\n1e-3,8,0.1,early",
        "negative.csv": f"{head},seconds\n1e-3,8,0.1,-2",
        "twice.csv": f"{head},replicate\n1e-3,8,0.1,0\n1e-3,8,0.2,0",
        "empty.csv": f"{head}\n",
        "nothing.csv": "",
        "not.parquet": "no table",
        "t.txt": "",
    }.items():
        written(tmp_path, name, text)
    return tmp_path


MISTAKES = {
    "lacks.csv": "has no column 'task.vocab_size', an axis of the study; it has optimizer.learning_rate, final_excess",
    "result.csv": "has no column 'capped_excess', nor 'final_excess'; it has",
    "word.csv": "task.vocab_size must be a number, not 'many'",
    "zero.csv": "optimizer.learning_rate must be a finite number above 0, not 0",
    "hole.csv": "optimizer.learning_rate must be a finite number above 0, not nan",
    "ended.csv": "ended must be one of budget, nonfinite, above_initial, not 'early'",
    "negative.csv": "seconds must be 0 or more, not -2",
    "twice.csv": "must have one row a cell and replicate",
    "empty.csv": "has no row; it has none at all",
    "nothing.csv": "cannot read the table nothing.csv",
    "not.parquet": "cannot read the table not.parquet",
    "missing.csv": "cannot read the source missing.csv: No such file or directory",
    "t.txt": "a source is a table (.parquet or .csv) or path/to/file.py:function, not 't.txt'",
    "missing.py:f": "cannot read the source missing.py",
    "f.py": "f.py defines no function ''; it has f.py:excess, f.py:text, f.py:fails",
    "f.py:math": "f.py defines no function 'math'; it has f.py:excess",
    "broken.py:f": "SyntaxError",
    "f.py:text": "must return an excess loss, a number, not 'good'",
    "f.py:fails": "f.py, line 13: KeyError: 'rank'",
    "f.py:excess --failures 1.5": "failures must be a probability from 0 to 1, not 1.5",
    "f.py:excess --failures nan": "failures must be a probability from 0 to 1, not nan",
}


def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["isoloss", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.mark.parametrize("source", MISTAKES)
def test_a_mistake_is_one_message(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    code, out, err = call(capsys, monkeypatch, "simulate", "study.py", "--from", *source.split())
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("isoloss: ")
    assert MISTAKES[source] in err


def test_the_command_draws_the_map_and_says_what_came_of_it(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = call(capsys, monkeypatch, "simulate", "study.py", "--from", "f.py:excess")
    assert code == 0
    assert "C converged" in out
    assert (here / ".isoloss/simulated/reports/said/surface.png").exists()
    assert "8 of 8 trials" in out
    assert "virtual hours on 8 slots, " in out
    assert "% of their time used" in out
    assert "outcomes: 2 converged, 0 undertrained, 4 plateaued, 1 diverged, 1 nonfinite" in out
    code, out, _ = call(capsys, monkeypatch, "status", "said", "--state", ".isoloss/simulated", "--json")
    assert (code, json.loads(out)["finished"]) == (0, 8)


def test_the_command_says_in_json_what_failed_or_stopped(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("simulate", "study.py", "--json", "--state", "s", "--slots", "2", "--from")
    code, out, _ = call(capsys, monkeypatch, *command, "f.py:stops")
    assert (code, json.loads(out)["interrupted"], json.loads(out)["done"]) == (130, True, 0)
    code, out, _ = call(capsys, monkeypatch, *command, "f.py:excess", "--failures", "1")
    facts = json.loads(out)
    assert (code, facts["done"], facts["total"], len(facts["gave_up"])) == (1, 0, 8, 8)
    assert set(facts["gave_up"].values()) == {"lost: given up after 3 deliveries: simulated machine failures"}
    code, out, _ = call(capsys, monkeypatch, *command, "f.py:excess")
    facts = json.loads(out)
    assert (code, facts["done"], facts["gave_up"], facts["interrupted"]) == (0, 8, {}, False)
    assert 0 < facts["utilisation"] <= 1
    assert facts["virtual_seconds"] > 0


def test_a_text_that_is_not_prepared_can_be_simulated_and_reported(tmp_path: Path) -> None:
    task = Text(data=Prepared(name="web"), vocab_size=64, sequence_length=4)
    axes = {RANK: Choice(2, 4), RATE: Log(1e-3, 1e-1, points=3)}
    text = study(task=task, head=LowRank(rank=2), budget=Tokens(64, batch_size=4), axes=axes)
    ledger = Ledger(tmp_path / "ledger")
    run(text, ledger, Answers(lambda cell, trial: 1.5 + 1 / cell[RANK]))
    written = write_report(text, ledger, tmp_path / "report")
    table = pd.read_parquet(written.trials)
    assert sorted(set(table["final_loss"])) == [1.75, 2.0]
    assert "text_bytes" not in table
    assert "tokens_to_loss" not in written.tables, "nobody knows how much text a token is"
