import torch

from cayley.diagnostics.scans import linear_scan


def test_scan_equals_its_loop() -> None:
    values, factors = torch.randn(13, 2), torch.rand(13, 2)
    following = torch.tensor([*range(1, 13), -1])
    found = linear_scan(values, factors, following, 12)
    y = torch.zeros(2)
    for t in reversed(range(13)):
        y = values[t] + factors[t] * y
        torch.testing.assert_close(found[t], y)
