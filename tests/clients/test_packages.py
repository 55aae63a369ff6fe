"""Short programs with other packages; those that are not installed are left out, and named."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader, TensorDataset

import cayley
from cayley.preconditioners.callbacks import huggingface_callback, lightning_callback

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

T, B, I, N, CLASSES = 6, 12, 3, 8, 2  # noqa: E741


class Classifier(nn.Module):
    """The last state of a network, and a linear head."""

    def __init__(self, hidden: int = N) -> None:
        super().__init__()
        self.rnn = cayley.ScoRNN(I, hidden, batch_first=True)
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


def data() -> tuple[Tensor, Tensor]:
    x = torch.randn(B, T, I)
    return x, (x.sum((1, 2)) > 0).long()


def needs(package: str) -> Any:
    return pytest.importorskip(package, reason=f"{package} is not installed")


# it warns wherever Slurm is installed
@pytest.mark.filterwarnings("ignore:The `srun` command is available")
@pytest.mark.parametrize("preconditioned", [False, True])
def test_lightning_fabric(preconditioned: bool) -> None:
    """Fabric wraps model and optimizer."""
    fabric = needs("lightning_fabric").Fabric(accelerator="cpu", devices=1)
    module = Classifier().float()
    plain = torch.optim.SGD(module.parameters(), lr=0.1)
    bnp = cayley.BNP(module, eps=1e-2) if preconditioned else None
    model, optimizer = fabric.setup(module, plain)
    if bnp is not None:
        bnp.attach(optimizer)
    x, y = data()
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.float()), y)
        fabric.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_lightning(tmp_path: Path) -> None:
    """A LightningModule, whose optimizer is stepped with a closure, and BNP by a callback."""
    lightning = needs("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Classifier().float()

        def training_step(self, batch: Any, index: int) -> Tensor:
            x, y = batch
            return nn.functional.cross_entropy(self.model(x.float()), y)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(cayley.parameter_groups(self.model, lr=0.1))

    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        callbacks=[lightning_callback(eps=1e-2)],
    )
    trainer.fit(Module(), DataLoader(TensorDataset(*data()), batch_size=6))
    assert trainer.global_step == 4


def test_skorch() -> None:
    """A grid search over the size of the network."""
    skorch = needs("skorch")
    search = needs("sklearn.model_selection")
    x, y = data()
    net = skorch.NeuralNetClassifier(
        Classifier, criterion=nn.CrossEntropyLoss, max_epochs=2, lr=0.1, verbose=0, train_split=None
    )
    grid = search.GridSearchCV(net, {"module__hidden": [4, 8]}, cv=2, refit=False)
    grid.fit(x.numpy(), y.numpy())
    assert len(grid.cv_results_["params"]) == 2


def test_hugging_face_trainer(tmp_path: Path) -> None:
    """A model that returns its loss, trained, saved and loaded."""
    transformers = needs("transformers")
    needs("accelerate")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.classifier = Classifier()

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            scores = self.classifier(x.float())
            return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}

    x, y = data()
    examples: Any = [{"x": a, "labels": b} for a, b in zip(x, y, strict=True)]
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=3, use_cpu=True, report_to=[], save_steps=3, disable_tqdm=True
    )
    trainer = transformers.Trainer(
        Model().float(),
        arguments,
        train_dataset=examples,
        callbacks=[huggingface_callback(eps=1e-2)],
    )
    trainer.train()
    assert [*tmp_path.glob("checkpoint-3/*.safetensors")]


def test_captum() -> None:
    """Integrated gradients of the input add up to the difference of the scores."""
    attribution = needs("captum.attr")
    model = Classifier().eval()
    x, _ = data()
    found = attribution.IntegratedGradients(model).attribute(x, target=0, n_steps=200)
    difference = model(x)[:, 0] - model(torch.zeros_like(x))[:, 0]
    torch.testing.assert_close(found.sum((1, 2)), difference, rtol=0, atol=1e-2)


def test_optuna() -> None:
    """A search over the learning rate."""
    optuna = needs("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    x, y = data()

    def objective(trial: Any) -> float:
        model = Classifier()
        rate = trial.suggest_float("lr", 1e-3, 1e-1, log=True)
        optimizer = torch.optim.Adam(cayley.parameter_groups(model, lr=rate))
        for _ in range(3):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        return loss.item()

    study = optuna.create_study()
    study.optimize(objective, n_trials=2)
    assert len(study.trials) == 2


def test_opacus() -> None:
    """It refuses buffers, as D is one, and says so."""
    opacus = needs("opacus")
    model = Classifier().float()
    x, y = data()
    with pytest.raises(NotImplementedError, match="buffers"):
        opacus.PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(TensorDataset(x.float(), y), batch_size=6),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )


def test_gradients_of_each_example() -> None:
    """What private training clips, by torch.func."""
    model, (x, y) = Classifier(), data()
    parameters: dict[str, Tensor] = dict(model.named_parameters())

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        scores = functional_call(model, parameters, (x[None],))
        return nn.functional.cross_entropy(scores, y[None])

    found = vmap(grad(loss), (None, 0, 0))(parameters, x, y)
    for k in range(B):
        expected = grad(loss)(parameters, x[k], y[k])
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name][k], gradient)


def test_torch_geometric() -> None:
    """A network over the features of the nodes, after a graph convolution, as gcn.py has it."""
    conv = needs("torch_geometric.nn").GCNConv(I, N)
    rnn, edges = cayley.ScoRNN(N, N), torch.tensor([[0, 1, 2], [1, 2, 0]])
    x = torch.randn(T, 3, I)
    output, _ = rnn(torch.stack([conv(x_t, edges).relu() for x_t in x]))
    output.sum().backward()
    assert conv.lin.weight.grad is not None
