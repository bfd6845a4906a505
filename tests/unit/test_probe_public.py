"""Public models: what is measured of each family is what full matrices in float64 give, and what is refused."""

# N scored tokens, V vocabulary, M width

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from test_track_example import database, runs_by_name

from isoloss import cli
from isoloss.errors import IsolossError
from isoloss.probe.frequency import GROUPS, group_of_kinds
from isoloss.probe.public import describe, measure
from isoloss.probe.public_model import ProbeError, PublicModel, load_model
from isoloss.probe.public_result import PublicProbe
from isoloss.probe.public_text import documents, first_tokens, windows
from isoloss.report.probe import facts_of, number
from isoloss.track.probe import EXPERIMENT

WIDTH, LENGTH, PADDED = 16, 12, 7
SHAPE = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
TEXTS = [
    "The head of a language model maps what it knows to what comes next, and the gradient has to come back through it.",
    "a",
    "Rare words, rare gradients: 日本語 and naïve café spell themselves in bytes.",
    "The end <|end|> of the text, of the text, of the text, of the text, and of the next text.",
]
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 32},
    "gpt_neox": SHAPE,
    "llama": {**SHAPE, "num_key_value_heads": 2},
    "smollm2": {**SHAPE, "tie_word_embeddings": True},
    "qwen3": {**SHAPE, "num_key_value_heads": 2, "head_dim": 8},
    "phi": SHAPE,
    "cohere": {**SHAPE, "logit_scale": 0.25},
}
"""As GPT-2, Pythia, Llama-3, SmolLM2 and Qwen-3; with a bias; and with logits that are scaled."""

STARTED = {"llama"}
"""Families whose tokenizer begins a document with a token of its own."""


@pytest.fixture(scope="module", autouse=True)
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a random model of each family and its tokenizer; V is PADDED above the tokens."""
    root = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")  # read when transformers is imported
        for family in FAMILIES:
            save(root / family, family)
        yield root


def save(folder: Path, family: str, **changes: Any) -> None:
    import transformers

    kind = {"smollm2": "llama"}.get(family, family)
    fields = {"max_position_embeddings": 32, "initializer_range": 0.5, **FAMILIES.get(family, SHAPE)}
    tokenizer = byte_level(start=family in STARTED)
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(
        kind, **fields, vocab_size=len(tokenizer) + PADDED, bos_token_id=0, eos_token_id=0, pad_token_id=None, **changes
    )
    network = transformers.AutoModelForCausalLM.from_config(config)
    head = network.get_output_embeddings()
    if head.bias is not None:
        torch.nn.init.normal_(head.bias)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def byte_level(start: bool = False) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=290, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    if start:
        tokenizer.post_processor = processors.TemplateProcessing(single="<|end|> $A", special_tokens=[("<|end|>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|end|>", eos_token="<|end|>")


class Oracle:
    """The same from full logits of all tokens in float64, documents one at a time, projected by an SVD of W."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
        self.tokenizer = byte_level(start=folder.name in STARTED)
        logits, states, targets = [], [], []
        for text in TEXTS:
            ids = self.tokenizer(text, split_special_tokens=True)["input_ids"]
            for start in range(0, len(ids) - 1, LENGTH):
                inputs = torch.tensor([ids[start : min(start + LENGTH, len(ids) - 1)]])
                with torch.no_grad():
                    logits.append(network(inputs).logits[0])
                    states.append(network.base_model(inputs).last_hidden_state[0])
                targets += ids[start + 1 : start + 1 + LENGTH]
        self.target_N = torch.tensor(targets)
        self.logits_NV, self.hidden_NM = torch.cat(logits), torch.cat(states)
        self.weight_VM = network.get_output_embeddings().weight.detach()
        self.log_p_NV = self.logits_NV.log_softmax(-1)
        gradient_NV = self.log_p_NV.exp() - torch.eye(len(self.weight_VM), dtype=torch.float64)[self.target_N]
        basis_VM = torch.linalg.svd(self.weight_VM, full_matrices=False).U
        self.total_N = gradient_NV.square().sum(-1)
        self.kept_N = (gradient_NV @ basis_VM).square().sum(-1)
        self.loss_N = -self.log_p_NV[torch.arange(len(targets)), self.target_N]


