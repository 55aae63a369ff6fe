from pathlib import Path

import pytest
import torch

from cayley.lab.errors import DataError
from cayley.lab.tasks.batch import SPLITS, Split
from cayley.lab.tasks.sources import Source
from cayley.lab.tasks.text.corpora import encode, read_own, read_ptb, tokenize


def test_both_forms_of_the_treebank_give_one_text(tmp_path: Path) -> None:
    words, characters = tmp_path / "words", tmp_path / "characters"
    words.mkdir()
    characters.mkdir()
    (words / "ptb.valid.txt").write_text(" a bc \n <unk> d \n")
    (characters / "ptb.char.valid.txt").write_text("a _ b c \n < u n k > _ d \n ")
    for folder in (words, characters):
        source = Source(folder, check=False)
        assert read_ptb(source, "valid") == " a bc \n <unk> d \n"
        assert read_ptb(source, "valid", "stripped") == "a bc\n<unk> d\n"


def test_raw_lines_are_the_file(source: Source) -> None:
    assert source.folder is not None
    for split in SPLITS:
        raw = (source.folder / "ptb" / f"ptb.{split}.txt").read_text()
        assert read_ptb(source, split) == raw


def test_own_file_is_cut_in_three(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("x" * 900 + "y" * 50 + "z" * 50)
    texts = read_own(Source(path))
    assert texts == {"train": "x" * 900, "valid": "y" * 50, "test": "z" * 50}


def test_marks_of_editors_are_no_tokens(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbfone\r\ntwo\r\n"
    path = tmp_path / "own.txt"
    path.write_bytes(content)
    assert "".join(read_own(Source(path)).values()) == "one\ntwo\n"
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_bytes(content)
    assert read_own(Source(tmp_path)) == dict.fromkeys(("train", "valid", "test"), "one\ntwo\n")


def test_own_folder_has_three_files(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        (tmp_path / f"{split}.txt").write_text(split)
    with pytest.raises(DataError, match=r"expected the file test.txt"):
        read_own(Source(tmp_path))
    (tmp_path / "test.txt").write_text("test")
    assert read_own(Source(tmp_path))["valid"] == "valid"


def test_what_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(b"\xff\xd8\xff")
    for path in (tmp_path / "image", tmp_path / "nowhere"):
        with pytest.raises(DataError, match=r"could not read .* as text"):
            read_own(Source(path))
    with pytest.raises(DataError, match="expected a text file, or a folder"):
        read_own(Source())
    for name in ("train.txt", "valid.txt", "test.txt", "ptb.train.txt"):
        (tmp_path / name).write_bytes(b"\xff\xd8\xff")
    with pytest.raises(DataError, match=r"could not read train\.txt: 'utf-8' codec can't decode"):
        read_own(Source(tmp_path))
    with pytest.raises(DataError, match=r"could not read ptb\.train\.txt: 'utf-8' codec can't"):
        read_ptb(Source(tmp_path, check=False), "train")


def test_characters_and_words() -> None:
    text = "an  é\n\nb"
    assert "".join(tokenize(text, "characters")) == text
    assert tokenize(text, "words") == ["an", "é", "<eos>", "<eos>", "b", "<eos>"]


def test_encoding_can_be_undone() -> None:
    tokens: dict[Split, list[str]] = {
        "train": list("abcabba"),
        "valid": list("cab"),
        "test": list("bb"),
    }
    vocabulary, numbers = encode(tokens)
    assert vocabulary == ["a", "b", "c"]
    for split, part in tokens.items():
        assert [vocabulary[n] for n in numbers[split]] == part


def test_rare_and_unseen_tokens_become_unknown() -> None:
    tokens: dict[Split, list[str]] = {
        "train": list("aaabbc"),
        "valid": list("ad"),
        "test": list("b"),
    }
    vocabulary, numbers = encode(tokens, limit=3)
    assert vocabulary == ["a", "b", "<unk>"]
    assert numbers["train"].tolist() == [0, 0, 0, 1, 1, 2]
    assert numbers["valid"].tolist() == [0, 2]
    # one that is there already is used
    tokens["train"] += ["<unk>"] * 9
    assert encode(tokens, limit=3)[0] == ["<unk>", "a", "b"]
    for limit in (1, 2, 3, 4, 5, None):
        vocabulary, numbers = encode(tokens, limit)
        assert len(vocabulary) <= (limit or 9)
        assert torch.cat(list(numbers.values())).min() >= 0
        assert torch.cat(list(numbers.values())).max() < len(vocabulary)
