"""A small sequence model that can be shared on the Hugging Face Hub.

Sharing needs the extra ``hub``, training nothing but torch. No other module imports this one.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from cayley.checks import check_integer
from cayley.layers import NETWORKS
from cayley.layers.recurrent import Recurrent, State

__all__ = ["SequenceModel"]

CARD = """---
{{ card_data }}
---

# {{ model_name | default("A sequence model of cayley", true) }}

An embedding, a recurrent network of [cayley](https://pypi.org/project/cayley) and a linear head.

- Recipe: {{ recipe | default("not stated", true) }}
- Score: {{ score | default("not stated", true) }}

```python
from cayley.hub import SequenceModel

model = SequenceModel.from_pretrained("{{ repo_id | default("this repository", true) }}")
```

Loading reads safetensors and a JSON of arguments, and executes no code of the repository.
"""

try:
    # pyrefly: ignore[missing-import]
    from huggingface_hub import PyTorchModelHubMixin as Hub
except ModuleNotFoundError as error:
    if error.name != "huggingface_hub":
        raise

    class Hub:
        """Replaces ``PyTorchModelHubMixin`` where it is missing, and says what to install."""

        def __init_subclass__(cls, **settings: Any) -> None:
            super().__init_subclass__()

        def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
            """Say what is missing."""
            raise ModuleNotFoundError(
                "expected the package huggingface_hub, got none: pip install 'cayley[hub]'; in a "
                "checkout, pip install --editable '.[hub]'"
            )

        push_to_hub = save_pretrained

        @classmethod
        def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
            """Say what is missing."""
            Hub().save_pretrained()


class SequenceModel(
    nn.Module, Hub, library_name="cayley", tags=["cayley"], license="mit", model_card_template=CARD
):
    """An embedding (unless the input is features), a network, and a linear head.

    ``save_pretrained(folder)`` writes safetensors and the arguments as JSON, ``from_pretrained``
    reads a folder or a repository, and ``push_to_hub`` uploads the model. With
    ``model_card_kwargs={"recipe": …, "score": …}`` the model card says what was trained, and its
    score.

    Arguments:
        network: A key of :data:`cayley.layers.NETWORKS`.
        hidden_size: The number of units; ENRNN makes half of them long-term, half short-term.
        outputs: The number p of outputs.
        vocabulary: The number of different tokens; 0 if the input is features.
        input_size: The number of features of an input or of an embedding.
        num_layers: The number of layers stacked.
        last: Whether there is an output for the last step only.
        options: Further keyword arguments of the network: numbers, strings and booleans.

    Shapes:
        Tokens (T, B), or features (T, B, I), and a state ↦ (T, B, p), or (B, p) with ``last``, and
        the state after the last step.

    Example:
        >>> import torch
        >>> model = SequenceModel("ScoRNN", 16, outputs=10, vocabulary=50, input_size=8)
        >>> scores, state = model(torch.randint(50, (20, 4)))
        >>> scores.shape
        torch.Size([20, 4, 10])
    """

    def __init__(
        self,
        network: str,
        hidden_size: int,
        *,
        outputs: int,
        vocabulary: int = 0,
        input_size: int = 1,
        num_layers: int = 1,
        last: bool = False,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if network not in NETWORKS:
            raise ValueError(f"expected a network of {sorted(NETWORKS)}, got {network!r}")
        check_integer("outputs", outputs)
        kind: Any = NETWORKS[network]
        short = hidden_size // 2
        sizes = (hidden_size - short, short) if network == "ENRNN" else (hidden_size,)
        self.last = last
        self.embedding = nn.Embedding(vocabulary, input_size) if vocabulary else None
        self.network: Recurrent = kind(input_size, *sizes, num_layers, **(options or {}))
        self.head = nn.Linear(self.network.output_size, outputs)

    def forward(self, input: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """The outputs, and the state after the last step."""
        if isinstance(input, PackedSequence):
            raise TypeError(
                "SequenceModel: expected a tensor, got a packed sequence: pad the sequences, or "
                "call model.network, which takes packed ones"
            )
        x = input if self.embedding is None else self.embedding(input)
        y, state = self.network(x, state)
        if self.last:
            y = y.select(1 if self.network.batch_first and y.dim() == 3 else 0, -1)
        return self.head(y), state
