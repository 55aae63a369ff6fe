"""The model for the Hub: trained without it, saved and loaded with it."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from cayley.hub import SequenceModel
from cayley.layers import NETWORKS

HUB = importlib.util.find_spec("huggingface_hub") is not None


@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_learns_tokens_and_features(network: str) -> None:
    tokens = SequenceModel(network, 8, outputs=5, vocabulary=7, input_size=3)
    scores, _ = tokens(torch.randint(7, (6, 4)))
    scores.sum().backward()
    assert scores.shape == (6, 4, 5)
    features = SequenceModel(network, 8, outputs=5, input_size=3, last=True)
    assert features(torch.randn(6, 4, 3))[0].shape == (4, 5)


def test_unknown_networks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected a network of .*'ScoRNN'.*got 'scornn'"):
        SequenceModel("scornn", 8, outputs=5)


@pytest.mark.skipif(HUB, reason="huggingface_hub is installed")
def test_without_the_hub_it_says_what_to_install() -> None:
    model: Any = SequenceModel("ScoRNN", 8, outputs=5)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'cayley\[hub\]'"):
        model.save_pretrained("folder")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'cayley\[hub\]'"):
        SequenceModel.from_pretrained("folder")


@pytest.mark.skipif(not HUB, reason="huggingface_hub is not installed")
@pytest.mark.parametrize("network", NETWORKS)
def test_what_is_saved_loads(network: str, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    # its files know no complex128
    torch.set_default_dtype(torch.float32)
    model: Any = SequenceModel(network, 8, outputs=5, vocabulary=7, input_size=3)
    model.save_pretrained(tmp_path, model_card_kwargs={"recipe": "mine", "score": "0.5"})
    twin = SequenceModel.from_pretrained(tmp_path).eval()
    tokens = torch.randint(7, (6, 4))
    torch.testing.assert_close(twin(tokens), model.eval()(tokens))
    assert (tmp_path / "model.safetensors").exists()
    assert not [*tmp_path.glob("*.py"), *tmp_path.glob("*.bin")]


def test_the_last_step_is_that_of_each_example() -> None:
    options: Any = {"batch_first": True}
    model: Any = SequenceModel("ScoRNN", 8, outputs=3, last=True, input_size=2, options=options)
    x = torch.randn(4, 7, 2)
    y = model(x)[0]
    assert y.shape == (4, 3)
    for example, own in zip(x, y, strict=True):
        torch.testing.assert_close(model(example)[0], own)
    with pytest.raises(TypeError, match="got a packed sequence"):
        model(pack_sequence([x[0]]))