def probed(folder: Path, **options: Any) -> tuple[PublicModel, PublicProbe]:
    model = load_model(str(folder))
    return model, measure(model, TEXTS, **{"length": LENGTH, "batch": 3, **options})


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_agrees_with_full_matrices(folders: Path, family: str) -> None:
    exact = Oracle(folders / family)
    model, measured = probed(folders / family)
    assert measured.token_N.tolist() == exact.target_N.tolist()
    close(measured.loss_N, exact.loss_N, 1e-4)
    close(measured.survival.total_N, exact.total_N, 1e-4)
    close(measured.survival.kept_N, exact.kept_N, 1e-3)
    share = float(exact.kept_N.sum() / exact.total_N.sum())
    figures = measured.figures()
    rank, size = WIDTH, len(exact.tokenizer) + PADDED
    assert figures["suppressed"] == pytest.approx(math.sqrt(1 - share), rel=1e-5)
    assert figures["cosine"] == pytest.approx(math.sqrt(share), rel=1e-5)
    assert figures["gain"] == pytest.approx(share * size / rank, rel=1e-5)
    assert figures["mean_log_z"] == pytest.approx(float(exact.logits_NV.logsumexp(-1).mean()), rel=1e-5)
    assert figures["log_probability_rank"] == torch.linalg.matrix_rank(exact.log_p_NV[: 2 * (WIDTH + 2)], rtol=1e-6)
    check_spectrum(figures, "weight", exact.weight_VM)
    check_spectrum(figures, "hidden", exact.hidden_NM)
    unit_NM = exact.hidden_NM / exact.hidden_NM.norm(dim=-1, keepdim=True)
    cosine_NN = unit_NM @ unit_NM.T
    off_diagonal = float(cosine_NN.sum() - cosine_NN.trace()) / (len(unit_NM) * (len(unit_NM) - 1))
    assert figures["anisotropy"] == pytest.approx(off_diagonal, abs=1e-5)
    facts = describe(model, measured)
    assert (facts["vocab_size"], facts["tokenizer_size"], facts["width"]) == (size, size - PADDED, WIDTH)
    assert facts["tied"] is (family in ("gpt2", "smollm2", "cohere"))
    assert facts["bias"] is (family == "phi")
    assert facts["tokens"] == len(exact.loss_N)


def close(found: Any, expected: torch.Tensor, relative: float) -> None:
    np.testing.assert_allclose(np.asarray(found), expected.numpy(), rtol=relative)


def check_spectrum(figures: dict[str, float], name: str, matrix: torch.Tensor) -> None:
    singular = torch.linalg.svdvals(matrix)
    singular = singular[singular > 1e-6 * singular[0]]  # layer norms without bias take one dimension away
    share = singular / singular.sum()
    assert figures[f"{name}_rank"] == len(singular)
    assert figures[f"{name}_effective_rank"] == pytest.approx(float(torch.exp(-(share * share.log()).sum())), rel=1e-4)
    assert figures[f"{name}_condition"] == pytest.approx(float(singular[0] / singular[-1]), rel=1e-3)


def test_bits_per_byte_count_the_bytes_of_scored_tokens(folders: Path) -> None:
    for family in ("gpt2", "llama"):
        model, measured = probed(folders / family)
        # Without a start token, the first token of each document is not scored; the texts begin in ASCII.
        scored = 0
        for text in TEXTS:
            first = 0 if family in STARTED else len(model.tokenizer.decode(model.encode(text)[:1]))
            scored += len(text.encode()) - first
        assert measured.bytes_N.sum() == scored
        assert measured.bits_per_byte == pytest.approx(measured.loss_N.sum() / math.log(2) / scored)


def test_documents_that_tokens_do_not_spell_have_no_bytes(folders: Path) -> None:
    from tokenizers import normalizers

    model = load_model(str(folders / "gpt2"))
    model.tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    measured = measure(model, ["all lower case", "Not All Lower Case"])
    assert measured.figures()["bytes"] == len("all lower case") - len(model.tokenizer.decode(model.encode("all")[:1]))
    assert math.isnan(measure(model, ["NONE"]).bits_per_byte)


