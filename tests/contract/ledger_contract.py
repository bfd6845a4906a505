"""What every store of a study must do, wherever its files are."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from isoloss import AdamW, Choice, Curve, Decoder, Linear, SpamLang, Steps, Study
from isoloss.result import SERIES, Result
from isoloss.run.ledger import Ledger
from isoloss.run.store import LedgerError, sealed
from isoloss.study import SCHEMA

ARITHMETIC = {"device": "cpu", "dtype": "float32"}


def small_study(name: str = "small") -> Study:
    return Study(
        name=name,
        question="?",
        task=SpamLang(vocab_size=8, sequence_length=4),
        model=Decoder(width=8, depth=1, attention_heads=1),
        head=Linear(),
        optimizer=AdamW(learning_rate=1e-3),
        budget=Steps(4, batch_size=2),
        axes={"optimizer.learning_rate": Choice(1e-3, 1e-2), "task.vocab_size": Choice(8, 16)},
    )


def small_result(key: str, loss: float = 0.5) -> Result:
    curve = Curve((0, 4), (math.log(8), loss), (0.01, 0.02), floor=0.0)
    return Result(key, {"seed": 0}, curve, dict.fromkeys(SERIES, (None, 1.5)), {"seconds": 0.1})


class LedgerContract:
    """Subclass it with a ``ledger`` fixture that gives an unopened ledger, and ``again`` that opens another on it."""

    @pytest.fixture
    def ledger(self) -> Ledger:
        raise NotImplementedError

    def again(self, ledger: Ledger) -> Ledger:
        raise NotImplementedError

    def test_an_unopened_ledger_is_empty(self, ledger: Ledger) -> None:
        assert not ledger.exists()
        assert ledger.claims() == []
        assert ledger.finished() == set()
        with pytest.raises(LedgerError, match="no study"):
            ledger.study()

    def test_the_study_comes_back_equal(self, ledger: Ledger) -> None:
        ledger.open(small_study(), ARITHMETIC)
        assert self.again(ledger).study() == small_study()

    def test_claims_come_back_in_order(self, ledger: Ledger) -> None:
        ledger.open(small_study(), ARITHMETIC)
        made = [
            ledger.claim(number, trial.key, cell, trial.replicate)
            for number, (cell, trial) in enumerate(small_study().trials())
        ]
        assert self.again(ledger).claims() == made

    def test_a_result_comes_back_to_the_byte_and_finishes_its_trial(self, ledger: Ledger) -> None:
        ledger.open(small_study(), ARITHMETIC)
        ledger.save_checkpoint("ab", b"half way")
        ledger.give_up("ab", "lost", "a machine went away")
        assert not ledger.is_finished("ab")
        ledger.finish(small_result("ab"))
        other = self.again(ledger)
        assert other.finished() == {"ab"}
        assert other.is_finished("ab")
        assert other.result("ab") == small_result("ab")
        assert other.result("ab").to_bytes() == small_result("ab").to_bytes()
        assert other.checkpoint("ab") is None
        assert other.unfinished() == {}

    def test_checkpoints_are_replaced_and_reasons_kept(self, ledger: Ledger) -> None:
        ledger.open(small_study(), ARITHMETIC)
        assert ledger.checkpoint("ab") is None
        ledger.save_checkpoint("ab", b"one")
        ledger.save_checkpoint("ab", b"two")
        assert self.again(ledger).checkpoint("ab") == b"two"
        ledger.give_up("ab", "out_of_memory", "16 GB")
        assert self.again(ledger).unfinished() == {"ab": {"state": "out_of_memory", "reason": "16 GB"}}

    def test_a_missing_result_is_said(self, ledger: Ledger) -> None:
        ledger.open(small_study(), ARITHMETIC)
        with pytest.raises(LedgerError, match="is missing"):
            ledger.result("ab")

    def test_a_second_driver_is_refused_while_the_first_lives(self, ledger: Ledger) -> None:
        with ledger.driver(small_study(), ARITHMETIC):
            assert ledger.driven_by().startswith("process ")
            with (
                pytest.raises(LedgerError, match="another driver is running this study"),
                self.again(ledger).driver(dataclasses.replace, {}),  # type: ignore[arg-type]  # must not be looked at
            ):
                pass
            assert self.again(ledger).study() == small_study()
        assert ledger.driven_by() == ""
        with self.again(ledger).driver(small_study(), ARITHMETIC):
            pass

    def test_other_arithmetic_is_refused_once_there_are_results(self, ledger: Ledger) -> None:
        ledger.open(small_study(), ARITHMETIC)
        ledger.open(small_study(), {"device": "cuda", "dtype": "float32"})
        ledger.finish(small_result("ab"))
        with pytest.raises(
            LedgerError, match="trained with device=cuda, dtype=float32, and this run asks for device=cpu"
        ):
            ledger.open(small_study(), ARITHMETIC)

    def test_a_newer_schema_is_refused(self, ledger: Ledger) -> None:
        ledger.open(small_study(), ARITHMETIC)
        header = json.loads(self.read(ledger, "study.json").partition(b"\n")[0])
        self.write(ledger, "study.json", sealed(json.dumps({**header, "schema": SCHEMA + 1}).encode()))
        for use in (lambda: ledger.study(), lambda: ledger.open(small_study(), ARITHMETIC)):
            with pytest.raises(LedgerError, match=f"written under schema {SCHEMA + 1}"):
                use()

    def test_damaged_files_are_refused(self, ledger: Ledger) -> None:
        ledger.open(small_study(), ARITHMETIC)
        ledger.finish(small_result("ab"))
        ledger.save_checkpoint("cd", b"half way")
        for name, use in (
            ("results/ab.arrow", lambda: ledger.result("ab")),
            ("checkpoints/cd.pt", lambda: ledger.checkpoint("cd")),
            ("study.json", ledger.study),
        ):
            whole = self.read(ledger, name)
            one_bit = bytes([whole[0] ^ 1]) + whole[1:]
            for harmed in (one_bit, whole[:-1], whole[:-72], b""):
                self.write(ledger, name, harmed)
                with pytest.raises(LedgerError, match=f"{name} is damaged"):
                    use()
            self.write(ledger, name, whole)
            use()

    def test_a_hash_is_that_of_sha256sum(self, ledger: Ledger) -> None:
        ledger.open(small_study(), ARITHMETIC)
        ledger.save_checkpoint("ab", b"half way")
        body, _, digest = self.read(ledger, "checkpoints/ab.pt").rpartition(b"\nsha256:")
        assert body == b"half way"
        # printf 'half way' | sha256sum
        assert digest == b"cfca2bcf8f56d6e17fb4fbea33fc6ac5b71f8a70cff16f51bd0c5da0b5416da1\n"

    def test_a_key_cannot_leave_its_folder(self, ledger: Ledger) -> None:
        ledger.open(small_study(), ARITHMETIC)
        for key in ("../study", "a/b", "", "..", "a.b", "\n"):
            with pytest.raises(LedgerError, match="is no trial's key"):
                ledger.save_checkpoint(key, b"")
            with pytest.raises(LedgerError, match="is no trial's key"):
                ledger.result(key)

    def test_checkpoints_of_finished_trials_are_removed_when_a_driver_comes(self, ledger: Ledger) -> None:
        with ledger.driver(small_study(), ARITHMETIC):
            ledger.finish(small_result("ab"))
            ledger.save_checkpoint("ab", b"of a process that was killed between its result and this")
            ledger.save_checkpoint("cd", b"half way")
        with self.again(ledger).driver(small_study(), ARITHMETIC):
            pass
        assert ledger.checkpoint("ab") is None
        assert ledger.checkpoint("cd") == b"half way"

    def test_many_results_come_in_the_order_asked_for(self, ledger: Ledger) -> None:
        ledger.open(small_study(), ARITHMETIC)
        keys = [f"{number:02x}" for number in range(12)]
        for number, key in enumerate(keys):
            ledger.finish(small_result(key, 1.0 + number))
        found = [result.curve.loss[-1] for result in self.again(ledger).results(reversed(keys))]
        assert found == [1.0 + number for number in reversed(range(12))]

    def read(self, ledger: Ledger, name: str) -> bytes:
        """Return the bytes of one of the ledger's files."""
        raise NotImplementedError

    def write(self, ledger: Ledger, name: str, data: bytes) -> None:
        """Replace one of the ledger's files."""
        raise NotImplementedError
