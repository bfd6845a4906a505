"""The training of one trial: a pure function of the trial, up to the hardware's arithmetic."""

# B sequences of a batch, T positions

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isoloss import tasks
from isoloss.model.decoder import LanguageModel
from isoloss.model.sharded import release, sharded_model, whole
from isoloss.outcome import Curve
from isoloss.result import SERIES, TEXT_SERIES, Result
from isoloss.study import Trial
from isoloss.tasks.base import UNSCORED, Batch
from isoloss.train.checkpoint import pack, unpack
from isoloss.train.held_out import Meter
from isoloss.train.looks import Looks
from isoloss.train.prefetch import Prefetch
from isoloss.train.probes import Prober
from isoloss.train.settings import Settings
from isoloss.train.shares import micro_batches
from isoloss.train.workers import Workers

CHECK_STEPS = 32
"""Updates between looks at the training series: each look waits for the device."""


class Stopped(Exception):
    """Training was asked to stop, and its state has been given to ``save``."""


class Training:
    """The state of one trial in training: model, optimizer, step and the curve so far."""

    def __init__(self, trial: Trial, settings: Settings, workers: Workers) -> None:
        self.micro_batches = micro_batches(trial, workers.count, settings.micro_batch)
        self.trial, self.settings, self.workers = trial, settings, workers
        self.device = torch.device(settings.device)
        self.data = tasks.load(trial, Path(settings.data) if settings.data else None)
        held, probes = self.data.held_out(), trial.evaluation.probes
        self.meter = Meter(held, trial.task.vocab_size, workers, self.device)
        self.prober = None if probes is None else Prober(probes, held, self.device)
        self.bare_model = sharded_model(trial, self.device) if settings.shard else LanguageModel(trial).to(self.device)
        torch.manual_seed(trial.stream("training"))
        self.model: nn.Module = self.bare_model
        if settings.compile:
            torch.compiler.reset()  # else the ninth shape that a slot meets would silently run uncompiled
            self.model = torch.compile(self.model)  # type: ignore[assignment]
        if workers.count > 1 and not settings.shard:
            # DDP regroups gradients after its first update, unless it looks for unused ones. In another group, numbers
            # of more than two workers are added in another order: resuming would not come to the same bytes.
            self.model = nn.parallel.DistributedDataParallel(self.model, find_unused_parameters=workers.count > 2)
        self.parameters = list(self.bare_model.parameters())
        self.optimizer = build_optimizer(trial, self.parameters)
        self.evaluate_after = set(trial.evaluation.steps(trial.steps))
        self.step = 0
        self.batches: Prefetch | None = None
        self.ended: str | None = None
        self.series = (*SERIES, *(TEXT_SERIES if self.meter.bytes_U is not None else ()))
        self.series += () if self.prober is None else self.prober.series
        self.curve: dict[str, list[Any]] = {name: [] for name in ("step", "loss", "standard_error", *self.series)}
        self.pending: list[Tensor] = []  # (loss, gradient norm) of the updates since the last evaluation
        self.checked = 0  # how many of the pending updates are known to be finite

    # --- one update

    def update(self) -> None:
        """Take one step of the optimizer."""
        trial = self.trial
        if self.batches is None:
            self.batches = Prefetch(self._batch, self.step, trial.steps, self.device)
        batch = next(self.batches)
        self.learning_rate = trial.optimizer.learning_rate * trial.optimizer.schedule.factor(self.step, trial.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate
        loss = self._backward(batch)
        prober = self.prober if self.step + 1 in self.evaluate_after else None
        if prober is not None:
            prober.before_update(self.bare_model)
        norm = whole(nn.utils.clip_grad_norm_(self.parameters, trial.optimizer.clip_norm))
        self.optimizer.step()
        if prober is not None:
            prober.after_update(self.bare_model)
        self.optimizer.zero_grad(set_to_none=True)
        self.pending.append(torch.stack([loss, norm]))
        self.step += 1

    def _backward(self, batch: Batch) -> Tensor:
        """Add up the gradient of the batch's mean loss, over all workers, micro-batch by micro-batch; return the loss.

        Every scored token of the batch weighs the same, wherever it is trained.
        """
        scored = self.workers.sum((batch.targets_BT != UNSCORED).sum())
        losses = []
        for number in range(self.micro_batches):
            inputs_BT, targets_BT = batch.part(number, self.micro_batches)
            with self._exchanging(last=number + 1 == self.micro_batches):
                with self._precision():
                    total = self.model(inputs_BT, targets_BT)
                loss = total * self.workers.count / scored  # gradients of workers are averaged, not summed
                loss.backward()
            losses.append(loss.detach())
        return self.workers.sum(torch.stack(losses).sum()) / self.workers.count

    def _exchanging(self, last: bool) -> AbstractContextManager[Any]:
        """Let workers that hold the whole model exchange gradients with the last micro-batch only.

        Those that share a model out exchange them with each, since nobody has room for gradients of the whole model.
        """
        if last or not isinstance(self.model, nn.parallel.DistributedDataParallel):
            return nullcontext()
        return self.model.no_sync()

    def _batch(self, step: int) -> Batch:
        return self.data.train(step, self.workers.rank, self.workers.count)

    def close(self) -> None:
        """End what runs beside the training."""
        if self.batches is not None:
            self.batches.close()

    def _precision(self) -> AbstractContextManager[Any]:
        if self.settings.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    # --- measuring

    def evaluate(self) -> None:
        """Add one point to the curve, or end the trial when it is not finite or the study's rule says so."""
        train_loss, gradient_norm = self._since_last()
        point: dict[str, float | None] = {
            "step": self.step,
            "train_loss": train_loss,
            "gradient_norm": gradient_norm,
            "learning_rate": self.learning_rate if self.step else None,
            **self.meter.measure(self._held_out_loss),
        }
        if not all(math.isfinite(value) for value in point.values() if value is not None):
            if self.step == 0:
                raise ValueError("the loss is not finite before the first update")
            self.ended = "nonfinite"
            return
        if self.prober is not None:
            point.update(self.prober.measure(self.bare_model))
        release(self.bare_model)
        for name, series in self.curve.items():
            series.append(point.get(name))
        if self._far_above_initial():
            self.ended = "above_initial"
        elif self.step == self.trial.steps:
            self.ended = "budget"

    def _far_above_initial(self) -> bool:
        """Say whether the loss has stayed far above the initial one for as long as the study's rule asks."""
        stop, steps = self.trial.stop, self.trial.steps
        if stop.above_initial is None:
            return False
        since = self.step
        for step, loss in zip(reversed(self.curve["step"]), reversed(self.curve["loss"]), strict=True):
            if loss <= stop.above_initial * self.curve["loss"][0]:
                break
            since = step
        return self.step - max(since, self.trial.optimizer.schedule.warmup * steps) >= stop.for_share * steps

    def _held_out_loss(self, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        with self._precision():
            loss_BT: Tensor = self.bare_model.loss(inputs_BT, targets_BT)
        return loss_BT

    def _since_last(self) -> tuple[float | None, float | None]:
        """Return mean training loss and largest gradient norm since the last evaluation."""
        if not self.pending:
            return None, None
        series = torch.stack(self.pending).double()
        self.pending, self.checked = [], 0
        return float(series[:, 0].mean()), float(series[:, 1].max())

    def finite(self) -> bool:
        """Say whether every update so far had a finite gradient, looking at the device every few steps only."""
        if len(self.pending) - self.checked >= CHECK_STEPS:
            # The norm is over all workers' averaged gradients, so every worker sees the same number.
            norms = torch.stack(self.pending[self.checked :])[:, 1]
            self.checked = len(self.pending)
            return bool(torch.isfinite(norms).all())
        return True

    # --- checkpoints

    def save(self) -> bytes:
        """Return everything that the rest of the trial depends on, on rank 0; every worker takes part.

        Any number of workers can go on from it, sharded or not. Data needs no state: it follows from the step.
        """
        rest = {
            "key": self.trial.key,
            "step": self.step,
            "curve": self.curve,
            "pending": torch.stack(self.pending).cpu() if self.pending else torch.zeros(0, 2),
            "generator": torch.get_rng_state(),
            "cuda_generator": torch.cuda.get_rng_state() if self.device.type == "cuda" else None,
        }
        return pack(self.bare_model, self.optimizer, rest, self.workers)

    def restore(self, data: bytes | None) -> None:
        """Continue from what ``save`` returned, which rank 0 alone needs; from the start where that is None."""
        rest = unpack(data, self.trial.key, self.bare_model, self.optimizer, self.workers)
        if rest is None:
            return
        self.step, self.curve = rest["step"], rest["curve"]
        self.pending = list(rest["pending"].to(self.device))
        torch.set_rng_state(rest["generator"])
        if rest["cuda_generator"] is not None:
            torch.cuda.set_rng_state(rest["cuda_generator"])


def build_optimizer(trial: Trial, parameters: list[nn.Parameter]) -> torch.optim.AdamW:
    """Return AdamW whose weight decay leaves the norms' gains alone."""
    config = trial.optimizer
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), eps=config.epsilon, fused=True
    )


