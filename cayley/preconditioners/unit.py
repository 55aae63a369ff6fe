"""A module whose gradients are preconditioned, with its statistics."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from cayley.notices import warn_once
from cayley.preconditioners.collector import Collector
from cayley.preconditioners.joint import Block, Damping, precondition_
from cayley.preconditioners.rule import Observation, Rows, Rule
from cayley.preconditioners.statistics import RowStatistics, RunningStatistics, Statistics

__all__ = ["Unit", "names_of", "present"]


class Unit:
    """A module, or several with the same parameters, that one rule preconditions.

    Arguments:
        name: The name of the module in the model.
        modules: The module, and others that share all its parameters.
        rule: The rule for them.
        blocks: How the parameters are grouped.
        dtype: The minimum precision of the statistics.
    """

    def __init__(
        self,
        name: str,
        modules: Sequence[nn.Module],
        rule: Rule,
        blocks: Sequence[Block],
        dtype: torch.dtype,
    ) -> None:
        self.name = name
        self.modules = modules
        self.rule = rule
        self.blocks = blocks
        self.dtype = dtype
        self._wanted = {weight.site for block in blocks for weight in block.weights}
        self.collector = Collector(lambda: self.parameters().values(), dtype=dtype)
        self.running: dict[str, RunningStatistics] = {}

    def watch(self) -> list[RemovableHandle]:
        """Hook the modules."""
        return [
            handle for module in self.modules for handle in self.rule.watch(module, self._record)
        ]

    def _record(self, observation: Observation) -> None:
        outputs, rows_of, read = observation
        versions = _versions(read)

        def rows(grads: Sequence[Any]) -> dict[str, Rows]:
            if _versions(read) != versions and self._trains_weights():
                raise RuntimeError(
                    "BNP: expected the inputs of layers and the outputs of recurrent layers as "
                    "they were until the end of the backward pass, got one of "
                    f"{type(self.modules[0]).__name__} that was changed in place: write y = y + x "
                    "instead of y += x"
                )
            return {site: rows for site, rows in rows_of(grads).items() if site in self._wanted}

        self.collector.record(Observation(outputs, rows))

    def _trains_weights(self) -> bool:
        """Whether the rows are used: autograd lets the inputs of frozen weights change."""
        weights = (weight for block in self.blocks for weight in block.weights)
        return any(self.parameter(weight.name).requires_grad for weight in weights)

    @property
    def names(self) -> list[str]:
        """The names of the parameters that are preconditioned, within the module."""
        return names_of(self.blocks)

    def parameters(self) -> dict[str, Tensor]:
        """The parameters that are preconditioned, by name."""
        return {name: self.parameter(name) for name in self.names}

    def parameter(self, name: str) -> Tensor:
        """A parameter of the module; raise if it has become something else."""
        # looked up each time: casting or moving may have replaced the parameters
        try:
            return self.modules[0].get_parameter(name)
        except AttributeError:
            raise RuntimeError(
                f"BNP: {name} of {self.name or 'the model'} is no parameter of it any more: it has "
                "been pruned, parametrised or removed since BNP was made: call remove() and make a "
                "new BNP"
            ) from None

    def gradients(self) -> dict[str, Tensor]:
        """The gradients of trained parameters that have one, by the parameter's name."""
        # a parameter that has been frozen may still have one, of zeros, which is to stay so
        return {
            name: p.grad
            for name, p in self.parameters().items()
            if p.requires_grad and p.grad is not None
        }

    def sites(self) -> dict[str, tuple[int, torch.device, torch.dtype]]:
        """The number of features of each site, and device and dtype of its statistics."""
        result = {}
        for weight in (weight for block in self.blocks for weight in block.weights):
            W = self.parameter(weight.name)
            if not is_lazy(W):
                dtype = torch.promote_types(W.dtype, self.dtype)
                result[weight.site] = (W.shape[1] * weight.groups, W.device, dtype)
        return result

    def no_rows(self, site: str) -> Statistics:
        """Statistics of a site that saw nothing."""
        features, device, dtype = self.sites()[site]
        return Statistics.none(features, device=device, dtype=dtype)

    def describe(self, name: str) -> str:
        """How a parameter is preconditioned, or why it currently is not."""
        parameters = self.parameters()
        if not parameters[name].requires_grad:
            return "frozen"
        blocks: list[str] = []
        for block in self.blocks:
            weights = [w.name for w in block.weights if parameters[w.name].requires_grad]
            names = weights + [b.name for b in block.biases if parameters[b.name].requires_grad]
            if weights and name in names:
                blocks.append(f"[{', '.join(names)}]")
        if not blocks:
            return "its weight is frozen"
        seen = "" if self.collector.reached else ", not reached by a backward pass so far"
        return f"{self.rule.name}: {' + '.join(dict.fromkeys(blocks))}{seen}"

    def step(
        self,
        found: Mapping[str, Statistics],
        damping: Damping,
        momentum: float | None,
        start: Literal["batch", "identity"],
    ) -> None:
        """Precondition the gradients in place."""
        gradients = self.gradients()
        if not gradients:
            return
        if not found:
            if self.is_unseen(found):
                self._warn_unseen()
            return
        missing = {site: self.no_rows(site) for site in self._wanted - found.keys()}
        batches = {**found, **missing}
        statistics: Mapping[str, RowStatistics] = batches
        if momentum is not None:
            finite = torch.stack([g.isfinite().all() for g in gradients.values()]).all()
            statistics = self.running_statistics(momentum, start)
            # those without rows too: their averages stay, and are not used
            for site, batch in batches.items():
                statistics[site].update(batch, finite)
        precondition_(self.blocks, gradients, statistics, damping)

    def running_statistics(
        self, momentum: float, start: Literal["batch", "identity"]
    ) -> dict[str, RunningStatistics]:
        """The averages of all sites, where the model is now; new ones start here."""
        for site, (features, device, dtype) in self.sites().items():
            running = self.running.get(site)
            # those of the meta device have no values
            if running is None or running.averages.is_meta:
                self.running[site] = RunningStatistics(
                    features, momentum, start, device=device, dtype=dtype
                )
            else:
                running.move(device, dtype)
        return self.running

    def is_unseen(self, found: Mapping[str, Statistics]) -> bool:
        """Whether there are gradients, though no backward pass has ever reached the modules."""
        return not found and not self.collector.reached and bool(self.gradients())

    def _warn_unseen(self) -> None:
        warn_once(
            f"BNP: {self.name or 'the model'} has a gradient, but no forward pass of it was seen: "
            "its gradient is not preconditioned. Call the module itself rather than a function "
            "with its weights, or leave it out with exclude=",
            key="never reached",
            owner=self,
            stacklevel=4,
        )


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    """How often tensors have been changed in place; those of inference mode do not count."""
    return [x._version for x in tensors if not x.is_inference()]


def names_of(blocks: Sequence[Block]) -> list[str]:
    """The names of all parameters of some blocks, each once."""
    places = [place for block in blocks for place in (*block.weights, *block.biases)]
    return list(dict.fromkeys(place.name for place in places))


def present(blocks: Sequence[Block], parameters: Mapping[str, Tensor]) -> list[Block]:
    """The blocks reduced to the parameters that exist; blocks without a weight are dropped.

    Example:
        >>> from cayley.preconditioners.joint import Bias, Weight
        >>> block = Block((Weight("weight", "input"),), (Bias("bias"),))
        >>> present([block], {"weight": torch.ones(1, 1)})[0].biases
        ()
    """
    kept = [
        Block(
            tuple(weight for weight in block.weights if weight.name in parameters),
            tuple(bias for bias in block.biases if bias.name in parameters),
        )
        for block in blocks
    ]
    return [block for block in kept if block.weights]
