"""Typed settings: dataclass fields with ranges and help texts, and the conversion of text and YAML to them."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import os
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from semifine.errors import UserError

SettingsT = TypeVar("SettingsT")


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    is_path: bool = False,
    may_change: bool = False,
) -> Any:
    """Returns a dataclass field for a setting.

    Args:
        default: The default value.
        help: Description in one line.
        low: Smallest valid number.
        high: Largest valid number.
        is_path: Whether the value is a path, or a tuple of paths, which is made absolute.
        may_change: Whether the setting may change when a run is resumed.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Settings:
        ...     momentum: float = setting(0.9, "momentum of SGD", low=0, high=1)
        >>> build(Settings, {"momentum": "0.5"})
        Settings(momentum=0.5)
    """
    metadata = {"help": help, "low": low, "high": high, "is_path": is_path, "may_change": may_change}
    return dataclasses.field(default=default, metadata=metadata)


@functools.cache
def type_hints(settings_class: type) -> dict[str, Any]:
    """Returns the types of a settings class by field name."""
    return get_type_hints(settings_class)


def field_names(settings_class: type) -> list[str]:
    """Returns the field names of a settings class."""
    return [field.name for field in dataclasses.fields(settings_class)]


def build(settings_class: type[SettingsT], values: Mapping[str, Any], prefix: str = "") -> SettingsT:
    """Creates settings from values of a YAML file or the command line.

    Args:
        settings_class: A dataclass of :func:`setting` fields.
        values: Values by field name; text is converted to the type of the field.
        prefix: Prefix of the keys in errors, such as ``"method."``.

    Raises:
        UserError: If a key is unknown, or a value has the wrong type or is out of range.
    """
    plain: type = settings_class
    fields = {field.name: field for field in dataclasses.fields(plain)}
    converted = {}
    for name, value in values.items():
        key = prefix + name
        if name not in fields:
            raise unknown_key(key, [prefix + known for known in fields])
        value = convert(key, value, type_hints(plain)[name])
        check_range(key, value, fields[name].metadata)
        is_path = value and fields[name].metadata.get("is_path")
        converted[name] = _absolute(value) if is_path else value
    try:
        return settings_class(**converted)
    except UserError:
        raise
    except ValueError as error:  # from the __post_init__ of a user's own settings class
        raise UserError(str(error)) from error


def _absolute(path: str | tuple[str, ...]) -> str | tuple[str, ...]:
    if isinstance(path, tuple):
        return tuple(os.path.abspath(os.path.expanduser(part)) for part in path)
    return os.path.abspath(os.path.expanduser(path))


def unknown_key(key: str, known: Iterable[str]) -> UserError:
    """Returns the error for an unknown key, with the closest valid key and a list of all valid keys."""
    known = sorted(known)
    near = difflib.get_close_matches(key, known, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return UserError(f"Unknown setting '{key}'.{hint} Valid ones: {', '.join(known)}.")


def convert(key: str, value: Any, wanted: Any) -> Any:
    """Converts a value to the type of a field.

    Args:
        key: Name of the setting in errors.
        value: A value of a YAML file, or text of the command line.
        wanted: The type, as in the annotation of the field.

    Raises:
        UserError: If the value cannot be converted.

    Example:
        >>> convert("lr", "1e-3", float), convert("size", "0.5,1.0", tuple[float, float])
        (0.001, (0.5, 1.0))
        >>> convert("runs", "first,second,third", tuple[str, ...])
        ('first', 'second', 'third')
    """
    origin = get_origin(wanted)
    if origin in (Union, types.UnionType):
        return _convert_optional(key, value, [kind for kind in get_args(wanted) if kind is not type(None)])
    if origin is Literal:
        choices = get_args(wanted)
        if isinstance(value, bool):  # YAML reads the words on and off as booleans
            value = "on" if value else "off"
        if value in choices:
            return value
        raise UserError(f"{key} must be one of {', '.join(map(str, choices))}, not '{value}'.")
    if origin is tuple:
        return _convert_tuple(key, value, get_args(wanted))
    if wanted is bool:
        return _convert_bool(key, value)
    if wanted in (int, float):
        return _convert_number(key, value, wanted)
    if wanted is str and isinstance(value, str | int | float) and not isinstance(value, bool):
        if "\0" in str(value):  # the error of the operating system would not name the setting
            raise UserError(f"{key} must not contain a null character, not {value!r}.")
        return str(value)
    raise UserError(f"{key} must be text, not {value!r}.")


def _convert_optional(key: str, value: Any, kinds: list[Any]) -> Any:
    if value is None or (isinstance(value, str) and value.lower() in ("none", "null")):
        return None
    return convert(key, value, kinds[0])


def _convert_tuple(key: str, value: Any, kinds: tuple[Any, ...]) -> Any:
    parts = value.split(",") if isinstance(value, str) else value
    if Ellipsis in kinds:  # any number of values
        if not isinstance(parts, list | tuple):
            raise UserError(f"{key} must be a list, not {value!r}.")
        return tuple(convert(key, part.strip(), kinds[0]) for part in map(str, parts) if part.strip())
    if not isinstance(parts, list | tuple) or len(parts) != len(kinds):
        raise UserError(f"{key} must be {len(kinds)} values, for example '0.5,1.0', not {value!r}.")
    return tuple(convert(key, part, kind) for part, kind in zip(parts, kinds, strict=True))


def _convert_bool(key: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text in ("true", "yes", "on", "1"):
        return True
    if text in ("false", "no", "off", "0"):
        return False
    raise UserError(f"{key} must be true or false, not '{value}'.")


def _convert_number(key: str, value: Any, wanted: type) -> int | float:
    problem = UserError(f"{key} must be {'a whole number' if wanted is int else 'a number'}, not '{value}'.")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise problem
    try:
        number = float(str(value).replace("_", "")) if wanted is float else _whole(value)
    except ValueError:
        raise problem from None
    if not math.isfinite(number):
        raise problem
    return number


def _whole(value: str | int | float) -> int:
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            value = float(value)  # so that 5e4 is valid
    if isinstance(value, float) and not value.is_integer():
        raise ValueError
    return int(value)


def check_range(key: str, value: Any, limits: Mapping[str, Any]) -> None:
    """Raises ``UserError`` if a number is outside the range of its field."""
    low, high = limits.get("low"), limits.get("high")
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    if low is not None and value < low:
        raise UserError(f"{key} must be at least {low}, not {value}.")
    if high is not None and value > high:
        raise UserError(f"{key} must be at most {high}, not {value}.")


def describe_type(wanted: Any) -> str:
    """Returns the name of a type in help texts.

    Example:
        >>> describe_type(int | None), describe_type(Literal["in", "inout"]), describe_type(str)
        ('int', 'in|inout', 'text')
    """
    if get_origin(wanted) in (Union, types.UnionType):
        return describe_type(get_args(wanted)[0])
    if get_origin(wanted) is Literal:
        return "|".join(map(str, get_args(wanted)))
    if get_origin(wanted) is tuple:
        return ",".join("..." if kind is Ellipsis else describe_type(kind) for kind in get_args(wanted))
    return "text" if wanted is str else str(getattr(wanted, "__name__", wanted))
