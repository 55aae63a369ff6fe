"""Statistics over the batch, for each time step apart, and what they are in the population."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["PopulationStatistics"]


class PopulationStatistics(nn.Module):
    r"""Mean and variance of every unit at every time step, over the batches seen in training.

    .. math::
        \bar\mu_t \leftarrow (1 - \alpha_t)\, \bar\mu_t + \alpha_t\, \mu_t, \qquad
        \alpha_t = \max(\alpha, 1/\text{batches that had a step } t)

    and the same for the variance: a plain mean at first, then a moving one. There are as many
    steps as the longest training sequence had; the last one stands for all beyond it.

    Note:
        The buffers grow with the longest sequence, and ``load_state_dict`` gives them the size they
        were saved with. Under ``DistributedDataParallel`` all ranks must see the same longest
        sequence, or keep their own statistics (``broadcast_buffers=False``).

    References:
        Recurrent Batch Normalization, Cooijmans, Ballas, Laurent, Gülçehre, Courville, 2017.

    Arguments:
        features: The number F of units.
        momentum: The α above.
        device, dtype: Of the statistics.

    Example:
        >>> population = PopulationStatistics(1)
        >>> population.update(torch.tensor([[1.0], [2.0]]), torch.ones(2, 1))
        >>> mean, variance = population(torch.tensor([0, 1, 2, 7]))
        >>> mean.flatten()
        tensor([1., 2., 2., 2.])
    """

    mean: Tensor
    var: Tensor
    batches: Tensor

    def __init__(
        self,
        features: int,
        *,
        momentum: float = 0.1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(1, features, device=device, dtype=dtype))
        self.register_buffer("var", torch.ones(1, features, device=device, dtype=dtype))
        self.register_buffer("batches", torch.zeros(1, device=device, dtype=torch.int64))

    def reset(self) -> None:
        """Forget all batches: one step with mean 0 and variance 1."""
        with torch.inference_mode(False):
            self.mean = torch.zeros_like(self.mean[:1])
            self.var = torch.ones_like(self.var[:1])
            self.batches = torch.zeros_like(self.batches[:1])

    def forward(self, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance at time steps counted from 0, (…) ↦ (…, F) each."""
        steps = steps.clamp(0, self.mean.shape[0] - 1)
        return self.mean[steps], self.var[steps]

    @torch.no_grad()
    def update(self, mean: Tensor, var: Tensor, start: int = 0) -> None:
        """Take in the statistics of one batch.

        Arguments:
            mean: Of each step, (T, F).
            var: The unbiased variance of each step, (T, F).
            start: The number of steps that the sequences had before.
        """
        T = mean.shape[0]
        missing = start + T - self.mean.shape[0]
        if missing > 0:
            # an inference tensor could not take in what comes outside of inference mode
            with torch.inference_mode(False):
                self.mean = torch.cat((self.mean, self.mean[-1:].expand(missing, -1)))
                self.var = torch.cat((self.var, self.var[-1:].expand(missing, -1)))
                self.batches = torch.cat((self.batches, self.batches.new_zeros(missing)))
        steps = slice(start, start + T)
        self.batches[steps] += 1
        rate = (1 / self.batches[steps]).clamp_min(self.momentum).to(self.mean.dtype)[:, None]
        self.mean[steps] += rate * (mean.to(self.mean.dtype) - self.mean[steps])
        self.var[steps] += rate * (var.to(self.var.dtype) - self.var[steps])

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        for name, buffer in self.named_buffers(recurse=False):
            saved = state_dict.get(f"{prefix}{name}")
            if saved is not None and saved.shape[1:] == buffer.shape[1:]:
                with torch.inference_mode(False):
                    setattr(self, name, buffer.new_empty(saved.shape))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        """The number of units and of steps seen."""
        steps, features = self.mean.shape
        return f"{features}, steps={steps}"