def test_results_do_not_depend_on_batches_and_stop_at_the_tokens(folders: Path) -> None:
    seen = list[tuple[int, int]]()
    _, one = probed(folders / "qwen3", batch=1)
    _, all_ = probed(folders / "qwen3", batch=100)
    _, few = probed(folders / "qwen3", tokens=30, batch=2, progress=lambda *now: seen.append(now))
    np.testing.assert_allclose(one.survival.kept_N, all_.survival.kept_N, rtol=1e-3)
    np.testing.assert_allclose(few.loss_N, all_.loss_N[:30], rtol=1e-4)
    assert few.documents == 1
    assert seen[-1] == (1, 30)


def test_bfloat16_is_close_to_float32(folders: Path) -> None:
    model = load_model(str(folders / "llama"), dtype="bfloat16")
    measured, exact = measure(model, TEXTS, length=LENGTH), probed(folders / "llama")[1]
    assert describe(model, measured)["dtype"] == "bfloat16"
    assert measured.survival.cosine == pytest.approx(exact.survival.cosine, rel=0.03)
    assert measured.loss_N.mean() == pytest.approx(exact.loss_N.mean(), rel=0.03)


def test_windows_score_every_token_but_the_first_once() -> None:
    texts, spelling = ["abcdefg", "", "x", "yz"], {code: bytes([code]) for code in range(256)}
    found = list(windows(texts, lambda text: list(text.encode()), spelling, 3))
    assert [bytes(window.inputs_T.tolist()) for window in found] == [b"abc", b"def", b"y"]
    assert [bytes(window.targets_T.tolist()) for window in found] == [b"bcd", b"efg", b"z"]
    assert [window.document for window in found] == [0, 0, 3]
    assert [window.bytes_T.tolist() for window in found] == [[1, 1, 1], [1, 1, 1], [1]]
    cut = list(first_tokens(found, 5))
    assert [bytes(window.targets_T.tolist()) for window in cut] == [b"bcd", b"ef"]
    assert [bytes(window.targets_T.tolist()) for window in first_tokens(found, 3)] == [b"bcd"]
    assert len(list(first_tokens(found, None))) == 3


def test_groups_are_thirds_of_the_tokens() -> None:
    token_N = np.array([5] * 6 + [1] * 3 + [2] * 3 + [7, 8, 9, 3, 4, 6])
    assert group_of_kinds(token_N)[token_N].tolist() == [2] * 6 + [1] * 6 + [0] * 6
    assert GROUPS[0] == "rare"


def test_logits_that_are_no_matrix_product_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "gemma2", "gemma2", final_logit_softcapping=30.0, head_dim=4)
    with pytest.raises(ProbeError, match=r"not W h \+ b, as after a softcap.*the largest difference is \d"):
        probed(tmp_path / "gemma2")


def test_a_model_that_sees_what_comes_next_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "bert", "bert")
    with pytest.raises(ProbeError, match="no causal language model"):
        probed(tmp_path / "bert")


def test_models_that_are_not_whole_are_refused(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import load_file, save_file

    with pytest.raises(ProbeError, match="must be a folder that save_pretrained wrote, or the name"):
        load_model(str(tmp_path / "nowhere"))
    save(tmp_path / "torn", "llama")
    weights = load_file(tmp_path / "torn" / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, tmp_path / "torn" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ProbeError, match=r"lacks the weights lm_head\.weight"):
        load_model(str(tmp_path / "torn"))
    for file in (tmp_path / "torn").glob("tokenizer*"):
        file.unlink()
    save_file(load_file(folders / "llama" / "model.safetensors"), tmp_path / "torn" / "model.safetensors",
              metadata={"format": "pt"})  # fmt: skip
    with pytest.raises(ProbeError, match="cannot load the tokenizer"):
        load_model(str(tmp_path / "torn"))
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ProbeError, match=r'pip install "isoloss\[hf\]"'):
        load_model(str(folders / "llama"))