def train(
    trial: Trial,
    settings: Settings,
    workers: Workers = Workers(),  # noqa: B008 (frozen)
    *,
    checkpoint: bytes | None = None,
    save: Callable[[bytes], None] = lambda data: None,
    report: Callable[[dict[str, Any]], None] = lambda point: None,
    stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Train one trial to its end and return its result; it never raises for diverging.

    ``checkpoint`` is what an earlier ``save`` was given, whatever the workers then; rank 0 alone needs it. On rank 0,
    ``save`` is called about every ``settings.checkpoint_seconds`` and ``report`` with each new point of the curve;
    ``stop`` is asked there, as often as ``Looks`` says. When it says so, all workers raise Stopped in the same update,
    after saving what is new. Raises UsageError when the batch cannot be shared out (``micro_batches``).
    """
    started = time.monotonic()
    training = Training(trial, settings, workers)
    training.restore(checkpoint)
    resumed_at = training.step
    try:
        saving, measuring = _run(training, settings, save, report, stop)
    finally:
        training.close()
    points = {name: tuple(series) for name, series in training.curve.items()}
    curve = Curve(points["step"], points["loss"], points["standard_error"], trial.task.floor, training.ended)  # type: ignore[arg-type]
    machine = {
        **settings.arithmetic,
        "workers": workers.count,
        "micro_batch": settings.micro_batch,
        "shard": settings.shard,
        "torch": torch.__version__,
        "hardware": torch.cuda.get_device_name() if settings.device == "cuda" else "cpu",
        "seconds": time.monotonic() - started,
        "measuring_seconds": measuring,
        "saving_seconds": saving,
        "resumed_at": resumed_at,
    }
    return Result(trial.key, trial.canonical, curve, {name: points[name] for name in training.series}, machine)


def _run(
    training: Training,
    settings: Settings,
    save: Callable[[bytes], None],
    report: Callable[[dict[str, Any]], None],
    stop: Callable[[], bool],
) -> tuple[float, float]:
    """Train to the end; return the seconds that saving and measuring took."""
    saving = measuring = 0.0
    resumed_at = training.step
    looks = Looks(training.workers, settings.checkpoint_seconds, stop)
    while training.ended is None:
        measured = training.curve["step"][-1:] == [training.step]
        if training.step in training.evaluate_after and not measured:
            begun = time.monotonic()
            training.evaluate()
            measuring += time.monotonic() - begun
            if training.ended != "nonfinite" and training.workers.rank == 0:
                report({name: series[-1] for name, series in training.curve.items()})
            continue
        decision = looks()
        if (decision.save or decision.stop) and training.step > resumed_at:
            begun = time.monotonic()
            state = training.save()
            if training.workers.rank == 0:
                save(state)
            looks.has_saved()
            saving += time.monotonic() - begun
        if decision.stop:
            raise Stopped
        training.update()
        if not training.finite():
            training.ended = "nonfinite"
    return saving, measuring
