"""BNP in other training loops: callbacks for Lightning and for Hugging Face's Trainer."""

from importlib import import_module
from typing import Any

from cayley.preconditioners.bnp import BNP

__all__ = ["huggingface_callback", "lightning_callback"]


def lightning_callback(**settings: Any) -> Any:
    """A callback that preconditions the gradients of a ``LightningModule``.

    ``Trainer(callbacks=[lightning_callback(eps=1e-2)])`` makes :class:`~cayley.BNP` of the module
    when training starts, attaches it to the optimizer of the trainer, and removes it at the end.
    With several optimizers, each must have all parameters that are preconditioned. Running
    statistics are in the checkpoints.

    Arguments:
        settings: Keyword arguments of :class:`~cayley.BNP`.
    """
    base = _import("Callback", "lightning.pytorch", "pytorch_lightning").Callback

    class Preconditioning(base):
        """Precondition gradients while the trainer fits."""

        bnp: BNP | None = None
        loaded: dict[str, Any] | None = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.bnp = BNP(pl_module, **settings)
            if self.loaded:
                self.bnp.load_state_dict(self.loaded)
                self.loaded = None
            for optimizer in trainer.optimizers:
                self.bnp.attach(optimizer)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            if self.bnp is not None:
                self.bnp.remove()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self.on_train_end(trainer, pl_module)

        def state_dict(self) -> dict[str, Any]:
            return {} if self.bnp is None else self.bnp.state_dict()

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.loaded = state_dict

    return Preconditioning()


def huggingface_callback(**settings: Any) -> Any:
    """A callback that preconditions the gradients of the model of a ``transformers.Trainer``.

    ``Trainer(model, args, callbacks=[huggingface_callback(eps=1e-2)])`` makes :class:`~cayley.BNP`
    of the model when training begins, attaches it to the optimizer, and removes it at the end.

    Arguments:
        settings: Keyword arguments of :class:`~cayley.BNP`.
    """
    base = _import("TrainerCallback", "transformers").TrainerCallback

    class Preconditioning(base):
        """Precondition gradients while the trainer trains."""

        bnp: BNP | None = None

        def on_train_begin(
            self, args: Any, state: Any, control: Any, *, model: Any, optimizer: Any, **others: Any
        ) -> None:
            # the last training may have been interrupted
            self.on_train_end(args, state, control)
            self.bnp = BNP(model, **settings).attach(optimizer)

        def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if self.bnp is not None:
                self.bnp.remove()

    return Preconditioning()


def _import(name: str, *modules: str) -> Any:
    """The class from the first module that is installed; an error that names what to install."""
    for module in modules:
        try:
            return import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not module.startswith(error.name):
                raise
    package = modules[0].partition(".")[0]
    raise ModuleNotFoundError(
        f"expected {modules[0]}.{name}, got no such package: pip install {package}"
    )
