"""Options of a job and of a worker, made of the library's own list: worker/OPTIONS.md has their meanings.

A value is the text of the option, "topk:0.01" or "10s", or a number, a bool or a list. Durations are seconds, rates bits
a second. None sets the default. The stub file beside this one is generated from the same list.
"""

import decimal
import difflib
import math
import numbers
from typing import Any, Dict, Iterable, List, Type, Union

from . import _millrace
from .option_info import OptionInfo


def _table(kind: str) -> Dict[str, OptionInfo]:
    table = {}
    for name, flag, group, form, forms, default, text, least, most, whole in _millrace.option_table(kind):
        table[name] = OptionInfo(name, group, form, default, text, flag.replace("-", "_"), forms, least, most, whole)
    return table


def text_of(info: OptionInfo, value: Any) -> str:
    """Returns the option's text of a value of Python."""
    if hasattr(value, "item"):
        value = value.item()  # a scalar of NumPy or torch
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value)
    if isinstance(value, numbers.Real):
        number = int(value) if isinstance(value, numbers.Integral) else float(value)
        if info.form == "RATE":
            return f"{_digits_of(info, number)}bit"
        if info.form != "DURATION":
            return repr(number)
        digits = _digits_of(info, number * 1000)
        near = round(number * 1000)
        return f"{near if abs(number * 1000 - near) < 1e-6 else digits}ms"
    raise TypeError(f"{info.name} takes a text, a number, a bool or a list, not {type(value).__name__}")


def _digits_of(info: OptionInfo, number: Union[int, float]) -> str:
    """Returns a number without an exponent, which no quantity has."""
    if isinstance(number, float) and not math.isfinite(number):
        raise ValueError(f"{info.name} is {number}: it takes a finite number")
    return format(decimal.Decimal(repr(number)), "f")


def value_of(info: OptionInfo, text: str) -> Union[str, bool, int, float, List[str]]:
    """Returns the value of Python of an option's text."""
    if info.form == "on|off":
        return text == "on"
    if info.form == "DURATION":
        return _millrace.seconds_of_text(text)
    if info.form == "RATE":
        return _millrace.rate_of_text(text)
    if info.form == "LIST":
        return text.split(",") if text else []
    if info.form == "NUMBER":
        return int(text) if info.whole else float(text)
    return text


def nearest_name(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Returns the end of a refusal of an unknown name: the nearest known one, or `otherwise`."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean '{near[0]}'?" if near else otherwise


class _Config:
    """The common part: attributes by the names of the list, in any order."""

    _options: Dict[str, OptionInfo]
    _aliases: Dict[str, str]
    _make: Type[Any]

    def __init__(self, **options: Any) -> None:
        object.__setattr__(self, "_set", self._make())
        for name, value in options.items():
            try:
                setattr(self, name, value)
            except AttributeError as error:
                raise TypeError(str(error)) from None

    @classmethod
    def _name_of(cls, name: str) -> str:
        known = cls._aliases.get(name, name)
        if known in cls._options:
            return known
        hint = nearest_name(name, [*cls._options, *cls._aliases], ": millrace.options() lists them")
        raise AttributeError(f"{cls.__name__} has no option '{name}'{hint}")

    def __getattr__(self, name: str) -> Any:
        known = self._name_of(name)
        return value_of(self._options[known], self._set.text(known))

    def __setattr__(self, name: str, value: Any) -> None:
        info = self._options[self._name_of(name)]
        if value is None:
            # Some texts may not be empty, and their default is: a new set has it.
            self._reset(info.name)
        else:
            self._set.set(info.name, text_of(info, value))

    def _reset(self, name: str) -> None:
        fresh = self._make()
        for other, info in self._options.items():
            if other != name and self._set.text(other) != info.default:
                fresh.set(other, self._set.text(other))
        object.__setattr__(self, "_set", fresh)

    def text(self, name: str) -> str:
        """Returns the text of an option's value, as flags and files have it."""
        return str(self._set.text(self._name_of(name)))

    def changed(self) -> Dict[str, str]:
        """Returns the texts of the options that differ from their defaults."""
        texts = {name: self._set.text(name) for name in self._options}
        return {name: text for name, text in texts.items() if text != self._options[name].default}

    def copy(self) -> "_Config":
        """Returns a configuration of its own with the same values."""
        return type(self)(**self.changed())

    def __dir__(self) -> List[str]:
        return [*object.__dir__(self), *self._options]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, _Config) and self.changed() == other.changed()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.changed())
        return f"{type(self).__name__}({values})"

    def __reduce__(self) -> Any:
        return _made_of, (type(self), self.changed())


def _made_of(cls: Type[_Config], texts: Dict[str, str]) -> _Config:
    return cls(**texts)


def _listed(options: Dict[str, OptionInfo]) -> str:
    return "".join(f"\n{info.name} ({info.form}; {info.default or 'empty'}): {info.help}" for info in options.values())


class JobConfig(_Config):
    """Options of a job: equal at all workers. The first worker's create the job, and the shards compare the others'.
    """

    _options = _table("job")
    _aliases = {info.alias: name for name, info in _options.items()}
    _make = _millrace.JobOptions
    __doc__ = (__doc__ or "") + _listed(_options)


class WorkerConfig(_Config):
    """Options of this worker's process: its number, the addresses of the shards, time-outs, files."""

    _options = _table("worker")
    _aliases = {info.alias: name for name, info in _options.items()}
    _make = _millrace.WorkerOptions
    __doc__ = (__doc__ or "") + _listed(_options)


def options() -> List[OptionInfo]:
    """Returns every option: first those of a job, then those of a worker."""
    return [*JobConfig._options.values(), *WorkerConfig._options.values()]
