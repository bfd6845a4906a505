"""A public language model of the Hugging Face hub: its tokenizer, its network, and the matrix that ends it."""

# B windows, T positions, V vocabulary, M width

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoloss.data.encoder import letters_of_bytes
from isoloss.errors import UsageError


class ProbeError(UsageError):
    """A public model or its text cannot be measured as asked; the message says why."""


@dataclass(frozen=True)
class PublicModel:
    """A causal language model with logits W h + b, where h is what its output embedding reads.

    A factor by which the model multiplies its logits (Cohere, Granite) is counted to h: no share and no cosine changes.
    ``head`` is that output embedding, of weight_VM and, rarely, bias_V. V may exceed the number of tokens: the model
    gives all rows a share of its distribution. ``revision`` is the hub's commit, empty for a folder. ``longest`` is how
    many positions the model was built for, None where it does not say.
    """

    name: str
    revision: str
    tokenizer: Any
    network: Any
    head: nn.Linear
    longest: int | None

    @property
    def tied(self) -> bool:
        """Whether the output embedding is the input embedding."""
        return bool(self.network.get_input_embeddings().weight is self.head.weight)

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    @torch.no_grad()
    def hidden(self, ids_BT: Tensor) -> Tensor:
        """Return hidden_BTM, what the output embedding reads (after a final norm), times the logits' factor."""
        with _without_head(self.network, self.head):
            hidden_BTM: Tensor = self.network(ids_BT.to(self.device), use_cache=False).logits
        return hidden_BTM

    @torch.no_grad()
    def check(self, ids_BT: Tensor) -> None:
        """Raise ProbeError unless, on these tokens, the logits are W h + b and no position sees those after it."""
        logits_BTV = self.network(ids_BT.to(self.device), use_cache=False).logits
        hidden_BTM = self.hidden(ids_BT)
        expected_BTV = F.linear(hidden_BTM, self.head.weight, self.head.bias)
        off, largest = float((logits_BTV - expected_BTV).abs().max()), float(expected_BTV.abs().max())
        # A sum of M products in float32, rounded once to the model's precision.
        rounding = torch.finfo(hidden_BTM.dtype).eps + hidden_BTM.shape[-1] ** 0.5 * torch.finfo(torch.float32).eps
        if not off <= 2 * rounding * largest:
            raise ProbeError(
                f"{self.name} has logits that are not W h + b, as after a softcap, and only such can be measured: the "
                f"largest difference is {off:.3g}, where logits reach {largest:.3g}"
            )
        changed_BT = ids_BT.clone()
        changed_BT[:, -1] = (changed_BT[:, -1] + 1) % self.head.out_features
        earlier = slice(None, -1)
        moved = (self.hidden(changed_BT)[:, earlier] - hidden_BTM[:, earlier]).abs()
        if moved.numel() and float(moved.max()) > 100 * rounding * float(hidden_BTM.abs().max()):
            raise ProbeError(f"{self.name} is no causal language model: a position sees the tokens after it")

    def encode(self, text: str) -> list[int]:
        """Return a document's tokens as the model's own tokenizer gives them, with its start token if it adds one.

        What looks like a special token in the text is text. Raises ProbeError for an id that is no row of W.
        """
        ids: list[int] = self.tokenizer(text, split_special_tokens=True, verbose=False)["input_ids"]
        if ids and max(ids) >= self.head.out_features:
            token = self.tokenizer.convert_ids_to_tokens(max(ids))
            raise ProbeError(
                f"the tokenizer of {self.name} gives the id {max(ids)}, {token!r}, and the model knows only ids below "
                f"{self.head.out_features}: they do not belong together"
            )
        return ids

    @cached_property
    def spelling(self) -> dict[int, bytes]:
        """The bytes of every token of a byte-level alphabet (Radford et al. 2019); special tokens stand for none."""
        byte_of = {letter: byte for byte, letter in enumerate(letters_of_bytes())}
        added = self.tokenizer.added_tokens_decoder
        spelling = {id: b"" if token.special else token.content.encode() for id, token in added.items()}
        for token, id in self.tokenizer.get_vocab().items():
            if id not in added and byte_of.keys() >= set(token):
                spelling[id] = bytes(byte_of[letter] for letter in token)
        return spelling


NO_CODE = {"trust_remote_code": False}
"""A model's own Python is not run, and nobody is asked whether it may."""


def load_model(name: str, revision: str = "main", dtype: str = "float32", device: str = "cpu") -> PublicModel:
    """Return a model from a folder that ``save_pretrained`` wrote, or by its name from the Hugging Face hub.

    ``dtype`` is the precision of its weights and activations, float32 or bfloat16. Raises ProbeError when transformers
    is not installed, the model or its tokenizer cannot be had, weights are missing, or the device is not there.
    """
    transformers = _transformers()
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ProbeError("no CUDA device is here; measure on the cpu")
    source = str(Path(name).expanduser()) if Path(name).expanduser().exists() else name
    try:
        network, loaded = transformers.AutoModelForCausalLM.from_pretrained(
            source, revision=revision, dtype=getattr(torch, dtype), output_loading_info=True, **NO_CODE
        )
    except Exception as error:  # of transformers or any library below it: to the user all mean the same
        raise ProbeError(
            f"cannot load the model {name!r}: {_words(error)}; it must be a folder that save_pretrained wrote, or the "
            "name of a causal language model on the hub, such as EleutherAI/pythia-70m"
        ) from None
    absent = sorted(loaded["missing_keys"]) + sorted(key for key, *_ in loaded["mismatched_keys"])
    if absent:
        raise ProbeError(
            f"{name!r} lacks the weights {', '.join(absent[:3])}: measured on random ones, it says nothing"
        )
    head = network.get_output_embeddings()
    if not isinstance(head, nn.Linear) or not head.weight.is_floating_point():
        raise ProbeError(f"{name!r} has no output embedding of floating-point numbers, but {type(head).__name__}")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, revision=revision, **NO_CODE)
    except Exception as error:  # as above
        raise ProbeError(f"cannot load the tokenizer of {name!r}: {_words(error)}") from None
    longest = getattr(network.config.get_text_config(), "max_position_embeddings", None)
    commit = getattr(network.config, "_commit_hash", None) or ""
    return PublicModel(name, commit, tokenizer, network.to(device).eval(), head, longest)


def _transformers() -> ModuleType:
    try:
        import transformers
    except ImportError:
        raise ProbeError('public models need transformers: pip install "isoloss[hf]"') from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


@contextmanager
def _without_head(network: Any, head: nn.Module) -> Iterator[None]:
    """Have the network return what its head reads, so that no logits of all tokens are ever made."""
    name = next(name for name, module in network.named_modules() if module is head)
    network.set_submodule(name, nn.Identity())
    try:
        yield
    finally:
        network.set_submodule(name, head)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