def test_models_that_bring_code_or_pickled_objects_run_none(folders: Path, tmp_path: Path) -> None:
    harm = tmp_path / "harm"

    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.write_text, (harm, "harm")

    coded, pickled = (shutil.copytree(folders / "llama", tmp_path / name) for name in ("coded", "pickled"))
    config = json.loads((coded / "config.json").read_text())
    own = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    (coded / "config.json").write_text(json.dumps({**config, "model_type": "own", "auto_map": own}))
    (coded / "own.py").write_text(f"open({str(harm)!r}, 'w')")
    (pickled / "model.safetensors").unlink()
    torch.save({"lm_head.weight": Harm()}, pickled / "pytorch_model.bin")
    for folder in (coded, pickled):
        with pytest.raises(ProbeError, match="cannot load the model"):
            load_model(str(folder))
        assert not harm.exists()


def test_texts_that_do_not_fit_are_refused(folders: Path, tmp_path: Path) -> None:
    model = load_model(str(folders / "gpt2"))
    with pytest.raises(ProbeError, match=r"a window of 33 positions is longer than .*gpt2 was built for, 32"):
        measure(model, TEXTS, length=33)
    with pytest.raises(ProbeError, match="no document has two tokens"):
        measure(model, ["", "a"])
    model.tokenizer.add_tokens([f"token {n}" for n in range(PADDED + 1)])
    with pytest.raises(ProbeError, match=f"'token {PADDED}', and the model knows only ids below"):
        measure(model, ["some text", f"token {PADDED}"])
    (tmp_path / "empty.txt").touch()
    with pytest.raises(IsolossError, match="empty"):
        list(documents([str(tmp_path / "empty.txt")]))


def test_the_command_tells_mistakes_in_words(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").mkdir()  # that of a name which is no folder would be looked for in the network
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["isoloss", "probe", "model", "--data", "text.txt"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("isoloss: cannot load the model 'model': ")
    assert list(tmp_path.rglob("*")) == [tmp_path / "model"]


@pytest.mark.slow
def test_the_command_prints_writes_and_records(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mlflow.artifacts import download_artifacts

    with open(tmp_path / "some.jsonl", "w") as file:
        file.writelines(json.dumps({"body": text}) + "\n" for text in TEXTS[:2])
    with open(tmp_path / "more.jsonl", "w") as file:
        file.writelines(json.dumps({"body": text}) + "\n" for text in TEXTS[2:])
    uri, figures_file, model = database(tmp_path), tmp_path / "figures.json", str(folders / "gpt2")
    command = ["isoloss", "probe", model, "--data", "some.jsonl", "--data", "more.jsonl", "--text", "body",
               "--length", str(LENGTH), "--json", str(figures_file), "--tracking-uri", uri]  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", command)
    monkeypatch.setenv("COLUMNS", "120")
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    assert (ended.value.code or 0, err) == (0, "")
    exact = Oracle(folders / "gpt2")
    suppressed = math.sqrt(1 - float(exact.kept_N.sum() / exact.total_N.sum()))
    line = next(line for line in out.splitlines() if "suppressed, |lost|" in line)
    assert line.split()[-4:] == [number(suppressed), "0.95", "to", "0.99"]
    assert "The paper's column is not measured here" in out
    written = json.loads(figures_file.read_text())
    assert written["figures"]["suppressed"] == pytest.approx(suppressed, rel=1e-5)
    assert written["documents"] == len(TEXTS)

    run = runs_by_name(uri, EXPERIMENT)[model]
    assert run.info.status == "FINISHED"
    assert run.data.params["vocab_size"] == str(len(exact.weight_VM))
    finite = {f"probe/{name}": value for name, value in written["figures"].items() if value is not None}
    assert run.data.metrics == finite
    table = pq.read_table(download_artifacts(run_id=run.info.run_id, artifact_path="tokens.parquet", tracking_uri=uri))
    assert table.column_names == ["token", "occurrences", "kept", "total", "loss"]
    assert table["token"].to_pylist() == exact.target_N.tolist()
    close(table["kept"].to_numpy(), exact.kept_N, 1e-3)
    assert table["occurrences"].to_pylist() == [exact.target_N.tolist().count(t) for t in exact.target_N.tolist()]


def test_figures_that_do_not_exist_are_null_and_dashes() -> None:
    assert facts_of({}, {"bits_per_byte": math.nan, "loss": 1.5})["figures"] == {"bits_per_byte": None, "loss": 1.5}
    assert [number(value) for value in (math.nan, 50_304.0, 0.98765)] == ["—", "50,304", "0.9877"]
