"""A decoder, its loss and its optimizer in float64 numpy, written from the papers' formulas alone.

It has a forward pass only: gradients are complex-step derivatives (Squire & Trapp 1998), im f(w + ih) / h with
h = 1e-30, which are exact to float64 rounding and need no backward pass that could be wrong in the same way as
another. Every function is therefore analytic in the weights: no absolute values, no real maxima; and broadcasts over
leading axes of a weight, so that one pass takes the derivative by every entry of a matrix.
"""

# B sequences, T positions, V vocabulary, M width, F width of the MLP, H attention heads, K key/value heads,
# C width of one head, D rank of a head, E entries of a matrix

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Weights = dict[str, np.ndarray]
"""By name: embedding, final_norm, head (or head_out and head_in), and by block: 0.query, 0.key, 0.value, 0.output,
0.gate, 0.up, 0.down, 0.attention_norm, 0.mlp_norm. Matrices map columns to rows (y = W x)."""


@dataclass(frozen=True)
class Shape:
    depth: int
    heads: int
    kv_heads: int
    theta: float
    epsilon: float


def apply(matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
    """W x for every x."""
    return x @ np.swapaxes(matrix, -1, -2)


def rms_norm(x: np.ndarray, gain_M: np.ndarray, epsilon: float) -> np.ndarray:
    """Zhang & Sennrich 2019: x / sqrt(mean(x^2) + epsilon) * gain."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * gain_M


def rope(x_BTC: np.ndarray, theta: float) -> np.ndarray:
    """Su et al. 2021, eq. 15: the pair (x_i, x_{i + C/2}) of position m turns by the angle m theta^(-2i/C)."""
    T, C = x_BTC.shape[-2:]
    angle = np.outer(np.arange(T), theta ** (-2 * np.arange(C // 2) / C))
    first, second = x_BTC[..., : C // 2], x_BTC[..., C // 2 :]
    turned = first * np.cos(angle) - second * np.sin(angle), first * np.sin(angle) + second * np.cos(angle)
    return np.concatenate(turned, -1)


def attention(x_BTM: np.ndarray, w: Weights, block: int, shape: Shape) -> np.ndarray:
    """Vaswani et al. 2017 with grouped queries (Ainslie et al. 2023): H / K neighbours share a key and value."""
    T, M = x_BTM.shape[-2:]
    C = M // shape.heads
    query, key, value = (apply(w[f"{block}.{name}"], x_BTM) for name in ("query", "key", "value"))
    mixed = []
    for head in range(shape.heads):
        group = head // (shape.heads // shape.kv_heads)
        query_BTC = rope(query[..., head * C : (head + 1) * C], shape.theta)
        key_BTC = rope(key[..., group * C : (group + 1) * C], shape.theta)
        value_BTC = value[..., group * C : (group + 1) * C]
        weight_BTT = np.exp(apply(key_BTC, query_BTC) / np.sqrt(C)) * np.tril(np.ones((T, T)))
        mixed.append(weight_BTT @ value_BTC / weight_BTT.sum(-1, keepdims=True))
    return apply(w[f"{block}.output"], np.concatenate(mixed, -1))


def swiglu(x_BTM: np.ndarray, w: Weights, block: int) -> np.ndarray:
    """Shazeer 2020: down(swish(gate x) * up x), swish(z) = z / (1 + e^-z)."""
    gate_BTF, up_BTF = apply(w[f"{block}.gate"], x_BTM), apply(w[f"{block}.up"], x_BTM)
    return apply(w[f"{block}.down"], gate_BTF / (1 + np.exp(-gate_BTF)) * up_BTF)


def losses(w: Weights, inputs_BT: np.ndarray, targets_BT: np.ndarray, shape: Shape, vocab_size: int) -> np.ndarray:
    """The cross-entropy of every position in nats; B x T."""
    x_BTM = np.eye(w["embedding"].shape[-2])[inputs_BT] @ w["embedding"]
    for block in range(shape.depth):
        x_BTM = x_BTM + attention(rms_norm(x_BTM, w[f"{block}.attention_norm"], shape.epsilon), w, block, shape)
        x_BTM = x_BTM + swiglu(rms_norm(x_BTM, w[f"{block}.mlp_norm"], shape.epsilon), w, block)
    h_BTM = rms_norm(x_BTM, w["final_norm"], shape.epsilon)
    if "head_out" in w:
        z_BTV = apply(w["head_out"] @ w["head_in"], h_BTM)
    elif "head" in w:
        z_BTV = apply(w["head"], h_BTM)
    else:
        z_BTV = apply(w["embedding"][..., :vocab_size, :], h_BTM)
    rows, columns = np.indices(targets_BT.shape)
    return np.log(np.exp(z_BTV).sum(-1)) - z_BTV[..., rows, columns, targets_BT]


def gradients(w: Weights, loss: Callable[[Weights], np.ndarray]) -> Weights:
    """The derivative of ``loss(weights)`` by every single weight."""
    step, out = 1e-30, {}
    for name, value in w.items():
        moved_EE = value.ravel() + 1j * step * np.eye(value.size)
        moved = moved_EE.reshape(value.size, 1, *np.atleast_2d(value).shape)  # entries, then an axis for B
        out[name] = loss({**w, name: moved}).imag.reshape(value.shape) / step
    return out


@dataclass
class AdamW:
    """Loshchilov & Hutter 2019, Algorithm 2, after clipping by the global norm (Pascanu et al. 2013)."""

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip_norm: float

    def __post_init__(self) -> None:
        self.t, self.m, self.v = 0, {}, {}
        self.norms: list[float] = []

    def update(self, w: Weights, gradient: Weights, learning_rate: float) -> Weights:
        norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
        self.norms.append(float(norm))
        shrink = min(1.0, self.clip_norm / norm)
        self.t += 1
        out = {}
        for name, g in gradient.items():
            g = g * shrink
            self.m[name] = self.beta1 * self.m.get(name, 0.0) + (1 - self.beta1) * g
            self.v[name] = self.beta2 * self.v.get(name, 0.0) + (1 - self.beta2) * g**2
            mean = self.m[name] / (1 - self.beta1**self.t)
            square = self.v[name] / (1 - self.beta2**self.t)
            decay = 0.0 if name.endswith("norm") else self.weight_decay
            out[name] = w[name] - learning_rate * (mean / (np.sqrt(square) + self.epsilon) + decay * w[name])
        return out
