"""Settings files that are damaged or made to harm give one short sentence."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from semifine.cli.main import MAX_MESSAGE, main
from semifine.config.loading import MAX_YAML_BYTES, read_settings_file
from semifine.errors import UserError

LEVELS = "abcdefghi"
ALIAS_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in pairwise(LEVELS)
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("seed: 2020-01-01", "contains the date '2020-01-01': write text in quotes"),
        ("seed: 2020-99-99", "is not valid YAML: month must be in 1..12"),
        (f"seed: {'9' * 5000}", "is not valid YAML: Exceeds the limit"),
        (f"seed: 0x{'f' * 5000}", "contains a number of more than 64 bits"),
        (f"seed: 1{':1' * 5000}", "contains a number of more than 64 bits"),
        ("seed: !!int x", "is not valid YAML: invalid literal for int"),
        ("seed: !!bool x", "is not valid YAML: 'x'"),
        ("seed: !!timestamp x", "is not valid YAML"),
        ("seed: !!binary aGVsbG8=", "contains the bytes"),
        (f"seed: !{'x' * 10_000} y", "is not valid YAML: could not determine a constructor"),
        (f"seed: {'[' * 10_000}", "is not valid YAML: it is nested too deeply"),
        (ALIAS_BOMB, "becomes too long when its aliases are replaced by their values"),
        ("a: &a [*a]", "becomes too long when its aliases are replaced by their values"),
        (f"data: {'k' * 10_000}", "contains text that is no setting"),
        ('data: "\\ud800"', "contains text that is no setting"),
        ("#" * (MAX_YAML_BYTES + 1), "is not valid YAML: it is larger than 65536 bytes"),
    ],
)
def test_a_settings_file_that_is_no_settings_file(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        read_settings_file(file)
    assert str(caught.value).startswith(f"The settings file {file} {reason}")
    assert len(str(caught.value)) < 500 + len(str(file))


def test_an_endless_settings_file() -> None:
    with pytest.raises(UserError, match=r"/dev/zero is not valid YAML: it is larger than 65536 bytes"):
        read_settings_file(Path("/dev/zero"))


def test_aliases_are_valid(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("lr: &rate 0.5\nema: *rate\n")
    assert read_settings_file(tmp_path / "s.yaml") == {"lr": 0.5, "ema": 0.5}


def test_error_messages_have_a_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.yaml").write_text(f"seed: [{', '.join(['x'] * 9000)}]\n")
    assert main(["prepare", "synthetic", "--config", str(tmp_path / "s.yaml"), "--seed", "x"]) == 2
    assert main(["prepare", "synthetic", "--config", str(tmp_path / "s.yaml")]) == 2
    error = capsys.readouterr().err
    assert max(map(len, error.splitlines())) <= MAX_MESSAGE + 20
    assert "seed must be a whole number" in error
