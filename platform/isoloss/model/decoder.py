"""A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU (Touvron et al. 2023)."""

# B sequences, T positions, N = B*T tokens, M width, F width of the MLP,
# H attention heads, K key/value heads, A = H + 2K, C width of one head

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoloss.config.parts import Decoder
from isoloss.model.heads import build_head
from isoloss.study import Trial


class Attention(nn.Module):
    """Causal attention; one matrix holds the projections to all queries, keys and values."""

    def __init__(self, config: Decoder) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.attention_heads, config.key_value_heads
        self.head_width = config.width // config.attention_heads
        self.inputs = nn.Linear(config.width, (self.heads + 2 * self.kv_heads) * self.head_width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x_BTM: Tensor, rotation_2TC: Tensor) -> Tensor:
        B, T, M = x_BTM.shape
        all_BTAC = self.inputs(x_BTM).view(B, T, self.heads + 2 * self.kv_heads, self.head_width)
        rotated_BATC, value_BKTC = all_BTAC.transpose(1, 2).split([self.heads + self.kv_heads, self.kv_heads], dim=1)
        query_BHTC, key_BKTC = rotate(rotated_BATC, rotation_2TC).split([self.heads, self.kv_heads], dim=1)
        mixed_BHTC = F.scaled_dot_product_attention(
            query_BHTC, key_BKTC, value_BKTC, is_causal=True, enable_gqa=self.heads != self.kv_heads
        )
        out_BTM: Tensor = self.out(mixed_BHTC.transpose(1, 2).reshape(B, T, M))
        return out_BTM


class Mlp(nn.Module):
    """SwiGLU; one matrix holds gate and up projections."""

    def __init__(self, config: Decoder) -> None:
        super().__init__()
        self.inputs = nn.Linear(config.width, 2 * config.mlp_width, bias=False)
        self.out = nn.Linear(config.mlp_width, config.width, bias=False)

    def forward(self, x_BTM: Tensor) -> Tensor:
        gate_BTF, up_BTF = self.inputs(x_BTM).chunk(2, dim=-1)
        out_BTM: Tensor = self.out(F.silu(gate_BTF) * up_BTF)
        return out_BTM


class Block(nn.Module):
    def __init__(self, config: Decoder) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=config.norm_epsilon)
        self.attention = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.width, eps=config.norm_epsilon)
        self.mlp = Mlp(config)

    def forward(self, x_BTM: Tensor, rotation_2TC: Tensor) -> Tensor:
        x_BTM = x_BTM + self.attention(self.attention_norm(x_BTM), rotation_2TC)
        out_BTM: Tensor = x_BTM + self.mlp(self.mlp_norm(x_BTM))
        return out_BTM


class LanguageModel(nn.Module):
    """Embedding, decoder and head of one trial.

    Its parameters are drawn on the CPU, each from its own stream of the trial's seed, so that a backbone is the same
    in every cell, whatever its vocabulary, head or device.
    """

    rotation_2TC: Tensor

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        config, task = trial.model, trial.task
        self.embedding = nn.Embedding(task.input_vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.RMSNorm(config.width, eps=config.norm_epsilon)
        self.head = build_head(trial.head, task.vocab_size, config, self.embedding)
        rotation_2TC = rotary(task.positions, config.width // config.attention_heads, config.rope_theta)
        self.register_buffer("rotation_2TC", rotation_2TC, persistent=False)
        for name, parameter in self.named_parameters():
            if not parameter.is_meta:  # else it is drawn where it gets its memory
                self.draw(trial, name, parameter)

    def forward(self, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return what training minimises, summed over the scored positions; a scalar, float32."""
        loss: Tensor = self.head.training_loss(self.hidden(inputs_BT).flatten(0, 1), targets_BT.flatten())
        return loss

    def loss(self, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the measured loss of each position in nats, 0 where it is not scored; B x T, float32, no gradient."""
        loss_N: Tensor = self.head.loss(self.hidden(inputs_BT).flatten(0, 1), targets_BT.flatten())
        return loss_N.view(targets_BT.shape)

    def hidden(self, inputs_BT: Tensor) -> Tensor:
        """Return the hidden states that the head reads; shape B x T x M."""
        x_BTM = self.embedding(inputs_BT)
        for block in self.blocks:
            x_BTM = block(x_BTM, self.rotation_2TC)
        out_BTM: Tensor = self.norm(x_BTM)
        return out_BTM

    @torch.no_grad()
    def draw(self, trial: Trial, name: str, out: Tensor) -> None:
        """Fill ``out``, on the CPU, with the initial value of the parameter of this name, unless that starts as built.

        It is N(0, initial_std), narrower by sqrt(2 depth) where a block adds to the residual stream (GPT-2).
        """
        scale: float | None = trial.model.initial_std
        if name.startswith("head."):
            scale = self.head.initial_scale(name.removeprefix("head."))
        elif out.ndim == 1:  # norms keep their ones
            scale = None
        elif name.endswith(("attention.out.weight", "mlp.out.weight")):
            scale = trial.model.initial_std / (2 * trial.model.depth) ** 0.5
        if scale is not None:
            generator = torch.Generator().manual_seed(trial.stream("init", name))
            out.normal_(0.0, scale, generator=generator)


def rotary(positions: int, head_width: int, theta: float) -> Tensor:
    """Return cosines and sines of the rotary angles (Su et al. 2021), the sines negated in the first half of a head."""
    frequency_C = theta ** (-torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
    angle_TC = torch.outer(torch.arange(positions, dtype=torch.float64), frequency_C)
    cosine_TC = torch.cat([angle_TC.cos(), angle_TC.cos()], dim=-1)
    signed_sine_TC = torch.cat([-angle_TC.sin(), angle_TC.sin()], dim=-1)
    return torch.stack([cosine_TC, signed_sine_TC]).float()


def rotate(x_BHTC: Tensor, rotation_2TC: Tensor) -> Tensor:
    """Turn dimension i and i + C/2 of each head together by the angle of their position."""
    cosine_TC, signed_sine_TC = rotation_2TC  # float32, also where autocast gives x fewer digits
    return x_BHTC * cosine_TC + x_BHTC.roll(x_BHTC.shape[-1] // 2, dims=-1) * signed_sine_TC
