"""Batch normalisation preconditioning of the gradients of a model."""

import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from cayley.optim.optimizer import innermost
from cayley.preconditioners.checks import check_model, check_settings
from cayley.preconditioners.compiled import drop_code_without_hooks
from cayley.preconditioners.distributed import gather_statistics
from cayley.preconditioners.joint import Damping
from cayley.preconditioners.plan import Pattern, join, make_plan
from cayley.preconditioners.rule import Rule, suspended
from cayley.preconditioners.rules import default_rules
from cayley.preconditioners.statistics import RunningStatistics, Statistics
from cayley.preconditioners.unit import Unit
from cayley.processes import world_size

__all__ = ["BNP"]


class BNP:
    r"""Batch normalisation preconditioning: the effect of batch norm on training without a layer.

    .. math:: \theta \leftarrow \theta - \alpha P P^\top g

    For each weight, P is made from the mean and variance of the rows that it multiplies, so that a
    step equals a step of gradient descent on the same layer with normalised inputs; see
    :func:`~cayley.preconditioners.joint.joint`. The forward pass and inference do not change, no
    parameters are added, and a batch of one is enough for layers that see many rows of each
    example, as recurrent and convolutional ones do. Use it between ``backward`` and the optimizer::

        bnp = cayley.BNP(model)
        loss.backward()
        bnp.step()
        optimizer.step()

    or call ``bnp.attach(optimizer)`` once and leave out ``bnp.step()``. The hooks on the model go
    away with the BNP object and the optimizers that it is attached to.

    A row counts if a backward pass gives its output a gradient other than 0. So padding and nodes
    that no target depends on are left out, and so are evaluation, teacher models and passes without
    a backward pass. Put passes that are differentiated twice, but not trained, into :meth:`paused`.
    Several backward passes before a step are pooled, and equal one over the whole batch; the same
    holds for the processes of ``DistributedDataParallel``, which must all call :meth:`step`.

    Note:
        BNP is linear in the gradient: it may come before or after ``GradScaler.unscale_``. Clipping
        after it bounds the step, clipping before it bounds the gradient. The optimizer's weight
        decay is not preconditioned, a penalty in the loss is. Adam divides by its own scales, and
        little of BNP remains but the centring: use SGD, with or without momentum.

        A gradient with inf or NaN keeps some of them, and does not change running statistics.

        Without a trained bias nothing is centred, and weights are scaled by second moments.

        A single row has no variance, and nothing of its gradient is left when it is centred: a
        dense layer that sees one row a step does not train, and with a momentum its rate becomes
        1/ε times as large.

    References:
        Batch Normalization Preconditioning for Neural Network Training, Lange, Helfrich, Ye, 2022.
        Orthogonal Recurrent Neural Networks and Batch Normalization in Deep Neural Networks
        (dissertation), Helfrich, 2020, section 3.3.
        Normalization Techniques for Sequential and Graphical Data (dissertation), Pospisil, 2023,
        chapter 2.

    Arguments:
        model: The model, also in ``DistributedDataParallel`` or compiled. Code that was compiled
            before, of any model, is compiled again when it next runs.
        eps: Added to every variance. It bounds the learning rate of features that hardly vary.
        relative_eps: The same, relative to the largest variance among the features of a layer.
        momentum: The ρ of an exponential average of the statistics; None for those of the batch.
        start: Where the average starts: ``"batch"``, at the first batch, or ``"identity"``, at
            μ = 0 and σ² = 1, which makes P the identity at first.
        q: Whether to divide by q² = max(features / rows, 1), for batches smaller than the layer.
        include: Modules to precondition, each with all its submodules: names, in which ``*``
            matches anything, or types. None for all.
        exclude: Modules to leave out, in the same form.
        rules: The rules for kinds of modules; None for
            :func:`~cayley.preconditioners.default_rules`.
        sync: Whether processes of torch.distributed share their statistics.
        process_group: The processes that do; None for all.
        dtype: The minimum precision of the statistics.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1, bias=False))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> bnp = BNP(model, eps=1e-2).attach(optimizer)
        >>> model(torch.randn(20, 2)).square().mean().backward()
        >>> optimizer.step()
        >>> bnp.report()
        {'0.weight': 'Linear: [weight, bias]', '0.bias': 'Linear: [weight, bias]',
         '2.weight': 'Linear: [weight]'}
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        eps: float = 1e-2,
        relative_eps: float = 0.0,
        momentum: float | None = None,
        start: Literal["batch", "identity"] = "batch",
        q: bool = False,
        include: Pattern | Sequence[Pattern] | None = None,
        exclude: Pattern | Sequence[Pattern] = (),
        rules: Sequence[Rule] | None = None,
        sync: bool = True,
        process_group: "dist.ProcessGroup | None" = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_settings(eps, relative_eps, momentum, start, dtype)
        check_model(model, sync)
        if isinstance(model, DistributedDataParallel):
            model = model.module
        # names are those of the model itself, even if torch.compile has wrapped it
        self.model = model = model._modules.get("_orig_mod") or model
        self.damping = Damping(eps, relative_eps, q)
        self.momentum = momentum
        self.start: Literal["batch", "identity"] = start
        self.sync = sync
        self.process_group = process_group
        self._units, self._reasons = make_plan(
            model,
            default_rules() if rules is None else rules,
            None if include is None else _patterns("include", include),
            _patterns("exclude", exclude),
            dtype,
        )
        if not self._units:
            why = "".join(f"\n  {name}: {reason}" for name, reason in self._reasons.items())
            why = why or f" {type(model).__name__} has no parameters"
            raise ValueError(f"BNP: expected a model with a layer to precondition, got none:{why}")
        drop_code_without_hooks()
        self._handles = [handle for unit in self._units for handle in unit.watch()]
        # a BNP that no longer exists must not keep others from using the model
        weakref.finalize(self, _remove, self._handles)

    @torch.no_grad()
    def step(self) -> None:
        """Precondition the gradients in place, once; call it before ``optimizer.step()``.

        A second call without a backward pass in between changes nothing.
        """
        self._check_in_place()
        found = [unit.collector.take() for unit in self._units]
        if self.sync and world_size(self.process_group) > 1:
            found = self._gather(found)
        pairs = [*zip(self._units, found, strict=True)]
        unseen = [unit for unit, statistics in pairs if unit.is_unseen(statistics)]
        if unseen and drop_code_without_hooks():
            warnings.warn(
                f"BNP: {unseen[0].name or 'the model'} has a gradient, but no forward pass of it "
                "was seen: torch.compile had compiled modules of its classes before, without "
                "BNP's hooks. That code is dropped now, and the next pass will be seen; the "
                "gradient of this one is not preconditioned",
                stacklevel=2,
            )
            pairs = [(unit, statistics) for unit, statistics in pairs if unit not in unseen]
        for unit, statistics in pairs:
            unit.step(statistics, self.damping, self.momentum, self.start)

    def attach(self, optimizer: Optimizer) -> "BNP":
        """Make every ``optimizer.step()`` call :meth:`step` first.

        ``optimizer.step(closure)``, as Lightning calls it, is preconditioned after each call of the
        closure. An optimizer that wraps another, such as accelerate's, passes it on.

        Arguments:
            optimizer: An optimizer of all parameters that are preconditioned.

        Returns:
            This object.
        """
        optimizer = innermost(optimizer)
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for unit in self._units:
            for name in unit.names:
                p = unit.parameter(name)
                if p.requires_grad and id(p) not in held:
                    # a notebook keeps the traceback, which must not keep this object alive
                    del self
                    raise ValueError(
                        f"BNP: expected an optimizer of all parameters that are preconditioned, "
                        f"but {join(unit.name, name)} is not a parameter of this "
                        f"{type(optimizer).__name__}: leave its module out with exclude=, freeze "
                        "it, or call bnp.step() yourself"
                    )
        self._handles.append(optimizer.register_step_pre_hook(self._before_step))
        return self

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self.step()
            return None

        def preconditioned() -> Any:
            # the closure computes the gradients, as often as the optimizer calls it
            loss = closure()
            self.step()
            return loss

        if len(args) > 1:
            return (args[0], preconditioned, *args[2:]), kwargs
        return args, {**kwargs, "closure": preconditioned}

    def report(self) -> dict[str, str]:
        """For every parameter, the rule and the blocks that apply to it, or why none does."""
        served: dict[str, str] = {}
        for unit in self._units:
            for name in unit.names:
                served[join(unit.name, name)] = unit.describe(name)
        late = "it came after BNP was made: make a new BNP"
        return {
            name: served.get(name) or self._reasons.get(name, late)
            for name, _ in self.model.named_parameters()
        }

    def paused(self) -> AbstractContextManager[None]:
        """Context whose forward passes do not count, nor do backward passes through them.

        For losses that are differentiated but not trained: a backward pass with
        ``create_graph=True`` counts otherwise, since its gradient may be part of the loss.

        Example:
            >>> model, x = nn.Linear(2, 1), torch.randn(5, 2, requires_grad=True)
            >>> bnp = BNP(model)
            >>> with bnp.paused():
            ...     slope = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        """
        return suspended(self.model)

    def remove(self) -> None:
        """Remove all hooks from the model and the optimizers; gradients are left as they are."""
        _remove(self._handles)

    def state_dict(self) -> dict[str, Any]:
        """The running statistics of every module, by its name; nothing without a momentum.

        ``averages`` holds mean, variance and second moment, (3, F), and ``weight`` the total weight
        of the batches in them.
        """
        return {unit.name: self._averages(unit) for unit in self._units}

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what :meth:`state_dict` returned, for the same modules of the same sizes."""
        own = self.state_dict()
        wrong = [f"missing {name!r}" for name in own if name not in state_dict]
        wrong += [f"unexpected {name!r}" for name in state_dict if name not in own]
        for name in own:
            loaded = state_dict.get(name, own[name])
            if not isinstance(loaded, Mapping):
                wrong.append(f"{name!r}: expected statistics by site, got {loaded!r}")
                continue
            wrong += [f"missing {name!r}, {site}" for site in own[name] if site not in loaded]
            wrong += [f"unexpected {name!r}, {site}" for site in loaded if site not in own[name]]
            for site in own[name].keys() & loaded.keys():
                faults = _faults(own[name][site], loaded[site])
                wrong += [f"{name!r}, {site}: {fault}" for fault in faults]
        if wrong:
            raise ValueError(
                "BNP: expected the state of the same modules, with a momentum if this one has one: "
                + "; ".join(wrong)
            )
        for unit in self._units:
            for site, running in self._running(unit).items():
                running.averages.copy_(state_dict[unit.name][site]["averages"])
                running.weight.copy_(state_dict[unit.name][site]["weight"])

    def _running(self, unit: Unit) -> dict[str, RunningStatistics]:
        return {} if self.momentum is None else unit.running_statistics(self.momentum, self.start)

    def _averages(self, unit: Unit) -> dict[str, dict[str, Tensor]]:
        return {
            site: {"averages": running.averages.clone(), "weight": running.weight.clone()}
            for site, running in self._running(unit).items()
        }

    def _gather(self, found: Sequence[Mapping[str, Statistics]]) -> list[dict[str, Statistics]]:
        """The statistics of all processes, for all sites of all modules in the same order."""
        keys = [(i, site) for i, unit in enumerate(self._units) for site in unit.sites()]
        local = [found[i].get(site) or self._units[i].no_rows(site) for i, site in keys]
        result: list[dict[str, Statistics]] = [{} for _ in found]
        everywhere = gather_statistics(local, self.process_group)
        for (i, site), statistics in zip(keys, everywhere, strict=True):
            result[i][site] = statistics
        return result

    def _check_in_place(self) -> None:
        if not self._handles:
            raise RuntimeError("BNP: step() was called after remove(): make a new BNP")
        modules = dict(self.model.named_modules())
        for unit in self._units:
            if modules.get(unit.name) is not unit.modules[0]:
                raise RuntimeError(
                    f"BNP: {unit.name} has been replaced by another module since BNP was made: "
                    "call remove() and make a new BNP"
                )
            # raises if one is gone, before the gradients of any module are changed
            unit.parameters()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "BNP belongs to one model, whose hooks it holds, and cannot be copied or pickled: for "
            "a copy of the model make BNP(copy), and save bnp.state_dict()"
        )


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()


def _patterns(argument: str, patterns: Pattern | Sequence[Pattern]) -> tuple[Pattern, ...]:
    single = isinstance(patterns, str | type) or not isinstance(patterns, Iterable)
    found = (patterns,) if single else tuple(patterns)
    for pattern in found:
        if not isinstance(pattern, str | type):
            raise TypeError(
                f"BNP: expected {argument} as names or types of modules, got {pattern!r}: write "
                f'{argument}=["name", nn.Linear]'
            )
    return found


def _faults(own: Mapping[str, Tensor], loaded: Any) -> Iterator[str]:
    """What is wrong with the saved statistics of a site."""
    if not isinstance(loaded, Mapping):
        yield f"expected {' and '.join(own)}, got {loaded!r}"
        return
    for key, mine in own.items():
        value = loaded.get(key)
        expected = tuple(mine.shape)
        if not isinstance(value, Tensor):
            yield f"expected {key} {expected}, got {value!r}"
        elif tuple(value.shape) != expected:
            yield f"expected {key} {expected}, got {tuple(value.shape)}"
        elif not value.isfinite().all():
            yield f"expected finite {key}, got NaN or infinite ones"
