"""A small model of sequences that can be shared on the Hugging Face Hub.

It needs the extra ``hub`` for that, and nothing but torch to be trained. Nothing else imports it.
"""

from typing import Any

from torch import Tensor, nn

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
        """In the place of ``PyTorchModelHubMixin`` where there is none: says what to install."""

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
    """An embedding of tokens, or features as they are, a network, and a linear head.

    ``save_pretrained(folder)`` writes safetensors and the arguments as JSON, ``from_pretrained``
    reads a folder or a repository, ``push_to_hub`` uploads one; with
    ``model_card_kwargs={"recipe": …, "score": …}`` the card says what was trained, and how well.

    Arguments:
        network: A key of :data:`cayley.layers.NETWORKS`.
        hidden_size: The number of units; of ENRNN, half of them long and half short.
        outputs: The number p of outputs.
        vocabulary: The number of different tokens; 0 where the input is features.
        input_size: The number of features of an input or of an embedding.
        num_layers: The number of layers stacked.
        last: Whether only the last step is answered.
        options: Further keyword arguments of the network: numbers, texts and truth values.

    Shapes:
        Tokens (T, B), or features (T, B, I), and a state ↦ (T, B, p), or (B, p) if only the last
        step is answered, and the state after it.

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
        """Answers, and the state after the last step."""
        x = input if self.embedding is None else self.embedding(input)
        y, state = self.network(x, state)
        return self.head(y[-1] if self.last else y), state
