import json

import pytest

from cayley.lab.runs.seals import Seal, make_trailer, open_bytes, open_json, seal_json

SEAL = Seal("a run", "a recipe")


@pytest.mark.parametrize("content", [b"", b"weights", b"\ncayley seal {", bytes(1000)])
def test_every_bit_of_a_sealed_file_counts(content: bytes) -> None:
    sealed = content + make_trailer(content, SEAL)
    body, seal = open_bytes(sealed)
    assert (bytes(body), seal) == (content, SEAL)
    for place in range(max(0, len(sealed) - 300), len(sealed)):
        for bit in range(8):
            wrong = bytearray(sealed)
            wrong[place] ^= 1 << bit
            with pytest.raises(ValueError, match="checksum"):
                open_bytes(bytes(wrong))
    for size in range(len(sealed)):
        with pytest.raises(ValueError, match="checksum"):
            open_bytes(sealed[:size])


def test_sealed_json_may_be_indented_but_not_changed() -> None:
    content = {"mse": 0.1, "names": ["é", None], "more": {"b": 1, "a": 1e-300}}
    sealed = json.loads(json.dumps(seal_json(content, SEAL), indent=4))
    assert open_json(sealed) == SEAL
    for wrong in (
        sealed | {"mse": 0.10000000000000002},
        sealed | {"further": 1},
        sealed | {"seal": sealed["seal"] | {"run": "another"}},
        sealed | {"seal": sealed["seal"] | {"sha256": 64 * "0"}},
        sealed | {"seal": []},
        sealed | {"seal": {"run": 1, "recipe": "a recipe"}},
        content,
        {},
    ):
        with pytest.raises(ValueError, match="checksum"):
            open_json(wrong)
