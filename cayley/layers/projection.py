"""What the input contributes to every step of a recurrence."""

import torch
from torch import Tensor, nn

__all__ = ["project"]


def project(x: Tensor, U: Tensor, b: Tensor | None) -> Tensor:
    """U x + b of all steps, as ``nn.functional.linear``, with a faster gradient.

    Transposed, U stands on the right of the product, where its gradient has the wide factor on the
    right too. A bias is one more column of U, so that its gradient is not a sum of its own.

    Example:
        >>> x, U, b = torch.randn(5, 3, 2), torch.randn(8, 2), torch.randn(8)
        >>> torch.testing.assert_close(project(x, U, b), nn.functional.linear(x, U, b))
    """
    if b is not None:
        x, U = nn.functional.pad(x, (0, 1), value=1.0), torch.cat((U, b[:, None]), 1)
    return x @ U.mT.contiguous()
