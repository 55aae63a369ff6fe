"""The programs in ``examples``, with tiny sizes."""

import importlib.util
import math
import wave
from pathlib import Path
from types import ModuleType

import pytest
import torch

import cayley

FOLDER = Path(__file__).parent.parent / "examples"

pytestmark = [
    pytest.mark.skipif(not FOLDER.exists(), reason="examples are not installed"),
    pytest.mark.usefixtures("float32"),
]


@pytest.fixture
def float32(same_start: None) -> None:
    """As a user runs them."""
    torch.set_default_dtype(torch.float32)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_run_here() -> None:
    """Or by a test of what it is about, or by hand with its data."""
    text = Path(__file__).read_text()
    elsewhere = {"mnist_bnp"}
    assert all(
        f'load("{path.stem}")' in text for path in FOLDER.glob("*.py") if path.stem not in elsewhere
    )


def test_every_example_is_on_the_site() -> None:
    page = (FOLDER.parent / "docs" / "guides" / "examples.md").read_text()
    assert all(f"examples/{path.name}\n" in page for path in FOLDER.glob("*.py"))


def test_language_model(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat and the dog sat on the log. " * 60)
    small = ["--size", "12", "--vocabulary", "30", "--segment", "10"]
    found = load("language_model").main([str(text), "--steps", "80", *small])
    assert found["perplexity"] < found["frequencies"]


def test_language_model_has_a_text_of_its_own() -> None:
    assert len(load("language_model").read_words(None)) > 10_000


def test_forecasting() -> None:
    pytest.importorskip("matplotlib")
    found = load("forecasting").main(["--steps", "40", "--hidden", "16"])
    assert found["ScoRNN"] < found["unchanged"]
    assert math.isfinite(found["linear"])


def test_audio_frames() -> None:
    found = load("audio_frames").main(["--steps", "3", "--sizes", "8", "4"])
    assert all(map(math.isfinite, found.values()))


def test_audio_frames_of_files(tmp_path: Path) -> None:
    example = load("audio_frames")
    for number in range(5):
        sound = (example.gliding_tone(number) * 2**15).to(torch.int16)
        with wave.open(str(tmp_path / f"{number}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(bytes(sound.numpy()))
    found = example.main([str(tmp_path), "--steps", "2", "--sizes", "8", "4"])
    assert all(map(math.isfinite, found.values()))


def test_streaming() -> None:
    assert load("streaming").main(["--streams", "5", "--rounds", "20"]) < 1e-5


def test_custom_parametrization() -> None:
    found = load("custom_parametrization").main(
        ["--steps", "3", "--length", "10", "--hidden", "16"]
    )
    assert all(map(math.isfinite, found.values()))


def test_custom_parametrization_is_orthogonal() -> None:
    layer = cayley.RNN(2, 9, recurrent=load("custom_parametrization").Kronecker)
    W = layer.weight_hh_l0
    torch.testing.assert_close(W @ W.T, torch.eye(9))


def test_cora_on_a_small_graph() -> None:
    pytest.importorskip("torch_geometric")
    from torch_geometric.data import Data

    y = torch.arange(7).repeat(6)
    x = torch.nn.functional.one_hot(y, 20).float() + 0.1 * torch.rand(42, 20)
    edges = torch.stack((torch.arange(42), (torch.arange(42) + 7) % 42))
    mask = torch.arange(42) // 7
    data = Data(x=x, edge_index=edges, y=y, val_mask=mask == 4, test_mask=mask == 5)
    for method in ("SGD", "SGD+BNP", "Adam"):
        _, accuracy = load("cora").train(method, data, seed=0, lr=0.1, epochs=2)
        assert 0 <= accuracy <= 1


# those of other packages are not ours to cure
@pytest.mark.filterwarnings("ignore")
def test_lightning_module() -> None:
    pytest.importorskip("lightning")
    assert math.isfinite(load("lightning_module").main(["--steps", "2", "--length", "8"]))
